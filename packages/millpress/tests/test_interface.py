"""The functions of the package itself, and the command `millpress`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import millpress
import pytest
from millpress.__main__ import main
from press_support import compiled_wheels as tiny
from press_support.written_wheels import made


def test_every_public_name_exists() -> None:
    for name in millpress.__all__:
        assert getattr(millpress, name).__doc__
    with pytest.raises(AttributeError):
        millpress.nothing  # noqa: B018


def test_reading_a_wheel_does_not_load_the_policies() -> None:
    code = "import sys, millpress; millpress.read_wheel; print('auditwheel' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_a_sound_wheel_has_no_problems(tmp_path: Path) -> None:
    assert millpress.verify_wheel(made(tmp_path)) == []


def test_problems_are_clauses_without_the_path(tmp_path: Path) -> None:
    def spoil(members: dict[str, bytes]) -> None:
        members["tinytorch/__init__.py"] = b"changed"

    wheel = made(tmp_path, change=spoil)
    assert millpress.verify_wheel(wheel) == ["tinytorch/__init__.py differs from its RECORD entry"]
    wheel.write_bytes(b"half")
    (problem,) = millpress.verify_wheel(wheel)
    assert problem.startswith("not a sound wheel")


@pytest.mark.parametrize("platform", ["linux_x86_64", "any"])
def test_a_damaged_extension_module_is_one_problem(tmp_path: Path, platform: str) -> None:
    name = "tinytorch/_C.cpython-312-x86_64-linux-gnu.so"
    wheel = made(tmp_path, tag=f"cp312-cp312-{platform}", files={name: b"\x7fELF\2\1"})
    (problem,) = millpress.verify_wheel(wheel)
    assert problem.startswith(f"{name}: not a sound ELF file")


@tiny.needs_compiler
def test_a_repaired_wheel_is_sound_and_has_the_oldest_tag(raw: tiny.Raw, tmp_path: Path) -> None:
    repaired = millpress.repair_wheel(raw.torch, tmp_path / "dist", folders=[raw.outside])
    wheel = millpress.read_wheel(repaired.packed.path)
    assert list(wheel.platforms) == [repaired.result.lowest_tag]
    assert {library.source.name for library in repaired.result.bundled} >= {"libouter.so.2"}
    assert millpress.verify_wheel(wheel.path) == []
    assert list((tmp_path / "dist").iterdir()) == [wheel.path], "nothing else is left there"
    again = millpress.repair_wheel(raw.torch, tmp_path / "again", folders=[raw.outside])
    assert again.packed.sha256 == wheel.sha256


def test_the_command_shows_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = made(tmp_path, requires=["spam>=1"])
    assert main(["show", str(wheel)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("tinytorch 1.0+cpu\n")
    assert "requires  spam>=1" in output
    assert main(["verify", str(wheel)]) == 0
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tinytorch/more.py", "")
    assert main(["verify", str(wheel)]) == 1
    assert "tinytorch/more.py has no entry in RECORD" in capsys.readouterr().out


def test_the_command_packs_an_unpacked_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = made(tmp_path / "raw", tag="py2.py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "tree")
    words = ["pack", str(tmp_path / "tree"), "--out", str(tmp_path / "dist"), "--threads", "1"]
    assert main(words) == 0
    packed = tmp_path / "dist" / wheel.name
    assert millpress.verify_wheel(packed) == []
    assert f"sha256 {millpress.read_wheel(packed).sha256}" in capsys.readouterr().out


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_the_command_needs_a_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    with pytest.raises(SystemExit):
        main(["pack", str(tmp_path), f"--threads={number}"])
    assert "is not a number above zero" in capsys.readouterr().err


@tiny.needs_compiler
def test_the_command_repairs(
    raw: tiny.Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["repair", str(raw.torch), "--search", str(raw.outside), "--out", str(tmp_path)]
    assert main(words) == 0
    assert "bundled " in capsys.readouterr().out
    assert main(["repair", str(raw.torch), "--plat", "solaris", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("millpress: solaris: not a platform tag")


def test_a_missing_wheel_does_not_end_the_check_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = made(tmp_path)
    absent = tmp_path / wheel.name.replace("1.0", "1.1")
    assert main(["verify", str(absent), str(wheel)]) == 1
    assert f"{wheel}: sound" in capsys.readouterr().out
