"""Deleting files and folders so that nobody sees half of one, and trimming caches."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.stored_things import age, held, write
from torchmill.commands.clean.in_use import find_occupant
from torchmill.core.deletion import (
    DELETED_NAME,
    delete_paths,
    is_being_deleted,
    move_out_of_sight,
    trim_folder,
)
from torchmill.core.errors import BusyError
from torchmill.core.locks import hold_lock_files, list_contents


def test_a_hidden_path_is_complete(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "c", 10)
    write(tmp_path / "f", 10)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    hidden = move_out_of_sight(
        [tmp_path / "a", tmp_path / "absent", tmp_path / "f", tmp_path / "link"]
    )
    assert all(path.name.startswith(DELETED_NAME) for path in hidden)
    assert len(hidden) == 3
    assert (hidden[0] / "b" / "c").is_file()
    second_file = write(tmp_path / "f", 10)
    assert move_out_of_sight([second_file]) != hidden[1:2]
    assert all(map(is_being_deleted, hidden)), "this process may still be deleting them"


def test_a_process_that_has_ended_deletes_nothing(tmp_path: Path) -> None:
    assert not is_being_deleted(write(tmp_path / f"{DELETED_NAME}999999999-0-source", 1))
    assert not is_being_deleted(write(tmp_path / f"{DELETED_NAME}mine", 1))


def test_a_link_is_deleted_and_not_followed(tmp_path: Path) -> None:
    target = write(tmp_path / "target" / "a", 10)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(target.parent)
    (tmp_path / "link").symlink_to(target.parent)
    delete_paths([folder, tmp_path / "link", tmp_path / "absent"])
    assert list(tmp_path.rglob("*")) == [target.parent, target]


def test_a_read_only_folder_is_deleted(tmp_path: Path) -> None:
    file = write(tmp_path / "a" / "b" / "c", 10)
    file.chmod(0o444)
    file.parent.chmod(0o555)
    delete_paths([tmp_path / "a"])
    assert not (tmp_path / "a").exists()


def test_a_folder_that_its_owner_may_not_read_is_deleted(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o500)
    folder = write(tmp_path / "a" / "b" / "c", 10).parent
    (folder / "link").symlink_to(target)
    folder.chmod(0)
    folder.parent.chmod(0)
    delete_paths([tmp_path / "a"])
    assert not (tmp_path / "a").exists()
    assert target.stat().st_mode & 0o777 == 0o500


def test_a_lock_that_another_run_holds_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "lock", 0)
    second = write(tmp_path / "b" / "lock", 0)
    with (
        held(second),
        pytest.raises(BusyError, match=str(second)),
        hold_lock_files([first, second]),
    ):
        raise AssertionError("another run held it")
    with hold_lock_files([first, second, tmp_path / "no" / "folder" / "lock"]):
        assert not (tmp_path / "no").exists()


def test_the_file_that_marks_a_tree_as_complete_is_deleted_first(tmp_path: Path) -> None:
    for name in ("source", "key", "lock", "holder", "gate", f"{DELETED_NAME}1-0-x"):
        write(tmp_path / name, 1)
    assert [path.name for path in list_contents(tmp_path)] == ["key", "gate", "source"]


def test_the_least_recently_used_files_are_trimmed(tmp_path: Path) -> None:
    files = [write(tmp_path / "zlib" / str(number), 1000, days=number) for number in range(5)]
    fresh = write(tmp_path / "zlib" / ".half", 1000)
    trim_folder(tmp_path, 5000)
    assert all(path.exists() for path in files)
    trim_folder(tmp_path, 3500)
    assert [path.exists() for path in files] == [True, True, True, False, False]
    assert fresh.exists()
    age(files[0], 99)
    trim_folder(tmp_path, 2000)
    assert [path.exists() for path in files] == [False, True, True, False, False]
    trim_folder(tmp_path / "absent", 0)


def test_trimming_goes_on_while_folders_vanish(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path / str(number) / "inner" / "member", 1)

    def clean() -> None:
        for number in reversed(range(300)):
            shutil.rmtree(tmp_path / str(number))

    thread = threading.Thread(target=clean)
    thread.start()
    while thread.is_alive():
        trim_folder(tmp_path, 10**9)
    thread.join()


def test_hidden_names_have_the_process_and_a_number(tmp_path: Path) -> None:
    (first,) = move_out_of_sight([write(tmp_path / "key", 1)])
    (second,) = move_out_of_sight([write(tmp_path / "key", 1)])
    assert (first.name, second.name) == (f".gone-{os.getpid()}-0-key", f".gone-{os.getpid()}-1-key")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_nothing_is_in_use_on_a_read_only_disk(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (tmp_path / "lock").touch()
        (tmp_path / "holder").write_text("x")
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        assert not find_occupant([tmp_path / "lock"])
    finally:
        subprocess.run(["umount", tmp_path], check=True)
