"""The prediction of overflows: against official wheels, known reports, and a real linker."""

import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from tests.support.changed_facts import change_groups
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release import Release
from torchmill.plan import compile_work, link_overflow
from torchmill.plan.link_overflow import OverflowRisk

COMPRESSED = {"TORCH_NVCC_FLAGS": "-Xfatbin -compress-all"}
STATIC = {"USE_STATIC_CUDNN": "1", "USE_STATIC_NCCL": "1"}
REPORTS = Path(__file__).with_name("link_reports.toml")


def find_torch(shipped: Facts, version: str) -> Release:
    release = compile_work.find_release_version(shipped, "torch", version)
    assert release is not None
    return release


def require_risk(
    shipped: Facts,
    version: str,
    cuda: str,
    arch_list: str,
    variables: dict[str, str],
    *,
    gpus: Sequence[Capability] = (),
) -> OverflowRisk:
    release = find_torch(shipped, version)
    variables = {"TORCH_CUDA_ARCH_LIST": arch_list, **variables}
    risk = link_overflow.predict_overflow(shipped, release, cuda, variables, gpus)
    assert risk is not None
    return risk


@pytest.mark.parametrize(
    ("arch_list", "count"),
    [("", 0), ("8.6", 1), ("8.0;8.6+PTX", 3), ("6.1 7.0, 7.5", 3), (";3.7;5.0;", 2)],
)
def test_images(arch_list: str, count: int) -> None:
    assert link_overflow.count_code_images(arch_list) == count


def official_builds(shipped: Facts) -> Iterator[tuple[Release, str, dict[str, str]]]:
    """Yield the official Linux x86_64 builds with the variables that shape their libraries."""
    for release in shipped.releases["torch"]:
        for cuda, official in release.cuda.official.items():
            arch_list = official.capabilities.get("x86_64")
            if not arch_list:
                continue
            variables = {"TORCH_CUDA_ARCH_LIST": arch_list, **COMPRESSED, "USE_STATIC_NCCL": "1"}
            if Version(cuda) < Version("11.3"):
                variables |= STATIC
            yield release, cuda, variables


def test_no_official_wheel_is_likely_to_overflow(shipped: Facts) -> None:
    builds = list(official_builds(shipped))
    assert len(builds) > 60
    toolkits: dict[str, set[str]] = {"none": set(), "possible": set(), "likely": set()}
    for release, cuda, variables in builds:
        risk = link_overflow.predict_overflow(shipped, release, cuda, variables)
        if risk:
            toolkits[risk.level].add(cuda)
    assert toolkits["likely"] == set()
    # Those with a static cuDNN 8 may overflow: upstream then split them.
    assert toolkits["possible"] <= {"11.0", "11.1", "11.2"}


def test_known_reports(shipped: Facts) -> None:
    reports = tomllib.loads(REPORTS.read_text("utf-8"))["report"]
    levels: dict[bool, set[str]] = {True: set(), False: set()}
    for report in reports:
        variables = report.get("variables", {})
        risk = require_risk(
            shipped, report["release"], report["cuda"], report["capabilities"], variables
        )
        levels[report["overflowed"]].add(risk.level)
    assert levels[True]
    assert levels[True] <= {"possible", "likely"}
    assert levels[False]
    assert levels[False] <= {"none", "possible"}


def test_a_wheel_is_predicted_from_its_neighbour_within_the_margin(shipped: Facts) -> None:
    assert shipped.linking is not None
    releases = shipped.releases["torch"]
    errors = []
    for release in releases:
        weight = link_overflow.measured_image(shipped, release)
        minor = Version(release.version).release[:2]
        changed_releases = []
        for other in releases:
            same_minor = Version(other.version).release[:2] == minor
            if same_minor:
                other = change_groups(other, upstream={"sizes": {}})  # noqa: PLW2901
            changed_releases.append(other)
        facts = replace(shipped, releases={"torch": tuple(changed_releases)})
        guess = link_overflow.measured_image(facts, release)
        if weight and guess and weight[1] is release:
            errors.append(abs(guess[0] / weight[0] - 1))
    errors.sort()
    assert len(errors) > 40
    assert errors[int(len(errors) * 0.9)] < shipped.linking.margin
    assert errors[-1] < 0.65


