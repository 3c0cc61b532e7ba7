"""What a machine and its user put into a build: compilers, variables, and files outside the tree."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hosts import change_host
from torchmill.cell import machine_inputs
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.stat_cache import StatCache
from torchmill.host import libraries
from torchmill.host.host import Compiler
from torchmill.host.measurement import measure_basic_host, measure_host
from torchmill.plan import build_plan
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.plan import Plan, PlannedCuda


@pytest.fixture
def stat_cache(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "stat-cache.json")


@pytest.fixture
def planned(shipped: Facts, stat_cache: StatCache) -> Plan:
    build = Build("torch", "wheel", "3.10", "cpu", "x86_64")
    release = find_release(shipped, "torch", "v1.13.1")
    machine = change_host(
        measure_basic_host(stat_cache), platform={"glibc": "2.36"}, arch="x86_64", system="linux"
    )
    return build_plan.compute_plan(shipped, Cell(build, release), machine, Options())


def test_only_variables_that_reach_a_compiler_count(planned: Plan) -> None:
    counting = {
        "CXX": "c++",
        "LD_LIBRARY_PATH": "/x",
        "NIX_CFLAGS_COMPILE": "-I/x",
        "SOURCE_DATE_EPOCH": "1",
    }
    others = {
        "AR": "ar", "Foo_ROOT": "/x", "CONDA_PREFIX": "/x", "HOME": "/x", "LANG": "C", "PATH": "/x", "PYENV_ROOT": "/x",
        "MAKEFLAGS": "ks -j8 -- CFLAGS=-O0", "USE_MPI": "1", "CCACHE_DIR": "/x", "https_proxy": "http://x",
    }  # fmt: skip
    assert machine_inputs.read_user_variables({**counting, **others}, planned, "linux") == counting
    decided = dict.fromkeys(planned.variables, "x")
    assert machine_inputs.read_user_variables(decided, planned, "linux") == {}, (
        "the plan decides these"
    )


def test_a_search_path_of_compilers_counts_only_in_a_container_of_ours(planned: Plan) -> None:
    shell = {"COMPILER_PATH": "/opt/cross-compilers/bin"}
    assert machine_inputs.read_user_variables(shell, planned, "linux") == {}
    assert (
        machine_inputs.read_user_variables(
            {**shell, "TORCHMILL_CONTAINER_ARCH": "aarch64"}, planned, "linux"
        )
        == shell
    )


def test_a_compiler_is_known_by_its_parts(
    planned: Plan, stat_cache: StatCache, tmp_path: Path
) -> None:
    compiler = shutil.which("c++")
    assert compiler is not None
    machine = measure_basic_host(stat_cache)
    before = machine_inputs.collect_machine_inputs(machine, planned, os.environ, stat_cache)
    assert {"compiler", "C++: driver", "C: driver"} <= before.keys()
    wrapper = tmp_path / "c++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    wrapper.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    after = machine_inputs.collect_machine_inputs(
        machine, planned, {**os.environ, "PATH": path}, stat_cache
    )
    assert {name for name in after if after[name] != before.get(name)} == {"C++: driver"}


def test_a_compiler_that_the_plan_names_is_the_one_that_counts(
    planned: Plan, stat_cache: StatCache, tmp_path: Path
) -> None:
    compiler = shutil.which("c++")
    assert compiler is not None
    other = tmp_path / "g++-11"
    other.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    other.chmod(0o755)
    machine = measure_basic_host(stat_cache)
    machine = change_host(
        machine, compilers={"by_command": {str(other): Compiler("gcc", "11.3.0")}}
    )
    usual = machine_inputs.collect_machine_inputs(machine, planned, os.environ, stat_cache)
    named = replace(planned, variables={**planned.variables, "CXX": str(other)})
    found = machine_inputs.collect_machine_inputs(machine, named, os.environ, stat_cache)
    assert {name for name in found if found[name] != usual.get(name)} == {"compiler", "C++: driver"}
    assert found["compiler"] == "gcc 11.3.0"


def test_of_cuda_only_the_plans_own_toolkit_and_libraries_count(
    planned: Plan, stat_cache: StatCache, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("one")
    seen = {"cudnn": "8.1.0", "cudnn@11.8": "8.6.0", "cudnn@12.4": "9.1.0", "jpeg": "2.1"}
    homes = {"11.8": str(tmp_path), "12.4": "/nowhere"}
    machine = change_host(
        measure_basic_host(stat_cache), toolkits={"homes": homes, "libraries": seen}
    )
    assert machine_inputs.collect_machine_inputs(machine, planned, {}, stat_cache).keys() >= {
        "library jpeg"
    }
    assert not any(
        "cudnn" in name
        for name in machine_inputs.collect_machine_inputs(machine, planned, {}, stat_cache)
    )
    cuda = replace(planned, cuda=PlannedCuda("11.8", {"cudnn": "8.5.0.96"}))
    found = machine_inputs.collect_machine_inputs(machine, cuda, {}, stat_cache)
    told = {name: version for name, version in found.items() if "cudnn" in name}
    assert told == {
        "library cudnn": "8.1.0",
        "library cudnn@11.8": "8.6.0",
        "library cudnn, kept": "8.5.0.96",
    }
    compilers = {"by_command": {"g++-9": Compiler("gcc", "9.5.0")}}
    host_compiled = replace(cuda, variables={**cuda.variables, "CUDAHOSTCXX": "g++-9"})
    inputs = machine_inputs.collect_machine_inputs(
        change_host(machine, compilers=compilers), host_compiled, {}, stat_cache
    )
    assert inputs["host compiler of CUDA"] == "gcc 9.5.0"
    (tmp_path / "bin/nvcc").write_text("another")
    assert (
        machine_inputs.collect_machine_inputs(machine, cuda, {}, stat_cache)["nvcc"]
        != found["nvcc"]
    )


@pytest.mark.parametrize("name", libraries.TOOLKIT_LIBRARIES)
def test_a_library_in_a_toolkit_that_another_build_uses_changes_nothing(
    planned: Plan, stat_cache: StatCache, name: str
) -> None:
    """Else whoever brings a toolkit compiles every wheel without CUDA once more."""
    before = change_host(measure_basic_host(stat_cache), toolkits={"homes": {}, "libraries": {}})
    after = change_host(
        before, toolkits={"homes": {"12.4": "/nowhere"}, "libraries": {f"{name}@12.4": ""}}
    )
    inputs = [
        machine_inputs.collect_machine_inputs(one, planned, {}, stat_cache)
        for one in (before, after)
    ]
    assert inputs[0] == inputs[1]


def test_a_launcher_is_no_compiler(planned: Plan, stat_cache: StatCache, tmp_path: Path) -> None:
    """Links to ccache may stand before the compilers on PATH, and ccache may be upgraded."""
    compiler = shutil.which("c++")
    assert compiler is not None
    launcher = tmp_path / "ccache"
    launcher.write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "c++").symlink_to(launcher)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    found = machine_inputs.collect_machine_inputs(
        measure_basic_host(stat_cache), planned, {**os.environ, "PATH": path}, stat_cache
    )
    assert "C++: driver" not in found
    assert "C++: as" in found


def test_an_interpreter_is_known_by_what_it_says_and_its_files(
    stat_cache: StatCache, tmp_path: Path
) -> None:
    known = machine_inputs.describe_interpreter(Path(sys.executable), stat_cache)
    assert known["version"].startswith(sys.version.split()[0])
    assert Path(sys.executable).resolve().name in known
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    again = machine_inputs.describe_interpreter(other, stat_cache)
    assert again["version"] == known["version"]
    assert again != known


def test_each_header_of_an_interpreter_counts_and_no_other_python(
    stat_cache: StatCache, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    interpreter = tmp_path / "bin/python3.98"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    for name in ("libpython3.98.so.1.0", "libpython3.99.so.1.0"):
        (tmp_path / "lib" / name).write_text(name)
    for folder in ("python3.98", "python3.98d"):
        (tmp_path / "include" / folder).mkdir(parents=True)
        (tmp_path / "include" / folder / "pyconfig.h").write_text(folder)
    description = machine_inputs.describe_interpreter(interpreter, stat_cache)
    assert description.keys() == {
        "version",
        "python3.98",
        "libpython3.98.so.1.0",
        "pyconfig.h",
        "python3.98d/pyconfig.h",
    }


def test_the_basis_says_of_a_machine_what_measuring_says(
    stat_cache: StatCache, tmp_path: Path
) -> None:
    basis, whole = measure_basic_host(stat_cache), measure_host(tmp_path)
    assert not basis.complete
    for name in ("arch", "system", "platform", "toolkits"):
        assert getattr(basis, name) == getattr(whole, name)
    assert basis.resources.cores == whole.resources.cores
    assert basis.compilers.default == whole.compilers.default


NINJA = shutil.which("ninja")
COMMANDS = """\
rule compile
  command = c++ -I{system} -MD -MF $out.d -c $in -o $out
  deps = gcc
  depfile = $out.d
