"""The entries of an index: different requirements, and yanked versions."""

from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from press_support.written_wheels import made

from tests.support.refusals import refused
from torchmill.deliver.index import entries, pages, yanks
from torchmill.deliver.index.entries import IndexEntry, requirement_differences
from torchmill.wheel import finished_wheel

LINUX = "py3-none-linux_x86_64"
ARM = "py3-none-linux_aarch64"


def _entry(folder: Path, **options: Any) -> IndexEntry:
    """Return the entry of a wheel that is made with some options."""
    return entries.make_entry(finished_wheel.read_wheel(made(folder, **options)), "")


def test_requirements_may_be_written_differently(tmp_path: Path) -> None:
    first = _entry(tmp_path, tag=LINUX, requires=["numpy<2,>=1.20", "filelock"])
    second = _entry(tmp_path, tag=ARM, requires=["filelock", "numpy >=1.20, <2"])
    assert list(requirement_differences([first, second])) == []


def test_different_requirements_are_reported(tmp_path: Path) -> None:
    first = _entry(tmp_path, tag=LINUX, requires=["numpy", "nvidia-cudnn-cu11==8.5.0.96"])
    second = _entry(tmp_path, tag=ARM, requires=["numpy"], python=">=3.10")
    (difference,) = requirement_differences([first, second])
    start = f"tinytorch 1.0+cpu: {second.file} has other requirements than {first.file}: "
    assert difference.startswith(start)
    assert "also Python >=3.10, but not nvidia-cudnn-cu11==8.5.0.96" in difference


def test_other_versions_may_have_other_requirements(tmp_path: Path) -> None:
    first = _entry(tmp_path, tag=LINUX, requires=["numpy"])
    second = _entry(tmp_path, version="1.0+cu118")
    assert list(requirement_differences([first, second])) == []


@pytest.fixture
def wheels(tmp_path: Path) -> list[IndexEntry]:
    """Return a version with two labels, and a pre-release of the next."""
    return [_entry(tmp_path, version=version) for version in ("1.0+cpu", "1.0+cu118", "1.1rc1+cpu")]


def test_a_version_is_named_exactly() -> None:
    pin = yanks.parse_yanked_version("--yank", "Torch_Scatter == 1.0.0+CPU")
    assert pin == "torch-scatter==1.0.0+cpu"


@pytest.mark.parametrize(
    "text",
    ["torch", "torch>=1", "torch==1.*", "torch[x]==1", "torch==1,==2", "torch @ https://x", ""],
)
def test_anything_but_one_version_is_refused(text: str) -> None:
    with refused("invalid-yank"):
        yanks.parse_yanked_version("--yank", text)


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        ("tinytorch==1.0", [True, True, False]),
        ("tinytorch==1.0+cpu", [True, False, False]),
        ("tinytorch==1.1rc1", [False, False, True]),
        ("other==1.0", [False, False, False]),
    ],
)
def test_a_version_without_a_label_means_all_labels(
    wheels: list[IndexEntry], pin: str, expected: list[bool]
) -> None:
    assert [yanks.is_of_version(pin, wheel) for wheel in wheels] == expected


def test_a_reason_counts_before_none(wheels: list[IndexEntry]) -> None:
    change = yanks.parse_yank_options(["tinytorch==1.0"], [], "")
    yanked = yanks.apply_yanks({}, change, wheels)
    assert [yanks.yank_reason(yanked, wheel) for wheel in wheels] == ["", "", None]
    change = yanks.parse_yank_options(["tinytorch==1.0+cu118"], [], "two\nlines")
    yanked = yanks.apply_yanks(yanked, change, wheels)
    assert [yanks.yank_reason(yanked, wheel) for wheel in wheels] == ["", "two lines", None]
    change = yanks.parse_yank_options([], list(yanked), "")
    assert yanks.apply_yanks(yanked, change, wheels) == {}


def test_a_reason_stays_if_a_version_is_yanked_again_without_one(wheels: list[IndexEntry]) -> None:
    first = yanks.parse_yank_options(["tinytorch==1.0"], [], "broken on 8.6")
    yanked = yanks.apply_yanks({}, first, wheels)
    again = yanks.parse_yank_options(["tinytorch==1.0"], [], "")
    assert yanks.apply_yanks(yanked, again, wheels) == yanked == {"tinytorch==1.0": "broken on 8.6"}


def test_each_yanked_version_is_parsed_once(
    wheels: list[IndexEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def counted_specifier(text: str) -> SpecifierSet:
        parsed.append(text)
        return SpecifierSet(text)

    monkeypatch.setattr(yanks, "SpecifierSet", counted_specifier)
    versions = [f"1.0.{number}" for number in range(20)]
    pages.compute_pages(
        wheels * 20,
        {f"tinytorch=={version}": "" for version in versions},
        lambda wheel, _: wheel.file,
        {wheel.file: {} for wheel in wheels},
        metadata=True,
    )
    assert sorted(parsed) == sorted(f"=={version}" for version in versions)


def test_a_version_is_not_yanked_and_unyanked_together() -> None:
    with refused("invalid-yank"):
        yanks.parse_yank_options(["tinytorch==1.0"], ["TinyTorch == 1.0"], "")
