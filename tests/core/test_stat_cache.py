"""Digests and answers that are remembered by how files look."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from torchmill.core import stat_cache
from torchmill.core.stat_cache import FileStat, StatCache, is_native, stat_file, stat_folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files settle faster; the clock of a file system ticks every few milliseconds all the same."""
    monkeypatch.setattr(stat_cache, "SETTLED_SECONDS", 0.05)


def settled(path: Path, text: str) -> Path:
    """Write a file, and wait until it counts as one that was not changed just now."""
    path.write_text(text)
    seen = stat_file(path)
    while seen is not None and not seen.settled:
        time.sleep(0.01)
    return path


def test_a_digest_is_told_again_without_reading_and_after_a_restart(tmp_path: Path) -> None:
    file = settled(tmp_path / "a", "one")
    first = StatCache(tmp_path / "stat-cache.json")
    digest = first.digest(file)
    first.save()
    file.chmod(0o200)  # whoever is not root cannot read it any more
    seen = stat_file(file)
    assert seen is not None
    assert StatCache(tmp_path / "stat-cache.json").lookup(str(file), seen) is None, (
        "its time of change is another"
    )
    file.chmod(0o644)
    again = StatCache(tmp_path / "stat-cache.json")
    assert again.digest(file) == digest
    assert again.digest(tmp_path / "absent") is None
    assert again.digest(tmp_path) is None


def test_same_size_and_time_do_not_deceive(tmp_path: Path) -> None:
    file = settled(tmp_path / "a", "one")
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    before, seen = stat_cache.digest(file), file.stat()
    file.write_text("two")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert stat_cache.digest(file) != before


def test_what_changed_just_now_or_in_the_future_is_not_kept(tmp_path: Path) -> None:
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    for since in (time.time_ns(), time.time_ns() + 86_400 * 10**9):
        stat_cache.store("it", FileStat("looks so", since), "answer")
        assert stat_cache.lookup("it", FileStat("looks so", since)) is None
    stat_cache.store("it", FileStat("looks so", 0), "answer")
    assert stat_cache.lookup("it", FileStat("looks so", 0)) == "answer"
    assert stat_cache.lookup("it", FileStat("looks otherwise", 0)) is None


def test_a_spoiled_memory_is_an_empty_one(tmp_path: Path) -> None:
    memory = tmp_path / "stat-cache.json"
    for text in ("", "[]", "{", '{"it": 5}', '{"it": ["looks so"]}', "\0"):
        memory.write_text(text)
        assert StatCache(memory).lookup("it", FileStat("looks so", 0)) is None


def test_a_memory_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stat_cache = StatCache(tmp_path / "file" / "stat-cache.json")
    stat_cache.store("it", FileStat("looks so", 0), "answer")
    stat_cache.save()
    assert stat_cache.lookup("it", FileStat("looks so", 0)) == "answer"


def test_a_large_memory_keeps_what_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchmill.core.stat_cache.MAX_BYTES", 60)
    look, file = FileStat("looks so", 0), tmp_path / "stat-cache.json"
    first = StatCache(file)
    first.store("old", look, "x" * 30)
    first.store("used", look, "y")
    first.save()
    second = StatCache(file)
    assert second.lookup("used", look) == "y"
    second.store("new", look, "z")
    second.save()
    assert [StatCache(file).lookup(what, look) for what in ("old", "used", "new")] == [
        None,
        "y",
        "z",
    ]


def test_a_program_is_asked_once_and_a_script_each_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy(Path(sys.executable).resolve(), program)
    settled(tmp_path / "later", "")
    script = settled(tmp_path / "script", "#!/bin/sh\n")
    stat_cache, asked = StatCache(tmp_path / "stat-cache.json"), []

    def ask() -> str:
        asked.append(1)
        return "answer"

    for files, times in (
        ([program], 1),
        ([script], 2),
        ([program, script], 2),
        ([tmp_path / "absent"], 2),
    ):
        asked.clear()
        assert {stat_cache.program_output(str(files), files, ask) for _ in range(2)} == {"answer"}
        assert len(asked) == times
    assert is_native(program)
    os.utime(program, (1e9, 1e9))
    asked.clear()
    stat_cache.program_output(str([program]), [program], ask)
    assert asked, "another look, another question"


def test_a_folder_looks_otherwise_after_each_kind_of_change(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / ".git").mkdir()
    file = inner / "deep" / "a"
    file.write_text("one")
    looks = [stat_folder(inner).text]
    assert stat_folder(inner).text == looks[0]
    (inner / ".git" / "index").write_text("git's own")
    assert stat_folder(inner).text == looks[0]
    seen = file.stat()
    file.write_text("two")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    looks.append(stat_folder(inner).text)
    file.rename(inner / "deep" / "b")
    looks.append(stat_folder(inner).text)
    (inner / "deep" / "b").rename(inner / "b")
    looks.append(stat_folder(inner).text)
    (inner / "link").symlink_to("b")
    looks.append(stat_folder(inner).text)
    (inner / "b").unlink()
    looks.append(stat_folder(inner).text)
    assert len(set(looks)) == len(looks)


def test_an_answer_of_nothing_is_asked_for_again(tmp_path: Path) -> None:
    """A compiler that could not run, as it lacked a library or memory, may run the next time."""
    cache, seen, said = StatCache(tmp_path / "memory"), FileStat("x", 0), iter(["", "g++ 12"])
    assert [cache.remember("question", [seen], lambda: next(said)) for _ in range(2)] == [
        "",
        "g++ 12",
    ]
