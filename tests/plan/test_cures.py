"""Cures as commands: which are run, in which order, and which change the start of a build."""

from collections.abc import Mapping

import pytest

from tests.support.examinations import examine, golden_host
from torchmill.config.facts import Facts
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import Finding, Verdict, with_cures


def make_finding(cure: str, verdict: Verdict = "failure") -> Finding:
    return Finding("something", "none", "one", verdict, cure=cure)


def test_the_cures_of_a_bare_machine_are_in_the_order_to_run_them(shipped: Facts) -> None:
    findings = examine(shipped, golden_host("bare"), "wheel-3.8-cpu", "v1.13.1")
    cures = find_cures(findings)
    assert list(cures.commands) == [
        "invoke deps --tag v1.13.1",
        "invoke fetch --tag v1.13.1",
        "uv python install 3.8",
    ]
    assert [finding.subject for finding in cures.incurable] == ["disk"]


def test_a_toolkit_comes_before_its_libraries(shipped: Facts) -> None:
    cures = find_cures(
        examine(shipped, golden_host("debian-12"), "wheel-3.12-cu121", "v2.4.1", "--arch-list=8.6")
    )
    commands = [command for command in cures.commands if command.startswith("invoke toolkit")]
    assert commands[0] == "invoke toolkit --cuda 12.1"
    libraries = {command.split()[3].partition("=")[0] for command in commands[1:]}
    assert libraries >= {"cudnn-cu12", "nccl-cu12"}
    assert cures.incurable == ()


@pytest.mark.parametrize(
    ("cure", "commands", "variables", "options"),
    [
        ("sudo apt-get install --yes g++-11", ["sudo apt-get install --yes g++-11"], {}, ()),
        ("CC=gcc-11 CXX=g++-11 nox -s w", [], {"CC": "gcc-11", "CXX": "g++-11"}, ()),
        ("sudo dnf install gcc && CC=g nox -s w", ["sudo dnf install gcc"], {"CC": "g"}, ()),
        (
            "invoke image --kind builder --tag v1 --build",
            ["invoke image --kind builder --tag v1 --build"],
            {},
            (),
        ),
        ("nox -s w -- --set USE_NCCL=0", [], {}, ("--set", "USE_NCCL=0")),
        (
            "invoke toolkit --library magma-cu121 --arch-list '8.0;8.6'",
            ["invoke toolkit --library magma-cu121 --arch-list '8.0;8.6'"],
            {},
            (),
        ),
        (
            "CONDA_SUBDIR=osx-arm64 conda create --name n",
            ["CONDA_SUBDIR=osx-arm64 conda create --name n"],
            {},
            (),
        ),
    ],
)
def test_a_failure_is_cured_by_a_command_or_by_the_start_of_the_build(
    cure: str, commands: list[str], variables: Mapping[str, str], options: tuple[str, ...]
) -> None:
    cures = find_cures([make_finding(cure)])
    assert list(cures.commands) == commands
    assert cures.variables == variables
    assert cures.options == options
    assert cures.incurable == ()


def test_the_value_of_a_variable_is_quoted_but_not_its_name() -> None:
    cures = find_cures([make_finding("TORCH_CUDA_ARCH_LIST='8.0;8.6' invoke toolkit --cuda 12.1")])
    assert list(cures.commands) == ["TORCH_CUDA_ARCH_LIST='8.0;8.6' invoke toolkit --cuda 12.1"]


def test_system_packages_come_before_tasks_and_tasks_before_other_programs() -> None:
    ordered = ["A=b sudo dnf install gcc", "invoke deps", "invoke fetch", "pyenv", "uv x"]
    findings = [make_finding(ordered[number]) for number in (3, 2, 1, 0, 4)]
    assert list(find_cures(findings).commands) == ordered


def test_each_option_that_cures_keeps_its_value() -> None:
    """Two findings may have one cure, and two cures one option."""
    cures = [f"nox -s w -- --set USE_{name}=0" for name in ("NCCL", "CUDNN", "NCCL")]
    options = find_cures(map(make_finding, cures)).options
    assert options == ("--set", "USE_NCCL=0", "--set", "USE_CUDNN=0")


@pytest.mark.parametrize(
    "cure",
    [
        "",
        "build on a system with glibc 2.17",
        "`invoke clean --free '20 GiB'` makes room",
        "nox -s w -- --set MAGMA_HOME=FOLDER, where FOLDER has a 2.6.1",
        "invoke image --kind builder --build; nox -s w",
        "remove what's too old",
        "nox -s w, without -fuse-ld=mold in LDFLAGS",
        "restart the machine: `sudo reboot`",
    ],
)
def test_a_sentence_is_left_to_the_user(cure: str) -> None:
    cures = find_cures([make_finding(cure)])
    assert not cures.commands
    assert [finding.cure for finding in cures.incurable] == [cure]


def test_the_cure_of_a_warning_may_install_something_but_changes_no_build() -> None:
    warnings = [
        make_finding("invoke fetch --tag v1", "warning"),
        make_finding("nox -s w -- --set USE_NCCL=0", "warning"),
        make_finding("leave --plat out", "warning"),
        make_finding("invoke fetch --tag v2", "ok"),
    ]
    cures = find_cures(warnings)
    assert list(cures.commands) == ["invoke fetch --tag v1"]
    assert (cures.variables, cures.options, cures.incurable) == ({}, (), ())


def test_commands_go_before_sentences_and_the_first_is_run() -> None:
    cures = ["look for it as git", "", "uv python install 3.12", "pyenv install 3.12"]
    finding = with_cures(make_finding(""), cures)
    assert finding.cure == "uv python install 3.12"
    assert finding.other_cures == ("pyenv install 3.12", "look for it as git")
    assert list(find_cures([finding]).commands) == ["uv python install 3.12"]
    assert with_cures(finding, []).cure == ""


@pytest.mark.parametrize(
    "manager", ["apt-get", "dnf", "microdnf", "yum", "zypper", "pacman", "apk", "conda"]
)
def test_every_package_manager_is_run(manager: str) -> None:
    for command in (f"{manager} install git", f"sudo {manager} install git"):
        assert list(find_cures([make_finding(command)]).commands) == [command]
