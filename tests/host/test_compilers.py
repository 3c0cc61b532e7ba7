"""Identify the compilers of made-up machines, and of this machine."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.machines import file, gcc, made_up_programs, only, program
from torchmill.host.compilers import (
    command_words,
    compiler_command,
    compiler_fault,
    identify_compiler,
    installed_compilers,
    own_cxx_library,
)
from torchmill.host.host import Compiler
from torchmill.host.programs import make_runner

pytestmark = made_up_programs


def identify(environ: dict[str, str]) -> Compiler | None:
    return identify_compiler(compiler_command(environ), environ, make_runner(environ))


def compiler_name(environ: dict[str, str]) -> str:
    return str(identify(environ))


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_the_version_of_the_real_gcc_has_three_numbers() -> None:
    output = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    if "Free Software" not in output:
        pytest.skip("g++ is clang here")
    environ = os.environ | {"CXX": "g++"}
    compiler = identify(environ)
    assert compiler is not None
    assert compiler.family == "gcc"
    assert compiler.version.count(".") == 2
    assert compiler.version in output


def test_a_libstdcxx_beside_the_systems_is_found(tmp_path: Path) -> None:
    separate = str(tmp_path / "gcc/11/lib64/libstdc++.so.6")
    of_system = "/usr/lib/gcc/x86_64-linux-gnu/12/../libstdc++.so.6"
    environ = only(tmp_path)
    for output, expected in (
        (separate, {"libstdc++": separate}),
        (of_system, {}),
        ("libstdc++.so.6", {}),  # it has none
    ):
        program(tmp_path, "c++", output)
        command = compiler_command(environ)
        assert own_cxx_library(command, make_runner(environ)) == expected


def test_the_compiler_of_a_build_is_identified(tmp_path: Path) -> None:
    gcc(tmp_path, "c++", "12.2.0")
    gcc(tmp_path, "gcc-9", "9.5.0")
    gcc(tmp_path, "g++-8", "8.4.0")
    assert compiler_name(only(tmp_path)) == "gcc 12.2.0"
    assert compiler_name(only(tmp_path, CC="gcc-9")) == "gcc 12.2.0", (
        "CC is for C only: torch's project names C++ first"
    )
    assert compiler_name(only(tmp_path, CC="gcc-9", CXX="g++-8 -m64")) == "gcc 8.4.0"


@pytest.mark.parametrize(
    ("output", "compiler"),
    [
        ("clang version 17.0.6", "clang 17.0.6"),
        ("Debian clang version 14.0.6", "clang 14.0.6"),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", "apple-clang 15.0.0"),
        ("Apple LLVM version 10.0.1 (clang-1001.0.46.4)", "apple-clang 10.0.1"),
        ("icpx of some year", "None"),
    ],
)
def test_other_compilers_are_not_mistaken_for_gcc(
    tmp_path: Path, output: str, compiler: str
) -> None:
    program(tmp_path, "c++", output)
    assert compiler_name(only(tmp_path)) == compiler
    assert compiler_command(only(tmp_path)) == ["c++"]


def test_visual_studio_is_recognised_by_its_prompt(tmp_path: Path) -> None:
    program(tmp_path, "cl")
    assert compiler_name(only(tmp_path)) == "None"
    # The facts on what nvcc takes are about the compiler, and not about its toolset.
    assert compiler_name(only(tmp_path, VCToolsVersion="14.29.30133")) == "msvc 19.29.30133"


def test_a_missing_named_compiler_is_not_replaced(tmp_path: Path) -> None:
    gcc(tmp_path, "c++", "12.2.0")
    assert compiler_command(only(tmp_path, CXX="g++-99")) is None
    assert compiler_name(only(tmp_path, CXX="g++-99")) == "None"


def test_the_host_compiler_of_nvcc_may_be_another_one(tmp_path: Path) -> None:
    gcc(tmp_path, "g++-11", "11.4.0")
    environ = only(tmp_path, CUDAHOSTCXX="g++-11")
    for variables, compiler in ((environ, Compiler("gcc", "11.4.0")), (only(tmp_path), None)):
        words = command_words(variables, "CUDAHOSTCXX")
        assert identify_compiler(words, variables, make_runner(variables)) == compiler


def test_every_compiler_is_listed_by_its_command(tmp_path: Path) -> None:
    gcc(tmp_path / "bin", "g++", "12.2.0")
    gcc(tmp_path / "bin", "g++-11", "11.4.0")
    program(tmp_path / "bin", "clang++-14", "clang version 14.0.6")
    program(tmp_path / "bin", "clang++-cuda", "clang version 1.0.0")
    program(tmp_path / "bin", "g++-9")  # broken: it prints nothing
    file(tmp_path / "bin/g++-8")  # not executable
    toolset = gcc(tmp_path / "opt/rh/gcc-toolset-13/root/usr/bin", "g++", "13.1.1")
    provisioned = gcc(tmp_path / "cache/gcc-10-x86_64/bin", "g++-10", "10.2.1")
    environ = only(tmp_path / "bin")
    with ThreadPoolExecutor() as threads:
        compilers = installed_compilers(
            environ, tmp_path, [provisioned], make_runner(environ), threads
        )
    assert {name: str(compiler) for name, compiler in compilers.items()} == {
        "clang++-14": "clang 14.0.6",
        "g++": "gcc 12.2.0",
        "g++-11": "gcc 11.4.0",
        str(toolset): "gcc 13.1.1",
        str(provisioned): "gcc 10.2.1",
    }


def test_a_compiler_that_makes_a_program_has_no_fault() -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    environ = {**os.environ, "CPLUS_INCLUDE_PATH": "/nonexistent", "LANG": "de_DE.UTF-8"}
    assert compiler_fault(["g++"], environ) == ""


def test_a_compiler_without_its_parts_says_what_it_lacks(tmp_path: Path) -> None:
    message = "g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory"
    file(
        tmp_path / "bin/g++",
        f'#!/bin/sh\necho "{message}" >&2\necho "compilation terminated." >&2\nexit 1\n',
    )
    (tmp_path / "bin/g++").chmod(0o755)
    environ = only(tmp_path / "bin")
    assert compiler_fault(["g++"], environ) == message
    assert compiler_fault(["clang++"], environ) == ""
    assert compiler_fault(None, environ) == ""
