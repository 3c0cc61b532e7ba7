"""Estimates: against the recorded runs, each left out in turn, for plans, and by a machine's own builds."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hosts import change_host
from torchmill.config.costs import CostAssumptions, CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.release_lookup import find_release
from torchmill.host.description import load_host
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.host.native import native_arch
from torchmill.host.own_runs import read_own_runs
from torchmill.plan import (
    build_plan,
    cell_lookup,
    compile_work,
    estimate,
    estimate_report,
    link_overflow,
    storage,
)
from torchmill.plan.build_options import Options
from torchmill.plan.estimate import Estimate, EstimateSpan
from torchmill.plan.options import parse_options
from torchmill.plan.plan import Plan

ROOT = Path(__file__).parents[2]
GIB = 1024**3
SMALL = Host(
    "x86_64", "linux", HostResources(cores=2, memory=24 * GIB), platform=HostPlatform(glibc="2.36")
)
LARGE = Host(
    "x86_64",
    "linux",
    HostResources(cores=64, memory=128 * GIB),
    platform=HostPlatform(glibc="2.36"),
)


def planned(facts: Facts, name: str, tag: str, machine: Host = SMALL, *options: str) -> Plan:
    release = find_release(facts, "torch", tag)
    cell = cell_lookup.find_cell(facts, name, machine.arch, release)
    return build_plan.compute_plan(facts, cell, machine, parse_options(options, "test"))


def estimated(facts: Facts, made: Plan, own: tuple[MeasuredRun, ...] = ()) -> Estimate:
    found = estimate.estimate_build(facts, made, own)
    assert found is not None
    return found


def assumed(facts: Facts) -> CostAssumptions:
    assert facts.assumed is not None
    return facts.assumed


def expected(facts: Facts, run: MeasuredRun) -> EstimateSpan:
    """Return the range of a run's wall time by all the other runs."""
    terms = assumed(facts)
    release = compile_work.find_release_version(facts, run.package, run.release)
    assert release is not None, f"runs.toml: {run.release} is no release"
    rest = replace(facts, runs=tuple(one for one in facts.runs if one is not run))
    found = compile_work.catalogue_work(
        rest,
        release,
        link_overflow.count_code_images(run.capabilities),
        compile_work.run_slots(run),
    )
    assert found is not None
    span = estimate.wall_seconds(
        terms.serial_seconds, terms.scaling, found, compile_work.run_slots(run)
    )
    job = terms.job_seconds if run.scope == "job" else CostRange(0, 0)
    return EstimateSpan(span.low + job.low, span.likely + job.middle, span.high + job.high)


def test_every_run_of_torch_falls_into_the_range_that_the_others_give(shipped: Facts) -> None:
    timed = [
        run for run in shipped.runs if run.package == "torch" and run.wall_seconds and run.cores
    ]
    assert len(timed) >= 11
    spans = [(run, expected(shipped, run)) for run in timed]
    outside = [
        (run.source, span)
        for run, span in spans
        if not span.low <= (run.wall_seconds or 0) <= span.high
    ]
    assert outside == []


def test_a_range_is_not_so_wide_that_it_says_nothing(shipped: Facts) -> None:
    spread = assumed(shipped).spread
    assert spread.own < spread.cpu < spread.cuda < spread.other <= 5


