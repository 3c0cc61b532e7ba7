"""What `--yank` means, without an index."""

from pathlib import Path

import pytest
from paper_wheels import made

from torchmill.deliver import distributions
from torchmill.deliver.index import entry, yanking
from torchmill.deliver.index.entry import Entry
from torchmill.errors import ConfigError


@pytest.fixture
def wheels(tmp_path: Path) -> list[Entry]:
    """Return a version of two labels, and one more."""
    versions = ("1.0+cpu", "1.0+cu118", "1.1rc1+cpu")
    return [entry.of(distributions.read(made(tmp_path, version=each)), "") for each in versions]


def test_a_version_is_named_exactly() -> None:
    assert yanking.version("--yank", "Torch_Scatter == 1.0.0+CPU") == "torch-scatter==1.0.0+cpu"
    for wrong in ("torch", "torch>=1", "torch==1.*", "torch[x]==1", "torch==1,==2", "torch @ https://x", ""):
        with pytest.raises(ConfigError, match="name one version, as torch==1"):
            yanking.version("--yank", wrong)


def test_a_version_without_a_label_means_all_labels(wheels: list[Entry]) -> None:
    assert [yanking.meant("tinytorch==1.0", one) for one in wheels] == [True, True, False]
    assert [yanking.meant("tinytorch==1.0+cpu", one) for one in wheels] == [True, False, False]
    assert [yanking.meant("tinytorch==1.1rc1", one) for one in wheels] == [False, False, True]
    assert not yanking.meant("other==1.0", wheels[0])


def test_a_reason_counts_before_none(wheels: list[Entry]) -> None:
    yanked = yanking.changed({}, yanking.asked(["tinytorch==1.0"], [], ""), wheels)
    assert [yanking.reason(yanked, one) for one in wheels] == ["", "", None]
    yanked = yanking.changed(yanked, yanking.asked(["tinytorch==1.0+cu118"], [], "two\nlines"), wheels)
    assert [yanking.reason(yanked, one) for one in wheels] == ["", "two lines", None]
    assert yanking.changed(yanked, yanking.asked([], list(yanked), ""), wheels) == {}


def test_one_thing_is_not_yanked_and_unyanked() -> None:
    with pytest.raises(ConfigError, match=r"--yank tinytorch==1\.0 and --unyank .*: say one of them"):
        yanking.asked(["tinytorch==1.0"], ["TinyTorch == 1.0"], "")