def test_device_code_that_is_not_compressed_weighs_more(shipped: Facts) -> None:
    arch_list = "7.0;7.5;8.0;8.6"
    plain = require_risk(shipped, "1.13.1", "11.7", arch_list, {})
    compressed = require_risk(shipped, "1.13.1", "11.7", arch_list, COMPRESSED)
    assert plain.expected.low > compressed.expected.low
    assert any("-compress-all" in cure for cure in plain.cures)
    assert compressed.level == "none"
    assert compressed.cures == ()


def test_a_cure_keeps_the_flags_of_the_build(shipped: Facts) -> None:
    variables = {"TORCH_NVCC_FLAGS": "-Xptxas -v"}
    risk = require_risk(shipped, "2.11.0", "13.0", "8.0;9.0;10.0;12.0", variables)
    settings = [cure for cure in risk.cures if cure.startswith("TORCH_NVCC_FLAGS=")]
    assert [cure.partition(": ")[0] for cure in settings] == [
        'TORCH_NVCC_FLAGS="-Xptxas -v -Xfatbin -compress-all"',
        'TORCH_NVCC_FLAGS="-Xptxas -v -Xfatbin -compress-mode=size"',
    ]


def test_a_cure_replaces_the_mode_of_compression(shipped: Facts) -> None:
    variables = {"TORCH_NVCC_FLAGS": "-Xfatbin -compress-mode=speed -Xptxas -v"}
    risk = require_risk(shipped, "2.11.0", "13.0", "8.0;9.0;10.0;12.0", variables)
    settings = [cure for cure in risk.cures if cure.startswith("TORCH_NVCC_FLAGS=")]
    assert [cure.partition(": ")[0] for cure in settings] == [
        'TORCH_NVCC_FLAGS="-Xptxas -v -Xfatbin -compress-mode=size"'
    ]


@pytest.mark.parametrize("value", ["1", "on", "ON"])
def test_a_switch_that_is_on_is_no_cure(shipped: Facts, value: str) -> None:
    entries = [f"{major}.{minor}" for major in range(3, 10) for minor in range(3)]
    variables = {**COMPRESSED, "BUILD_SPLIT_CUDA": value}
    risk = require_risk(shipped, "1.8.0", "11.1", ";".join(entries), variables)
    assert risk.cures
    assert not any(cure.startswith("BUILD_SPLIT_CUDA") for cure in risk.cures)


def test_a_name_weighs_all_its_capabilities(shipped: Facts) -> None:
    risk_of_words = require_risk(shipped, "2.1.0", "11.8", "Ampere+PTX", {})
    listed = require_risk(shipped, "2.1.0", "11.8", "8.0;8.6+PTX", {})
    assert risk_of_words.expected == listed.expected


def test_a_list_that_cannot_fit(shipped: Facts) -> None:
    entries = [f"{major}.{minor}" for major in range(3, 10) for minor in range(3)]
    risk = require_risk(shipped, "1.8.0", "11.1", ";".join(entries), {**COMPRESSED, **STATIC})
    assert risk.level == "likely"
    assert "1.8.0" in risk.sentence
    assert "2.0 GiB" in risk.sentence


def test_the_cures_are_those_of_the_release(shipped: Facts) -> None:
    def cures(version: str) -> str:
        arch_list = "3.7;5.0;6.0;7.0;7.5;8.0;8.6"
        risk = require_risk(shipped, version, "11.1", arch_list, {**COMPRESSED, **STATIC})
        return "\n".join(risk.cures)

    assert "BUILD_SPLIT_CUDA" in cures("1.8.0")
    assert "BUILD_SPLIT_CUDA" not in cures("1.7.1")
    assert "USE_STATIC_CUDNN=0" in cures("1.7.1")


