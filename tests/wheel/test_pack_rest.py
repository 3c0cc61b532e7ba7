from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from torchmill.core.errors import BuildError
from torchmill.wheel.pack.staging import StagedWheel, stage_wheel, unpack_wheel
from torchmill.wheel.pack.wheel_writer import pack_wheel
from torchmill.wheel.pack.zip_writer import BLOCK_BYTES

INFO = "tiny-1.0.dist-info"
TEXTS = {
    "tiny/__init__.py": b"",
    "tiny/version.py": b"git_version = 'Unknown'\n",
    "tiny/large.txt": b"".join(b"%d\n" % number for number in range(BLOCK_BYTES // 3)),
    **{f"tiny/include/{number}.h": b"#define A %d\n" % number for number in range(200)},
}
ON_DISK = {
    "tiny/_C.so": b"\x7fELF and so on",
    "tiny/_C.dylib": bytes.fromhex("cffaedfe") + b" and so on",
    "tiny/both.dylib": bytes.fromhex("cafebabe") + b" and so on",
    "tiny-1.0.data/scripts/tiny": b"#!python\n",
    f"{INFO}/METADATA": b"Name: tiny\nVersion: 1.0\n",
    f"{INFO}/RECORD": b"what the build wrote\n",
}


def wheel(folder: Path, method: int = zipfile.ZIP_STORED) -> Path:
    path = folder / f"tiny-{method}.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("tiny/empty")
        for name, data in (TEXTS | ON_DISK).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | (0o750 if "3" in name else 0o640)) << 16
            archive.writestr(info, data, method)
    return path


def names(staged: StagedWheel) -> set[str]:
    """Return the files that are on disk."""
    return {path.relative_to(staged.root).as_posix() for path in staged.root.rglob("*") if path.is_file()}


def test_only_what_may_be_edited_is_written(tmp_path: Path) -> None:
    staged = stage_wheel(wheel(tmp_path), tmp_path / "out", {"tiny/version.py"})
    assert names(staged) == {*ON_DISK, "tiny/version.py"}
    assert {file.name for file in staged.unstaged} == TEXTS.keys() - {"tiny/version.py"}
    assert staged.package == "tiny"


def test_what_is_compressed_is_written(tmp_path: Path) -> None:
    staged = stage_wheel(wheel(tmp_path, zipfile.ZIP_DEFLATED), tmp_path / "out", ())
    assert names(staged) == {*TEXTS, *ON_DISK}
    assert staged.unstaged == ()


def test_where_a_file_was_makes_no_difference_to_the_wheel(tmp_path: Path) -> None:
    stored, deflated = wheel(tmp_path), wheel(tmp_path, zipfile.ZIP_DEFLATED)
    staged = [
        unpack_wheel(stored, tmp_path / "all"),
        unpack_wheel(deflated, tmp_path / "inflated"),
        stage_wheel(stored, tmp_path / "some", TEXTS),
        stage_wheel(stored, tmp_path / "few", ()),
    ]
    assert [len(each.unstaged) for each in staged] == [0, 0, 0, len(TEXTS)]
    made = [pack_wheel(each.root, each.root.with_suffix(".whl"), unstaged=each.unstaged) for each in staged]
    assert len({each.sha256 for each in made}) == 1
    with zipfile.ZipFile(made[0].path) as archive:
        assert archive.testzip() is None
        wanted = TEXTS | ON_DISK
        assert {name: archive.read(name) for name in wanted if "RECORD" not in name} == {
            name: data for name, data in wanted.items() if "RECORD" not in name
        }
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    assert (modes["tiny/include/3.h"], modes["tiny/include/4.h"]) == (0o755, 0o644)


def test_a_file_on_disk_takes_the_place_of_one_in_the_raw_wheel(tmp_path: Path) -> None:
    staged = stage_wheel(wheel(tmp_path), tmp_path / "out", ())
    (staged.root / "tiny/__init__.py").write_text("another = True\n")
    with zipfile.ZipFile(
        pack_wheel(staged.root, tmp_path / "tiny.whl", unstaged=staged.unstaged).path
    ) as archive:
        assert archive.namelist().count("tiny/__init__.py") == 1
        assert archive.read("tiny/__init__.py") == b"another = True\n"


@pytest.mark.parametrize("name", ["tiny/large.txt", "tiny/include/7.h"])
@pytest.mark.parametrize(
    "damage", [lambda data, at: data[:at] + b"?" + data[at + 1 :], lambda data, at: data[:at]]
)
def test_a_raw_wheel_that_is_damaged_meanwhile_is_named(
    tmp_path: Path, name: str, damage: Callable[[bytes, int], bytes]
) -> None:
    raw = wheel(tmp_path)
    staged = stage_wheel(raw, tmp_path / "out", ())
    (file,) = (file for file in staged.unstaged if file.name == name)
    raw.write_bytes(damage(raw.read_bytes(), file.offset + 3))
    with pytest.raises(BuildError, match=r"tiny-0\.whl: tiny/\S+ is damaged, or changed meanwhile"):
        pack_wheel(staged.root, tmp_path / "dist" / "tiny.whl", unstaged=staged.unstaged)
    assert list((tmp_path / "dist").iterdir()) == []


def test_a_raw_wheel_that_is_gone_is_named(tmp_path: Path) -> None:
    raw = wheel(tmp_path)
    staged = stage_wheel(raw, tmp_path / "out", ())
    raw.unlink()
    with pytest.raises(BuildError, match=r"tiny-0\.whl: cannot be read \(No such file"):
        pack_wheel(staged.root, tmp_path / "tiny.whl", unstaged=staged.unstaged)
