"""What users read of an estimate: rows, sentences, warnings and advice."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.support.changed_facts import change_facts
from tests.support.estimates import LARGE, SMALL, own_run, plan_with_options, require_estimate
from tests.support.hosts import change_host
from tests.support.plans import GIB, find_torch_cell, options_of
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import estimate_report
from torchmill.plan.estimate import Estimate, estimate_build, format_estimate
from torchmill.plan.plan import Plan

ROOT = Path(__file__).parents[2]
BOARD_NOTE = "much longer on a small board such as a Raspberry Pi"


def test_one_sentence_gives_the_expected_duration(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    wall = require_estimate(shipped, plan).wall
    sentence = estimate_report.expected_duration(shipped, plan)
    pattern = r"expected to take about (.+) \((.+) to (.+)\), less with what .*"
    match = re.fullmatch(pattern, sentence)
    assert match is not None
    assert list(match.groups()) == [
        format_estimate(seconds) for seconds in (wall.likely, wall.low, wall.high)
    ]


def test_the_duration_of_a_further_python_names_the_tree_that_it_uses(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    wall = require_estimate(shipped, plan, is_further_python=True).wall
    sentence = estimate_report.expected_duration(shipped, plan, is_further_python=True)
    expected = f"expected to take {wall} in the tree of the first Python, less with what "
    assert sentence.startswith(expected)


def test_all_forms_of_a_plan_have_the_time_of_a_further_python(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    wall = require_estimate(shipped, plan, is_further_python=True).wall
    text = estimate_report.estimate_as_text(shipped, plan, GIB, is_further_python=True)
    assert f"time: {wall} in the tree of the first Python\n" in text
    data = estimate_report.estimate_as_data(shipped, plan, is_further_python=True)
    assert data["estimate"]["wall"] == asdict(wall)


def test_the_time_on_a_small_board_is_qualified(shipped: Facts) -> None:
    board = replace(SMALL, arch="aarch64")
    plan = plan_with_options(shipped, "wheel-3.12-cpu", "v2.4.1", board)
    assert BOARD_NOTE in estimate_report.cost_rows(shipped, plan)["time"]
    assert BOARD_NOTE in estimate_report.expected_duration(shipped, plan)
    with_run = estimate_report.cost_rows(shipped, plan, [own_run(90_000, arch="aarch64")])
    assert BOARD_NOTE not in with_run["time"]
    # This machine is of another architecture, so it builds in an emulator or by cross compilers.
    with_foreign_run = estimate_report.cost_rows(shipped, plan, [own_run(90_000, arch="x86_64")])
    assert BOARD_NOTE in with_foreign_run["time"]
    plan = plan_with_options(shipped, "wheel-3.12-cpu", "v2.4.1")
    assert BOARD_NOTE not in estimate_report.cost_rows(shipped, plan)["time"]


def test_the_time_of_what_was_never_measured_is_unknown(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "flash-3.12-cu124", "v2.11.0", LARGE)
    runs = tuple(run for run in shipped.costs.runs if run.package != "flash-attn")
    rows = estimate_report.cost_rows(change_facts(shipped, costs={"runs": runs}), plan)
    assert rows["time"] == "unknown: nothing like it was ever measured"


def test_without_assumptions_nothing_is_reported(shipped: Facts) -> None:
    facts = change_facts(shipped, costs={"assumptions": None})
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert estimate_report.estimate_as_text(facts, plan, GIB) == ""
    data = estimate_report.estimate_as_data(facts, plan)
    assert data == {"estimate": None, "overflow": None}
    assert estimate_report.expected_duration(facts, plan) == ""


def test_the_report_warns_of_memory_and_overflow(shipped: Facts) -> None:
    host = change_host(LARGE, toolkits={"libraries": {"cudnn": "8.0.5"}})
    plan = plan_with_options(shipped, "wheel-3.8-cu111", "v1.8.0", host)
    text = estimate_report.estimate_as_text(shipped, plan, 8 * GIB)
    assert "the guard then lets fewer run" in text
    assert "relocation truncated to fit" in text
    assert "BUILD_SPLIT_CUDA=ON" in text
    data = estimate_report.estimate_as_data(shipped, plan)
    assert data["overflow"]["level"] == "possible"
    assert data["estimate"]["wall"]["low"] < data["estimate"]["wall"]["high"]


def test_the_report_of_a_build_without_risk_warns_of_nothing(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert "warning" not in estimate_report.estimate_as_text(shipped, plan, 24 * GIB)


@pytest.mark.parametrize(
    ("identifier", "tag", "places"),
    [
        ("vision-3.10-cpu", "v1.13.1", []),
        ("wheel-3.10-cpu", "v1.13.1", ["PyPI"]),
        ("wheel-3.10-cu118", "v2.4.0", ["PyPI"]),
    ],
)
def test_places_that_do_not_take_so_large_a_wheel_are_named(
    shipped: Facts, identifier: str, tag: str, places: list[str]
) -> None:
    plan = plan_with_options(shipped, identifier, tag)
    text = estimate_report.estimate_as_text(shipped, plan, 64 * GIB)
    assert [place for place in ("PyPI", "GitHub") if f"{place} takes" in text] == places


def test_times_on_pages_are_the_estimates_of_today(shipped: Facts) -> None:
    page = (ROOT / "docs/getting-started.md").read_text("utf-8")
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert f"time       {estimate_report.cost_rows(shipped, plan)['time']}\n" in page
    page = (ROOT / "docs/how-to/build.md").read_text("utf-8")
    host = load_host(ROOT / "tests/golden/hosts/rtx3090.toml")
    plan = plan_with_options(shipped, "wheel-3.12-cu121", "v2.4.1", host, "--arch-list=8.6")
    assert f"torch 2.4.1: {estimate_report.expected_duration(shipped, plan)}\n" in page


def host_with_gpu(capability: str, driver: str) -> Host:
    gpus = {"devices": (Gpu("some", capability),), "driver": driver}
    return change_host(LARGE, gpus=gpus, complete=True)


def test_a_shorter_list_is_advised_unless_the_user_gives_one(shipped: Facts) -> None:
    host = host_with_gpu("8.6", "535.104.05")
    cell = find_torch_cell(shipped, "wheel-3.12-cu121", "v2.4.1")

    def saving(*words: str) -> list[str]:
        return estimate_report.saving_for_gpus(shipped, cell, host, options_of(*words))

    (sentence,) = saving()
    assert "`--arch-list '8.6'` is enough" in sentence
    assert saving("--arch-list", "8.0") == []
    assert saving("--set", "TORCH_CUDA_ARCH_LIST=8.6") == []
    assert saving("--toolkit", "12.4") != []
    assert saving("--toolkit", "cu124") == saving("--toolkit", "12.4")


def test_no_time_is_saved_if_one_of_two_is_unknown(
    shipped: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_with_gpu("8.6", "535.104.05")
    cell = find_torch_cell(shipped, "wheel-3.12-cu121", "v2.4.1")

    def estimate_whole(facts: Facts, plan: Plan) -> Estimate | None:
        return None if plan.arch_list == "8.6" else estimate_build(facts, plan)

    monkeypatch.setattr(estimate_report, "estimate_build", estimate_whole)
    assert estimate_report.saving_for_gpus(shipped, cell, host) == []


@pytest.mark.parametrize(
    ("identifier", "tag", "capability"),
    [("wheel-3.12-cu128", "v2.5.1", "12.0"), ("flash-3.12-cu126", "v2.9.1", "7.5")],
)
def test_a_list_that_the_release_refuses_is_not_advised(
    shipped: Facts, identifier: str, tag: str, capability: str
) -> None:
    host = host_with_gpu(capability, "580.65.06")
    cell = find_torch_cell(shipped, identifier, tag)
    assert estimate_report.saving_for_gpus(shipped, cell, host) == []
