"""Read units.toml: what the compile of single sources needs."""

from pathlib import Path

from torchmill.model import KnownUnit
from torchmill.tables import Table, read


def units(path: Path, problems: list[str]) -> tuple[KnownUnit, ...]:
    """Read what is known of units, in the file's order; without the file there is nothing."""
    if not path.exists():
        return ()
    file = read(path, problems)
    found = tuple(_unit(table) for table in file.tables("unit"))
    file.done()
    return found


def _unit(table: Table) -> KnownUnit:
    unit = KnownUnit(
        pattern=table.text("pattern"),
        peak=table.size("peak"),
        seconds=table.count("seconds"),
        package=table.text("package", ""),
        release=table.specifier("release"),
        source=table.text("source"),
    )
    table.done()
    return unit