rule link
  command = c++ -shared -o $out $in
build a.o: compile ../a.cpp
build b.so: link a.o | {system}/with$ space.a {system}/lib$:s.a
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Build a library by ninja, with a header and two libraries from elsewhere."""
    if NINJA is None:
        pytest.skip("there is no ninja on PATH")
    system, source = tmp_path / "system", tmp_path / "tree" / "source"
    system.mkdir()
    (source / "build").mkdir(parents=True)
    for name in ("far.h", "with space.a", "lib:s.a"):
        (system / name).write_text("")
    (source / "near.h").write_text("")
    (source / "a.cpp").write_text(
        '#include <far.h>\n#include <stddef.h>\n#include "near.h"\nint a;\n'
    )
    (source / "build" / "build.ninja").write_text(COMMANDS.format(system=system))
    subprocess.run([NINJA, "-C", str(source / "build")], check=True, capture_output=True)
    return source


def test_what_lies_outside_was_read_and_nothing_else(source: Path, tmp_path: Path) -> None:
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    read = machine_inputs.read_external_inputs(
        source, [source.parent], stat_cache, time.time() + 60
    )
    own = {Path(path).name for path in read if path.startswith(str(tmp_path))}
    assert own == {"far.h", "with space.a", "lib:s.a"}
    assert any(path.endswith("/stddef.h") for path in read)
    assert list(machine_inputs.find_changed_inputs(read, stat_cache)) == []
    (tmp_path / "system" / "lib:s.a").write_text("upgraded")
    (tmp_path / "system" / "far.h").unlink()
    assert {Path(path).name for path in machine_inputs.find_changed_inputs(read, stat_cache)} == {
        "far.h",
        "lib:s.a",
    }


def test_linked_archives_are_those_outside_on_lines_of_any_length(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("a", "source", "z"):
        (tmp_path / folder).mkdir()
    (source / "build").mkdir()
    for name in ("a/libm.a", "source/libm.a", "a/libn.a"):
        (tmp_path / name).write_text("")
    (source / "build/build.ninja").write_text(
        f"build b.so: link {tmp_path}/a/libm.a $\n    {source}/libm.a {tmp_path}/z/libm.a $\n"
        f"    {tmp_path}/a/$\n      libn.a\n"
    )
    assert machine_inputs.linked_archives(source) == [tmp_path / "a/libm.a", tmp_path / "a/libn.a"]


def test_what_changed_during_the_build_is_not_trusted(source: Path, tmp_path: Path) -> None:
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    read = machine_inputs.read_external_inputs(
        source, [source.parent], stat_cache, time.time() - 3600
    )
    assert str(tmp_path / "system" / "far.h") in machine_inputs.find_changed_inputs(
        read, stat_cache
    )


def test_a_log_that_cannot_be_read_is_never_unchanged(source: Path, tmp_path: Path) -> None:
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    (source / "build" / ".ninja_deps").write_bytes(b"# ninjadeps\n\x63\0\0\0")
    assert list(
        machine_inputs.find_changed_inputs(
            machine_inputs.read_external_inputs(source, [], stat_cache, time.time()), stat_cache
        )
    )


def test_without_a_log_all_headers_of_the_system_count(tmp_path: Path) -> None:
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    read = machine_inputs.read_external_inputs(tmp_path, [], stat_cache, time.time())
    assert "/usr/include/" in read
    assert list(machine_inputs.find_changed_inputs(read, stat_cache)) == []
    assert list(
        machine_inputs.find_changed_inputs({**read, "/usr/include/": "another look"}, stat_cache)
    ) == ["/usr/include/"]
    meanwhile = machine_inputs.read_external_inputs(tmp_path, [], stat_cache, 1.0)
    assert meanwhile["/usr/include/"] == machine_inputs.UNKNOWN, "it changed after the build began"
