"""Read indexes.toml."""

from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchmill.model import Elsewhere
from torchmill.tables import read


def wheels(path: Path, problems: list[str]) -> tuple[Elsewhere, ...]:
    """Read which wheels others offer, in the order in which they count; none are known without the file."""
    if not path.exists():
        return ()
    file = read(path, problems)
    found = []
    for table in file.tables("wheels"):
        found.append(
            Elsewhere(
                name=table.text("name"),
                url=table.text("url"),
                packages=table.texts("packages"),
                release=table.specifier("release") or SpecifierSet(),
                variants=table.texts("variant"),
                arches=table.texts("arches"),
                label=table.text("label", ""),
                source=table.text("source"),
                default=table.flag("default"),
            )
        )
        table.done()
    file.done()
    return tuple(found)
