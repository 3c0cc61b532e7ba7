"""The judgement on a build before it begins: its trials, its GPUs, and their driver."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gpu_builds import HOST, build_context, host_with_gpus
from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.host.host import Host
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.cell_choice import BuildQuestion, choose_cells
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.doctor.gpu_driver import loader_path_without
from torchmill.plan.doctor.judgement import Judgement, check_result, check_trial, judge, runs_here
from torchmill.plan.doctor.vulnerabilities import VULNERABILITIES

BOARD = change_host(
    HOST, gpus={"devices": (Gpu("NVIDIA Jetson AGX Orin Developer Kit"),)}, arch="aarch64"
)


def judge_build(facts: Facts, names: str, host: Host, **options: Any) -> tuple[Judgement, ...]:
    judgements = judge(build_context(facts, names, host, **options))
    # Every wheel of torch has a judgement on its known vulnerabilities.
    return tuple(judgement for judgement in judgements if judgement.subject != VULNERABILITIES)


def judgement_on(judgements: Sequence[Judgement], subject: str) -> Judgement:
    """Return the only judgement on a subject."""
    (judgement,) = [judgement for judgement in judgements if judgement.subject == subject]
    return judgement


@pytest.mark.parametrize(
    ("names", "gpus", "driver", "subject", "severity", "text"),
    [
        (
            "wheel-3.12-cu124 v2.4.1",
            ["NVIDIA GeForce RTX 5090"],
            "580.65.06",
            "GPU",
            "would not run here",
            "nor can",
        ),
        (
            "wheel-3.12-cu121 v2.4.1",
            ["Tesla K80"],
            "470.57.02",
            "GPU",
            "would not run here",
            "nor can CUDA 12.1",
        ),
        (
            "wheel-3.12-cu121 v2.4.1",
            ["Tesla K80"],
            "470.57.02",
            "GPU driver",
            "would not run here",
            "cu118",
        ),
        (
            "wheel-3.12-cu130 v2.10.0",
            ["Tesla V100-SXM2-16GB"],
            "580.65.06",
            "GPU",
            "would not run here",
            "nor can",
        ),
        (
            "wheel-3.12-cu130 v2.10.0",
            ["Tesla T4"],
            "550.54.15",
            "GPU driver",
            "would not run here",
            "until the driver",
        ),
        (
            "wheel-3.12-cu113 v2.4.1",
            ["Tesla T4"],
            "580.65.06",
            "tried",
            "warning",
            "nobody is known to have built",
        ),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["Tesla T4"],
            "580.65.06",
            "GPU code",
            "note",
            "--arch-list official",
        ),
        # The wheel serves one of two GPUs.
        (
            "wheel-3.12-cu124 v2.4.1",
            ["NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 3090"],
            "580.65.06",
            "GPU",
            "warning",
            "no code",
        ),
    ],
)
def test_a_build_is_judged_by_gpus_driver_and_trials(  # noqa: PLR0917 - a machine, a cell, and the result
    shipped: Facts,
    names: str,
    gpus: list[str],
    driver: str,
    subject: str,
    severity: str,
    text: str,
) -> None:
    judgements = judge_build(shipped, names, host_with_gpus(*gpus, driver=driver))
    judgement = judgement_on(judgements, subject)
    assert judgement.severity == severity
    assert text in judgement.text
    assert runs_here(judgements) == (severity != "would not run here")


def gpu_code_note(facts: Facts, names: str, host: Host, **options: Any) -> Judgement:
    note = judgement_on(judge_build(facts, names, host, **options), "GPU code")
    assert note.severity == "note"
    return note


def test_a_shorter_list_has_only_capabilities_that_the_toolkit_makes(shipped: Facts) -> None:
    host = host_with_gpus("NVIDIA GeForce RTX 3090")
    note = gpu_code_note(shipped, "wheel-3.8-cu110 v1.7.1", host, arch_list="7.0;7.5;8.0")
    assert "need code for 8.0 alone" in note.text
    assert "GPUs of capability 8.6 run that code" in note.text
    assert "--arch-list '8.0'" in note.text
    note = gpu_code_note(shipped, "wheel-3.8-cu111 v1.8.0", host, arch_list="7.0;8.0;8.6")
    assert "need code for 8.6 alone" in note.text
    assert "run that code" not in note.text


def test_a_longer_list_than_the_gpus_need_is_noted_with_its_cost(shipped: Facts) -> None:
    host = host_with_gpus("NVIDIA GeForce RTX 3090")
    note = gpu_code_note(shipped, "wheel-3.12-cu124 v2.4.1", host, arch_list="official")
    assert "need code for 8.6 alone" in note.text
    assert " instead of " in note.text


def offered_cells(context: CheckContext) -> set[str]:
    """Return the cells with another toolkit that are offered as cures."""
    findings = [*check_trial(context), *check_result(context)]
    offered: set[str] = set()
    for finding in findings:
        for cure in (finding.cure, *finding.other_cures):
            offered.update(re.findall(r"nox -s (wheel-[\w.-]+)", cure))
    return offered - {context.plan.identifier}


@pytest.mark.parametrize(
    ("names", "gpus", "driver", "offered"),
    [
        # The toolkits that were tried have no code for it.
        ("wheel-3.12-cu126 v2.15.0", ["Tesla V100-SXM2-16GB"], "570.133.20", set()),
        ("wheel-3.12-cu130 v2.15.0", ["Tesla V100-SXM2-16GB"], "570.133.20", {"wheel-3.12-cu129"}),
        ("wheel-3.12-cu130 v2.15.0", ["Tesla V100-SXM2-16GB"], "580.65.06", {"wheel-3.12-cu129"}),
        # 12.4 needs a newer driver.
        ("wheel-3.12-cu125 v2.4.1", ["Tesla T4"], "470.57.02", {"wheel-3.12-cu118"}),
        ("wheel-3.12-cu122 v2.4.1", ["Tesla K80"], "470.57.02", {"wheel-3.12-cu118"}),
        ("wheel-3.8-cu112 v1.8.0", ["NVIDIA RTX A6000"], "460.32.03", {"wheel-3.8-cu111"}),
        ("wheel-3.8-cu101 v1.8.0", ["NVIDIA GeForce GTX 1080"], "460.32.03", {"wheel-3.8-cu102"}),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["NVIDIA GeForce RTX 3090", "Tesla K80"],
            "470.57.02",
            {"wheel-3.12-cu118"},
        ),
    ],
)
def test_another_toolkit_is_offered_only_if_its_code_runs_here(
    shipped: Facts, names: str, gpus: list[str], driver: str, offered: set[str]
) -> None:
    host = host_with_gpus(*gpus, driver=driver)
    tag = names.split()[1]
    cells = offered_cells(build_context(shipped, names, host))
    assert cells == offered
    assert all(runs_here(judge_build(shipped, f"{cell} {tag}", host)) for cell in cells)


@pytest.mark.parametrize(
    ("names", "gpus", "text"),
    [
        (
            "wheel-3.8-cu112 v1.8.0",
            ["NVIDIA RTX A6000"],
            "pytorch.org/get-started/previous-versions",
        ),
        ("wheel-3.12-cu123 v2.4.1", ["NVIDIA GeForce RTX 3090"], "pip install torch==2.4.1"),
        ("wheel-3.12-cu126 v2.15.0", ["Tesla V100-SXM2-16GB"], ""),
    ],
)
def test_the_official_wheel_of_an_offered_build_is_named(
    shipped: Facts, names: str, gpus: list[str], text: str
) -> None:
    warning = judgement_on(judge_build(shipped, names, host_with_gpus(*gpus)), "tried")
    names_wheel = "pip install" in warning.text or "lists its wheels" in warning.text
    assert names_wheel is bool(text)
    assert text in warning.text


def test_it_is_said_if_no_tried_toolkit_serves_the_machine(shipped: Facts) -> None:
    host = host_with_gpus("Tesla V100-SXM2-16GB")
    warning = judgement_on(judge_build(shipped, "wheel-3.12-cu126 v2.15.0", host), "tried")
    assert "no toolkit with which it was built serves this machine" in warning.text


def driver_text(facts: Facts, names: str, host: Host) -> str:
    return judgement_on(judge_build(facts, names, host), "GPU driver").text


def test_a_driver_is_no_cure_if_the_toolkit_makes_no_code_for_the_gpu(shipped: Facts) -> None:
    host = host_with_gpus("Tesla K80", driver="470.57.02")
    text = driver_text(shipped, "wheel-3.12-cu130 v2.15.0", host)
    assert "install driver" not in text
    assert "no toolkit of this release serves them" in text


def test_a_driver_is_a_cure_if_code_for_an_older_capability_serves_the_gpu(
    shipped: Facts,
) -> None:
    host = host_with_gpus("NVIDIA GeForce RTX 3090", driver="440.33")
    assert "install driver 450" in driver_text(shipped, "wheel-3.8-cu110 v1.7.1", host)


def test_without_root_an_untried_toolkit_goes_before_a_driver(shipped: Facts) -> None:
    host = host_with_gpus("Tesla V100-SXM2-16GB", driver="440.33.01")
    untried = "`nox -s wheel-3.9-cu102`"
    text = driver_text(shipped, "wheel-3.9-cu117 v1.13.1", host)
    assert "install driver 450.80.02 or newer" in text
    assert untried not in text
    without_root = change_host(host, packages={"may_use_root": False})
    assert untried in driver_text(shipped, "wheel-3.9-cu117 v1.13.1", without_root)


def test_without_a_gpu_or_cuda_there_is_nothing_to_judge(shipped: Facts) -> None:
    assert judge_build(shipped, "wheel-3.12-cu124 v2.4.1", HOST) == ()
    assert judge_build(shipped, "wheel-3.12-cpu v2.4.1", host_with_gpus("Tesla K80")) == ()


def test_a_wheel_for_another_machine_is_not_judged_by_the_gpus_of_this_one(
    shipped: Facts,
) -> None:
    host = host_with_gpus("Tesla K80", driver="470.57.02")
    cell = cell_lookup.find_cell(shipped, "wheel-3.12-cu124-aarch64", "x86_64", None)
    plan = build_plan.compute_plan(shipped, cell, host, Options())
    assert runs_here(judge(CheckContext(shipped, cell, host, plan)))


def jetpack_board(ubuntu: str, l4t: str, **gpus: Any) -> Host:
    """Return a board with a release of Jetson Linux."""
    distribution = LinuxDistribution("ubuntu", ubuntu, (), l4t)
    return change_host(BOARD, platform={"distribution": distribution}, gpus=gpus)


@pytest.mark.parametrize(
    ("listed", "subject", "severity"),
    [(None, "GPU code", "note"), ("8.6;9.0", "GPU", "would not run here")],
)
def test_a_board_needs_code_for_its_own_capability(
    shipped: Facts, listed: str | None, subject: str, severity: str
) -> None:
    host = jetpack_board("22.04", "36.4.3", kernel_driver="540.4.0")
    judgements = judge_build(shipped, "wheel-3.10-cu126 v2.6.0", host, arch_list=listed)
    judgement = judgement_on(judgements, subject)
    assert judgement.severity == severity
    assert "8.7" in judgement.text
    assert "required" in judgement.text
    assert not any("enough" in judgement.text for judgement in judgements)


@pytest.mark.parametrize(
    ("l4t", "names", "compat", "runs"),
    [
        ("35.4.1", "wheel-3.10-cu114 v2.1.0", (), True),
        ("35.4.1", "wheel-3.10-cu126 v2.6.0", (), False),
        ("35.4.1", "wheel-3.10-cu126 v2.6.0", ("/usr/local/cuda-12.6/compat",), True),
        ("32.7.1", "wheel-3.9-cu114 v1.10.2", (), False),
        ("32.7.1", "wheel-3.9-cu102 v1.10.2", (), True),
        ("36.4.3", "wheel-3.10-cu126 v2.6.0", (), True),
        ("38.2.0", "wheel-3.12-cu130 v2.9.1", (), True),
    ],
)
def test_whether_a_boards_driver_runs_a_toolkit_depends_on_its_jetpack(
    shipped: Facts, l4t: str, names: str, compat: tuple[str, ...], runs: bool
) -> None:
    generation = l4t[:2]
    devices = {
        "32": "NVIDIA Jetson Xavier NX Developer Kit",
        "38": "NVIDIA Jetson AGX Thor Developer Kit",
    }
    device = devices.get(generation, "NVIDIA Jetson AGX Orin Developer Kit")
    drivers = {"36": "540.4.0", "38": "580.00"}
    host = jetpack_board(
        "20.04",
        l4t,
        devices=(Gpu(device),),
        compat_folders=compat,
        kernel_driver=drivers.get(generation),
    )
    assert runs_here(judge_build(shipped, names, host)) is runs


@pytest.mark.parametrize(
    ("names", "capability", "listed"),
    [
        ("vision-3.8-cu114 v1.12.0", "8.7", "8.6+PTX"),  # its CMake does not know 8.7
        ("wheel-3.9-cu102 v1.8.0", "8.7", "7.2+PTX"),
        ("wheel-3.12-cu130 v2.9.1", "7.2", ""),  # nothing as old
        ("wheel-3.12-cu130 v2.9.1", "10.1", "10.0+PTX"),  # not 12.0, which is newer than the board
    ],
)
def test_a_board_without_code_of_its_own_is_offered_ptx_only(
    shipped: Facts, names: str, capability: str, listed: str
) -> None:
    identifier, tag = names.split()
    release: Release | None = find_release(shipped, "torch", tag)
    if identifier.startswith("vision") and release is not None:
        release = paired_release(shipped, "torchvision", release)
    cell = cell_lookup.find_cell(shipped, identifier, "aarch64", release)
    host = change_host(BOARD, gpus={"devices": (Gpu("a board", capability),)})
    plan = build_plan.compute_plan(shipped, cell, host, Options())
    findings = check_result(CheckContext(shipped, cell, host, plan))
    (finding,) = [finding for finding in findings if finding.subject == "GPU"]
    cures = " ".join((finding.cure, *finding.other_cures))
    assert re.findall(r"--arch-list '([^']*)'", cures) == ([listed] if listed else [])
    assert "required" not in finding.because
    assert ("its driver compiles PTX" in finding.because) is bool(listed)


@pytest.mark.parametrize(
    ("l4t", "names", "verdict", "because"),
    [
        ("38.2.0", "wheel-3.12-cu130 v2.9.1", "ok", ""),
        ("38.4.0", "wheel-3.12-cu132 v2.15.0", "unknown", "is not recorded"),
        ("39.2.0", "wheel-3.12-cu132 v2.15.0", "ok", ""),
    ],
)
def test_the_driver_of_a_thor_is_not_compared_with_those_of_graphics_cards(
    shipped: Facts, l4t: str, names: str, verdict: str, because: str
) -> None:
    host = jetpack_board(
        "24.04",
        l4t,
        devices=(Gpu("NVIDIA Thor", "11.0"),),
        driver="580.00",
        kernel_driver="580.00",
    )
    findings = check_result(build_context(shipped, names, host))
    finding = next(finding for finding in findings if finding.subject == "GPU driver")
    assert finding.verdict == verdict
    assert because in finding.because
    assert finding.state == "ubuntu 24.04 (JetPack 7)"


def test_a_board_is_offered_a_toolkit_that_its_driver_runs(shipped: Facts) -> None:
    orin = shipped.capability("8.7")
    assert orin
    host = jetpack_board("20.04", "35.4.1")
    (cell,) = choose_cells(shipped, BuildQuestion(gpus=[orin]), host, None)
    assert cell.build.cuda == "11.4"


def test_the_doctor_says_the_same(shipped: Facts) -> None:
    host = host_with_gpus("NVIDIA GeForce RTX 5090")
    context = build_context(shipped, "wheel-3.12-cu113 v2.4.1", host)
    findings = examination.examine_build(context)
    for judgement in judge(context):
        reasons = [finding.because for finding in findings if finding.subject == judgement.subject]
        assert any(reason in judgement.text for reason in reasons), judgement


def test_a_build_that_this_machine_has_made_is_tried(shipped: Facts) -> None:
    context = build_context(shipped, "wheel-3.12-cu113 v2.4.1", host_with_gpus("Tesla T4"))
    run = replace(
        shipped.costs.runs[0], package="torch", release="2.4.1", variant="cu113", arch="x86_64"
    )
    with_run = replace(context, host=replace(context.host, runs=(run,)))
    before = {judgement.subject for judgement in judge(context)}
    after = {judgement.subject for judgement in judge(with_run)}
    assert before - after == {"tried"}


def test_gpus_that_cudnn_has_no_code_for_are_named(shipped: Facts) -> None:
    host = change_host(HOST, toolkits={"libraries": {"cudnn": "9.1.0"}})
    names = "wheel-3.11-cu118 v2.8.0"
    judgements = judge_build(shipped, names, host, arch_list="3.7;7.0")
    judgement = judgement_on(judgements, "cuDNN's code")
    assert judgement.severity == "warning"
    assert "3.7" in judgement.text
    settings = {"USE_CUDNN": "0"}
    judgements = judge_build(shipped, names, host, arch_list="3.7;7.0", settings=settings)
    assert "cuDNN's code" not in {judgement.subject for judgement in judgements}


def test_an_nvidia_smi_that_does_not_answer_is_no_machine_without_gpus(shipped: Facts) -> None:
    host = change_host(HOST, programs={"unanswered": {"nvidia-smi": "nvidia-smi did not answer"}})
    note = gpu_code_note(shipped, "wheel-3.12-cu124 v2.4.1", host)
    assert "nvidia-smi did not answer" in note.text


def test_commands_among_the_cures_are_quoted(shipped: Facts) -> None:
    folder = "/usr/local/cuda/compat"
    host = change_host(
        host_with_gpus("NVIDIA GeForce RTX 3090"), gpus={"compat_folders": (folder,)}
    )
    judgements = judge_build(shipped, "wheel-3.12-cu124 v2.4.1", host)
    warning = judgement_on(judgements, "forward compatibility")
    _, _, cure = warning.text.rpartition("; ")
    assert cure == f"`{loader_path_without(folder)}`"
