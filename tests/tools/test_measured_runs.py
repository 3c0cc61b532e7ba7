"""Builds are printed as entries that runs.toml can have, and as rows of a table."""

import tomllib

from tools.measured_runs import format_entry, format_row
from torchmill.config.costs import MeasuredRun
from torchmill.config.toml_reader import TomlTable

RUN = MeasuredRun(
    package="torch-scatter",
    release="2.1.2",
    variant="cu132",
    machine="this machine",
    scope="compile",
    source="torch_scatter.whl",
    torch="2.15.0",
    jobs=2,
    cpu_seconds=301.6,
    wall_seconds=400.0,
    wheel=3_810_000,
    capabilities="8.6",
)


def test_an_entry_is_read_as_the_run_it_was_made_of() -> None:
    (entry,) = tomllib.loads(format_entry(RUN, "2 cores", "a page", cores=2))["run"]
    problems: list[str] = []
    run = TomlTable("runs.toml", entry, problems).read(MeasuredRun)
    assert problems == []
    assert (run.package, run.torch, run.variant, run.capabilities) == (
        "torch-scatter",
        "2.15.0",
        "cu132",
        "8.6",
    )
    assert (run.cpu_seconds, run.wheel, run.cores, run.machine, run.source) == (
        302,
        3_800_000,
        2,
        "2 cores",
        "a page",
    )


def test_a_row_has_the_memory_of_the_guard_and_the_code_for_gpus() -> None:
    manifest = {
        "guard": {"units": 12, "peak": 3 << 30},
        "seconds": {"compile": 250.4, "verify": 9.0},
        "device_code": {"a.so": {"8.6": 2 << 20}, "b.so": {"8.6": 1 << 20}},
    }
    assert format_row(RUN, manifest) == (
        "| torch-scatter 2.1.2 | cu132 | 12 | 302 s | 250 s | 3.0 GiB | 3.8 MB | 3.0 MiB |"
    )
