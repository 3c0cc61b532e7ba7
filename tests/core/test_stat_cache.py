"""Digests of files and answers of programs, cached by the stat of files."""

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
    """Let files settle faster, but not faster than the clock of a file system ticks."""
    monkeypatch.setattr(stat_cache, "SETTLED_SECONDS", 0.05)


def settled(path: Path, text: str) -> Path:
    """Write a file, and wait until its last change is long enough ago."""
    path.write_text(text)
    stat = stat_file(path)
    while stat is not None and not stat.is_settled:
        time.sleep(0.01)
    return path


STAT = FileStat("looks so", 0)
NAME = "stat-cache.json"


def test_a_digest_is_cached_also_after_a_restart(tmp_path: Path) -> None:
    file = settled(tmp_path / "a", "one")
    cache = StatCache(tmp_path / NAME)
    digest = cache.digest(file)
    cache.save()
    file.chmod(0o200)  # users other than root cannot read it any more
    stat = stat_file(file)
    assert stat is not None
    restarted = StatCache(tmp_path / NAME)
    assert restarted.lookup(str(file), stat) is None, "its time of change is another"
    file.chmod(0o644)
    restarted = StatCache(tmp_path / NAME)
    assert restarted.digest(file) == digest
    assert restarted.digest(tmp_path / "absent") is None
    assert restarted.digest(tmp_path) is None


def test_same_size_and_time_do_not_deceive(tmp_path: Path) -> None:
    file = settled(tmp_path / "a", "one")
    cache = StatCache(tmp_path / NAME)
    digest = cache.digest(file)
    status = file.stat()
    file.write_text("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.digest(file) != digest


def test_answers_about_recently_changed_files_are_not_stored(tmp_path: Path) -> None:
    cache = StatCache(tmp_path / NAME)
    tomorrow = time.time_ns() + 86_400 * 10**9
    for since in (time.time_ns(), tomorrow):
        recent = FileStat("looks so", since)
        cache.store("it", recent, "answer")
        assert cache.lookup("it", recent) is None
    cache.store("it", STAT, "answer")
    assert cache.lookup("it", STAT) == "answer"
    assert cache.lookup("it", FileStat("looks otherwise", 0)) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"it": 5}', '{"it": ["looks so"]}', "\0"])
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / NAME
    file.write_text(text)
    assert StatCache(file).lookup("it", STAT) is None


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = StatCache(tmp_path / "file" / NAME)
    cache.store("it", STAT, "answer")
    cache.save()
    assert cache.lookup("it", STAT) == "answer"


def test_a_large_cache_is_reduced_to_used_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchmill.core.stat_cache.MAX_BYTES", 60)
    file = tmp_path / NAME
    first = StatCache(file)
    first.store("old", STAT, "x" * 30)
    first.store("used", STAT, "y")
    first.save()
    second = StatCache(file)
    assert second.lookup("used", STAT) == "y"
    second.store("new", STAT, "z")
    second.save()
    assert StatCache(file).lookup("old", STAT) is None
    assert StatCache(file).lookup("used", STAT) == "y"
    assert StatCache(file).lookup("new", STAT) == "z"


def test_a_program_is_asked_once_and_a_script_each_time(tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy(Path(sys.executable).resolve(), program)
    settled(tmp_path / "later", "")
    script = settled(tmp_path / "script", "#!/bin/sh\n")
    cache = StatCache(tmp_path / NAME)
    calls = []

    def ask() -> str:
        calls.append(1)
        return "answer"

    for files, expected_calls in (
        ([program], 1),
        ([script], 2),
        ([program, script], 2),
        ([tmp_path / "absent"], 2),
    ):
        calls.clear()
        for _ in range(2):
            assert cache.program_output(str(files), files, ask) == "answer"
        assert len(calls) == expected_calls
    assert is_native(program)
    os.utime(program, (1e9, 1e9))
    calls.clear()
    cache.program_output(str([program]), [program], ask)
    assert calls, "its stat is another"


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


def test_an_empty_answer_is_not_cached(tmp_path: Path) -> None:
    """A compiler that could not run for want of memory may run the next time."""
    cache = StatCache(tmp_path / NAME)
    answers = iter(["", "g++ 12"])
    assert cache.remember("question", [STAT], lambda: next(answers)) == ""
    assert cache.remember("question", [STAT], lambda: next(answers)) == "g++ 12"
