"""METADATA in one spelling: what setuptools of different years and Pythons write becomes the same."""

from pathlib import Path

import pytest

from torchmill.wheel.pack.metadata import normalize_headers, normalize_metadata
from torchmill.wheel.pack.staging import StagedWheel

OLD = """\
Metadata-Version: 2.1
Name: torch
Version: 1.13.1+cpu
Platform: UNKNOWN
License: BSD
 and more of it
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3.7
Classifier: Programming Language :: Python :: 3.8
Provides-Extra: opt_einsum
Requires-Dist: typing-extensions
Requires-Dist: opt-einsum (>=3.3) ; extra == 'opt_einsum'
Requires-Python: >=3.7.0, !=3.9.0"""
NEW = """\
Metadata-Version: 2.1
Name: torch
Version: 1.13.1+cpu
License: BSD
 and more of it
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3.7
Classifier: Programming Language :: Python :: 3.8
Classifier: Programming Language :: Python :: 3.9
Classifier: Programming Language :: Python :: 3.11
Requires-Python: !=3.9.0,>=3.7.0
Requires-Dist: typing-extensions
Provides-Extra: opt-einsum
Requires-Dist: opt-einsum>=3.3; extra == "opt_einsum\""""
PYTHONS = ("3.9", "3.11", "3.8", "3.13t", "3.13")


def test_two_ways_to_write_the_same_become_one() -> None:
    assert normalize_headers(OLD, PYTHONS) == normalize_headers(NEW, PYTHONS)


def test_what_is_written() -> None:
    lines = normalize_headers(OLD, PYTHONS).split("\n")
    assert lines[3:5] == ["License: BSD", " and more of it"]
    numbers = ["3", "3.8", "3.9", "3.11", "3.13"]
    assert lines[6:11] == [f"Classifier: Programming Language :: Python :: {one}" for one in numbers]
    assert lines[11:] == [
        "Requires-Python: >=3.7.0,!=3.9.0",
        "Provides-Extra: opt-einsum",
        "Requires-Dist: typing-extensions",
        'Requires-Dist: opt-einsum>=3.3; extra == "opt-einsum"',
    ]


def test_nothing_is_added_and_a_second_time_changes_nothing() -> None:
    plain = "Metadata-Version: 2.1\nName: a\nVersion: 1"
    assert normalize_headers(plain, PYTHONS) == plain
    once = normalize_headers(OLD, PYTHONS)
    assert normalize_headers(once, PYTHONS) == once


@pytest.mark.parametrize("line", ["Requires-Dist: a (>=1.*)", "Requires-Python: three"])
def test_what_nobody_reads_stays(line: str) -> None:
    assert line in normalize_headers(f"Name: a\n{line}", PYTHONS).split("\n")


@pytest.mark.parametrize(
    ("end", "left"), [("", "\n"), ("\n", "\n"), ("\n\n", "\n\n"), ("\n\nA text.\n", "\n\nA text.\n")]
)
def test_a_file_keeps_its_text_and_gets_no_gap(tmp_path: Path, end: str, left: str) -> None:
    head = "Name: torch\nRequires-Dist: numpy\nSummary: tensors"
    (tmp_path / "METADATA").write_text(head + end)
    normalize_metadata(StagedWheel("torch.whl", tmp_path, tmp_path, "torch", "1.0", "torch"), ("3.9",))
    assert (tmp_path / "METADATA").read_text() == "Name: torch\nSummary: tensors\nRequires-Dist: numpy" + left
