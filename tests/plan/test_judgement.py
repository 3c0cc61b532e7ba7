"""What is known beforehand of a cell: the same to whoever asks, and where it would not run, that."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.cell_choice import BuildQuestion, choose_cells
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.doctor.judgement import Judgement, check_result, check_trial, judge, runs_here
from torchmill.plan.local_gpus import with_local_gpus

HOST = Host(
    "x86_64", "linux", HostResources(16, 2**36), platform=HostPlatform(glibc="2.35"), complete=True
)
BOARD = change_host(
    HOST, gpus={"devices": (Gpu("NVIDIA Jetson AGX Orin Developer Kit"),)}, arch="aarch64"
)


def with_gpus(*names: str, driver: str | None = "580.65.06", host: Host = HOST) -> Host:
    return change_host(
        host,
        gpus={
            "devices": tuple(Gpu(name) for name in names),
            "kernel_driver": driver,
            "driver": driver,
        },
    )


def question(facts: Facts, named: str, host: Host, **options: Any) -> CheckContext:
    name, tag = named.split()
    cell = cell_lookup.find_cell(facts, name, host.arch, find_release(facts, "torch", tag))
    asked = with_local_gpus(facts, cell, host, Options(**options))
    return CheckContext(facts, cell, host, build_plan.compute_plan(facts, cell, host, asked))


def judged(facts: Facts, named: str, host: Host, **options: Any) -> tuple[Judgement, ...]:
    return judge(question(facts, named, host, **options))


def of(judgements: Sequence[Judgement], subject: str) -> Judgement:
    (found,) = [one for one in judgements if one.subject == subject]
    return found


@pytest.mark.parametrize(
    ("named", "gpus", "driver", "subject", "severity", "said"),
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
        # one of two GPUs is served
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
def test_what_a_machine_makes_of_a_cell(  # noqa: PLR0917 - a machine, a cell, and what is said
    shipped: Facts, named: str, gpus: list[str], driver: str, subject: str, severity: str, said: str
) -> None:
    judgements = judged(shipped, named, with_gpus(*gpus, driver=driver))
    found = of(judgements, subject)
    assert (found.severity, said in found.text) == (severity, True), found
    assert runs_here(judgements) == (severity != "would not run here")


def test_what_the_gpus_need_is_what_the_toolkit_makes(shipped: Facts) -> None:
    host = with_gpus("NVIDIA GeForce RTX 3090", driver="580.65.06")
    note = of(judged(shipped, "wheel-3.8-cu110 v1.7.1", host, arch_list="7.0;7.5;8.0"), "GPU code")
    assert "need code for 8.0 alone" in note.text
    assert "none is made for 8.6 itself" in note.text
    assert "--arch-list '8.0'" in note.text
    note = of(judged(shipped, "wheel-3.8-cu111 v1.8.0", host, arch_list="7.0;8.0;8.6"), "GPU code")
    assert "need code for 8.6 alone" in note.text
    assert "none is made" not in note.text


def other_cells(context: CheckContext) -> list[str]:
    """Return the cells with another toolkit that are offered as cures of a context."""
    findings = [*check_trial(context), *check_result(context)]
    ways = " ".join(way for finding in findings for way in (finding.cure, *finding.other_cures))
    return [
        name
        for name in re.findall(r"nox -s (wheel-[\w.-]+)", ways)
        if name != context.plan.identifier
    ]


@pytest.mark.parametrize(
    ("named", "gpus", "driver", "offered"),
    [
        (
            "wheel-3.12-cu126 v2.15.0",
            ["Tesla V100-SXM2-16GB"],
            "570.133.20",
            set(),
        ),  # those tried have no code for it
        ("wheel-3.12-cu130 v2.15.0", ["Tesla V100-SXM2-16GB"], "570.133.20", {"wheel-3.12-cu129"}),
        ("wheel-3.12-cu130 v2.15.0", ["Tesla V100-SXM2-16GB"], "580.65.06", {"wheel-3.12-cu129"}),
        (
            "wheel-3.12-cu125 v2.4.1",
            ["Tesla T4"],
            "470.57.02",
            {"wheel-3.12-cu118"},
        ),  # not 12.4: its driver is newer
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
def test_another_toolkit_is_offered_only_if_what_it_makes_runs_here(
    shipped: Facts, named: str, gpus: list[str], driver: str, offered: set[str]
) -> None:
    host, tag = with_gpus(*gpus, driver=driver), named.split()[1]
    cells = other_cells(question(shipped, named, host))
    assert set(cells) == offered
    assert all(runs_here(judged(shipped, f"{cell} {tag}", host)) for cell in cells)


@pytest.mark.parametrize(
    ("named", "gpus", "said"),
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
def test_the_official_wheel_of_the_build_that_is_offered_is_named(
    shipped: Facts, named: str, gpus: list[str], said: str
) -> None:
    warning = of(judged(shipped, named, with_gpus(*gpus)), "tried")
    assert ("pip install" in warning.text or "lists its wheels" in warning.text) is bool(said)
    assert said in warning.text


def test_without_a_tried_toolkit_that_serves_the_machine_that_is_told(shipped: Facts) -> None:
    warning = of(
        judged(shipped, "wheel-3.12-cu126 v2.15.0", with_gpus("Tesla V100-SXM2-16GB")), "tried"
    )
    assert "no toolkit with which it was built serves this machine" in warning.text


def test_a_driver_is_no_cure_if_the_toolkit_makes_no_code_for_the_gpu(shipped: Facts) -> None:
    host = with_gpus("Tesla K80", driver="470.57.02")
    found = of(judged(shipped, "wheel-3.12-cu130 v2.15.0", host), "GPU driver")
    assert "install driver" not in found.text
    assert "no toolkit of this release serves them" in found.text
    host = with_gpus("NVIDIA GeForce RTX 3090", driver="440.33")
    found = of(judged(shipped, "wheel-3.8-cu110 v1.7.1", host), "GPU driver")
    assert "install driver 450" in found.text, "code for 8.0 runs on it"


def test_who_cannot_install_a_driver_is_told_first_what_its_driver_runs(shipped: Facts) -> None:
    host = with_gpus("Tesla V100-SXM2-16GB", driver="440.33.01")
    untried, newer = "`nox -s wheel-3.9-cu102`", "driver 450.80.02 or newer"
    text = of(judged(shipped, "wheel-3.9-cu117 v1.13.1", host), "GPU driver").text
    assert f"install {newer}" in text
    assert untried not in text
    text = of(
        judged(
            shipped, "wheel-3.9-cu117 v1.13.1", change_host(host, packages={"may_use_root": False})
        ),
        "GPU driver",
    ).text
    assert untried in text


def test_without_a_gpu_nothing_is_said_of_any(shipped: Facts) -> None:
    assert judged(shipped, "wheel-3.12-cu124 v2.4.1", HOST) == ()
    assert judged(shipped, "wheel-3.12-cpu v2.4.1", with_gpus("Tesla K80")) == ()


def test_gpus_of_this_machine_say_nothing_of_a_wheel_for_another(shipped: Facts) -> None:
    host = with_gpus("Tesla K80", driver="470.57.02")
    cell = cell_lookup.find_cell(shipped, "wheel-3.12-cu124-aarch64", "x86_64", None)
    computed = build_plan.compute_plan(shipped, cell, host, Options())
    assert runs_here(judge(CheckContext(shipped, cell, host, computed)))
    assert with_local_gpus(shipped, cell, host, Options()) == Options()


def test_a_longer_list_than_these_gpus_need_says_what_it_costs(shipped: Facts) -> None:
    host = with_gpus("NVIDIA GeForce RTX 3090")
    note = of(judged(shipped, "wheel-3.12-cu124 v2.4.1", host, arch_list="official"), "GPU code")
    assert (note.severity, "need code for 8.6 alone" in note.text) == ("note", True)
    assert " instead of " in note.text


@pytest.mark.parametrize(
    ("listed", "severity"), [(None, "note"), ("8.6;9.0", "would not run here")]
)
def test_the_code_of_a_board_is_required(shipped: Facts, listed: str | None, severity: str) -> None:
    host = change_host(
        BOARD,
        platform={"distribution": LinuxDistribution("ubuntu", "22.04", (), "36.4.3")},
        gpus={"kernel_driver": "540.4.0"},
    )
    judgements = judged(shipped, "wheel-3.10-cu126 v2.6.0", host, arch_list=listed)
    found = of(judgements, "GPU code" if listed is None else "GPU")
    assert (found.severity, "8.7" in found.text, "required" in found.text) == (severity, True, True)
    assert not any("enough" in one.text for one in judgements)


@pytest.mark.parametrize(
    ("l4t", "named", "compat", "fits"),
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
def test_the_driver_of_a_board_is_asked_for_the_toolkit(
    shipped: Facts, l4t: str, named: str, compat: tuple[str, ...], fits: bool
) -> None:
    names = {
        "32": "NVIDIA Jetson Xavier NX Developer Kit",
        "38": "NVIDIA Jetson AGX Thor Developer Kit",
    }
    name = names.get(l4t[:2], "NVIDIA Jetson AGX Orin Developer Kit")
    host = change_host(
        BOARD,
        platform={"distribution": LinuxDistribution("ubuntu", "20.04", (), l4t)},
        gpus={"devices": (Gpu(name),), "compat_folders": compat},
    )
    host = change_host(host, gpus={"kernel_driver": {"36": "540.4.0", "38": "580.00"}.get(l4t[:2])})
    assert runs_here(judged(shipped, named, host)) is fits


@pytest.mark.parametrize(
    ("named", "capability", "advised"),
    [
        ("vision-3.8-cu114 v1.12.0", "8.7", "8.6+PTX"),  # its CMake does not know 8.7
        ("wheel-3.9-cu102 v1.8.0", "8.7", "7.2+PTX"),
        ("wheel-3.12-cu130 v2.9.1", "7.2", ""),  # nothing as old
        ("wheel-3.12-cu130 v2.9.1", "10.1", "10.0+PTX"),  # not 12.0, which is newer than the board
    ],
)
def test_ptx_is_no_contradiction_to_what_is_said_of_a_board(
    shipped: Facts, named: str, capability: str, advised: str
) -> None:
    cell, tag = named.split()
    package = "torchvision" if cell.startswith("vision") else "torch"
    release = find_release(shipped, "torch", tag)
    chosen = release if package == "torch" else paired_release(shipped, package, release)
    host = change_host(BOARD, gpus={"devices": (Gpu("a board", capability),)})
    built = cell_lookup.find_cell(shipped, cell, "aarch64", chosen)
    context = CheckContext(
        shipped, built, host, build_plan.compute_plan(shipped, built, host, Options())
    )
    (found,) = [one for one in check_result(context) if one.subject == "GPU"]
    ways = " ".join((found.cure, *found.other_cures))
    assert re.findall(r"--arch-list '([^']*)'", ways) == ([advised] if advised else [])
    assert "required" not in found.because
    assert ("its driver compiles PTX" in found.because) is bool(advised)


@pytest.mark.parametrize(
    ("l4t", "named", "verdict", "said"),
    [
        ("38.2.0", "wheel-3.12-cu130 v2.9.1", "ok", ""),
        ("38.4.0", "wheel-3.12-cu132 v2.15.0", "unknown", "is not recorded"),
        ("39.2.0", "wheel-3.12-cu132 v2.15.0", "ok", ""),
    ],
)
def test_the_number_of_a_thors_driver_is_not_held_against_graphics_cards(
    shipped: Facts, l4t: str, named: str, verdict: str, said: str
) -> None:
    host = change_host(
        BOARD,
        platform={"distribution": LinuxDistribution("ubuntu", "24.04", (), l4t)},
        gpus={
            "devices": (Gpu("NVIDIA Thor", "11.0"),),
            "driver": "580.00",
            "kernel_driver": "580.00",
        },
    )
    found = next(
        one for one in check_result(question(shipped, named, host)) if one.subject == "GPU driver"
    )
    assert (found.verdict, said in found.because, found.state) == (
        verdict,
        True,
        "ubuntu 24.04 (JetPack 7)",
    )


def test_a_board_is_offered_a_toolkit_that_its_driver_runs(shipped: Facts) -> None:
    host = change_host(
        BOARD, platform={"distribution": LinuxDistribution("ubuntu", "20.04", (), "35.4.1")}
    )
    orin = shipped.capability("8.7")
    assert orin
    (cell,) = choose_cells(shipped, BuildQuestion(gpus=[orin]), host, None)
    assert cell.build.cuda == "11.4"


@pytest.mark.parametrize(
    ("named", "gpus", "options", "listed"),
    [
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 3090"], {}, "8.6"),
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 3090", "Tesla T4"], {}, "7.5;8.6"),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["NVIDIA GeForce RTX 5090", "Tesla T4"],
            {},
            "7.5",
        ),  # the other cannot be served
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 5090"], {}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        ("wheel-3.12-cu124 v2.4.1", ["an unknown GPU"], {}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["Tesla T4"],
            {"arch_list": "official"},
            "5.0;6.0;7.0;7.5;8.0;8.6;9.0",
        ),
        ("wheel-3.12-cu124 v2.4.1", ["Tesla T4"], {"arch_list": "8.0"}, "8.0"),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["Tesla T4"],
            {"settings": {"TORCH_CUDA_ARCH_LIST": "9.0"}},
            "9.0",
        ),
        ("wheel-3.12-cu124 v2.4.1", ["Tesla T4"], {"shard": "1/4"}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        ("wheel-3.12-cu124 v2.4.1", [], {}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        ("wheel-3.12-cpu v2.4.1", ["Tesla T4"], {}, ""),
        ("flash-3.12-cu126 v2.9.1", ["Tesla T4"], {}, "8.0;8.6;9.0"),  # it has no kernels for it
        ("flash-3.12-cu126 v2.9.1", ["NVIDIA A100-SXM4-40GB"], {}, "8.0"),
    ],
)
def test_the_gpus_of_a_machine_are_the_default_of_a_list(
    shipped: Facts, named: str, gpus: list[str], options: dict[str, Any], listed: str
) -> None:
    assert question(shipped, named, with_gpus(*gpus), **options).plan.arch_list == listed


def test_an_old_driver_makes_no_default(shipped: Facts) -> None:
    host = with_gpus("NVIDIA GeForce RTX 3090", driver="550.54.15")
    assert len(question(shipped, "wheel-3.12-cu130 v2.10.0", host).plan.arch_list.split(";")) > 1


def test_an_official_wheel_is_named_where_the_list_is_the_machines(shipped: Facts) -> None:
    host = with_gpus("NVIDIA GeForce RTX 3090")
    for options in ({}, {"arch_list": "official"}):
        assert question(shipped, "wheel-3.12-cu124 v2.4.1", host, **options).plan.official.published
    assert (
        question(shipped, "wheel-3.12-cu124 v2.4.1", host, arch_list="8.0").plan.official.published
        is None
    )


def test_the_doctor_says_the_same(shipped: Facts) -> None:
    context = question(shipped, "wheel-3.12-cu113 v2.4.1", with_gpus("NVIDIA GeForce RTX 5090"))
    findings = examination.examine_build(context)
    for one in judge(context):
        assert any(
            finding.subject == one.subject and finding.because in one.text for finding in findings
        ), one


def test_what_was_built_here_is_tried(shipped: Facts) -> None:
    host = with_gpus("Tesla T4")
    context = question(shipped, "wheel-3.12-cu113 v2.4.1", host)
    run = replace(shipped.runs[0], package="torch", release="2.4.1", variant="cu113", arch="x86_64")
    built = replace(context, host=replace(host, runs=(run,)))
    assert {one.subject for one in judge(context)} - {one.subject for one in judge(built)} == {
        "tried"
    }


def test_gpus_that_cudnn_has_no_code_for_are_named(shipped: Facts) -> None:
    host = change_host(HOST, toolkits={"libraries": {"cudnn": "9.1.0"}})
    some = of(judged(shipped, "wheel-3.11-cu118 v2.8.0", host, arch_list="3.7;7.0"), "cuDNN's code")
    assert (some.severity, "3.7" in some.text) == ("warning", True)
    without = judged(
        shipped, "wheel-3.11-cu118 v2.8.0", host, arch_list="3.7;7.0", settings={"USE_CUDNN": "0"}
    )
    assert "cuDNN's code" not in {one.subject for one in without}


def test_gpus_that_cannot_be_told_are_not_taken_for_none(shipped: Facts) -> None:
    host = change_host(HOST, programs={"unanswered": {"nvidia-smi": "nvidia-smi did not answer"}})
    note = of(judged(shipped, "wheel-3.12-cu124 v2.4.1", host), "GPU code")
    assert (note.severity, "nvidia-smi did not answer" in note.text) == ("note", True)
