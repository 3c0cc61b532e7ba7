from __future__ import annotations

import base64
import csv
import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from torchwright.errors import BuildError, ConfigError, HostError
from torchwright.pack.wheel import pack

INFO = "tiny-1.0.dist-info"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in {
        "tiny/__init__.py": "x = 1\n",
        "tiny/bin/tool": "#!/bin/sh\n",
        f"{INFO}/METADATA": "Name: tiny\n",
        f"{INFO}/RECORD": "what the build wrote\n",
        "zeta/a,b.txt": "a comma in the name\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o640)
    (root / "tiny/bin/tool").chmod(0o700)
    return root


def test_packing_twice_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    first = pack(tree, tmp_path / "a" / "tiny.whl")
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    second = pack(tree, tmp_path / "b" / "tiny.whl")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.sha256 == second.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.size == first.path.stat().st_size


def test_record_tells_every_file_by_hash_and_size(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tree, tmp_path / "tiny.whl").path) as archive:
        rows = list(csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == archive.namelist()
        assert rows[-1] == [f"{INFO}/RECORD", "", ""]
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={encoded}", str(len(data)))


def test_members_are_sorted_with_the_metadata_last(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tree, tmp_path / "tiny.whl").path) as archive:
        assert archive.namelist() == [
            "tiny/__init__.py",
            "tiny/bin/tool",
            "zeta/a,b.txt",
            f"{INFO}/METADATA",
            f"{INFO}/RECORD",
        ]


def test_modes_do_not_depend_on_the_umask(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tree, tmp_path / "tiny.whl").path) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["tiny/bin/tool"] == stat.S_IFREG | 0o755
    assert modes["tiny/__init__.py"] == modes[f"{INFO}/RECORD"] == stat.S_IFREG | 0o644


def test_the_time_is_the_one_that_is_asked_for(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1671062400")
    with zipfile.ZipFile(pack(tree, tmp_path / "tiny.whl").path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2022, 12, 15, 0, 0, 0)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ConfigError, match="not a number of seconds"):
        pack(tree, tmp_path / "other.whl")
    assert [path.name for path in tmp_path.glob("*.whl*")] == ["tiny.whl"]


def test_nothing_half_made_is_left(tree: Path, tmp_path: Path) -> None:
    (tree / "tiny" / "link.py").symlink_to("__init__.py")
    with pytest.raises(BuildError, match=r"link\.py: is a link"):
        pack(tree, tmp_path / "dist" / "tiny.whl")
    assert list((tmp_path / "dist").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "dist").write_text("a file in the way")
    with pytest.raises(HostError, match=r"dist/tiny\.whl: cannot be written"):
        pack(tree, tmp_path / "dist" / "tiny.whl")


def test_a_tree_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(BuildError, match=r"has 0 \.dist-info folders"):
        pack(tmp_path / "tree", tmp_path / "tiny.whl")
