"""The pages of an index: requirements that differ, and versions that are yanked."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from press_support.written_wheels import made

from tests.support.refusals import refused
from torchmill.deliver.index import entries, pages, yanks
from torchmill.deliver.index.entries import IndexEntry, requirement_differences
from torchmill.wheel import finished_wheel

LINUX, ARM = "py3-none-linux_x86_64", "py3-none-linux_aarch64"


def _wheel(folder: Path, tag: str, requires: Sequence[str] = (), python: str = "") -> IndexEntry:
    return entries.make_entry(
        finished_wheel.read_wheel(made(folder, tag=tag, requires=requires, python=python)), ""
    )


def test_what_is_spelled_otherwise_is_the_same(tmp_path: Path) -> None:
    one = _wheel(tmp_path, LINUX, ["numpy<2,>=1.20", "filelock"])
    other = _wheel(tmp_path, ARM, ["filelock", "numpy >=1.20, <2"])
    assert list(requirement_differences([one, other])) == []


def test_differences_are_named(tmp_path: Path) -> None:
    one = _wheel(tmp_path, LINUX, ["numpy", "nvidia-cudnn-cu11==8.5.0.96"])
    other = _wheel(tmp_path, ARM, ["numpy"], ">=3.10")
    (told,) = requirement_differences([one, other])
    assert told.startswith(
        f"tinytorch 1.0+cpu: {other.file} has other requirements than {one.file}: "
    )
    assert "also Python >=3.10, but not nvidia-cudnn-cu11==8.5.0.96" in told


def test_other_versions_may_differ(tmp_path: Path) -> None:
    one = _wheel(tmp_path, LINUX, ["numpy"])
    other = entries.make_entry(finished_wheel.read_wheel(made(tmp_path, version="1.0+cu118")), "")
    assert list(requirement_differences([one, other])) == []


@pytest.fixture
def wheels(tmp_path: Path) -> list[IndexEntry]:
    """Return a version of two labels, and one more."""
    versions = ("1.0+cpu", "1.0+cu118", "1.1rc1+cpu")
    return [
        entries.make_entry(finished_wheel.read_wheel(made(tmp_path, version=each)), "")
        for each in versions
    ]


def test_a_version_is_named_exactly() -> None:
    assert (
        yanks.parse_yanked_version("--yank", "Torch_Scatter == 1.0.0+CPU")
        == "torch-scatter==1.0.0+cpu"
    )
    for wrong in (
        "torch",
        "torch>=1",
        "torch==1.*",
        "torch[x]==1",
        "torch==1,==2",
        "torch @ https://x",
        "",
    ):
        with refused("invalid-yank"):
            yanks.parse_yanked_version("--yank", wrong)


def test_a_version_without_a_label_means_all_labels(wheels: list[IndexEntry]) -> None:
    assert [yanks.is_of_version("tinytorch==1.0", one) for one in wheels] == [True, True, False]
    assert [yanks.is_of_version("tinytorch==1.0+cpu", one) for one in wheels] == [
        True,
        False,
        False,
    ]
    assert [yanks.is_of_version("tinytorch==1.1rc1", one) for one in wheels] == [False, False, True]
    assert not yanks.is_of_version("other==1.0", wheels[0])


def test_a_reason_counts_before_none(wheels: list[IndexEntry]) -> None:
    yanked = yanks.apply_yanks({}, yanks.parse_yank_options(["tinytorch==1.0"], [], ""), wheels)
    assert [yanks.yank_reason(yanked, one) for one in wheels] == ["", "", None]
    yanked = yanks.apply_yanks(
        yanked, yanks.parse_yank_options(["tinytorch==1.0+cu118"], [], "two\nlines"), wheels
    )
    assert [yanks.yank_reason(yanked, one) for one in wheels] == ["", "two lines", None]
    assert yanks.apply_yanks(yanked, yanks.parse_yank_options([], list(yanked), ""), wheels) == {}


def test_a_yanked_version_is_read_once(
    wheels: list[IndexEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def specifier(text: str) -> SpecifierSet:
        read.append(text)
        return SpecifierSet(text)

    monkeypatch.setattr(yanks, "SpecifierSet", specifier)
    yanked = {f"tinytorch==1.0.{number}": "" for number in range(20)}
    pages.compute_pages(
        wheels * 20,
        yanked,
        lambda one, _: one.file,
        {one.file: {} for one in wheels},
        metadata=True,
    )
    assert sorted(read) == sorted(f"=={named.partition('==')[2]}" for named in yanked)


def test_one_thing_is_not_yanked_and_unyanked() -> None:
    with refused("invalid-yank"):
        yanks.parse_yank_options(["tinytorch==1.0"], ["TinyTorch == 1.0"], "")
