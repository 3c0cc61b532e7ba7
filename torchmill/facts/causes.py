"""Read causes.toml: how builds fail."""

from pathlib import Path

from torchmill.model import Cause
from torchmill.model.known import PRECEDENCE
from torchmill.tables import Table, read


def causes(path: Path, problems: list[str]) -> tuple[Cause, ...]:
    """Read the catalogue of failures, in its order; without the file there is none."""
    if not path.exists():
        return ()
    file = read(path, problems)
    tables = [Table(f"{path.name}: {one.get('name')}", one, problems) for one in file.take("cause", [])]
    found = tuple(_cause(table) for table in tables)
    file.done()
    return found


def _cause(table: Table) -> Cause:
    cause = Cause(
        name=table.text("name"),
        patterns=table.texts("patterns"),
        cause=table.text("cause"),
        cure=table.text("cure"),
        source=table.text("source"),
        examples=table.texts("examples"),
        release=table.specifier("release"),
        precedence=table.choice("precedence", PRECEDENCE, "specific"),
    )
    table.done()
    return cause
