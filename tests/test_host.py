"""What a machine has: this one, made-up ones, and ones described in a file."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from torchwright import host
from torchwright.errors import ConfigError
from torchwright.model import Compiler, Host

ROOT = Path(__file__).parents[1]
made_up_programs = pytest.mark.skipif(sys.platform == "win32", reason="made-up programs are shell scripts")


def program(folder: Path, name: str, *said: str) -> Path:
    """Make a program that says the same whatever it is asked."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + "".join(f"echo {shlex.quote(line)}\n" for line in said))
    path.chmod(0o755)
    return path


def gcc(folder: Path, name: str, version: str) -> Path:
    path = program(folder, name)
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version) echo "g++ {version}"; echo "Copyright Free Software Foundation, Inc.";;'
        f" *) echo {version};; esac\n"
    )
    return path


def only(folder: Path, **variables: str) -> dict[str, str]:
    return {"PATH": str(folder)} | variables


@pytest.mark.parametrize(
    ("platform", "machine", "arch"),
    [
        ("linux", "x86_64", "x86_64"),
        ("linux", "aarch64", "aarch64"),
        ("darwin", "arm64", "arm64"),
        ("win32", "AMD64", "amd64"),
        ("darwin", "x86_64", "macos_x86_64"),
        ("linux", "riscv64", "linux_riscv64"),
    ],
)
def test_the_same_machine_has_another_name_on_each_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, arch: str
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert host.native_arch() == arch


def test_the_native_arch_costs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; from torchwright import host; host.native_arch();"
        "print([name for name in ('packaging', 'psutil', 'rich') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_this_machine_is_measured(tmp_path: Path) -> None:
    measured = host.measure(tmp_path / "not/yet/made")
    assert measured.arch == host.native_arch()
    assert measured.system == host.native_system()
    assert 1 <= measured.cores <= (os.cpu_count() or 1)
    assert 0 < measured.memory <= psutil.virtual_memory().total
    assert measured.disk is not None
    assert 0 < measured.disk <= shutil.disk_usage(tmp_path).total
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in measured.interpreters
    assert measured.tools["git"] == shutil.which("git")


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_the_version_of_the_real_gcc_is_whole() -> None:
    first = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    if "Free Software" not in first:
        pytest.skip("g++ is clang here")
    version = host.gcc_version(os.environ | {"CXX": "g++"})
    assert version is not None
    assert version.count(".") == 2
    assert version in first


@made_up_programs
def test_the_compiler_that_a_build_would_use_is_asked(tmp_path: Path) -> None:
    gcc(tmp_path, "c++", "12.2.0")
    gcc(tmp_path, "gcc-9", "9.5.0")
    gcc(tmp_path, "g++-8", "8.4.0")
    assert host.gcc_version(only(tmp_path)) == "12.2.0"
    assert host.gcc_version(only(tmp_path, CC="gcc-9")) == "9.5.0"
    assert host.gcc_version(only(tmp_path, CC="gcc-9", CXX="g++-8 -m64")) == "8.4.0"


@made_up_programs
def test_no_other_compiler_is_taken_for_gcc(tmp_path: Path) -> None:
    assert host.gcc_version(only(tmp_path)) is None
    program(tmp_path, "c++", "clang version 17.0.6")
    assert host.gcc_version(only(tmp_path)) is None
    assert host.compiler(only(tmp_path)) == ["c++"]


@made_up_programs
def test_a_compiler_that_is_named_and_missing_is_not_replaced(tmp_path: Path) -> None:
    gcc(tmp_path, "c++", "12.2.0")
    assert host.compiler(only(tmp_path, CXX="g++-99")) is None
    assert host.gcc_version(only(tmp_path, CXX="g++-99")) is None


def toolkit(home: Path, nvcc_says: str = "") -> Path:
    program(home / "bin", "nvcc", nvcc_says)
    (home / "include").mkdir(exist_ok=True)
    (home / "include/cuda_runtime_api.h").touch()
    return home


