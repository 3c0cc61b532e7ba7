"""`invoke slim` that is killed, or has no room: all is as it was, or as it was to be."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from press_support import written_wheels

from tests.support import gpu_libraries
from tests.support.commands import ROOT, environment, run
from tests.support.fatbins import fatbin, piece

pytestmark = pytest.mark.long

TAG = "cp310-cp310-manylinux_2_28_x86_64"
KILLS = 6
SMALL_DISK = """
mount -t tmpfs -o size="$1" none "$2" && cp -a "$3" "$2/here" || exit 99
place=$2 after=$4; shift 4
"$@"; code=$?
cp -a "$place" "$after"
exit $code
"""


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    code = fatbin(*(piece(arch, size=3_000_000) for arch in (70, 80, 86)))
    return gpu_libraries.shared(
        tmp_path_factory.mktemp("library") / "lib.so", [code] * 3
    ).read_bytes()


@pytest.fixture
def installed(tmp_path: Path, binary: bytes) -> Path:
    """Lay out an environment with two libraries of a torch, and its wheel beside it."""
    files = {f"torch/lib/{name}.so": binary for name in ("libtorch_cuda", "libtorch_cuda_linalg")}
    wheel = written_wheels.made(tmp_path / "in", "torch", "2.6.0+cu124", TAG, files=files)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "venv/lib/python3.10/site-packages")
    return tmp_path / "venv"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def kill_after(seconds: float, words: list[str], home: Path) -> None:
    """Start `invoke slim` and kill it, and all that it started."""
    command = [sys.executable, "-m", "invoke", "slim", *words]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(home), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.usefixtures("installed")
def test_a_wheel_is_whole_or_not_there_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (wheel,) = (tmp_path / "in").iterdir()
    before, out = wheel.read_bytes(), tmp_path / "out"
    words = [str(wheel), "--arch-list", "8.6", "--out"]
    began = time.monotonic()
    assert run("invoke", "slim", *words, str(tmp_path / "whole"), home=tmp_path).returncode == 0
    whole, seconds = contents(tmp_path / "whole"), time.monotonic() - began
    for share in sorted(random.Random(7).uniform(0.3, 1) for _ in range(KILLS)):  # noqa: S311 - no secret
        kill_after(share * seconds, [*words, str(out)], tmp_path)
        assert wheel.read_bytes() == before
        assert all(path.read_bytes() == whole[path.name] for path in out.glob("*.whl"))
        done = run("invoke", "slim", *words, str(out), home=tmp_path)
        assert done.returncode == 0, done.stderr
        files = contents(out)
        assert sorted(files) == sorted(whole), "nothing is left of the run that was killed"
        (name,) = (file_name for file_name in files if file_name.endswith(".whl"))
        assert files[name] == whole[name]
        shutil.rmtree(out)


def test_libraries_of_an_environment_are_old_or_new(installed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "kept"
    shutil.copytree(installed, copy)
    words = ["--arch-list", "8.6", "--environment", str(installed)]
    began = time.monotonic()
    assert run("invoke", "slim", *words, home=tmp_path).returncode == 0
    old, new, seconds = contents(copy), contents(installed), time.monotonic() - began
    assert old != new
    for share in sorted(random.Random(8).uniform(0.3, 1) for _ in range(KILLS)):  # noqa: S311 - no secret
        shutil.rmtree(installed)
        shutil.copytree(copy, installed)
        kill_after(share * seconds, words, tmp_path)
        files = contents(installed)
        assert all(files[name] in (old[name], new[name]) for name in old)
        assert run("invoke", "slim", *words, home=tmp_path).returncode == 0
        assert contents(installed) == new, "the same command goes on, and leaves nothing beside"


def on_a_small_disk(
    tmp_path: Path, size: int, source: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Run `invoke slim` where disk/ has `size` bytes, with a copy of `source` as disk/here; keep it as after/."""
    (tmp_path / "disk").mkdir()
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh"]
    inside += [str(size), str(tmp_path / "disk"), str(source), str(tmp_path / "after")]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], check=False).returncode == 99
    ):
        pytest.skip("needs the right to mount a small disk")
    shutil.rmtree(tmp_path / "after", ignore_errors=True)
    command = [*inside, sys.executable, "-m", "invoke", "slim", "--arch-list", "8.6", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("installed")
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (wheel,) = (tmp_path / "in").iterdir()
    place = tmp_path / "disk"
    done = on_a_small_disk(
        tmp_path, wheel.stat().st_size * 3 // 2, wheel, str(wheel), "--out", str(place / "out")
    )
    assert done.returncode == 7, done.stderr
    assert "is full" in done.stderr
    assert str(place) in done.stderr
    assert list(contents(tmp_path / "after")) == ["here"]


def test_an_environment_on_a_full_disk_is_as_it_was(
    installed: Path, tmp_path: Path, binary: bytes
) -> None:
    before = contents(installed)
    done = on_a_small_disk(
        tmp_path,
        2 * len(binary) + 1_000_000,
        installed,
        "--environment",
        str(tmp_path / "disk/here"),
    )
    assert done.returncode == 7, done.stderr
    assert "is full" in done.stderr
    assert contents(tmp_path / "after/here") == before
