"""Read causes.toml and runs.toml: how builds fail, and what builds cost."""

import re
from pathlib import Path

from torchwright.model import Cause, Run
from torchwright.tables import Table, read


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
    )
    for pattern in cause.patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            table.problem(f"'{pattern}' is no regular expression: {error}")
    table.done()
    return cause


def runs(path: Path, problems: list[str]) -> tuple[Run, ...]:
    """Read the builds that were measured; without the file none were."""
    if not path.exists():
        return ()
    file = read(path, problems)
    entries = enumerate(file.take("run", []), 1)
    tables = [Table(f"{path.name}: run {number}", one, problems) for number, one in entries]
    found = tuple(_run(table) for table in tables)
    file.done()
    return found


def _run(table: Table) -> Run:
    run = Run(
        package=table.text("package"),
        release=table.text("release"),
        variant=table.text("variant"),
        machine=table.text("machine"),
        cores=table.count("cores") or 1,
        cpu=float(table.count("cpu_seconds") or 0),
        wall=float(table.count("wall_seconds") or 0),
        peak=table.size("peak"),
        tree=table.size("tree"),
        wheel=table.size("wheel"),
        capabilities=table.text("capabilities", ""),
        source=table.text("source"),
    )
    table.done()
    return run
