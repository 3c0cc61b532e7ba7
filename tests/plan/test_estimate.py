"""Estimates: against the recorded runs, each left out in turn, and by a machine's own builds."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.changed_facts import change_facts
from tests.support.estimates import (
    LARGE,
    SMALL,
    own_run,
    plan_with_options,
    require_assumptions,
    require_estimate,
)
from tests.support.plans import GIB
from torchmill.config.costs import CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import compile_work, estimate, link_overflow
from torchmill.plan.estimate import EstimateSpan

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "estimates.md"


def timed_runs(shipped: Facts) -> list[MeasuredRun]:
    """Return the recorded runs of torch whose time and cores are known."""
    return [
        run
        for run in shipped.costs.runs
        if run.package == "torch" and run.wall_seconds and run.cores
    ]


def expected_wall(shipped: Facts, run: MeasuredRun) -> EstimateSpan:
    """Return the range of a run's wall time by all the other runs."""
    assumed = require_assumptions(shipped)
    release = compile_work.find_release_version(shipped, run.package, run.release)
    assert release is not None, f"runs.toml: {run.release} is no release"
    other_runs = tuple(other for other in shipped.costs.runs if other is not run)
    jobs = compile_work.compilers_at_once(run)
    images = link_overflow.count_code_images(run.capabilities)
    facts = change_facts(shipped, costs={"runs": other_runs})
    work = compile_work.catalogue_work(facts, release, images, jobs)
    assert work is not None
    wall = estimate.wall_seconds(assumed.serial_seconds, assumed.scaling, work, jobs)
    job = assumed.job_seconds if run.scope == "job" else CostRange(0, 0)
    return EstimateSpan(wall.low + job.low, wall.likely + job.middle, wall.high + job.high)


@pytest.mark.parametrize("changes", [{"cpu_seconds": 0.0}, {"capabilities": " ; "}])
def test_a_run_that_tells_nothing_has_no_weight(changes: dict[str, object], shipped: Facts) -> None:
    runs = timed_runs(shipped)
    release = compile_work.find_release_version(shipped, "torch", runs[0].release)
    assert release is not None
    host_run = next(run for run in runs if not run.capabilities)
    empty = replace(runs[0], **changes)  # type: ignore[arg-type]
    work = []
    for catalogue in ((host_run,), (host_run, empty)):
        facts = change_facts(shipped, costs={"runs": catalogue})
        work.append(compile_work.catalogue_work(facts, release, images=0, jobs=8))
    assert work[0] is not None
    assert work[0] == work[1]
    facts = change_facts(shipped, costs={"runs": (host_run, empty)})
    assert compile_work.catalogue_work(facts, release, images=2, jobs=8) is None


def test_every_run_of_torch_falls_into_the_range_that_the_others_give(shipped: Facts) -> None:
    runs = timed_runs(shipped)
    assert len(runs) >= 11
    outside = []
    for run in runs:
        wall = expected_wall(shipped, run)
        if not wall.low <= (run.wall_seconds or 0) <= wall.high:
            outside.append((run.source, wall))
    assert outside == []


def test_the_page_shows_the_back_test_as_it_is(shipped: Facts) -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = []
    for run in timed_runs(shipped):
        wall = expected_wall(shipped, run)
        measured = round((run.wall_seconds or 0) / 60)
        likely = round(wall.likely / 60)
        span = f"{round(wall.low / 60)} to {round(wall.high / 60)}"
        jobs = compile_work.compilers_at_once(run)
        row = f"| {run.release} {run.variant} | {jobs} | {measured} | {likely} | {span} |"
        if row not in page:
            missing.append(row)
    assert missing == []


def test_a_range_is_narrow_enough_to_be_useful(shipped: Facts) -> None:
    spread = require_assumptions(shipped).spread
    assert spread.same_machine < spread.cpu < spread.cuda < spread.other <= 5


def test_a_run_whose_cores_are_not_recorded_is_still_believable(shipped: Facts) -> None:
    """1.5 hours on an M1 Pro lie between a container with two of its cores and one with all."""

    def wall_in_container(cores: int) -> EstimateSpan:
        host = Host(
            "aarch64",
            "linux",
            HostResources(cores, memory=32 * GIB),
            platform=HostPlatform(glibc="2.31"),
        )
        plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1", host)
        return require_estimate(shipped, plan).wall

    (run,) = [run for run in shipped.costs.runs if run.wall_seconds and not run.cores]
    assert wall_in_container(10).low < (run.wall_seconds or 0) < wall_in_container(2).high


