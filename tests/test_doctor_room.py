"""Disk and memory against what a build is expected to take."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from torchwright import estimate, lookup, matrix, plan
from torchwright.doctor import room
from torchwright.doctor.finding import Finding, Question
from torchwright.model import Facts, Host, Options, Range

LINUX = Host("x86_64", "linux", 4, 64 * 2**30, disk=2**40, complete=True)


@pytest.mark.parametrize(
    ("free", "verdict"), [(None, "unknown"), (99, "failure"), (100, "warning"), (199, "warning"), (200, "ok")]
)
def test_a_disk_that_may_not_do_is_a_warning(free: int | None, verdict: str) -> None:
    assert room.disk(replace(LINUX, disk=free), Range(100, 200)).verdict == verdict


def test_a_package_without_measured_builds_has_its_own_figures(known: Facts) -> None:
    package = known.packages["base"]
    small = replace(LINUX, disk=package.disk - 1, memory=package.memory_per_job - 1)
    assert [one.verdict for one in room.of_package(small, package)] == ["failure", "warning"]
    assert [one.verdict for one in room.of_package(LINUX, package)] == ["ok", "ok"]
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", matrix.find_release(known, "base", "v1.0.0"))
    asked = Question(known, cell, small, plan.compute(known, cell, small, Options()))
    assert [one.verdict for one in room.check(asked)] == ["failure", "warning"]


def found(known: Facts, host: Host, options: Options) -> Mapping[str, Finding]:
    cell = lookup.find(known, "wheel-3.11-cu118", "x86_64", matrix.find_release(known, "torch", "v2.4.0"))
    computed = plan.compute(known, cell, host, options)
    return {one.subject: one for one in room.check(Question(known, cell, host, computed))}


def test_only_the_largest_compile_counts_for_memory(shipped: Facts) -> None:
    many = replace(LINUX, cores=64)
    assert found(shipped, many, Options(jobs=64))["memory"].verdict == "ok"
    little = found(shipped, replace(many, memory=10**9), Options())["memory"]
    assert (little.verdict, little.cure) == ("warning", "add memory or swap")


def test_the_disk_is_held_against_the_estimate(shipped: Facts) -> None:
    cell = lookup.find(shipped, "wheel-3.11-cu118", "x86_64", matrix.find_release(shipped, "torch", "v2.4.0"))
    expected = estimate.of(shipped, plan.compute(shipped, cell, LINUX, Options()))
    assert expected is not None
    scarce = replace(LINUX, disk=int(expected.tree.low))
    assert found(shipped, scarce, Options())["disk"].verdict == "failure"
    assert found(shipped, LINUX, Options())["disk"].verdict == "ok"
