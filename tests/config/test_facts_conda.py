"""conda.toml, read strictly."""

from pathlib import Path

import pytest

from torchmill.config.delivery_model import CondaName
from torchmill.config.facts_reader import read_conda
from torchmill.config.model import Facts


def test_what_ships_names_machines_and_packages(shipped: Facts) -> None:
    assert shipped.conda is not None
    assert shipped.conda.subdirs["x86_64"] == "linux-64"
    assert shipped.conda.names["torch"] == CondaName("pytorch", "same")
    assert set(shipped.conda.cuda) <= {toolkit.version for toolkit in shipped.toolkits}
    assert set(shipped.conda.compiled_with) <= set(shipped.packages)


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    problems: list[str] = []
    assert read_conda(tmp_path / "conda.toml", problems) is None
    assert problems == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[name]]\npypi = ["Torch"]\nconda = "pytorch"', "'Torch' is written 'torch' here"),
        (
            '[[name]]\npypi = ["a"]\nconda = "b"\nbounds = "patch"',
            "'bounds' is 'patch', expected one of same",
        ),
        (
            '[[name]]\npypi = ["a"]\nconda = "b"\n[[name]]\npypi = ["a"]\nconda = "c"',
            "'a' has a name already, b",
        ),
        ('[subdirectories]\nx86_64 = "linux-64"', "unknown key 'subdirectories'"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "conda.toml").write_text(text)
    problems: list[str] = []
    read_conda(tmp_path / "conda.toml", problems)
    assert problem in "\n".join(problems)
