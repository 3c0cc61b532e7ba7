"""Raw wheels are staged: extracted to be edited, whole or in part."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from millpress.errors import InputError
from millpress.staging import StagedWheel, stage_wheel
from millpress.wheel_writer import pack_wheel
from millpress.zip_archive import BLOCK_BYTES
from press_support.expected_errors import refused

METADATA = "Metadata-Version: 2.1\nName: Tiny-Torch\nVersion: 1.0+cpu\n"


def wheel(folder: Path, members: dict[str, str], modes: dict[str, int] | None = None) -> Path:
    path = folder / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(info, text)
    return path


def sound(extra: dict[str, str]) -> dict[str, str]:
    return {"tiny_torch-1.0.dist-info/METADATA": METADATA, "tiny_torch/__init__.py": "", **extra}


def test_a_staged_wheel_has_the_names_of_its_metadata(tmp_path: Path) -> None:
    members = sound({"caffe2/__init__.py": "", "tiny_torch.libs/libfoo.so": ""})
    staged = stage_wheel(wheel(tmp_path, members), tmp_path / "out")
    assert (staged.name, staged.version, staged.package) == ("Tiny-Torch", "1.0+cpu", "tiny_torch")
    assert staged.dist_info == tmp_path / "out" / "tiny_torch-1.0.dist-info"


def test_the_only_package_may_have_another_name_than_the_project(tmp_path: Path) -> None:
    members = {
        "tiny_torch-1.0.dist-info/METADATA": METADATA,
        "other/__init__.py": "",
        "share/notes.txt": "",
    }
    assert stage_wheel(wheel(tmp_path, members), tmp_path / "out").package == "other"


def test_staged_files_keep_their_modes(tmp_path: Path) -> None:
    members = sound({"tiny_torch/bin/tool": "#!/bin/sh\n"})
    modes = {
        "tiny_torch/bin/tool": stat.S_IFREG | 0o755,
        "tiny_torch/__init__.py": stat.S_IFREG | 0o600,
    }
    staged = stage_wheel(wheel(tmp_path, members, modes), tmp_path / "out")
    assert stat.S_IMODE((staged.root / "tiny_torch/bin/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((staged.root / "tiny_torch/__init__.py").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "name", ["../escape.py", "/etc/escape.py", "tiny_torch/../../escape.py", "c:/escape.py"]
)
def test_a_member_outside_the_wheel_is_refused(tmp_path: Path, name: str) -> None:
    with refused("unsafe-wheel"):
        stage_wheel(wheel(tmp_path, sound({name: "x"})), tmp_path / "out")
    assert not (tmp_path / "escape.py").exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, sound({"tiny_torch/l": "/etc"}), {"tiny_torch/l": stat.S_IFLNK | 0o777})
    with refused("unsafe-wheel"):
        stage_wheel(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("members", "code", "words"),
    [
        ({"a/__init__.py": ""}, "invalid-raw-wheel", "has 0 .dist-info folders"),
        (
            sound({"b-1.dist-info/METADATA": METADATA}),
            "invalid-raw-wheel",
            "has 2 .dist-info folders",
        ),
        (
            {"a-1.dist-info/WHEEL": "", "a/__init__.py": ""},
            "invalid-raw-wheel",
            "METADATA: missing from the wheel",
        ),
        (
            {"a-1.dist-info/METADATA": "Name: a\n", "a/__init__.py": ""},
            "invalid-raw-wheel",
            "no Name or no Version",
        ),
        (
            {"a-1.dist-info/METADATA": METADATA, "a/x.py": "", "b/x.py": ""},
            "ambiguous-import-package",
            "candidates: a, b)",
        ),
        (
            {"a-1.dist-info/METADATA": METADATA},
            "ambiguous-import-package",
            "no folder has modules of Python",
        ),
    ],
)
def test_a_wheel_without_a_clear_name_or_package_is_refused(
    tmp_path: Path, members: dict[str, str], code: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        stage_wheel(wheel(tmp_path, members), tmp_path / "out")
    assert words in str(caught.value)
    assert caught.value.code == code


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, sound({"tiny_torch/x.py": "", "tiny_torch/y.py": ""}))
    path.write_bytes(path.read_bytes().replace(b"tiny_torch/y.py", b"tiny_torch/x.py"))
    with refused("damaged-raw-wheel") as caught:
        stage_wheel(path, tmp_path / "out")
    assert "tiny_torch/x.py is in the archive 2 times" in str(caught.value)


def test_a_name_that_would_move_the_cursor_is_refused(tmp_path: Path) -> None:
    with refused("unsafe-wheel") as caught:
        stage_wheel(wheel(tmp_path, sound({"tiny_torch/\x1b[2J.py": ""})), tmp_path / "out")
    assert r"'tiny_torch/\x1b[2J.py'" in str(caught.value)


def test_an_archive_that_zipfile_cannot_read_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, sound({}))
    content = bytearray(path.read_bytes())
    needed_version_at = content.rindex(b"PK\1\2") + 6  # of the last member
    content[needed_version_at] = 99
    path.write_bytes(content)
    with refused("damaged-raw-wheel"):
        stage_wheel(path, tmp_path / "out")


def test_metadata_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_torch-1.0.dist-info/METADATA", b"\xff")
    with refused("invalid-raw-wheel"):
        stage_wheel(path, tmp_path / "out")


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "half.whl"
    path.write_bytes(wheel(tmp_path, sound({})).read_bytes()[:-30])
    with refused("damaged-raw-wheel"):
        stage_wheel(path, tmp_path / "out")


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


def stored_wheel(folder: Path, method: int = zipfile.ZIP_STORED) -> Path:
    path = folder / f"tiny-{method}.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("tiny/empty")
        for name, data in (TEXTS | ON_DISK).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | (0o750 if "3" in name else 0o640)) << 16
            archive.writestr(info, data, method)
    return path


def names_on_disk(staged: StagedWheel) -> set[str]:
    """Return the names of the files that were extracted."""
    paths = [path for path in staged.root.rglob("*") if path.is_file()]
    return {path.relative_to(staged.root).as_posix() for path in paths}


def test_only_files_that_may_be_edited_are_extracted(tmp_path: Path) -> None:
    staged = stage_wheel(stored_wheel(tmp_path), tmp_path / "out", {"tiny/version.py"})
    assert names_on_disk(staged) == {*ON_DISK, "tiny/version.py"}
    assert {file.name for file in staged.unstaged} == TEXTS.keys() - {"tiny/version.py"}
    assert staged.package == "tiny"


def test_compressed_members_are_extracted(tmp_path: Path) -> None:
    staged = stage_wheel(stored_wheel(tmp_path, zipfile.ZIP_DEFLATED), tmp_path / "out", ())
    assert names_on_disk(staged) == {*TEXTS, *ON_DISK}
    assert staged.unstaged == ()


def test_the_bytes_do_not_depend_on_which_files_were_extracted(tmp_path: Path) -> None:
    stored, deflated = stored_wheel(tmp_path), stored_wheel(tmp_path, zipfile.ZIP_DEFLATED)
    staged = [
        stage_wheel(stored, tmp_path / "all"),
        stage_wheel(deflated, tmp_path / "inflated"),
        stage_wheel(stored, tmp_path / "some", TEXTS),
        stage_wheel(stored, tmp_path / "few", ()),
    ]
    assert [len(wheel.unstaged) for wheel in staged] == [0, 0, 0, len(TEXTS)]
    packed = []
    for wheel in staged:
        destination = wheel.root.with_suffix(".whl")
        packed.append(pack_wheel(wheel.root, destination, unstaged=wheel.unstaged))
    assert len({wheel.sha256 for wheel in packed}) == 1
    expected = TEXTS | ON_DISK
    del expected[f"{INFO}/RECORD"]
    with zipfile.ZipFile(packed[0].path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in expected} == expected
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    assert (modes["tiny/include/3.h"], modes["tiny/include/4.h"]) == (0o755, 0o644)


def test_a_file_on_disk_replaces_the_one_in_the_raw_wheel(tmp_path: Path) -> None:
    staged = stage_wheel(stored_wheel(tmp_path), tmp_path / "out", ())
    (staged.root / "tiny/__init__.py").write_text("another = True\n")
    packed = pack_wheel(staged.root, tmp_path / "tiny.whl", unstaged=staged.unstaged)
    with zipfile.ZipFile(packed.path) as archive:
        assert archive.namelist().count("tiny/__init__.py") == 1
        assert archive.read("tiny/__init__.py") == b"another = True\n"


@pytest.mark.parametrize("name", ["tiny/large.txt", "tiny/include/7.h"])
@pytest.mark.parametrize(
    "damage", [lambda data, at: data[:at] + b"?" + data[at + 1 :], lambda data, at: data[:at]]
)
def test_a_raw_wheel_that_is_damaged_after_staging_is_refused(
    tmp_path: Path, name: str, damage: Callable[[bytes, int], bytes]
) -> None:
    raw = stored_wheel(tmp_path)
    staged = stage_wheel(raw, tmp_path / "out", ())
    (file,) = (file for file in staged.unstaged if file.name == name)
    raw.write_bytes(damage(raw.read_bytes(), file.offset + 3))
    with refused("damaged-raw-wheel"):
        pack_wheel(staged.root, tmp_path / "dist" / "tiny.whl", unstaged=staged.unstaged)
    assert list((tmp_path / "dist").iterdir()) == []


def test_a_raw_wheel_that_was_removed_after_staging_is_refused(tmp_path: Path) -> None:
    raw = stored_wheel(tmp_path)
    staged = stage_wheel(raw, tmp_path / "out", ())
    raw.unlink()
    with refused("unreadable-file"):
        pack_wheel(staged.root, tmp_path / "tiny.whl", unstaged=staged.unstaged)
