"""Wheels are written: the same bytes, RECORD, the cache, and programs that read them."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import millpress
import pytest
from millpress import zip_archive
from millpress.wheel_writer import PackedWheel, pack_wheel
from millpress.zip_archive import BLOCK_BYTES
from press_support import compiled_wheels as tiny
from press_support.expected_errors import refused

INFO = "tiny-1.0.dist-info"
CODECS = sorted(zip_archive.available_codecs())
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
PACK = """
import re, sys
from pathlib import Path
from millpress import wheel_writer, zip_archive
codec = zip_archive.available_codecs()["zlib"]
wheel_writer.pack_wheel(Path(sys.argv[1]), Path(sys.argv[2]), cache_folder=Path(sys.argv[3]), codec=codec)
# of this process alone; rusage counts the parent's too
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


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
    first = pack_wheel(tree, tmp_path / "a" / "tiny.whl")
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    second = pack_wheel(tree, tmp_path / "b" / "tiny.whl")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.sha256 == second.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.size == first.path.stat().st_size


def test_record_has_the_hash_and_size_of_every_file(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack_wheel(tree, tmp_path / "tiny.whl").path) as archive:
        rows = list(csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == archive.namelist()
        assert rows[-1] == [f"{INFO}/RECORD", "", ""]
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={encoded}", str(len(data)))


def test_signatures_of_another_record_are_left_out(tree: Path, tmp_path: Path) -> None:
    """RECORD cannot list them, and they do not sign the new one."""
    for suffix in (".jws", ".p7s"):
        (tree / INFO / f"RECORD{suffix}").write_text("signature")
    packed = pack_wheel(tree, tmp_path / "tiny-1.0-py3-none-any.whl").path
    with zipfile.ZipFile(packed) as archive:
        record = archive.read(f"{INFO}/RECORD").decode()
        assert not any("RECORD." in name for name in archive.namelist())
    assert "RECORD." not in record


def test_members_are_sorted_with_the_metadata_last(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack_wheel(tree, tmp_path / "tiny.whl").path) as archive:
        assert archive.namelist() == [
            "tiny/__init__.py",
            "tiny/bin/tool",
            "zeta/a,b.txt",
            f"{INFO}/METADATA",
            f"{INFO}/RECORD",
        ]


def test_modes_do_not_depend_on_the_umask(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pack_wheel(tree, tmp_path / "tiny.whl").path) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert modes["tiny/bin/tool"] == stat.S_IFREG | 0o755
    assert modes["tiny/__init__.py"] == modes[f"{INFO}/RECORD"] == stat.S_IFREG | 0o644


def test_members_have_the_date_of_source_date_epoch(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1671062400")
    with zipfile.ZipFile(pack_wheel(tree, tmp_path / "tiny.whl").path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2022, 12, 15, 0, 0, 0)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "4354819199")
    with zipfile.ZipFile(pack_wheel(tree, tmp_path / "tiny.whl").path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2107, 12, 31, 23, 59, 58)}
    for wrong in ("yesterday", "4354819200", "9" * 5000):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with refused("invalid-source-date-epoch"):
            pack_wheel(tree, tmp_path / "other.whl")
    assert [path.name for path in tmp_path.glob("*.whl*")] == ["tiny.whl"]


def test_nothing_half_made_is_left(tree: Path, tmp_path: Path) -> None:
    (tree / "tiny" / "link.py").symlink_to("__init__.py")
    with refused("link-in-wheel"):
        pack_wheel(tree, tmp_path / "dist" / "tiny.whl")
    assert list((tmp_path / "dist").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "dist").write_text("a file in the way")
    with pytest.raises(FileExistsError, match="dist"):
        pack_wheel(tree, tmp_path / "dist" / "tiny.whl")


def test_a_tree_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with refused("invalid-raw-wheel"):
        pack_wheel(tmp_path / "tree", tmp_path / "tiny.whl")


