"""The prediction of a relocation overflow: against the official wheels, known reports, and a real linker."""

import platform
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.plan import compile_work, link_overflow

COMPRESSED = {"TORCH_NVCC_FLAGS": "-Xfatbin -compress-all"}
STATIC = {"USE_STATIC_CUDNN": "1", "USE_STATIC_NCCL": "1"}


def release(facts: Facts, version: str) -> Release:
    found = compile_work.find_release_version(facts, "torch", version)
    assert found is not None
    return found


def official(facts: Facts) -> list[tuple[Release, str, dict[str, str]]]:
    """Return the official Linux x86_64 builds with the variables that shape their libraries."""
    found = []
    for one in facts.releases["torch"]:
        for cuda, said in one.cuda_official.items():
            listed = said.capabilities.get("x86_64")
            variables = {"TORCH_CUDA_ARCH_LIST": listed or "", **COMPRESSED, "USE_STATIC_NCCL": "1"}
            if Version(cuda) < Version("11.3"):
                variables |= STATIC
            if listed:
                found.append((one, cuda, variables))
    return found


@pytest.mark.parametrize(
    ("listed", "count"),
    [("", 0), ("8.6", 1), ("8.0;8.6+PTX", 3), ("6.1 7.0, 7.5", 3), (";3.7;5.0;", 2)],
)
def test_images(listed: str, count: int) -> None:
    assert link_overflow.count_code_images(listed) == count


def test_no_official_wheel_is_likely_to_overflow(shipped: Facts) -> None:
    builds = official(shipped)
    assert len(builds) > 60
    judged = {
        f"{one.version} {cuda}": risk.level
        for one, cuda, variables in builds
        if (risk := link_overflow.predict_overflow(shipped, one, cuda, variables)) is not None
    }
    assert [name for name, level in judged.items() if level == "likely"] == []
    # those that may are the ones with a static cuDNN 8, which upstream then split
    assert {name.split()[1] for name, level in judged.items() if level == "possible"} <= {
        "11.0",
        "11.1",
        "11.2",
    }


def test_known_reports(shipped: Facts) -> None:
    def level(report: dict[str, Any]) -> str:
        variables = {**report.get("variables", {}), "TORCH_CUDA_ARCH_LIST": report["capabilities"]}
        risk = link_overflow.predict_overflow(
            shipped, release(shipped, report["release"]), report["cuda"], variables
        )
        assert risk is not None
        return risk.level

    reports = tomllib.loads(Path(__file__).with_name("link_reports.toml").read_text("utf-8"))[
        "report"
    ]
    assert {level(one) for one in reports if one["overflowed"]} <= {"possible", "likely"}
    assert {level(one) for one in reports if not one["overflowed"]} <= {"none", "possible"}
    assert {one["overflowed"] for one in reports} == {True, False}


def test_a_wheel_is_predicted_from_its_neighbour_within_the_margin(shipped: Facts) -> None:
    assert shipped.linking is not None
    errors = []
    for one in shipped.releases["torch"]:
        known = link_overflow.capability_weight(shipped, one)
        minor = Version(one.version).release[:2]
        others = tuple(
            replace(each, sizes={}) if Version(each.version).release[:2] == minor else each
            for each in shipped.releases["torch"]
        )
        guess = link_overflow.capability_weight(replace(shipped, releases={"torch": others}), one)
        if known and guess and known[1] is one:
            errors.append(abs(guess[0] / known[0] - 1))
    assert len(errors) > 40
    assert sorted(errors)[int(len(errors) * 0.9)] < shipped.linking.margin
    assert max(errors) < 0.65


def test_device_code_that_is_not_compressed_weighs_more(shipped: Facts) -> None:
    one = release(shipped, "1.13.1")
    listed = {"TORCH_CUDA_ARCH_LIST": "7.0;7.5;8.0;8.6"}
    plain = link_overflow.predict_overflow(shipped, one, "11.7", listed)
    packed = link_overflow.predict_overflow(shipped, one, "11.7", {**listed, **COMPRESSED})
    assert plain is not None
    assert packed is not None
    assert plain.expected.low > packed.expected.low
    assert (packed.level, packed.cures) == ("none", ())
    assert any("-compress-all" in cure for cure in plain.cures)


def test_a_list_that_cannot_fit(shipped: Facts) -> None:
    every = ";".join(f"{major}.{minor}" for major in range(3, 10) for minor in range(3))
    variables = {"TORCH_CUDA_ARCH_LIST": every, **COMPRESSED, **STATIC}
    risk = link_overflow.predict_overflow(shipped, release(shipped, "1.8.0"), "11.1", variables)
    assert risk is not None
    assert risk.level == "likely"
    assert "1.8.0" in risk.sentence
    assert "2.0 GiB" in risk.sentence