def test_a_run_that_does_not_say_its_cores_is_still_believable(shipped: Facts) -> None:
    """1.5 hours on an M1 Pro fit between a container with two of its cores and one with all of them."""
    (run,) = [run for run in shipped.runs if run.wall_seconds and not run.cores]
    few, all_ = (
        estimated(shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1", machine))
        for machine in (
            Host(
                "aarch64",
                "linux",
                HostResources(cores, memory=32 * GIB),
                platform=HostPlatform(glibc="2.31"),
            )
            for cores in (2, 10)
        )
    )
    assert all_.wall.low < (run.wall_seconds or 0) < few.wall.high


def test_disk_and_memory_contain_what_was_recorded(shipped: Facts) -> None:
    found = estimated(shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1"))
    (run,) = [one for one in shipped.runs if one.typical]
    assert found.tree.low <= (run.tree or 0) <= found.tree.high
    assert found.wheel.low <= (run.wheel or 0) <= found.wheel.high
    assert found.compile.low <= (run.peak or 0) <= found.compile.high
    assert found.memory.low <= 2.02 * GIB <= found.memory.high


def test_more_cores_more_capabilities_and_larger_releases(shipped: Facts) -> None:
    small, large = (
        estimated(shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1", machine))
        for machine in (SMALL, LARGE)
    )
    assert large.wall.likely < small.wall.likely
    assert large.memory.high > small.memory.high
    one, many = (
        estimated(
            shipped, planned(shipped, "wheel-3.10-cu117", "v1.13.1", LARGE, f"--arch-list={listed}")
        )
        for listed in ("8.6", "6.0;7.0;7.5;8.0;8.6+PTX")
    )
    assert one.wall.likely < many.wall.likely
    assert one.tree.high < many.tree.high
    assert one.cpu.likely > large.cpu.likely


def test_flash_attention_needs_more_memory(shipped: Facts) -> None:
    old, new = (
        estimated(shipped, planned(shipped, name, tag, LARGE))
        for name, tag in (("wheel-3.10-cu117", "v1.13.1"), ("wheel-3.12-cu128", "v2.9.1"))
    )
    assert old.compile.high < 3 * GIB < new.compile.high


def test_the_time_on_a_small_board_is_qualified_and_what_was_never_measured_is_unknown(
    shipped: Facts,
) -> None:
    board = replace(SMALL, arch="aarch64")
    made = planned(shipped, "wheel-3.12-cpu", "v2.4.1", board)
    assert (
        "much longer on a small board such as a Raspberry Pi"
        in estimate_report.cost_rows(shipped, made)["time"]
    )
    assert (
        "much longer on a small board such as a Raspberry Pi"
        in estimate_report.expected_duration(shipped, made)
    )
    assert "Raspberry" not in estimate_report.cost_rows(shipped, made, (own_run(90_000),))["time"]
    assert (
        "Raspberry"
        not in estimate_report.cost_rows(shipped, planned(shipped, "wheel-3.12-cpu", "v2.4.1"))[
            "time"
        ]
    )
    flash = planned(shipped, "flash-3.12-cu124", "v2.11.0", LARGE)
    before = replace(
        shipped, runs=tuple(run for run in shipped.runs if run.package != "flash-attn")
    )
    assert (
        estimate_report.cost_rows(before, flash)["time"]
        == "unknown: nothing like it was ever measured"
    )


def test_the_disk_of_an_extension_is_judged_by_its_own_builds(shipped: Facts) -> None:
    flash, scatter = (
        estimated(
            shipped, planned(shipped, f"{name}-3.12-cu130", "v2.11.0", LARGE, "--arch-list=9.0")
        )
        for name in ("flash", "scatter")
    )
    assert scatter.wheel.high < 10 * 10**6 < 50 * 10**6 < flash.wheel.high


def own_run(cpu: float, **changes: object) -> MeasuredRun:
    run = MeasuredRun(
        "torch",
        "1.13.1",
        "",
        "this machine",
        "compile",
        "mine.whl",
        jobs=2,
        cpu_seconds=cpu,
        wall_seconds=cpu / 2,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def test_own_builds_beat_the_catalogue(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    before = estimated(shipped, made)
    after = estimated(shipped, made, (own_run(6000),))
    assert after.cpu.likely == pytest.approx(6000)
    assert after.wall.high - after.wall.low < before.wall.high - before.wall.low
    assert after.confidence == "builds of this machine"


def test_a_fast_machine_is_fast_with_other_releases_too(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.12-cpu", "v2.4.0")
    before, after = estimated(shipped, made), estimated(shipped, made, (own_run(5000),))
    assert after.cpu.likely < before.cpu.likely
    assert after.confidence == "builds of other releases"


@pytest.mark.parametrize("cpu", [133.5, 2793.1])
def test_a_build_from_the_compiler_cache_is_no_measure(shipped: Facts, cpu: float) -> None:
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert estimated(shipped, made, (own_run(cpu),)) == estimated(shipped, made)


def test_dependent_packages(shipped: Facts) -> None:
    vision = estimated(shipped, planned(shipped, "vision-3.10-cpu", "v1.13.1"))
    assert vision.wall.low < 112 < vision.wall.high  # seconds that the whole session took
    audio = estimated(shipped, planned(shipped, "audio-3.10-cpu", "v1.13.1"))
    assert audio.confidence == "builds of other packages"
    assert audio.cpu.high > vision.cpu.high
    assert shipped.assumed is not None
    cuda = estimated(shipped, planned(shipped, "audio-3.10-cu117", "v1.13.1"))
    assert cuda.cpu.high / cuda.cpu.likely == pytest.approx(shipped.assumed.spread.other), (
        "of others' builds, too"
    )


def test_without_assumptions_nothing_is_estimated(shipped: Facts) -> None:
    bare = replace(shipped, assumed=None)
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert estimate.estimate_build(bare, made) is None
    assert estimate_report.estimate_as_text(bare, made, GIB) == ""
    assert estimate_report.estimate_as_data(bare, made) == {"estimate": None, "overflow": None}
    assert estimate_report.expected_duration(bare, made) == ""


def test_one_sentence_says_how_long_it_takes(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    found = estimate.estimate_build(shipped, made)
    assert found is not None
    pattern = r"expected to take about (.+) \((.+) to (.+)\), less with what .*"
    said = re.fullmatch(pattern, estimate_report.expected_duration(shipped, made))
    assert said is not None
    wall = found.wall
    assert [*said.groups()] == [
        estimate.format_estimate(one) for one in (wall.likely, wall.low, wall.high)
    ]


def test_a_further_python_takes_a_part_of_what_the_first_took(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    part = estimate.estimate_build(shipped, made, further=True)
    assert part is not None
    assert 0.153 < part.cpu.likely / estimated(shipped, made).cpu.likely < 0.25, (
        "as measured, here and by upstream"
    )
    said = estimate_report.expected_duration(shipped, made, further=True)
    assert said.startswith(
        f"expected to take {part.wall} in the tree of the first Python, less with what "
    )


def test_the_report_warns_of_memory_and_overflow(shipped: Facts) -> None:
    with_static_cudnn = change_host(LARGE, toolkits={"libraries": {"cudnn": "8.0.5"}})
    made = planned(shipped, "wheel-3.8-cu111", "v1.8.0", with_static_cudnn)
    text = estimate_report.estimate_as_text(shipped, made, 8 * GIB)
    assert "the guard then lets fewer run" in text
    assert "relocation truncated to fit" in text
    assert "BUILD_SPLIT_CUDA=ON" in text
    data = estimate_report.estimate_as_data(shipped, made)
    assert data["overflow"]["level"] == "possible"
    assert data["estimate"]["wall"]["low"] < data["estimate"]["wall"]["high"]
    assert "warning" not in estimate_report.estimate_as_text(
        shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1"), 24 * GIB
    )


@pytest.mark.parametrize(
    ("session", "tag", "places"),
    [
        ("vision-3.10-cpu", "v1.13.1", []),
        ("wheel-3.10-cpu", "v1.13.1", ["PyPI"]),
        ("wheel-3.10-cu118", "v2.4.0", ["PyPI"]),
    ],
)
def test_a_wheel_that_some_places_do_not_take_is_told(
    shipped: Facts, session: str, tag: str, places: list[str]
) -> None:
    text = estimate_report.estimate_as_text(shipped, planned(shipped, session, tag), 64 * GIB)
    assert [place for place in ("PyPI", "GitHub") if f"{place} takes" in text] == places


def test_the_page_shows_the_back_test_as_it_is(shipped: Facts) -> None:
    page = (ROOT / "docs" / "explanation" / "estimates.md").read_text(encoding="utf-8")
    rows = []
    for run in (
        one for one in shipped.runs if one.package == "torch" and one.wall_seconds and one.cores
    ):
        span = expected(shipped, run)
        low, likely, high = (round(seconds / 60) for seconds in (span.low, span.likely, span.high))
        took, jobs = round((run.wall_seconds or 0) / 60), compile_work.run_slots(run)
        rows.append(
            f"| {run.release} {run.variant} | {jobs} | {took} | {likely} | {low} to {high} |"
        )
    assert [row for row in rows if row not in page] == []


MANIFEST = {
    "package": "torch",
    "tag": "v1.13.1",
    "version": "1.13.1+cu117",
    "switches": {"TORCH_CUDA_ARCH_LIST": "8.0;8.6", "MAX_JOBS": "4"},
    "seconds": {
        "requirements": 16.2,
        "prepare": 1.0,
        "compile": 3600.0,
        "pack": 16.0,
        "verify": 11.7,
    },
    "cpu_seconds": 13000.5,
    "peak_memory": 2164322304,
    "jobs": 4,
    "size": 139116727,
}


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.whl.json").write_text(text, encoding="utf-8")


def test_a_manifest_is_a_run(shipped: Facts, tmp_path: Path) -> None:
    write(tmp_path, "torch-1.13.1+cu117", json.dumps(MANIFEST))
    (run,) = read_own_runs(shipped, tmp_path)
    assert (run.package, run.release, run.jobs, run.cpu_seconds) == ("torch", "1.13.1", 4, 13000.5)
    assert run.capabilities == "8.0;8.6"
    assert run.wall_seconds == pytest.approx(3644.9)
    assert run.source == "torch-1.13.1+cu117.whl"


def test_what_cannot_be_read_is_no_run(shipped: Facts, tmp_path: Path) -> None:
    write(tmp_path, "broken", "{")
    write(tmp_path, "list", "[]")
    write(tmp_path, "old", json.dumps({**MANIFEST, "seconds": None}))
    write(tmp_path, "unknown", json.dumps({**MANIFEST, "tag": "v0.0.1"}))
    write(tmp_path, "foreign", json.dumps({**MANIFEST, "package": "numpy"}))
    assert read_own_runs(shipped, tmp_path) == ()
    assert read_own_runs(shipped, tmp_path / "absent") == ()


def test_what_a_container_built_elsewhere_says_nothing_of_this_one(
    shipped: Facts, tmp_path: Path
) -> None:
    for arch in ("x86_64", "aarch64"):
        write(tmp_path, f"torch-1.13.1+cpu-cp310-cp310-manylinux_2_36_{arch}", json.dumps(MANIFEST))
    (run,) = read_own_runs(shipped, tmp_path)
    assert run.source.endswith(f"_{native_arch()}.whl")


GB = 10**9


def needs(facts: Facts, made: Plan, *runs: MeasuredRun) -> dict[str, CostRange]:
    found = storage.storage_needs(facts, made, runs)
    assert found is not None
    assert set(found) - {"cache"} == {"tree", "kit", "environment", "trial"}
    return dict(found)


def test_the_real_build_lies_within(shipped: Facts) -> None:
    """Measured on 2026-11-21 for torch 1.13.1 and torchvision 0.14.1 without CUDA, with Python 3.10."""
    made = needs(shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1"))
    took = {"tree": 3.1 * 2**30, "cache": 0.14 * GB}
    for part, size in took.items():
        assert made[part].low <= size <= made[part].high, part
    installed = CostRange(
        *(made["kit"].low + made["environment"].low, made["kit"].high + made["environment"].high)
    )
    assert installed.low <= 1.3 * 2**30 <= installed.high
    vision = needs(shipped, planned(shipped, "vision-3.10-cpu", "v1.13.1"))
    assert vision["environment"].low <= 0.6 * GB <= vision["environment"].high


def test_an_environment_with_a_torch_from_pypi_has_nvidias_libraries(shipped: Facts) -> None:
    """6.3 GiB were measured for torch-scatter against torch 2.11.0, and the clean environment has them again."""
    made = needs(shipped, planned(shipped, "scatter-3.11-cu130", "v2.11.0", SMALL, "--torch=PyPI"))
    for part in ("environment", "trial"):
        assert made[part].low <= 6.3 * 2**30 <= made[part].high, part
    made = needs(shipped, planned(shipped, "scatter-3.11-cpu", "v2.11.0", SMALL, "--torch=PyPI"))
    assert made["environment"].high > 6.3 * 2**30, "PyPI's torch for x86_64 is the one with CUDA"
    own = needs(shipped, planned(shipped, "vision-3.10-cpu", "v1.13.1"))
    assert own["trial"].high < 3 * GB


def test_what_this_machine_has_built_says_it_better(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    before = needs(shipped, made)
    run = MeasuredRun(
        "torch", "1.13.1", "", "this machine", "compile", "test", tree=3 * GB, environment=GB
    )
    after = needs(shipped, made, run)
    assert after["tree"].low == pytest.approx(2.85 * GB)
    assert after["tree"].high == pytest.approx(3.3 * GB)
    assert after["environment"].high == pytest.approx(1.1 * GB)
    assert after["kit"] == before["kit"], "what requirements take is known"
    for other in (
        replace(run, release="1.12.1"),
        replace(run, capabilities="8.0"),
        replace(run, tree=None),
    ):
        assert needs(shipped, made, other)["tree"] == before["tree"]


def test_a_manifest_says_what_was_written(shipped: Facts, tmp_path: Path) -> None:
    said = (
        '{"package": "torch", "tag": "v1.13.1", "jobs": 2, "cpu_seconds": 9, "seconds": {}, "size": 5, '
        '"switches": {}%s}'
    )
    (tmp_path / "old.whl.json").write_text(said % "")
    (tmp_path / "ours.whl.json").write_text(
        said % ', "disk": {"tree": 70, "outputs": 20, "environment": 10}'
    )
    (tmp_path / "strange.whl.json").write_text(said % ', "disk": {"tree": "much"}')
    found = [(run.source, run.tree, run.environment) for run in read_own_runs(shipped, tmp_path)]
    assert found == [("old.whl", None, None), ("ours.whl", 90, 10)]


def test_a_package_without_recorded_builds_has_none(known: Facts) -> None:
    cell = cell_lookup.find_cell(
        known, "wheel-3.10-cpu", "x86_64", find_release(known, "base", "v1.0.0")
    )
    assert (
        storage.storage_needs(known, build_plan.compute_plan(known, cell, SMALL, Options())) is None
    )


def test_what_pages_say_of_the_time_is_the_estimate_of_today(shipped: Facts) -> None:
    pages = {
        one: (ROOT / "docs" / one).read_text("utf-8")
        for one in ("getting-started.md", "how-to/build.md")
    }
    two = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert (
        f"time       {estimate_report.cost_rows(shipped, two)['time']}\n"
        in pages["getting-started.md"]
    )
    rtx3090 = load_host(ROOT / "tests" / "golden" / "hosts" / "rtx3090.toml")
    shorter = planned(shipped, "wheel-3.12-cu121", "v2.4.1", rtx3090, "--arch-list=8.6")
    assert (
        f"torch 2.4.1: {estimate_report.expected_duration(shipped, shorter)}\n"
        in pages["how-to/build.md"]
    )


def test_a_list_that_was_asked_for_is_not_advised_against(shipped: Facts) -> None:
    host = change_host(
        LARGE,
        gpus={"devices": (Gpu("NVIDIA GeForce RTX 3090", "8.6"),), "driver": "535.104.05"},
        complete=True,
    )
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.12-cu121", "x86_64", find_release(shipped, "torch", "v2.4.1")
    )

    def saving(*options: str) -> list[str]:
        return estimate_report.saving_for_gpus(shipped, cell, host, parse_options(options, "test"))

    (told,) = saving()
    assert "`--arch-list '8.6'` is enough" in told
    assert saving("--arch-list", "8.0") == saving("--set", "TORCH_CUDA_ARCH_LIST=8.6") == []
    assert saving("--toolkit", "cu124") == saving("--toolkit", "12.4") != []


@pytest.mark.parametrize(
    ("name", "tag", "capability"),
    [("wheel-3.12-cu128", "v2.5.1", "12.0"), ("flash-3.12-cu126", "v2.9.1", "7.5")],
)
def test_a_list_that_the_release_refuses_is_not_advised(
    shipped: Facts, name: str, tag: str, capability: str
) -> None:
    host = change_host(
        LARGE, gpus={"devices": (Gpu("some", capability),), "driver": "580.65.06"}, complete=True
    )
    cell = cell_lookup.find_cell(shipped, name, "x86_64", find_release(shipped, "torch", tag))
    assert estimate_report.saving_for_gpus(shipped, cell, host) == []
