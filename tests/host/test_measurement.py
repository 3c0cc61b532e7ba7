"""Measure this machine: tools, packages, and the tools of a Mac."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.machines import file, gcc, made_up_programs, only, program, script
from torchmill.config.gpu import Gpu
from torchmill.host import native
from torchmill.host.host import Compiler, Host, HostCompilers, HostResources
from torchmill.host.measurement import measure_host, with_named_compiler
from torchmill.host.programs import find_tools, make_runner
from torchmill.host.system_state import (
    installed_packages,
    is_translated,
    system_version,
    xcode_tools,
)

ROOT = Path(__file__).parents[2]


FOLDERS = (
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "MODULEPATH",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "UV_PYTHON_INSTALL_DIR",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVHPC_ROOT",
    "CONDA_PREFIX",
    "MAMBA_ROOT_PREFIX",
    "CUDNN_ROOT",
    "NCCL_ROOT",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "RUNNER_TOOL_CACHE",
)


@pytest.mark.parametrize("kind", ["a loop", "too long", "forbidden"])
def test_unreadable_folders_hide_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "there").mkdir()
    if kind == "a loop":
        (tmp_path / "there").rmdir()
        (tmp_path / "there").symlink_to(tmp_path / "there")
    if kind == "forbidden":
        (tmp_path / "there").chmod(0)  # which does not stop root
    bad = str(tmp_path / ("x" * 300 if kind == "too long" else "there/x"))
    path = os.environ["PATH"]
    for name in FOLDERS:
        monkeypatch.setenv(name, bad)
    monkeypatch.setenv("PATH", f"{bad}{os.pathsep}{path}")
    measured = measure_host(tmp_path)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in measured.interpreters.paths
    assert measured.programs.paths["git"] == shutil.which("git")


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
def test_archs_are_named_by_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, arch: str
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert native.native_arch() == arch


def test_the_native_arch_needs_only_the_standard_library() -> None:
    code = (
        "import sys; from torchmill.host import native; native.native_arch();"
        "print([name for name in ('packaging', 'psutil', 'rich') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_this_machine_is_measured(tmp_path: Path) -> None:
    measured = measure_host(tmp_path / "not/yet/made")
    assert measured.arch == native.native_arch()
    assert measured.system == native.native_system()
    assert 1 <= measured.resources.cores <= (os.cpu_count() or 1)
    assert 0 < measured.resources.memory <= psutil.virtual_memory().total
    assert measured.resources.free_disk is not None
    assert 0 < measured.resources.free_disk <= shutil.disk_usage(tmp_path).total
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in measured.interpreters.paths
    assert measured.programs.paths["git"] == shutil.which("git")
    assert measured.complete
    assert not measured.platform.translated


@made_up_programs
def test_a_machine_is_measured_from_its_files_and_programs(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    home = tmp_path / "home"
    gcc(programs, "c++", "12.2.0")
    gcc(programs, "g++-11", "11.4.0")
    program(programs, "git", "git version 2.39.5")
    program(programs, "ccache", "ccache version 4.7.5", "Features: file-storage")
    program(programs, "nvidia-smi", "NVIDIA GeForce RTX 3090, 8.6")
    script(home / ".pyenv/shims", "python3.21", "exit 127")
    file(
        tmp_path / "usr/include/nccl.h",
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 14\n#define NCCL_PATCH 3\n",
    )
    file(
        tmp_path / "proc/driver/nvidia/version",
        "NVRM version: NVIDIA Kernel Module  535.104.05  Sat\n",
    )
    file(tmp_path / "usr/lib64/libcuda.so.1").rename(tmp_path / "usr/lib64/libcuda.so.550.54.15")
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.550.54.15")
    environ = {"PATH": f"{home}/.pyenv/shims:{programs}:/usr/bin:/bin", "CUDAHOSTCXX": "g++-11"}
    measured = measure_host(tmp_path, environ, tmp_path, home)
    assert str(measured.compilers.default) == "gcc 12.2.0"
    assert str(measured.compilers.cuda) == "gcc 11.4.0"
    assert str(measured.compilers.by_command["g++-11"]) == "gcc 11.4.0"
    assert (measured.programs.versions["git"], measured.programs.versions["ccache"]) == (
        "2.39.5",
        "4.7.5",
    )
    assert measured.toolkits.libraries == {"nccl": "2.14.3"}
    assert measured.interpreters.broken == {"3.21": str(home / ".pyenv/shims/python3.21")}
    assert (measured.gpus.driver, measured.gpus.kernel_driver) == ("550.54.15", "535.104.05")
    assert measured.gpus.devices == (Gpu("NVIDIA GeForce RTX 3090", "8.6"),)


pytestmark = made_up_programs


def test_version_tools_and_rosetta_of_a_mac_are_measured(tmp_path: Path) -> None:
    program(tmp_path, "sw_vers", "14.5")
    program(tmp_path, "xcode-select", "/Library/Developer/CommandLineTools")
    program(tmp_path, "sysctl", "1")
    environ = only(tmp_path)
    run = make_runner(environ)
    assert system_version(tmp_path, run)["macos"] == "14.5"
    assert xcode_tools(find_tools(environ), run) == {"xcode": "/Library/Developer/CommandLineTools"}
    assert is_translated(run)


def test_other_machines_have_no_tools_of_a_mac(tmp_path: Path) -> None:
    program(tmp_path, "sysctl", "0")
    run = make_runner(only(tmp_path))
    assert "macos" not in system_version(tmp_path, run)
    assert xcode_tools({}, run) == {}
    assert not is_translated(run)


@pytest.mark.parametrize(
    ("manager", "tool", "lines"),
    [
        (
            "apt",
            "dpkg-query",
            ["installed git 1:2.39.5-0", "config-files ccache 4.7.5", "not-installed libnuma-dev"],
        ),
        ("dnf", "rpm", ["installed git 1:2.39.5-0"]),
        ("brew", "brew", ["git 2.38.0 1:2.39.5-0"]),
    ],
)
def test_packages_are_listed_by_the_manager(
    tmp_path: Path, manager: str, tool: str, lines: list[str]
) -> None:
    program(tmp_path, tool, *lines)
    environ = only(tmp_path)
    assert installed_packages(manager, environ, make_runner(environ)) == {"git": "1:2.39.5-0"}


def test_packages_of_conda_are_listed_by_files(tmp_path: Path) -> None:
    file(tmp_path / "conda-meta/cxx-compiler-1.7.0-h00ab1b0_0.json")
    file(tmp_path / "conda-meta/history")
    environ = only(tmp_path, CONDA_PREFIX=str(tmp_path))
    assert installed_packages("conda", environ, make_runner(environ)) == {"cxx-compiler": "1.7.0"}


def test_without_an_environment_of_conda_no_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(tmp_path / "conda-meta/cxx-compiler-1.7.0-h00ab1b0_0.json")
    monkeypatch.chdir(tmp_path)
    for environ in (only(tmp_path), only(tmp_path, CONDA_PREFIX="")):
        assert installed_packages("conda", environ, make_runner(environ)) == {}


@made_up_programs
def test_a_broken_compiler_is_not_taken_for_one_of_the_same_name(tmp_path: Path) -> None:
    script(tmp_path / "broken", "g++-11", "exit 1")
    name = str(tmp_path / "broken" / "g++-11")
    good = Compiler("gcc", "11.4.0")
    host = Host(
        arch="x86_64",
        system="linux",
        resources=HostResources(cores=1, memory=1),
        compilers=HostCompilers(default=good, by_command={"g++-11": good}),
    )
    named = with_named_compiler(host, {"CXX": name}, os.environ)
    assert named.compilers.of_command(name) is None
    assert named.programs.paths["c++"] == name
