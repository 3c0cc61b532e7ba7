"""The limits of a build and their consequences, on described machines and on this one."""

import json
from dataclasses import replace

from millguard.limits import CpuQuota, LimitReading

from tests.support.documents import assert_output_fits
from torchmill.commands import jobs
from torchmill.commands.jobs import Budget, CompileDemand
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, newest_release
from torchmill.plan import cell_lookup, matrix
from torchmill.plan.build_options import Options

GIB = 2**30
GROUP = "/sys/fs/cgroup/memory/job/memory.limit_in_bytes"
NODE = Budget(
    memory=(
        LimitReading("physical memory", 64 * GIB, used=4 * GIB),
        LimitReading(GROUP, 16 * GIB, used=10 * GIB, reclaimable=6 * GIB),
    ),
    process_memory=(),
    processors=(CpuQuota("affinity", 16), CpuQuota("/sys/fs/cgroup/cpu.max", 7.5)),
    requested_processors=None,
    demands=(
        CompileDemand("torch 2.4.0 cu124", CostRange(3 * GIB, 5 * GIB)),
        CompileDemand("addon cpu", CostRange(1, GIB)),
    ),
    system="linux",
)


def row(text: str, begin: str) -> str:
    """Return the line that begins so, with single blanks."""
    return " ".join(next(line for line in text.splitlines() if line.startswith(begin)).split())


def test_each_limit_has_a_row_and_the_smallest_binds() -> None:
    text = NODE.as_text()
    assert row(text, "physical") == "physical memory 64.0 GiB 4.0 GiB 60.0 GiB"
    assert row(text, GROUP) == f"{GROUP} 16.0 GiB 10.0 GiB 6.0 GiB 12.0 GiB binds"
    assert row(text, "affinity") == "affinity 16"
    assert row(text, "/sys/fs/cgroup/cpu.max") == "/sys/fs/cgroup/cpu.max 7.5 binds"


def test_limits_of_the_same_name_have_a_row_each() -> None:
    memory = (LimitReading("memory.max", 8 * GIB), LimitReading("memory.max", 4 * GIB))
    processors = (CpuQuota("cpu.max", 4), CpuQuota("cpu.max", 2))
    text = replace(NODE, memory=memory, processors=processors).as_text()
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "memory.max 8.0 GiB 0 B 8.0 GiB" in rows
    assert "memory.max 4.0 GiB 0 B 4.0 GiB binds" in rows
    assert "cpu.max 4" in rows
    assert "cpu.max 2 binds" in rows


def test_the_consequences_have_a_table() -> None:
    text = NODE.as_text()
    assert row(text, "processors kept").endswith(" 8")
    assert row(text, "memory for all").endswith(" 12.0 GiB")
    assert row(text, "compilers that may be started").endswith(" 34")
    assert (
        "2 because of memory (12.0 GiB of memory at 5.0 GiB a job) though there are 8 cores" in text
    )
    assert "warning" not in text


def test_the_options_of_the_user_are_limits() -> None:
    requested = replace(
        NODE, memory=(*NODE.memory, LimitReading("--memory", 3 * GIB)), requested_processors=24
    )
    text = requested.as_text()
    assert row(text, "--memory") == "--memory 3.0 GiB 0 B 3.0 GiB binds"
    assert row(text, "--jobs") == "--jobs 24 binds"
    assert text.count("binds") == 2
    assert row(text, "processors kept").endswith(" 24")
    assert "24 as asked, more than the 0 that 3.0 GiB of memory at 5.0 GiB a job carries" in text


def test_a_compile_that_does_not_fit_is_a_warning() -> None:
    small = replace(NODE, memory=(LimitReading("physical memory", 4 * GIB),))
    warning = (
        "warning: the largest compiles of torch 2.4.0 cu124 take up to 5.0 GiB, more than there is"
    )
    assert warning in small.as_text()
    assert len(small.as_data()["warnings"]) == 1


def test_a_limit_of_each_process_is_shown_and_bounds_no_sum() -> None:
    limited = replace(NODE, process_memory=(LimitReading("ulimit -v", 4 * GIB),))
    assert_output_fits(limited.as_data(), "jobs")
    text = limited.as_text()
    assert row(text, "ulimit") == "ulimit -v, each process 4.0 GiB"
    assert row(text, "memory for all").endswith(" 12.0 GiB")
    assert (
        "up to 5.0 GiB, and ulimit -v allows a process 4.0 GiB: `ulimit -v unlimited` lifts that"
        in text
    )


def test_windows_has_no_guard() -> None:
    text = replace(NODE, system="windows").as_text()
    assert "warning: there is no guard on Windows" in text
    assert "with the memory guard" not in text


def test_the_data_has_the_same_limits() -> None:
    data = json.loads(json.dumps(NODE.as_data()))
    assert [entry["available"] for entry in data["memory"]] == [60 * GIB, 12 * GIB]
    assert data["allowed"] == {
        "memory": {"bytes": 12 * GIB, "source": GROUP},
        "processors": {"count": 8, "source": "/sys/fs/cgroup/cpu.max"},
        "slots": 34,
    }
    assert [entry["unguarded"]["count"] for entry in data["builds"]] == [2, 8]


def test_builds_with_the_same_needs_are_one_demand(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v1.13.1")
    demands = jobs.compile_demands(shipped, matrix.buildable_cells(shipped, release, "x86_64"))
    releases = [" ".join(demand.builds.split()[:2]) for demand in demands]
    assert releases[0] == "torch 1.13.1"
    assert {"torchaudio 0.13.1", "torchvision 0.14.1", "torch-scatter 2.1.1"} <= set(releases)
    assert len(releases) == len(set(releases))
    assert demands[0].builds == "torch 1.13.1 cpu, …, cu118"
    cells = [cell_lookup.find_cell(shipped, "wheel-3.10-cu117", "x86_64", release)]
    assert [entry.builds for entry in jobs.compile_demands(shipped, cells)] == [
        "torch 1.13.1 cu117"
    ]


def test_an_unknown_machine_has_limits_and_no_builds(shipped: Facts) -> None:
    cells = matrix.buildable_cells(shipped, newest_release(shipped), "linux_riscv64")
    budget = jobs.measure_budget(jobs.compile_demands(shipped, cells), Options())
    assert budget.demands == ()
    assert row(budget.as_text(), "physical memory")


def test_this_machine_is_measured() -> None:
    budget = jobs.measure_budget((), Options(jobs=3, memory=2**20))
    assert budget.binding_memory.available <= 2**20
    assert budget.binding_processors.count == 3
