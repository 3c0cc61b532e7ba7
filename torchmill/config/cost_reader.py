"""Read runs.toml and linking.toml: measured builds, and facts about the link of libtorch_cuda."""

from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchmill.config.cost_model import (
    CodeCompression,
    CompilePeak,
    CostAssumptions,
    CostRange,
    LinkFacts,
    LinkReport,
    MeasuredRun,
    StaticLibrary,
)
from torchmill.config.toml_reader import TomlTable, read_toml

SCOPES = ("compile", "job")
SPREADS = ("own", "cpu", "cuda", "other")


def read_runs(
    path: Path, problems: list[str]
) -> tuple[tuple[MeasuredRun, ...], tuple[CompilePeak, ...], CostAssumptions | None]:
    """Read measured builds, the largest compiles, and what is assumed; without the file there is nothing."""
    if not path.exists():
        return (), (), None
    file = read_toml(path, problems)
    found = (
        tuple(_run(table) for table in file.tables("run")),
        tuple(_peak(table) for table in file.tables("peak")),
        _assumed(file.table("assumed")),
    )
    file.check_unknown_keys()
    return found


def read_linking(path: Path, problems: list[str]) -> LinkFacts | None:
    """Read what is known of the link of libtorch_cuda; without the file nothing is."""
    if not path.exists():
        return None
    file = read_toml(path, problems)
    found = LinkFacts(
        limit=file.size("limit"),
        margin=_number(file, "margin"),
        split=file.specifier("split") or SpecifierSet(),
        official_compression=file.specifiers("official_compression"),
        static=tuple(_static(table) for table in file.tables("static")),
        compression=tuple(_compression(table) for table in file.tables("compression")),
        reports=tuple(_report(table) for table in file.tables("report")),
    )
    file.check_unknown_keys()
    return found


def _run(table: TomlTable) -> MeasuredRun:
    run = MeasuredRun(
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
    table.check_unknown_keys()
    return run


def _peak(table: TomlTable) -> CompilePeak:
    peak = CompilePeak(
        package=table.text("package"),
        release=table.specifier("release") or SpecifierSet(),
        cuda=table.specifier("cuda"),
        memory=_sizes(table, "memory"),
        source=table.text("source"),
    )
    table.check_unknown_keys()
    return peak


def _assumed(table: TomlTable) -> CostAssumptions:
    spread, installed = table.table("spread"), table.table("installed")
    assumed = CostAssumptions(
        scaling=_number(table, "scaling"),
        years=_number(table, "years"),
        serial=take_pair(table, "serial_seconds"),
        dependent=take_pair(table, "dependent_seconds"),
        job=take_pair(table, "job_seconds"),
        spread={name: _number(spread, name) for name in SPREADS},
        packed=take_pair(table, "packed"),
        tree=take_pair(table, "tree"),
        cached=take_pair(table, "cached"),
        files=take_pair(table, "files"),
        installed={name: installed.size(name) for name in list(installed.data)},
        installed_spread=_number(table, "installed_spread"),
    )
    for one in (spread, installed, table):
        one.check_unknown_keys()
    return assumed


def _static(table: TomlTable) -> StaticLibrary:
    found = StaticLibrary(
        name=table.text("name"),
        variable=table.text("variable"),
        cuda=table.specifier("cuda") or SpecifierSet(),
        size=_sizes(table, "size"),
        source=table.text("source"),
    )
    table.check_unknown_keys()
    return found


def _compression(table: TomlTable) -> CodeCompression:
    found = CodeCompression(table.text("flag", ""), take_pair(table, "factor"), table.text("source"))
    table.check_unknown_keys()
    return found


def _report(table: TomlTable) -> LinkReport:
    found = LinkReport(
        release=table.text("release"),
        cuda=table.text("cuda"),
        capabilities=table.text("capabilities"),
        variables=table.mapping("variables"),
        overflowed=table.flag("overflowed"),
        source=table.text("source"),
    )
    table.check_unknown_keys()
    return found


def _sizes(table: TomlTable, key: str) -> CostRange:
    """Take two sizes: { low = "0.9 GB", high = "1.5 GB" }."""
    bounds = table.table(key)
    found = CostRange(bounds.size("low"), bounds.size("high"))
    bounds.check_unknown_keys()
    return found


def take_pair(table: TomlTable, key: str) -> CostRange:
    """Take two numbers from a table: { low = 1.8, high = 7.3 }."""
    bounds = table.table(key)
    found = CostRange(_number(bounds, "low"), _number(bounds, "high"))
    bounds.check_unknown_keys()
    return found


def _number(table: TomlTable, key: str) -> float:
    value = table.take(key, None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if value is not None:
        table.problem(f"'{key}' is {value!r}, expected a number")
    return 1.0
