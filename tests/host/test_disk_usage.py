"""What files take on a disk."""

import os
import subprocess
from pathlib import Path

from tests.support.kept_things import write
from torchmill.host import disk_usage


def test_sizes_are_those_of_du(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / "a" / str(number % 7) / str(number), number * 1000)
    with write(tmp_path / "sparse", 10).open("r+b") as file:
        file.truncate(50_000_000)
    os.link(tmp_path / "a" / "1" / "29", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    told = subprocess.run(["du", "-s", "-B1", tmp_path], capture_output=True, text=True, check=True)
    found = disk_usage.measure_paths([tmp_path])
    assert found.size == int(told.stdout.split()[0])
    assert found.files == 33


def test_several_names_are_one_file(tmp_path: Path) -> None:
    names = [tmp_path / name / "file" for name in "abc"]
    write(names[0], 100_000)
    for name in names[1:]:
        name.parent.mkdir()
        os.link(names[0], name)
    each = [disk_usage.measure_paths([name.parent]) for name in names]
    two, three = disk_usage.add_up(each[:2]), disk_usage.add_up(each)
    assert each[0].size >= 100_000 > each[0].freed
    assert two.size < 200_000
    assert two.freed < 100_000, "the third name stays"
    assert three.freed == three.size >= 100_000


def test_what_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert disk_usage.measure_paths([tmp_path / "absent"]) == disk_usage.DiskBytes()
    assert disk_usage.add_up([]).freed == 0