@made_up_programs
def test_toolkits_are_found_and_asked_in_three_ways(tmp_path: Path) -> None:
    new = toolkit(tmp_path / "usr/local/cuda-12.4")
    (new / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.4.20240318"}}))
    (tmp_path / "usr/local/cuda").symlink_to(new)
    old = toolkit(tmp_path / "usr/local/cuda-10.2")
    (old / "version.txt").write_text("CUDA Version 10.2.89\n")
    (tmp_path / "usr/local/cuda-11.0-runtime").mkdir()  # no nvcc: nothing to build with
    mute = toolkit(tmp_path / "usr/local/cuda-11.8", "Cuda compilation tools, release 11.8, V11.8.89")
    assert host.toolkits(only(tmp_path), tmp_path) == {
        "12.4": str(new),
        "11.8": str(mute),
        "10.2": str(old),
    }


@made_up_programs
def test_debians_toolkit_is_used_from_usr(tmp_path: Path) -> None:
    usr = toolkit(tmp_path / "usr", "Cuda compilation tools, release 11.8, V11.8.89")
    assert host.toolkits(only(tmp_path), tmp_path) == {}
    (usr / "lib/nvidia-cuda-toolkit").mkdir(parents=True)
    assert host.toolkits(only(tmp_path), tmp_path) == {"11.8": str(usr)}


@made_up_programs
def test_the_toolkit_that_is_named_goes_first(tmp_path: Path) -> None:
    said = "release 12.1, V12.1.105"
    toolkit(tmp_path / "usr/local/cuda-12.1", said)
    mine = toolkit(tmp_path / "mine", said)
    assert host.toolkits(only(tmp_path, CUDA_HOME=str(mine)), tmp_path) == {"12.1": str(mine)}
    assert host.toolkits(only(mine / "bin"), tmp_path) == {"12.1": str(tmp_path / "usr/local/cuda-12.1")}
    assert host.toolkits(only(mine / "bin"), tmp_path / "empty") == {"12.1": str(mine)}


@made_up_programs
def test_a_toolkit_that_does_not_tell_its_version_is_left_out(tmp_path: Path) -> None:
    toolkit(tmp_path / "usr/local/cuda", "no idea")
    assert host.toolkits(only(tmp_path), tmp_path) == {}


def described(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "host.toml"
    path.write_text(dedent(text))
    return path


def test_a_described_host_is_loaded(tmp_path: Path) -> None:
    path = described(
        tmp_path,
        """\
        arch = "arm64"
        system = "macos"
        cores = 8
        memory = "16 GiB"
        disk = "100 GB"
        glibc = "2.35"
        compiler = "gcc 11.4.0"
        [tools]
        ninja = "/opt/homebrew/bin/ninja"
        [toolkits]
        "11.8" = "/usr/local/cuda-11.8"
        [interpreters]
        "3.10" = "/usr/bin/python3.10"
        """,
    )
    assert host.load(path) == Host(
        arch="arm64",
        system="macos",
        cores=8,
        memory=16 * 2**30,
        disk=100 * 10**9,
        glibc="2.35",
        compiler=Compiler("gcc", "11.4.0"),
        tools={"ninja": "/opt/homebrew/bin/ninja"},
        toolkits={"11.8": "/usr/local/cuda-11.8"},
        interpreters={"3.10": "/usr/bin/python3.10"},
    )


def test_four_fields_are_enough(tmp_path: Path) -> None:
    path = described(tmp_path, 'arch = "x86_64"\nsystem = "linux"\ncores = 64\nmemory = "256 GiB"\n')
    assert host.load(path) == Host("x86_64", "linux", 64, 2**38)


def test_every_mistake_in_a_description_is_told_at_once(tmp_path: Path) -> None:
    path = described(
        tmp_path,
        """\
        system = "linus"
        cores = "8"
        memory = 32
        disc = "1 GiB"
        glibc = 2.35
        toolkits = ["11.8"]
        """,
    )
    with pytest.raises(ConfigError) as caught:
        host.load(path)
    problems = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in problems] == ["host.toml"] * len(problems)
    for expected in (
        "key 'arch' is missing",
        "'system' is 'linus', expected one of linux, macos, windows",
        "'cores' is '8', expected a whole number from 1",
        "'memory' holds 32, expected a string",
        "unknown key 'disc'; did you mean 'disk'?",
        "'glibc' holds the number 2.35",
        "'toolkits' is ['11.8'], expected a table",
    ):
        assert [line for line in problems if expected in line], (expected, problems)
    assert len(problems) == 7


@pytest.mark.parametrize("cores", ["0", "true", "1.5"])
def test_cores_are_a_whole_number(tmp_path: Path, cores: str) -> None:
    path = described(tmp_path, f'arch = "x86_64"\nsystem = "linux"\ncores = {cores}\nmemory = "1 GiB"\n')
    with pytest.raises(ConfigError, match="expected a whole number"):
        host.load(path)


def test_a_missing_or_broken_description_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        host.load(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"host\.toml: .*line 1"):
        host.load(described(tmp_path, "arch = \n"))
