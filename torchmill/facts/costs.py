"""Read runs.toml and linking.toml: what builds cost, and when their link overflows."""

from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchmill.model import (
    Assumed,
    Compression,
    Linking,
    LinkReport,
    Peak,
    Range,
    Run,
    StaticLibrary,
)
from torchmill.tables import Table, read

SCOPES = ("compile", "job")
SPREADS = ("own", "cpu", "cuda", "other")


def runs(path: Path, problems: list[str]) -> tuple[tuple[Run, ...], tuple[Peak, ...], Assumed | None]:
    """Read measured builds, the largest compiles, and what is assumed; without the file there is nothing."""
    if not path.exists():
        return (), (), None
    file = read(path, problems)
    found = (
        tuple(_run(table) for table in file.tables("run")),
        tuple(_peak(table) for table in file.tables("peak")),
        _assumed(file.table("assumed")),
    )
    file.done()
    return found


def linking(path: Path, problems: list[str]) -> Linking | None:
    """Read what is known of the link of libtorch_cuda; without the file nothing is."""
    if not path.exists():
        return None
    file = read(path, problems)
    found = Linking(
        limit=file.size("limit"),
        margin=_number(file, "margin"),
        split=file.specifier("split") or SpecifierSet(),
        official_compression=file.specifiers("official_compression"),
        static=tuple(_static(table) for table in file.tables("static")),
        compression=tuple(_compression(table) for table in file.tables("compression")),
        reports=tuple(_report(table) for table in file.tables("report")),
    )
    file.done()
    return found


def _run(table: Table) -> Run:
    run = Run(
        package=table.text("package"),
        release=table.text("release"),
        variant=table.text("variant"),
        machine=table.text("machine"),
        scope=table.choice("scope", SCOPES),
        source=table.text("source"),
        cores=table.count("cores"),
        jobs=table.count("jobs"),
        cpu=table.count("cpu_seconds"),
        wall=table.count("wall_seconds"),
        peak=table.optional_size("peak"),
        typical=table.optional_size("typical"),
        tree=table.optional_size("tree"),
        wheel=table.optional_size("wheel"),
        capabilities=table.text("capabilities", ""),
    )
    table.done()
    return run


def _peak(table: Table) -> Peak:
    peak = Peak(
        package=table.text("package"),
        release=table.specifier("release") or SpecifierSet(),
        cuda=table.specifier("cuda"),
        memory=_sizes(table, "memory"),
        source=table.text("source"),
    )
    table.done()
    return peak


def _assumed(table: Table) -> Assumed:
    spread, installed = table.table("spread"), table.table("installed")
    assumed = Assumed(
        scaling=_number(table, "scaling"),
        years=_number(table, "years"),
        serial=numbers(table, "serial_seconds"),
        dependent=numbers(table, "dependent_seconds"),
        job=numbers(table, "job_seconds"),
        spread={name: _number(spread, name) for name in SPREADS},
        packed=numbers(table, "packed"),
        tree=numbers(table, "tree"),
        cached=numbers(table, "cached"),
        files=numbers(table, "files"),
        installed={name: installed.size(name) for name in list(installed.data)},
        installed_spread=_number(table, "installed_spread"),
    )
    for one in (spread, installed, table):
        one.done()
    return assumed


def _static(table: Table) -> StaticLibrary:
    found = StaticLibrary(
        name=table.text("name"),
        variable=table.text("variable"),
        cuda=table.specifier("cuda") or SpecifierSet(),
        size=_sizes(table, "size"),
        source=table.text("source"),
    )
    table.done()
    return found


def _compression(table: Table) -> Compression:
    found = Compression(table.text("flag", ""), numbers(table, "factor"), table.text("source"))
    table.done()
    return found


def _report(table: Table) -> LinkReport:
    found = LinkReport(
        release=table.text("release"),
        cuda=table.text("cuda"),
        capabilities=table.text("capabilities"),
        variables=table.mapping("variables"),
        overflowed=table.flag("overflowed"),
        source=table.text("source"),
    )
    table.done()
    return found


def _sizes(table: Table, key: str) -> Range:
    """Take two sizes: { low = "0.9 GB", high = "1.5 GB" }."""
    bounds = table.table(key)
    found = Range(bounds.size("low"), bounds.size("high"))
    bounds.done()
    return found


def numbers(table: Table, key: str) -> Range:
    """Take two numbers from a table: { low = 1.8, high = 7.3 }."""
    bounds = table.table(key)
    found = Range(_number(bounds, "low"), _number(bounds, "high"))
    bounds.done()
    return found


def _number(table: Table, key: str) -> float:
    value = table.take(key, None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if value is not None:
        table.problem(f"'{key}' is {value!r}, expected a number")
    return 1.0
