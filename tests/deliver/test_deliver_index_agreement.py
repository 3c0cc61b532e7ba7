"""Wheels of one version that say otherwise what they need."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.paper_wheels import made
from torchmill.deliver.index import pages
from torchmill.deliver.index.pages import IndexEntry, requirement_differences
from torchmill.wheel import wheel_file

LINUX, ARM = "py3-none-linux_x86_64", "py3-none-linux_aarch64"


def _wheel(folder: Path, tag: str, requires: Sequence[str] = (), python: str = "") -> IndexEntry:
    return pages.make_entry(
        wheel_file.read_wheel(made(folder, tag=tag, requires=requires, python=python)), ""
    )


def test_what_is_spelled_otherwise_is_the_same(tmp_path: Path) -> None:
    one = _wheel(tmp_path, LINUX, ["numpy<2,>=1.20", "filelock"])
    other = _wheel(tmp_path, ARM, ["filelock", "numpy >=1.20, <2"])
    assert list(requirement_differences([one, other])) == []


def test_differences_are_named(tmp_path: Path) -> None:
    one = _wheel(tmp_path, LINUX, ["numpy", "nvidia-cudnn-cu11==8.5.0.96"])
    other = _wheel(tmp_path, ARM, ["numpy"], ">=3.10")
    (told,) = requirement_differences([one, other])
    assert told.startswith(f"tinytorch 1.0+cpu: {other.file} has other requirements than {one.file}: ")
    assert "also Python >=3.10, but not nvidia-cudnn-cu11==8.5.0.96" in told


def test_other_versions_may_differ(tmp_path: Path) -> None:
    one = _wheel(tmp_path, LINUX, ["numpy"])
    other = pages.make_entry(wheel_file.read_wheel(made(tmp_path, version="1.0+cu118")), "")
    assert list(requirement_differences([one, other])) == []
