"""What stages made, written down, and told from what they would find now."""

import json
from pathlib import Path

import pytest

from torchmill.build import up_to_date
from torchmill.build.up_to_date import INSTALLED, WHOLE, StageRecord
from torchmill.core.stat_cache import StatCache

PARTS = {"switch A": "1", "compiler": "2", WHOLE: "3"}


@pytest.fixture
def recall(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "recall.json")


def changes(entry: StageRecord | None, parts: dict[str, str], recall: StatCache) -> list[str]:
    return list(up_to_date.find_differences(entry, parts, recall))


def test_each_part_that_differs_is_named(recall: StatCache) -> None:
    entry = StageRecord(PARTS, "made")
    assert changes(entry, PARTS, recall) == []
    assert changes(None, PARTS, recall) == ["not done yet"]
    assert changes(entry, PARTS | {"compiler": "x", WHOLE: "y"}, recall) == ["compiler"]
    assert changes(entry, PARTS | {WHOLE: "y"}, recall) == [WHOLE]
    assert changes(entry, PARTS | {"switch B": "1"}, recall) == ["switch B"]
    assert changes(entry, {"compiler": "2", WHOLE: "3"}, recall) == ["switch A"]


def test_an_environment_that_is_not_filled_yet_is_no_difference(recall: StatCache) -> None:
    entry = StageRecord({**PARTS, INSTALLED: "numpy 1"}, "made")
    assert changes(entry, PARTS, recall) == []
    assert changes(entry, {**PARTS, INSTALLED: "numpy 2"}, recall) == [INSTALLED]


def test_a_file_that_was_read_and_is_another_now_is_named(tmp_path: Path, recall: StatCache) -> None:
    header = tmp_path / "a.h"
    header.write_text("one")
    digest = recall.digest(header)
    assert digest is not None
    entry = StageRecord(PARTS, "made", {str(header): digest})
    assert changes(entry, PARTS, recall) == []
    header.write_text("two")
    assert changes(entry, PARTS, recall) == [str(header)]
    header.unlink()
    assert changes(entry, PARTS, recall) == [str(header)]


def test_entries_come_back_as_they_were_written(tmp_path: Path) -> None:
    entries = {
        "compile": StageRecord(PARTS, "raw", {"/a.h": "1"}, {"edges": 7}),
        "pack": StageRecord({"raw": "1"}, "packed"),
    }
    file = tmp_path / "ledger"
    up_to_date.write_records(file, entries)
    assert up_to_date.read_records(file) == entries
    told = json.loads(json.dumps({"stages": up_to_date.records_as_data(entries), "edges": 7}))
    assert up_to_date.parse_records(told)["compile"].said == {}, "the manifest says it elsewhere"
    assert up_to_date.parse_records(told)["compile"].read == {"/a.h": "1"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "{}", '{"stages": 5}', '{"stages": {"compile": 5}}', '{"stages": {"pack": {}}}',
     '{"stages": {"compile": {"parts": {}, "made": "x", "read": {}, "said": {}}}}',
     '{"stages": {"compile": {"parts": {"a": "b"}, "made": "", "read": {}, "said": {}}}}'],
)  # fmt: skip
def test_what_cannot_be_understood_is_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ledger"
    assert up_to_date.read_records(file) == {}
    file.write_text(text)
    assert up_to_date.read_records(file) == {}