def test_the_cures_are_those_of_the_release(shipped: Facts) -> None:
    listed = {"TORCH_CUDA_ARCH_LIST": "3.7;5.0;6.0;7.0;7.5;8.0;8.6", **COMPRESSED, **STATIC}

    def cures(version: str) -> str:
        risk = link_overflow.predict_overflow(shipped, release(shipped, version), "11.1", listed)
        assert risk is not None
        return "\n".join(risk.cures)

    assert "BUILD_SPLIT_CUDA" in cures("1.8.0")
    assert "BUILD_SPLIT_CUDA" not in cures("1.7.1")
    assert "USE_STATIC_CUDNN=0" in cures("1.7.1")


def test_the_shorter_list_fits_and_one_more_would_not_for_certain(shipped: Facts) -> None:
    listed = "3.7;5.0;6.0;7.0;7.5;8.0;8.6"
    one = release(shipped, "1.8.0")
    risk = link_overflow.predict_overflow(
        shipped, one, "11.1", {"TORCH_CUDA_ARCH_LIST": listed, **COMPRESSED, **STATIC}
    )
    assert risk is not None
    (cure,) = [text for text in risk.cures if text.startswith("a shorter list")]
    shorter = cure.rpartition("=")[2].strip("'")
    assert listed.endswith(shorter)
    longer = ";".join(listed.split(";")[-shorter.count(";") - 2 :])
    levels = [
        again.level
        for each in (shorter, longer)
        if (
            again := link_overflow.predict_overflow(
                shipped, one, "11.1", {"TORCH_CUDA_ARCH_LIST": each, **COMPRESSED, **STATIC}
            )
        )
    ]
    assert levels == ["none", "possible"]


def test_the_shorter_list_keeps_what_the_gpus_of_the_machine_run(shipped: Facts) -> None:
    variables = {"TORCH_CUDA_ARCH_LIST": "3.5;5.0;6.0;7.0;7.5;8.0;8.6", **COMPRESSED, **STATIC}

    def proposed(*names: str) -> list[str]:
        gpus = [gpu for name in names if (gpu := shipped.capability(name))]
        risk = link_overflow.predict_overflow(
            shipped, release(shipped, "1.8.0"), "11.1", variables, gpus
        )
        assert risk is not None
        texts = [text for text in risk.cures if text.startswith("a shorter list")]
        return [entry for text in texts for entry in text.rpartition("=")[2].strip("'").split(";")]

    assert "3.5" not in proposed()
    assert {"3.5", "8.6"} <= {*proposed("3.5")}
    assert {"3.5", "6.0"} <= {*proposed("3.5", "6.0")}
    assert "6.0" in proposed("6.1"), "which runs the code for 6.0"
    every = [one.name for one in shipped.capabilities]
    assert "3.5" in (proposed(*every) or ["3.5"])


def test_split_libraries_are_judged_each(shipped: Facts) -> None:
    one = release(shipped, "1.8.0")
    variables = {"TORCH_CUDA_ARCH_LIST": "5.0;7.0;7.5;8.0;8.6", **COMPRESSED, **STATIC}
    whole = link_overflow.predict_overflow(shipped, one, "11.1", variables)
    split = link_overflow.predict_overflow(
        shipped, one, "11.1", {**variables, "BUILD_SPLIT_CUDA": "ON"}
    )
    assert whole is not None
    assert split is not None
    assert split.expected.high < whole.expected.high
    assert (whole.level, split.level) == ("possible", "none")


def test_nothing_is_said_without_a_list_or_without_facts(shipped: Facts) -> None:
    one = release(shipped, "1.13.1")
    assert link_overflow.predict_overflow(shipped, one, "11.7", {}) is None
    listed = {"TORCH_CUDA_ARCH_LIST": "8.6"}
    assert (
        link_overflow.predict_overflow(replace(shipped, linking=None), one, "11.7", listed) is None
    )


@pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64" or sys.platform != "linux",
    reason="the small code model of x86-64, as gcc links it",
)
def test_a_real_linker_overflows_within_reach_and_not_behind_it(tmp_path: Path) -> None:
    """2.25 GiB between code and data end the link; the same bytes behind the data do not."""
    code = '.text\n movq tail(%rip), %rax\n ret\n .section .note.GNU-stack,"",@progbits\n'
    between = ".bss\n .space 0x90000000\n .hidden tail\n .globl tail\ntail: .quad 0\n" + code
    device = '.section .nv_fatbin,"aw",@nobits\n .space 0x90000000\n'
    behind = device + ".data\n .hidden tail\n .globl tail\ntail: .quad 0\n"
    said = {}
    for name, text in (("between", between), ("behind", behind + code)):
        source = tmp_path / f"{name}.s"
        source.write_text(text)
        done = subprocess.run(
            ["gcc", "-shared", "-o", str(tmp_path / f"{name}.so"), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        said[name] = (done.returncode, done.stderr)
    assert said["behind"] == (0, "")
    assert said["between"][0] == 1
    assert "relocation truncated to fit: R_X86_64_PC32" in said["between"][1]
