from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from torchmill.core.errors import BuildError
from torchmill.wheel.pack.repair import shared_library_names
from torchmill.wheel.pack.staging import unpack_wheel

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


def test_a_wheel_is_described_by_its_own_words(tmp_path: Path) -> None:
    members = sound({"caffe2/__init__.py": "", "tiny_torch.libs/libfoo.so": ""})
    staged = unpack_wheel(wheel(tmp_path, members), tmp_path / "out")
    assert (staged.name, staged.version, staged.package) == ("Tiny-Torch", "1.0+cpu", "tiny_torch")
    assert staged.dist_info == tmp_path / "out" / "tiny_torch-1.0.dist-info"


def test_a_package_named_otherwise_is_found_when_it_is_the_only_one(tmp_path: Path) -> None:
    members = {"tiny_torch-1.0.dist-info/METADATA": METADATA, "other/__init__.py": "", "share/notes.txt": ""}
    assert unpack_wheel(wheel(tmp_path, members), tmp_path / "out").package == "other"


def test_modes_survive(tmp_path: Path) -> None:
    members = sound({"tiny_torch/bin/tool": "#!/bin/sh\n"})
    modes = {"tiny_torch/bin/tool": stat.S_IFREG | 0o755, "tiny_torch/__init__.py": stat.S_IFREG | 0o600}
    staged = unpack_wheel(wheel(tmp_path, members, modes), tmp_path / "out")
    assert stat.S_IMODE((staged.root / "tiny_torch/bin/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((staged.root / "tiny_torch/__init__.py").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "name", ["../escape.py", "/etc/escape.py", "tiny_torch/../../escape.py", "c:/escape.py"]
)
def test_a_member_outside_the_wheel_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="leaves the wheel: do not use it"):
        unpack_wheel(wheel(tmp_path, sound({name: "x"})), tmp_path / "out")
    assert not (tmp_path / "escape.py").exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, sound({"tiny_torch/l": "/etc"}), {"tiny_torch/l": stat.S_IFLNK | 0o777})
    with pytest.raises(BuildError, match="'tiny_torch/l' is a link"):
        unpack_wheel(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a/__init__.py": ""}, "has 0 .dist-info folders"),
        (sound({"b-1.dist-info/METADATA": METADATA}), "has 2 .dist-info folders"),
        ({"a-1.dist-info/WHEEL": "", "a/__init__.py": ""}, "METADATA: missing from the wheel"),
        ({"a-1.dist-info/METADATA": "Name: a\n", "a/__init__.py": ""}, "no Name or no Version"),
        ({"a-1.dist-info/METADATA": METADATA, "a/x.py": "", "b/x.py": ""}, r"found: a, b\)"),
        ({"a-1.dist-info/METADATA": METADATA}, r"found: none\)"),
    ],
)
def test_a_wheel_that_does_not_say_what_it_is(tmp_path: Path, members: dict[str, str], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        unpack_wheel(wheel(tmp_path, members), tmp_path / "out")


def test_a_name_that_is_there_twice_is_told(tmp_path: Path) -> None:
    path = wheel(tmp_path, sound({"tiny_torch/x.py": "", "tiny_torch/y.py": ""}))
    path.write_bytes(path.read_bytes().replace(b"tiny_torch/y.py", b"tiny_torch/x.py"))
    with pytest.raises(BuildError, match=r"tiny\.whl: not a wheel \(tiny_torch/x\.py is in it 2 times"):
        unpack_wheel(path, tmp_path / "out")


def test_a_name_that_would_move_the_cursor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match=r"'tiny_torch/\\x1b\[2J\.py' has a name that cannot be printed: do not use it"
    ):
        unpack_wheel(wheel(tmp_path, sound({"tiny_torch/\x1b[2J.py": ""})), tmp_path / "out")


def test_what_zipfile_does_not_read_is_named(tmp_path: Path) -> None:
    path = wheel(tmp_path, sound({}))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 6] = 99  # the version that is needed to extract the last member
    path.write_bytes(content)
    with pytest.raises(BuildError, match=r"not a wheel \(zip file version 9\.9\): build it again"):
        unpack_wheel(path, tmp_path / "out")
    with pytest.raises(BuildError, match=r"not a wheel \(zip file version 9\.9\): build or download it"):
        shared_library_names(path)


def test_metadata_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_torch-1.0.dist-info/METADATA", b"\xff")
    with pytest.raises(BuildError, match="METADATA: not text in UTF-8"):
        unpack_wheel(path, tmp_path / "out")


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.whl"
    path.write_bytes(wheel(tmp_path, sound({})).read_bytes()[:-30])
    with pytest.raises(BuildError, match=r"half\.whl: not a wheel"):
        unpack_wheel(path, tmp_path / "out")
