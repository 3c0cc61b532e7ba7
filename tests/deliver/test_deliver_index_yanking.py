"""What `--yank` means, without an index."""

from pathlib import Path

import pytest

from tests.support.paper_wheels import made
from tests.support.refusals import refused
from torchmill.deliver.index import pages
from torchmill.deliver.index.pages import IndexEntry
from torchmill.wheel import wheel_file


@pytest.fixture
def wheels(tmp_path: Path) -> list[IndexEntry]:
    """Return a version of two labels, and one more."""
    versions = ("1.0+cpu", "1.0+cu118", "1.1rc1+cpu")
    return [pages.make_entry(wheel_file.read_wheel(made(tmp_path, version=each)), "") for each in versions]


def test_a_version_is_named_exactly() -> None:
    assert pages.parse_yanked_version("--yank", "Torch_Scatter == 1.0.0+CPU") == "torch-scatter==1.0.0+cpu"
    for wrong in ("torch", "torch>=1", "torch==1.*", "torch[x]==1", "torch==1,==2", "torch @ https://x", ""):
        with refused("invalid-yank"):
            pages.parse_yanked_version("--yank", wrong)


def test_a_version_without_a_label_means_all_labels(wheels: list[IndexEntry]) -> None:
    assert [pages.is_meant("tinytorch==1.0", one) for one in wheels] == [True, True, False]
    assert [pages.is_meant("tinytorch==1.0+cpu", one) for one in wheels] == [True, False, False]
    assert [pages.is_meant("tinytorch==1.1rc1", one) for one in wheels] == [False, False, True]
    assert not pages.is_meant("other==1.0", wheels[0])


def test_a_reason_counts_before_none(wheels: list[IndexEntry]) -> None:
    yanked = pages.apply_yanks({}, pages.parse_yank_options(["tinytorch==1.0"], [], ""), wheels)
    assert [pages.yank_reason(yanked, one) for one in wheels] == ["", "", None]
    yanked = pages.apply_yanks(
        yanked, pages.parse_yank_options(["tinytorch==1.0+cu118"], [], "two\nlines"), wheels
    )
    assert [pages.yank_reason(yanked, one) for one in wheels] == ["", "two lines", None]
    assert pages.apply_yanks(yanked, pages.parse_yank_options([], list(yanked), ""), wheels) == {}


def test_one_thing_is_not_yanked_and_unyanked() -> None:
    with refused("invalid-yank"):
        pages.parse_yank_options(["tinytorch==1.0"], ["TinyTorch == 1.0"], "")
