"""Wheels of packages on an index are recorded by what they say of themselves."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tools import package_wheels
from tools.package_wheels import BuildRecord
from torchmill.config.facts import Facts
from torchmill.config.package_wheels import WheelFiles, WheelSource
from torchmill.fetch.package_index import IndexFile
from torchmill.plan.recorded_wheels import expand_braces, recorded_wheels

PLACE = WheelSource("PyPI", "mine=={version}", "test", "listed", "2026-01-01")


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["a-1-py3-none-any.whl"], ["a-1-py3-none-any.whl"]),
        (
            ["a-1-cp311-cp311-win_amd64.whl", "a-1-cp312-cp312-win_amd64.whl"],
            ["a-1-{cp311-cp311,cp312-cp312}-win_amd64.whl"],
        ),
        (
            ["a-1+pt27cu118-py3-none-any.whl", "a-1+pt27cu126-py3-none-any.whl"],
            ["a-1+pt27cu{118,126}-py3-none-any.whl"],
        ),
        (
            ["a-1+pt27cpu-py3-none-any.whl", "a-1+pt27cu126-py3-none-any.whl"],
            ["a-1+pt27cpu-py3-none-any.whl", "a-1+pt27cu126-py3-none-any.whl"],
        ),
        (
            ["a-1-py3-none-any.whl", "a-2-py3-none-win_amd64.whl"],
            ["a-1-py3-none-any.whl", "a-2-py3-none-win_amd64.whl"],
        ),
    ],
)
def test_names_are_shortened_without_loss(names: list[str], patterns: list[str]) -> None:
    assert package_wheels.compact_names(names) == patterns


def test_shortened_names_of_all_recorded_wheels_stand_for_the_same(shipped: Facts) -> None:
    for package in shipped.package_wheels:
        names = sorted(wheel.file for wheel in recorded_wheels(shipped, package))
        patterns = package_wheels.compact_names(names)
        assert sorted(name for text in patterns for name in expand_braces(text)) == names


@pytest.mark.parametrize(
    ("requirements", "torch"),
    [
        (["numpy", "torch==2.9.1"], "==2.9.1"),
        (["Torch (>=2.14,<2.15)"], "<2.15,>=2.14"),
        (["torch"], ""),
        (["torch==1.0; extra == 'dev'"], ""),
        (["torchvision==0.1"], ""),
    ],
)
def test_the_required_torch_is_read(requirements: list[str], torch: str) -> None:
    assert package_wheels.required_torch(requirements, "torch") == torch


def test_the_build_record_of_a_wheel_names_the_toolkit_of_its_torch() -> None:
    content = {
        "version": {"torch": "2.7.1+cu126", "cuda": "1208"},
        "env": {"TORCH_CUDA_ARCH_LIST": "7.5 8.0+PTX"},
    }
    record = package_wheels.with_build_record(
        BuildRecord("==2.7.1", told_by="Requires-Dist"), content
    )
    assert record == BuildRecord(
        "==2.7.1", "cu126", "7.5;8.0+PTX", "Requires-Dist; cpp_lib.json in the wheel"
    )


@pytest.mark.parametrize(
    ("names", "variant"),
    [
        ({"libtorch_cpu.so", "libc.so.6"}, "cpu"),
        ({"libtorch_cpu.so", "libcudart.so.12"}, "cu12"),
        ({"libcudart.so.11.0"}, "cu11"),
        ({"libtorch_cpu.so", "libc10_cuda.so"}, ""),
        ({"libc.so.6"}, ""),
    ],
)
def test_needed_libraries_tell_the_toolkit(names: set[str], variant: str) -> None:
    assert package_wheels.needed_variant(names) == variant


def test_a_library_tells_what_it_needs() -> None:
    tool = shutil.which("true")
    assert tool is not None
    names = package_wheels.needed_libraries([Path(tool).read_bytes(), b"no library"])
    assert any(name.startswith("libc.") for name in names)


def test_a_lower_bound_tells_no_torch_of_a_wheel_for_one_python() -> None:
    records = {
        "a-1-cp312-cp312-win_amd64.whl": BuildRecord(">=2.3", told_by="Requires-Dist"),
        "a-1-py3-none-win_amd64.whl": BuildRecord(">=2.3", told_by="Requires-Dist"),
        "a-2-cp312-cp312-win_amd64.whl": BuildRecord("<3,>=2.3", told_by="Requires-Dist"),
    }
    groups = {group.files: group for group in package_wheels.group_files(records)}
    told = {files: str(group.torch or "") for files, group in groups.items()}
    assert told == {
        ("a-2-cp312-cp312-win_amd64.whl",): "<3,>=2.3",
        ("a-1-cp312-cp312-win_amd64.whl",): "",
        ("a-1-py3-none-win_amd64.whl",): ">=2.3",
    }


@pytest.mark.parametrize(
    ("name", "yanked", "is_recorded"),
    [
        ("a-1.0-py3-none-any.whl", False, True),
        ("a-1.0.post1-py3-none-any.whl", False, True),
        ("a-1.0.dev1-py3-none-any.whl", False, False),
        ("a-1.0rc1-py3-none-any.whl", False, False),
        ("a-1.0-py3-none-any.whl", True, False),
        ("a-1.0.tar.gz", False, False),
        ("a-x-py3-none-any.whl", False, False),
    ],
)
def test_only_wheels_of_releases_are_recorded(name: str, yanked: bool, is_recorded: bool) -> None:
    file = IndexFile(name, "", None, None, yanked)
    assert package_wheels.is_recorded(file) is is_recorded


def test_what_people_wrote_stays() -> None:
    by_hand = WheelFiles(("a-1-py3-none-any.whl",), note="it is slow")
    gone = WheelFiles(("a-0-py3-none-any.whl",), told_by="Requires-Dist")
    recorded = replace(PLACE, wheels=(by_hand, gone))
    new = WheelFiles(("a-{1,2}-py3-none-any.whl",))
    kept = package_wheels.keep_handwritten(recorded, replace(PLACE, wheels=(new,)))
    assert kept.wheels == (by_hand, WheelFiles(("a-2-py3-none-any.whl",)))
    assert list(package_wheels.compare_places(recorded, replace(PLACE, wheels=(new,)))) == [
        "new: a-2-py3-none-any.whl",
        "no longer there: a-0-py3-none-any.whl",
    ]