def proposed_list(shipped: Facts, arch_list: str, gpus: Sequence[Capability] = ()) -> list[str]:
    """Return the shorter list that the cures for a risk propose; [] if they propose none."""
    risk = require_risk(shipped, "1.8.0", "11.1", arch_list, {**COMPRESSED, **STATIC}, gpus=gpus)
    for cure in risk.cures:
        if cure.startswith("a shorter list"):
            return cure.rpartition("=")[2].strip("'").split(";")
    return []


def test_the_proposed_list_fits_and_a_longer_one_would_not_for_certain(shipped: Facts) -> None:
    arch_list = "3.7;5.0;6.0;7.0;7.5;8.0;8.6"
    entries = arch_list.split(";")
    proposed = proposed_list(shipped, arch_list)
    assert proposed == entries[-len(proposed) :]
    longer = entries[-len(proposed) - 1 :]
    variables = {**COMPRESSED, **STATIC}
    assert require_risk(shipped, "1.8.0", "11.1", ";".join(proposed), variables).level == "none"
    assert require_risk(shipped, "1.8.0", "11.1", ";".join(longer), variables).level == "possible"


def test_the_proposed_list_keeps_code_for_the_gpus_of_the_machine(shipped: Facts) -> None:
    arch_list = "3.5;5.0;6.0;7.0;7.5;8.0;8.6"

    def proposed_for(*names: str) -> list[str]:
        gpus = [gpu for gpu in shipped.gpus.capabilities if gpu.name in names]
        return proposed_list(shipped, arch_list, gpus)

    assert "3.5" not in proposed_for()
    assert {"3.5", "8.6"} <= set(proposed_for("3.5"))
    assert {"3.5", "6.0"} <= set(proposed_for("3.5", "6.0"))
    assert "6.0" in proposed_for("6.1"), "which runs the code for 6.0"
    for_all = proposed_for(*(gpu.name for gpu in shipped.gpus.capabilities))
    assert not for_all or "3.5" in for_all


def test_split_libraries_are_judged_each(shipped: Facts) -> None:
    arch_list = "5.0;7.0;7.5;8.0;8.6"
    variables = {**COMPRESSED, **STATIC}
    whole = require_risk(shipped, "1.8.0", "11.1", arch_list, variables)
    variables["BUILD_SPLIT_CUDA"] = "ON"
    split = require_risk(shipped, "1.8.0", "11.1", arch_list, variables)
    assert split.expected.high < whole.expected.high
    assert whole.level == "possible"
    assert split.level == "none"


def test_nothing_is_predicted_without_a_list_or_without_facts(shipped: Facts) -> None:
    release = find_torch(shipped, "1.13.1")
    assert link_overflow.predict_overflow(shipped, release, "11.7", {}) is None
    variables = {"TORCH_CUDA_ARCH_LIST": "8.6"}
    facts = replace(shipped, linking=None)
    assert link_overflow.predict_overflow(facts, release, "11.7", variables) is None


def link_assembly(folder: Path, name: str, text: str) -> "subprocess.CompletedProcess[str]":
    source = folder / f"{name}.s"
    source.write_text(text)
    argv = ["gcc", "-shared", "-o", str(folder / f"{name}.so"), str(source)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64" or sys.platform != "linux",
    reason="the small code model of x86-64, as gcc links it",
)
def test_a_real_linker_overflows_within_reach_and_not_behind_it(tmp_path: Path) -> None:
    """2.25 GiB between code and data end the link; the same bytes behind the data do not."""
    code = '.text\n movq tail(%rip), %rax\n ret\n .section .note.GNU-stack,"",@progbits\n'
    data = " .hidden tail\n .globl tail\ntail: .quad 0\n"
    between = link_assembly(tmp_path, "between", f".bss\n .space 0x90000000\n{data}{code}")
    assert between.returncode == 1
    assert "relocation truncated to fit: R_X86_64_PC32" in between.stderr
    device = '.section .nv_fatbin,"aw",@nobits\n .space 0x90000000\n'
    behind = link_assembly(tmp_path, "behind", f"{device}.data\n{data}{code}")
    assert behind.returncode == 0
    assert behind.stderr == ""
