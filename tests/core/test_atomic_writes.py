"""Files are written in one move; hidden paths of killed runs are removed."""

import os
import time
from pathlib import Path

import pytest

from torchmill.core import deletion
from torchmill.core.atomic_writes import fresh_path, write_atomically
from torchmill.core.deletion import ABANDONED_SECONDS


def test_a_reader_of_a_replaced_file_reads_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    write_atomically(file, "old\n")
    with file.open(encoding="utf-8") as reader:
        write_atomically(file, b"new\n", 0o700)
        assert reader.read() == "old\n"
    assert file.read_bytes() == b"new\n"
    assert file.stat().st_mode & 0o777 == 0o700
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_has_the_name_of_the_file_stays(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    (folder / "by").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_atomically(folder, "content")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_what_another_machine_writes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age is by the clock of the disk: that of this machine may be days ahead."""
    written = tmp_path / ".file.00000000-7"
    written.write_text("half")
    os.utime(written, (0, 0))  # a copy has the date of its original
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3 * ABANDONED_SECONDS)
    write_atomically(tmp_path / "file", "content")
    assert written.exists()
    monkeypatch.setattr(deletion, "ABANDONED_SECONDS", -1)
    write_atomically(tmp_path / "file", "content")
    assert not written.exists()


def test_a_path_of_a_killed_run_with_the_number_of_this_process_is_removed(tmp_path: Path) -> None:
    """In a container, the processes of each run have the same numbers."""
    target = tmp_path / "folder"
    with fresh_path(target) as fresh:
        hidden = fresh
    hidden.mkdir()
    (hidden / "half").touch()
    with fresh_path(target) as fresh:
        fresh.mkdir()
        fresh.rename(target)
    assert list(tmp_path.rglob("*")) == [target]
