"""Read toolkit_sources.toml."""

from pathlib import Path

from torchwright.model import ToolkitSource
from torchwright.tables import read

PROVIDERS = ("conda", "debian", "pypi")  # in the order in which they are asked
KINDS = ("toolkit", "compiler", "cudnn", "nccl", "cusparselt", "magma")


def sources(path: Path, problems: list[str]) -> tuple[ToolkitSource, ...]:
    """Read what each provider has, in the order in which they are asked; nobody has anything without it."""
    if not path.exists():
        return ()
    file = read(path, problems)
    found = []
    for provider in PROVIDERS:
        for table in file.tables(provider):
            found.append(
                ToolkitSource(
                    provider=provider,
                    kind=table.choice("kind", KINDS),
                    versions=table.texts("versions", ()),
                    packages=table.texts("packages"),
                    arches=table.texts("arches"),
                    where=table.texts("where", ()),
                    cuda=table.optional("cuda"),
                    source=table.text("source"),
                    capabilities=table.texts("capabilities", ()),
                )
            )
            table.done()
    file.done()
    return tuple(found)