def test_disk_and_memory_contain_what_was_recorded(shipped: Facts) -> None:
    cost = require_estimate(shipped, plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1"))
    (run,) = [run for run in shipped.costs.runs if run.typical]
    assert cost.tree.low <= (run.tree or 0) <= cost.tree.high
    assert cost.wheel.low <= (run.wheel or 0) <= cost.wheel.high
    assert cost.compile.low <= (run.peak or 0) <= cost.compile.high
    assert cost.memory.low <= 2.02 * GIB <= cost.memory.high


def test_more_cores_take_less_time_and_more_memory(shipped: Facts) -> None:
    small = require_estimate(
        shipped, plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1", SMALL)
    )
    large = require_estimate(
        shipped, plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1", LARGE)
    )
    assert large.wall.likely < small.wall.likely
    assert large.memory.high > small.memory.high


def test_more_capabilities_take_more_time_and_disk(shipped: Facts) -> None:
    without_cuda = require_estimate(
        shipped, plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1", LARGE)
    )
    costs = []
    for arch_list in ("8.6", "6.0;7.0;7.5;8.0;8.6+PTX"):
        option = f"--arch-list={arch_list}"
        plan = plan_with_options(shipped, "wheel-3.10-cu117", "v1.13.1", LARGE, option)
        costs.append(require_estimate(shipped, plan))
    single, several = costs
    assert without_cuda.cpu.likely < single.cpu.likely
    assert single.wall.likely < several.wall.likely
    assert single.tree.high < several.tree.high


def test_flash_attention_needs_more_memory(shipped: Facts) -> None:
    old = plan_with_options(shipped, "wheel-3.10-cu117", "v1.13.1", LARGE)
    assert require_estimate(shipped, old).compile.high < 3 * GIB
    new = plan_with_options(shipped, "wheel-3.12-cu128", "v2.9.1", LARGE)
    assert require_estimate(shipped, new).compile.high > 3 * GIB


def test_the_disk_of_an_extension_is_judged_by_its_own_builds(shipped: Facts) -> None:
    def wheel_bytes(session: str) -> float:
        plan = plan_with_options(
            shipped, f"{session}-3.12-cu130", "v2.11.0", LARGE, "--arch-list=9.0"
        )
        return require_estimate(shipped, plan).wheel.high

    assert wheel_bytes("scatter") < 10 * 10**6
    assert wheel_bytes("flash") > 50 * 10**6


def test_own_builds_beat_the_catalogue(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    before = require_estimate(shipped, plan)
    after = require_estimate(shipped, plan, [own_run(6000)])
    assert after.cpu.likely == pytest.approx(6000)
    assert after.wall.high - after.wall.low < before.wall.high - before.wall.low
    assert after.confidence == "builds of this machine"


def test_a_fast_machine_is_fast_with_other_releases_too(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.12-cpu", "v2.4.0")
    before = require_estimate(shipped, plan)
    after = require_estimate(shipped, plan, [own_run(5000)])
    assert after.cpu.likely < before.cpu.likely
    assert after.confidence == "builds of other releases"


@pytest.mark.parametrize("cpu_seconds", [133.5, 2793.1])
def test_a_build_from_the_compiler_cache_is_no_measure(shipped: Facts, cpu_seconds: float) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    with_run = require_estimate(shipped, plan, [own_run(cpu_seconds)])
    assert with_run == require_estimate(shipped, plan)


def test_a_further_python_takes_a_part_of_the_first_ones_time(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    first = require_estimate(shipped, plan)
    further = require_estimate(shipped, plan, is_further_python=True)
    # As it was measured, here and by upstream.
    assert 0.153 < further.cpu.likely / first.cpu.likely < 0.25


def test_dependent_packages(shipped: Facts) -> None:
    vision = require_estimate(shipped, plan_with_options(shipped, "vision-3.10-cpu", "v1.13.1"))
    measured_seconds = 112  # of a whole session
    assert vision.wall.low < measured_seconds < vision.wall.high
    audio = require_estimate(shipped, plan_with_options(shipped, "audio-3.10-cpu", "v1.13.1"))
    assert audio.confidence == "builds of other packages"
    assert audio.cpu.high > vision.cpu.high
    cuda = require_estimate(shipped, plan_with_options(shipped, "audio-3.10-cu117", "v1.13.1"))
    spread = require_assumptions(shipped).spread.other
    assert cuda.cpu.high / cuda.cpu.likely == pytest.approx(spread)


def test_without_assumptions_nothing_is_estimated(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    facts = change_facts(shipped, costs={"assumptions": None})
    assert estimate.estimate_build(facts, plan) is None
