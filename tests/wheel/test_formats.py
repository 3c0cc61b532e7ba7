"""The formats of documents: what follows from the same manifest may change only together with its number."""

import hashlib
from pathlib import Path

import pytest
from press_support import written_wheels

from tests.support import told_wheels
from torchmill.core import formats
from torchmill.wheel import dist_files

# The sha256 of what follows from a fixed manifest and wheel, by the manifest's format. Where a digest changes, wheels
# that were built before would be called wrong: raise MANIFEST (for the statement also STATEMENT) and add a line.
DERIVED = {
    2: {
        ".intoto.json": "358c3864d3001c9830a542e2ca532be2d2a2af804b686571ad8ad8d76aa31edd",
        ".cdx.json": "acf78a8956262487b4a4d60e3b21deba95a1870c41376d8e86f24773bd030e38",
    },
}


def test_documents_of_a_format_do_not_change(tmp_path: Path) -> None:
    wheel = written_wheels.made(tmp_path, version="1.13.1+cu117")
    documents = dist_files.compose_documents(told_wheels.manifest(wheel), wheel)
    found = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in documents.items()}
    assert found == DERIVED[formats.MANIFEST]


@pytest.mark.parametrize(
    ("number", "age"),
    [
        (3, "same"),
        (2, "older"),
        (0, "older"),
        (4, "newer"),
        (-1, "invalid"),
        ("3", "invalid"),
        (True, "invalid"),
    ],
)
def test_a_format_is_judged_by_its_number(number: object, age: str) -> None:
    assert formats.judge_format({"format": number}, 3) == age


def test_a_document_without_a_format_is_older() -> None:
    assert formats.judge_format({}, 3) == "older"


def test_an_output_says_its_format_first() -> None:
    assert list(formats.stamp_output({"a": 1})) == ["format", "a"]