@pytest.fixture
def large(tree: Path) -> Path:
    """Return a tree with an empty file, small and large ones, two equal and one incompressible."""
    dice = random.Random(0)  # noqa: S311 - the same every time
    lines = b"".join(b"%x\n" % dice.randrange(1 << 16) for _ in range(50000))
    sizes = {
        "empty.py": 0,
        "half.bin": BLOCK_BYTES // 4,
        "block.bin": BLOCK_BYTES,
        "large.bin": 3 * BLOCK_BYTES + 77,
    }
    for name, size in sizes.items():
        (tree / "tiny" / name).write_bytes((lines * (size // len(lines) + 1))[:size])
    (tree / "tiny" / "noise.bin").write_bytes(dice.randbytes(BLOCK_BYTES // 2))
    (tree / "tiny" / "same.bin").write_bytes((tree / "tiny" / "large.bin").read_bytes())
    for number in range(200):
        (tree / "tiny" / f"{number}.h").write_bytes(lines[: number * 10])
    return tree


@pytest.mark.parametrize("name", CODECS)
def test_the_bytes_do_not_depend_on_threads_or_the_cache(
    large: Path, tmp_path: Path, name: str
) -> None:
    codec = zip_archive.available_codecs()[name]
    members = tmp_path / "members"

    def packed(name: str, threads: int, members: Path | None) -> PackedWheel:
        return pack_wheel(
            large, tmp_path / name, threads=threads, cache_folder=members, codec=codec
        )

    wheels = [packed("1.whl", 1, None), packed("7.whl", 7, None), packed("k.whl", 3, members)]
    again = packed("again.whl", 2, members)
    assert len({wheel.sha256 for wheel in [*wheels, again]}) == 1
    # with an empty cache only the second of the two equal files is copied
    assert 0 == wheels[0].copied_bytes < wheels[2].copied_bytes < again.copied_bytes
    assert again.codec == str(codec)
    with zipfile.ZipFile(again.path) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {0, 8}
        assert archive.read("tiny/same.bin") == (large / "tiny" / "large.bin").read_bytes()
        methods = {info.filename: info.compress_type for info in archive.infolist()}
    assert methods["tiny/empty.py"] == methods["tiny/noise.bin"] == zipfile.ZIP_STORED


def test_a_damaged_cached_member_is_compressed_again(large: Path, tmp_path: Path) -> None:
    members = tmp_path / "members"
    first = pack_wheel(large, tmp_path / "first.whl", cache_folder=members)
    cached = [path for path in members.rglob("*") if path.is_file()]
    assert len(cached) > 3
    for path in cached:
        data = path.read_bytes()
        if path.name < "8":  # about half of them are truncated, and the others changed
            path.write_bytes(data[: len(data) // 2])
        else:
            path.write_bytes(data[:-99] + b"x" + data[-98:])
    second = pack_wheel(large, tmp_path / "second.whl", cache_folder=members)
    assert second.sha256 == first.sha256
    # only same.bin was copied: large.bin, which is equal, was compressed and cached before it
    assert second.copied_bytes < first.size // 2
    third = pack_wheel(large, tmp_path / "third.whl", cache_folder=members)
    assert third.copied_bytes > second.copied_bytes


def test_a_forged_batch_is_compressed_again(large: Path, tmp_path: Path) -> None:
    members = tmp_path / "members"
    first = pack_wheel(large, tmp_path / "first.whl", cache_folder=members)
    cached = [path for path in members.rglob("*") if path.is_file()]
    (folder,) = members.iterdir()
    for path in cached:
        key = bytes.fromhex(path.name)
        forged = b"\xff" * 3000
        if path.stat().st_size < BLOCK_BYTES // 2:
            digest = hashlib.sha256(folder.name.encode() + key + forged).digest()
            path.write_bytes(b"twkept1\n" + forged + digest)
    assert pack_wheel(large, tmp_path / "second.whl", cache_folder=members).sha256 == first.sha256


def test_a_cache_on_a_full_disk_does_not_change_the_wheel(large: Path, tmp_path: Path) -> None:
    members = tmp_path / "members"
    members.mkdir()
    script = 'mount -t tmpfs -o size=64k none "$0" && exec "$@"'
    new_mounts = ["unshare", "--user", "--map-root-user", "--mount"]
    small_disk = [*new_mounts, "sh", "-c", script, str(members)]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    if subprocess.run([*small_disk, "true"], check=False).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    paths = (large, tmp_path / "full.whl", members)
    pack = [sys.executable, "-c", PACK, *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": str(Path(millpress.__file__).parents[1])}
    subprocess.run([*small_disk, *pack], check=True, env=environment)
    roomy = pack_wheel(large, tmp_path / "roomy.whl", codec=zip_archive.available_codecs()["zlib"])
    assert (tmp_path / "full.whl").read_bytes() == roomy.path.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux counts it")
def test_memory_does_not_depend_on_the_files(tree: Path, tmp_path: Path) -> None:
    with (tree / "tiny" / "huge.bin").open("wb") as file:
        file.truncate(256 << 20)
    done = subprocess.run(
        [sys.executable, "-c", PACK, tree, tmp_path / "huge.whl", tmp_path / "members"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(millpress.__file__).parents[1])},
    )
    assert int(done.stdout) < 150 << 10  # KiB; the interpreter itself takes 30 MiB


INSTALL = ["install", "--no-deps", "--no-index", "--target", "{into}", "{wheel}"]
PROGRAMS = {
    "pip": [sys.executable, "-m", "pip", *INSTALL],
    "uv": [str(UV), "pip", *INSTALL],
    "unzip": ["unzip", "-tq", "{wheel}"],
    "zipfile": [sys.executable, "-m", "zipfile", "--test", "{wheel}"],
    "auditwheel": [sys.executable, "-m", "auditwheel", "show", "{wheel}"],
}
MISSING = {"uv": UV is None, "unzip": shutil.which("unzip") is None}


@tiny.needs_compiler
@pytest.mark.parametrize("program", PROGRAMS)
def test_other_programs_accept_the_wheel(torch_wheel: Path, tmp_path: Path, program: str) -> None:
    if MISSING.get(program):
        pytest.skip(f"needs {program}")
    words = [word.format(into=tmp_path / "into", wheel=torch_wheel) for word in PROGRAMS[program]]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, env={**os.environ, "PIP_USER": "0"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "--target" in words:
        (extension,) = (tmp_path / "into" / "tinytorch").glob("_C*.so")
        code = "import tinytorch; print(tinytorch.add(1.0, 2.0))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "into")}
        printed = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, env=environment
        )
        assert printed.stdout == b"3.0\n", extension
