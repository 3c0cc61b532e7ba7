"""Removing such that nobody meets half of it."""

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
from torchmill.core.locks import hold_locks, list_contents


def test_what_is_put_away_is_out_of_sight_and_whole(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "c", 10)
    write(tmp_path / "f", 10)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    away = move_out_of_sight(
        [tmp_path / "a", tmp_path / "absent", tmp_path / "f", tmp_path / "link"]
    )
    assert all(path.name.startswith(DELETED_NAME) for path in away)
    assert len(away) == 3
    assert (away[0] / "b" / "c").is_file()
    again = write(tmp_path / "f", 10)
    assert move_out_of_sight([again]) != away[1:2]
    assert all(map(is_being_deleted, away)), "this process may still be at it"


def test_whoever_is_gone_deletes_nothing_any_more(tmp_path: Path) -> None:
    assert not is_being_deleted(write(tmp_path / f"{DELETED_NAME}999999999-0-source", 1))
    assert not is_being_deleted(write(tmp_path / f"{DELETED_NAME}mine", 1))


def test_a_link_is_deleted_and_not_followed(tmp_path: Path) -> None:
    kept = write(tmp_path / "kept" / "a", 10)
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "link").symlink_to(kept.parent)
    (tmp_path / "link").symlink_to(kept.parent)
    delete_paths([gone, tmp_path / "link", tmp_path / "absent"])
    assert list(tmp_path.rglob("*")) == [kept.parent, kept]


def test_what_may_not_be_written_to_is_deleted_all_the_same(tmp_path: Path) -> None:
    file = write(tmp_path / "a" / "b" / "c", 10)
    file.chmod(0o444)
    file.parent.chmod(0o555)
    delete_paths([tmp_path / "a"])
    assert not (tmp_path / "a").exists()


def test_a_lock_that_somebody_holds_is_named(tmp_path: Path) -> None:
    free, taken = write(tmp_path / "a" / "lock", 0), write(tmp_path / "b" / "lock", 0)
    with held(taken), pytest.raises(BusyError, match=str(taken)), hold_locks([free, taken]):
        raise AssertionError("it was held")
    with hold_locks([free, taken, tmp_path / "no" / "folder" / "lock"]):
        assert not (tmp_path / "no").exists()


def test_what_says_that_a_tree_is_whole_goes_first(tmp_path: Path) -> None:
    for name in ("source", "key", "lock", "holder", "gate", f"{DELETED_NAME}1-0-x"):
        write(tmp_path / name, 1)
    assert [path.name for path in list_contents(tmp_path)] == ["key", "gate", "source"]


def test_the_least_recently_used_are_trimmed(tmp_path: Path) -> None:
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


def test_folders_that_go_while_it_looks_are_no_trouble(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path / str(number) / "inner" / "member", 1)

    def clean() -> None:
        for number in reversed(range(300)):
            shutil.rmtree(tmp_path / str(number))

    other = threading.Thread(target=clean)
    other.start()
    while other.is_alive():
        trim_folder(tmp_path, 10**9)
    other.join()


def test_names_are_taken_by_process_and_number(tmp_path: Path) -> None:
    (first,) = move_out_of_sight([write(tmp_path / "key", 1)])
    (second,) = move_out_of_sight([write(tmp_path / "key", 1)])
    assert (first.name, second.name) == (f".gone-{os.getpid()}-0-key", f".gone-{os.getpid()}-1-key")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_nothing_is_in_use_where_nothing_can_be_written(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (tmp_path / "lock").touch()
        (tmp_path / "holder").write_text("x")
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        assert not find_occupant([tmp_path / "lock"])
    finally:
        subprocess.run(["umount", tmp_path], check=True)
