"""Finished wheels are read: name, METADATA, digest."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from millpress import wheel_file
from millpress.errors import WheelError
from packaging.tags import Tag
from packaging.version import Version
from press_support.expected_errors import refused
from press_support.written_wheels import Members, made, replacing

INFO = "tinytorch-1.0+cpu.dist-info"


def test_a_wheel_is_read(tmp_path: Path) -> None:
    wheel = made(
        tmp_path, "tiny_vision", "0.5+cu118", "1-cp310-cp310-manylinux_2_17_x86_64", python=">=3.10"
    )
    content = wheel.read_bytes()
    description = wheel_file.read_wheel(wheel)
    assert description.name == "tiny-vision"
    assert description.version == Version("0.5+cu118")
    assert description.build == (1, "")
    assert list(description.platforms) == ["manylinux_2_17_x86_64"]
    assert description.size == len(content)
    assert description.sha256 == hashlib.sha256(content).hexdigest()
    assert description.metadata.startswith(b"Metadata-Version: 2.1\nName: tiny_vision\n")
    assert description.requires_python == ">=3.10"
    assert description.requires == ()


def test_requirements_are_read_as_they_are_written(tmp_path: Path) -> None:
    lines = ("tinytorch==1.0+cpu", 'numpy<2 ; python_version < "3.12"')
    assert wheel_file.read_wheel(made(tmp_path, "tinyvision", requires=lines)).requires == lines


def test_wheel_files_are_listed_without_hidden_ones(tmp_path: Path) -> None:
    wheel = made(tmp_path)
    (tmp_path / ".half-1.0-py3-none-any.whl").write_bytes(b"PK")
    wheel.with_name(f"{wheel.name}.json").write_text("{}")
    assert wheel_file.list_wheels(tmp_path) == [wheel]
    assert wheel_file.list_wheels(tmp_path / "nowhere") == []


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    cases = {
        "torch-1.0-py3-none.whl": "not the name of a wheel",
        "torch-1.0-py3-none-any\n.whl": "not the name of a wheel",
        "torch-x-py3-none-any.whl": "not the name of a wheel",
        "torch-1.0-py3-none-any.whl": "not a sound wheel (File is not a zip file)",
    }
    for name, message in cases.items():
        path = tmp_path / name
        path.write_text("text")
        with pytest.raises(WheelError) as caught:
            wheel_file.read_wheel(path)
        assert message in str(caught.value)
    folder = tmp_path / "folder-1.0-py3-none-any.whl"
    folder.mkdir()
    with refused("not-a-wheel"):
        wheel_file.read_wheel(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.pop(f"{INFO}/METADATA"), f"has no {INFO}/METADATA"),
        (
            lambda members: members.update({"other-1.dist-info/METADATA": b""}),
            "has 2 .dist-info folders",
        ),
        (
            replacing(f"{INFO}/METADATA", b"+cpu", b"+cu118"),
            "METADATA says tinytorch 1.0+cu118, the file's",
        ),
        (
            replacing(f"{INFO}/METADATA", b"Name: tiny", b"Name: giant"),
            "METADATA says gianttorch 1.0+cpu",
        ),
        (
            lambda members: members.update({"../evil.py": b""}),
            "the member '../evil.py' leaves the wheel",
        ),
        (lambda members: members.update({"a/../../evil.py": b""}), "leaves the wheel"),
        (
            lambda members: members.update({"/etc/evil": b""}),
            "the member '/etc/evil' leaves the wheel",
        ),
        (lambda members: members.update({"C:/evil": b""}), "leaves the wheel"),
        (lambda members: members.update({"a\\..\\evil": b""}), "leaves the wheel"),
        (
            lambda members: members.update({"a/\x1b[2J.py": b""}),
            "has a name that cannot be printed",
        ),
        (
            lambda members: members.update({"./tinytorch/z.py": b""}),
            "has another name where it is extracted",
        ),
        (
            lambda members: members.update({"tinytorch//z.py": b""}),
            "has another name where it is extracted",
        ),
        (
            lambda members: members.update({f"{INFO}/sboms/x.json": b"x" * (1 << 24) + b"x"}),
            "x.json is larger",
        ),
        (
            lambda members: members.update({f"{INFO}/METADATA": b"x" * (1 << 24) + b"x"}),
            "METADATA is larger",
        ),
        (
            lambda members: members.update({f"{INFO}/RECORD": b"x" * (1 << 24) + b"x"}),
            "RECORD is larger than",
        ),
    ],
)
def test_a_contradictory_or_unsafe_wheel_is_refused(
    tmp_path: Path, change: Callable[[Members], object], message: str
) -> None:
    wheel = made(tmp_path, change=change)
    with pytest.raises(WheelError) as caught:
        wheel_file.read_wheel(wheel)
    assert message in str(caught.value)
    assert str(wheel) in str(caught.value)


def test_links_in_a_wheel_are_refused(tmp_path: Path) -> None:
    wheel = made(tmp_path, links={"tinytorch/passwd": "/etc/passwd"})
    with refused("unsafe-wheel"):
        wheel_file.read_wheel(wheel)


def test_a_renamed_wheel_is_refused(tmp_path: Path) -> None:
    wheel = made(tmp_path).rename(tmp_path / "tinytorch-1.1+cpu-py3-none-any.whl")
    with refused("invalid-dist-info"):
        wheel_file.read_wheel(wheel)


@pytest.mark.parametrize(
    ("interpreter", "abi", "python"),
    [
        ("cp310", "cp310", "3.10"),
        ("cp37", "cp37m", "3.7"),
        ("cp313", "cp313t", "3.13t"),
        ("cp310", "abi3", None),
        ("cp315", "abi3t", None),
        ("cp3", "none", None),
        ("py3", "none", None),
        ("pp310", "pypy310_pp73", None),
    ],
)
def test_a_tag_names_one_python_or_none(interpreter: str, abi: str, python: str | None) -> None:
    assert wheel_file.tag_python(Tag(interpreter, abi, "any")) == python


def special(wheel: Path, mode: int) -> Path:
    """Give the first member of a wheel another mode."""
    with ZipFile(wheel) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    members[0][0].external_attr = mode << 16
    with ZipFile(wheel, "w") as archive:
        for info, content in members:
            archive.writestr(info, content)
    return wheel


@pytest.mark.parametrize(
    ("mode", "clause"),
    [
        (stat.S_IFIFO | 0o644, "is a pipe"),
        (stat.S_IFCHR | 0o644, "is a device"),
        (stat.S_IFBLK | 0o644, "is a device"),
        (stat.S_IFSOCK | 0o644, "is a socket"),
        (stat.S_IFREG | stat.S_ISUID | 0o755, "would run with the rights of its owner"),
        (stat.S_IFREG | stat.S_ISGID | 0o755, "would run with the rights of its owner"),
    ],
)
def test_members_that_are_no_plain_files_are_refused(
    tmp_path: Path, mode: int, clause: str
) -> None:
    with refused("unsafe-wheel") as caught:
        wheel_file.read_wheel(special(made(tmp_path), mode))
    assert clause in str(caught.value)
