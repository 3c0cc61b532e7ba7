"""Files are written in one move; hidden paths of killed runs are removed."""

from pathlib import Path

import pytest

from torchmill.core.atomic_writes import fresh_path, write_atomically


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
