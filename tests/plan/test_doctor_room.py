"""Disk and memory against what a build is expected to take."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from torchmill.config import cell_lookup, matrix
from torchmill.config.cost_model import CostRange
from torchmill.config.model import DiskSpace, Facts, Host, Options
from torchmill.plan import build_plan, estimate
from torchmill.plan.doctor import disk_and_memory
from torchmill.plan.doctor.finding import BuildQuestion, Finding

LINUX = Host("x86_64", "linux", 4, 64 * 2**30, disk=2**40, complete=True)


@pytest.mark.parametrize(
    ("free", "verdict"), [(None, "unknown"), (99, "failure"), (100, "warning"), (199, "warning"), (200, "ok")]
)
def test_a_disk_that_may_not_do_is_a_warning(free: int | None, verdict: str) -> None:
    assert disk_and_memory.disk_finding(free, CostRange(100, 200)).verdict == verdict


def test_a_package_without_measured_builds_has_its_own_figures(known: Facts) -> None:
    package = known.packages["base"]
    small = replace(LINUX, disk=package.disk - 1, memory=package.memory_per_job - 1)
    assert [one.verdict for one in disk_and_memory.package_room(small, package)] == ["failure", "warning"]
    assert [one.verdict for one in disk_and_memory.package_room(LINUX, package)] == ["ok", "ok"]
    cell = cell_lookup.find_cell(
        known, "wheel-3.10-cpu", "x86_64", matrix.find_release(known, "base", "v1.0.0")
    )
    asked = BuildQuestion(known, cell, small, build_plan.compute_plan(known, cell, small, Options()))
    assert [one.verdict for one in disk_and_memory.check_room(asked)] == ["failure", "warning"]


def found(known: Facts, host: Host, options: Options) -> Mapping[str, Finding]:
    cell = cell_lookup.find_cell(
        known, "wheel-3.11-cu118", "x86_64", matrix.find_release(known, "torch", "v2.4.0")
    )
    computed = build_plan.compute_plan(known, cell, host, options)
    return {
        one.subject: one for one in disk_and_memory.check_room(BuildQuestion(known, cell, host, computed))
    }


def test_only_the_largest_compile_counts_for_memory(shipped: Facts) -> None:
    many = replace(LINUX, cores=64)
    assert found(shipped, many, Options(jobs=64))["memory"].verdict == "ok"
    little = found(shipped, replace(many, memory=10**9), Options())["memory"]
    assert (little.verdict, little.cure) == ("warning", "add memory or swap")


def test_the_disk_is_held_against_the_estimate(shipped: Facts) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.11-cu118", "x86_64", matrix.find_release(shipped, "torch", "v2.4.0")
    )
    expected = estimate.estimate_build(shipped, build_plan.compute_plan(shipped, cell, LINUX, Options()))
    assert expected is not None
    scarce = replace(LINUX, disk=int(expected.tree.low))
    assert found(shipped, scarce, Options())["disk"].verdict == "failure"
    assert found(shipped, LINUX, Options())["disk"].verdict == "ok"


def disks(*rooms: DiskSpace) -> list[tuple[str, str, str]]:
    parts = {"tree": CostRange(1000, 3000), "kit": CostRange(500, 500), "environment": CostRange(100, 200)}
    found = disk_and_memory.disk_findings(replace(LINUX, rooms=rooms), parts)
    return [(one.subject, one.needed, one.verdict) for one in found]


def test_what_is_there_already_needs_no_room() -> None:
    nothing = {"tree": 0, "kit": 0, "environment": 0}
    assert disks(DiskSpace("/", 1700, nothing)) == [("disk", "1.6 KiB to 3.6 KiB", "warning")]
    assert disks(DiskSpace("/", 1500, nothing))[0][2] == "failure"
    assert disks(DiskSpace("/", 1500, {**nothing, "tree": 2500})) == [("disk", "600 B to 1.2 KiB", "ok")]
    # more than enough of one part makes no room for another
    assert disks(DiskSpace("/", 500, {**nothing, "tree": 9999}))[0][1:] == ("600 B to 700 B", "failure")


def test_each_disk_has_to_do_for_its_own_parts() -> None:
    build = DiskSpace("/a", 4000, {"tree": 0, "kit": 0, "cache": 0})
    tools = DiskSpace("/b", 150, {"environment": 0})
    assert disks(build, tools) == [
        ("disk of /a", "1.5 KiB to 3.4 KiB", "ok"),
        ("disk of /b", "100 B to 200 B", "warning"),
    ]


def test_the_cure_says_how_much_is_lacking() -> None:
    lacking = disk_and_memory.disk_finding(2**30, CostRange(2**31, 3 * 2**30))
    assert lacking.cure.startswith("`invoke clean --free '2.0 GiB'` makes room")


@pytest.mark.parametrize(
    ("inodes", "verdicts"), [(None, []), (600, []), (599, ["warning"]), (199, ["failure"])]
)
def test_a_disk_may_run_out_of_inodes(shipped: Facts, inodes: int | None, verdicts: list[str]) -> None:
    assert shipped.assumed is not None
    facts = replace(shipped, assumed=replace(shipped.assumed, files=CostRange(2, 6)))
    crowded = replace(LINUX, rooms=(DiskSpace("/", 2**40, {"tree": 0}, inodes, source=100),))
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cpu", "x86_64", matrix.find_release(facts, "torch", "v1.13.1")
    )
    asked = BuildQuestion(facts, cell, crowded, build_plan.compute_plan(facts, cell, crowded, Options()))
    assert [
        one.verdict for one in disk_and_memory.check_room(asked) if one.subject == "files on /"
    ] == verdicts
