"""The formats of documents: documents of the same manifest change only with the number of its format."""

import hashlib
from pathlib import Path

import pytest
from press_support import written_wheels

from tests.support import documented_wheels
from torchmill.core import formats
from torchmill.wheel import dist_files

# The sha256 of the documents that follow from a fixed manifest and wheel, by the manifest's format.
# If a digest changes, the documents of older wheels would be called wrong: raise MANIFEST (for the
# statement also STATEMENT), and add an entry.
DERIVED = {
    2: {
        ".intoto.json": "358c3864d3001c9830a542e2ca532be2d2a2af804b686571ad8ad8d76aa31edd",
        ".cdx.json": "acf78a8956262487b4a4d60e3b21deba95a1870c41376d8e86f24773bd030e38",
    },
}


def test_documents_of_a_format_do_not_change(tmp_path: Path) -> None:
    wheel = written_wheels.made(tmp_path, version="1.13.1+cu117")
    documents = dist_files.compose_documents(documented_wheels.manifest(wheel), wheel)
    digests = {suffix: hashlib.sha256(data).hexdigest() for suffix, data in documents.items()}
    assert digests == DERIVED[formats.MANIFEST]


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


def test_an_output_begins_with_its_format() -> None:
    assert list(formats.stamp_output({"a": 1})) == ["format", "a"]
