"""Digests and answers that are remembered by how files look."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from torchmill import recall as recall_
from torchmill.recall import Look, Recall, is_native, look, look_below


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files settle faster; the clock of a file system ticks every few milliseconds all the same."""
    monkeypatch.setattr(recall_, "SETTLED", 0.05)


def settled(path: Path, text: str) -> Path:
    """Write a file, and wait until it counts as one that was not changed just now."""
    path.write_text(text)
    seen = look(path)
    while seen is not None and not seen.settled:
        time.sleep(0.01)
    return path


def test_a_digest_is_told_again_without_reading_and_after_a_restart(tmp_path: Path) -> None:
    file = settled(tmp_path / "a", "one")
    first = Recall(tmp_path / "recall.json")
    digest = first.digest(file)
    first.save()
    file.chmod(0o200)  # whoever is not root cannot read it any more
    seen = look(file)
    assert seen is not None
    assert Recall(tmp_path / "recall.json").told(str(file), seen) is None, "its time of change is another"
    file.chmod(0o644)
    again = Recall(tmp_path / "recall.json")
    assert again.digest(file) == digest
    assert again.digest(tmp_path / "absent") is None
    assert again.digest(tmp_path) is None


def test_same_size_and_time_do_not_deceive(tmp_path: Path) -> None:
    file = settled(tmp_path / "a", "one")
    recall = Recall(tmp_path / "recall.json")
    before, seen = recall.digest(file), file.stat()
    file.write_text("two")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert recall.digest(file) != before


def test_what_changed_just_now_or_in_the_future_is_not_kept(tmp_path: Path) -> None:
    recall = Recall(tmp_path / "recall.json")
    for since in (time.time_ns(), time.time_ns() + 86_400 * 10**9):
        recall.keep("it", Look("looks so", since), "answer")
        assert recall.told("it", Look("looks so", since)) is None
    recall.keep("it", Look("looks so", 0), "answer")
    assert recall.told("it", Look("looks so", 0)) == "answer"
    assert recall.told("it", Look("looks otherwise", 0)) is None


def test_a_spoiled_memory_is_an_empty_one(tmp_path: Path) -> None:
    memory = tmp_path / "recall.json"
    for text in ("", "[]", "{", '{"it": 5}', '{"it": ["looks so"]}', "\0"):
        memory.write_text(text)
        assert Recall(memory).told("it", Look("looks so", 0)) is None


def test_a_memory_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recall = Recall(tmp_path / "file" / "recall.json")
    recall.keep("it", Look("looks so", 0), "answer")
    recall.save()
    assert recall.told("it", Look("looks so", 0)) == "answer"


def test_a_program_is_asked_once_and_a_script_each_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy(Path(sys.executable).resolve(), program)
    settled(tmp_path / "later", "")
    script = settled(tmp_path / "script", "#!/bin/sh\n")
    recall, asked = Recall(tmp_path / "recall.json"), []

    def ask() -> str:
        asked.append(1)
        return "answer"

    for files, times in (([program], 1), ([script], 2), ([program, script], 2), ([tmp_path / "absent"], 2)):
        asked.clear()
        assert {recall.said(str(files), files, ask) for _ in range(2)} == {"answer"}
        assert len(asked) == times
    assert is_native(program)
    os.utime(program, (1e9, 1e9))
    asked.clear()
    recall.said(str([program]), [program], ask)
    assert asked, "another look, another question"


def test_a_folder_looks_otherwise_after_each_kind_of_change(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / ".git").mkdir()
    file = inner / "deep" / "a"
    file.write_text("one")
    looks = [look_below(inner).text]
    assert look_below(inner).text == looks[0]
    (inner / ".git" / "index").write_text("git's own")
    assert look_below(inner).text == looks[0]
    seen = file.stat()
    file.write_text("two")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    looks.append(look_below(inner).text)
    file.rename(inner / "deep" / "b")
    looks.append(look_below(inner).text)
    (inner / "deep" / "b").rename(inner / "b")
    looks.append(look_below(inner).text)
    (inner / "link").symlink_to("b")
    looks.append(look_below(inner).text)
    (inner / "b").unlink()
    looks.append(look_below(inner).text)
    assert len(set(looks)) == len(looks)
