"""Measure the room that files take on a disk."""

import os
import subprocess
from pathlib import Path

from tests.support.stored_things import write
from torchmill.host import disk_usage


def test_sizes_are_those_of_du(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / "a" / str(number % 7) / str(number), number * 1000)
    with write(tmp_path / "sparse", 10).open("r+b") as file:
        file.truncate(50_000_000)
    os.link(tmp_path / "a" / "1" / "29", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    result = subprocess.run(
        ["du", "-s", "-B1", tmp_path], capture_output=True, text=True, check=True
    )
    usage = disk_usage.measure_paths([tmp_path])
    assert usage.size == int(result.stdout.split()[0])
    assert usage.files == 33


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    names = [tmp_path / name / "file" for name in "abc"]
    write(names[0], 100_000)
    for name in names[1:]:
        name.parent.mkdir()
        os.link(names[0], name)
    usages = [disk_usage.measure_paths([name.parent]) for name in names]
    two = disk_usage.add_up(usages[:2])
    three = disk_usage.add_up(usages)
    assert usages[0].size >= 100_000 > usages[0].freed
    assert two.size < 200_000
    assert two.freed < 100_000, "the file has a third name"
    assert three.freed == three.size >= 100_000


def test_missing_files_take_no_room(tmp_path: Path) -> None:
    assert disk_usage.measure_paths([tmp_path / "absent"]) == disk_usage.DiskBytes()
    assert disk_usage.add_up([]).freed == 0
