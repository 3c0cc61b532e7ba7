"""The gate in real builds: CMake, setuptools, nvcc, caches."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import psutil
import pytest
from guard_support.gates import Meeting, environment, result
from guard_support.guards import until
from millguard import compiler_gate

CC = shutil.which("cc") or "gcc"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = compiler_gate.gate_program(tmp_path_factory.mktemp("cache"), [CC])
    assert made
    return made


def compiler(file: Path, script: str) -> Path:
    """Make a program that stands for a compiler."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


# Made.


def test_it_compiles_without_a_warning(tmp_path: Path) -> None:
    strict = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
    compilers = [CC, *filter(None, map(shutil.which, ["gcc", "clang"]))]
    for one in compilers:
        subprocess.run([one, *strict, "-o", tmp_path / "gate", compiler_gate.SOURCE], check=True)


def test_it_is_compiled_once(tmp_path: Path) -> None:
    counting = compiler(tmp_path / "cc", f'echo run >> {tmp_path}/runs; exec {CC} "$@"')
    first = compiler_gate.gate_program(tmp_path / "cache", [str(counting)])
    assert first
    assert compiler_gate.gate_program(tmp_path / "cache", [str(counting)]) == first
    assert (tmp_path / "runs").read_text() == "run\n"
    assert compiler_gate.gate_program(tmp_path / "cache", [str(counting), "-g"]) not in {
        None,
        first,
    }
    assert [path.name for path in first.parent.iterdir() if "." in path.name] == []


def test_a_gate_of_another_machine_is_compiled_again(tmp_path: Path) -> None:
    first = compiler_gate.gate_program(tmp_path, [CC])
    assert first
    first.write_bytes(b"\x7fELF of another machine")
    again = compiler_gate.gate_program(tmp_path, [CC])
    assert again == first
    assert subprocess.run([again, "true"], check=False, env=environment()).returncode == 0


@pytest.mark.parametrize("words", [["no-such-compiler"], ["false"], ["sh", "-c", "exit 0"]])
def test_a_compiler_that_makes_nothing_makes_no_gate(tmp_path: Path, words: list[str]) -> None:
    assert compiler_gate.gate_program(tmp_path, words) is None


def test_a_compiler_elsewhere_makes_no_gate(tmp_path: Path) -> None:
    cross = compiler(
        tmp_path / "cross", 'while test "$1" != -o; do shift; done; echo ARM > "$2"; chmod +x "$2"'
    )
    assert compiler_gate.gate_program(tmp_path / "cache", [str(cross)]) is None
    assert list((tmp_path / "cache/gates").iterdir()) == []


def test_a_cache_that_cannot_be_written_makes_no_gate(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file: so it holds for root, too")
    assert compiler_gate.gate_program(tmp_path / "cache", [CC]) is None


# Placed.


def test_it_is_placed_anew_at_the_same_path(compiled: Path, tmp_path: Path) -> None:
    there = compiler_gate.place_gate(None, tmp_path / "tree/gate", [CC, "-g"])
    assert there == tmp_path / "tree/gate"
    first = there.read_bytes()
    assert compiler_gate.place_gate(compiled, there) == there
    assert there.read_bytes() == compiled.read_bytes() != first
    assert list(there.parent.iterdir()) == [there]


def test_it_can_be_replaced_while_it_runs(compiled: Path, tmp_path: Path) -> None:
    there = compiler_gate.place_gate(compiled, tmp_path / "gate")
    with Meeting(tmp_path / "folder") as meeting:
        process = meeting.start(there, "sh", "-c", "exit 7", "a.c")
        heard = meeting.met()
        heard.asked()
        compiler_gate.place_gate(compiled, there)
        heard.say("go")
        assert result(process)[0] == 7


def test_a_tree_that_cannot_be_written_is_an_error(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").write_text("a file")
    with pytest.raises(OSError, match="tree"):
        compiler_gate.place_gate(compiled, tmp_path / "tree/gate")


def test_where_none_can_be_compiled_the_reason_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-compiler"):
        compiler_gate.place_gate(None, tmp_path / "gate", ["no-such-compiler"])
    assert list(tmp_path.iterdir()) == []


# Named to CMake.

GATE = Path("/tree/gate")

LAUNCHERS = dict.fromkeys(compiler_gate.LAUNCHERS, "/tree/gate")

LINKERS = {name: "/tree/gate" for name in compiler_gate.LAUNCHERS if "LINKER" in name}


def test_without_a_cache_it_launches_all() -> None:
    assert compiler_gate.gate_hooks(GATE, {}) == LAUNCHERS
    assert len(LAUNCHERS) == 6


def test_behind_ccache_it_gets_what_missed() -> None:
    caching = {
        "CCACHE_DIR": "/kept",
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
    }
    nvcc = {"CMAKE_CUDA_COMPILER_LAUNCHER": "/tree/gate"}  # an old ccache does not take it
    assert compiler_gate.gate_hooks(GATE, caching) == LINKERS | nvcc | {
        "CCACHE_PREFIX": "/tree/gate"
    }
    new = caching | {"CMAKE_CUDA_COMPILER_LAUNCHER": "ccache"}
    assert compiler_gate.gate_hooks(GATE, new) == LINKERS | {"CCACHE_PREFIX": "/tree/gate"}


def test_in_a_path_with_blanks_it_stands_before_ccache() -> None:
    there = Path("/my tree/gate")
    named = compiler_gate.gate_hooks(
        there, {"CCACHE_DIR": "/kept", "CMAKE_C_COMPILER_LAUNCHER": "ccache"}
    )
    assert "CCACHE_PREFIX" not in named
    assert named["CMAKE_C_COMPILER_LAUNCHER"] == "/my tree/gate;ccache"
    assert named["CMAKE_CXX_COMPILER_LAUNCHER"] == "/my tree/gate"


def test_sccache_keeps_its_launchers() -> None:
    caching = {"SCCACHE_DIR": "/kept", "CMAKE_C_COMPILER_LAUNCHER": "sccache"}
    assert "CMAKE_C_COMPILER_LAUNCHER" not in compiler_gate.gate_hooks(GATE, caching)


# Named to everything else.


def test_stand_ins_go_through_the_gate_to_the_first_on_path(compiled: Path, tmp_path: Path) -> None:
    there = compiler_gate.place_gate(compiled, tmp_path / "tree/gate")
    conda = "x86_64-conda-linux-gnu-c++"
    for name in (
        "cc",
        "g++-12",
        "x86_64-linux-gnu-gcc",
        conda,
        "gcc-ar",
        "ccache",
        "clang-format",
        "g++.txt",
    ):
        compiler(tmp_path / "first" / name, f'echo first {name} "$@"')
    compiler(tmp_path / "second/cc", "echo second")
    compiler(tmp_path / "second/clang++", 'echo second clang++ "$@"')
    (tmp_path / "second/gcc").write_text("not executable")
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches/g++").symlink_to(tmp_path / "first/ccache")
    path = (
        f"{tmp_path}/gone:{tmp_path}/caches:{tmp_path}/first:{tmp_path}/second:{os.environ['PATH']}"
    )
    changed = compiler_gate.make_stand_ins(tmp_path / "tree/bin", there, None, {"PATH": path})
    assert changed == {"PATH": f"{tmp_path}/tree/bin:{path}"}
    made = {file.name for file in (tmp_path / "tree/bin").iterdir()}
    assert made >= {"cc", "g++-12", "x86_64-linux-gnu-gcc", conda, "clang++"}
    assert not made & {"gcc-ar", "ccache", "clang-format", "g++.txt"}
    with Meeting(tmp_path / "folder") as meeting:
        for name, first in (("cc", "first"), ("g++-12", "first"), ("clang++", "second")):
            process = meeting.start(name, "-c", "a b.c", env=changed)
            heard = meeting.met()
            assert heard.asked()[1:] == [str(tmp_path / first / name), "-c", "a b.c"]
            heard.say("go")
            assert result(process) == (0, f"{first} {name} -c a b.c\n".encode(), b"")


def test_stand_ins_are_made_anew(compiled: Path, tmp_path: Path) -> None:
    old = compiler(tmp_path / "path/gcc-11", "echo")
    compiler(tmp_path / "path/gcc-12", "echo")
    environ = {"PATH": str(tmp_path / "path")}
    folder = tmp_path / "bin"
    first = compiler_gate.make_stand_ins(folder, compiled, None, environ)
    assert {file.name for file in folder.iterdir()} == {"gcc-11", "gcc-12"}
    old.unlink()
    assert compiler_gate.make_stand_ins(folder, compiled, None, environ) == first
    assert (
        compiler_gate.make_stand_ins(folder, compiled, None, first)["PATH"].count(str(folder)) == 2
    )
    assert {file.name for file in folder.iterdir()} == {"gcc-12"}
    assert str(tmp_path / "path/gcc-12") in (folder / "gcc-12").read_text()


def test_compilers_are_found_by_their_whole_path_alone(compiled: Path, tmp_path: Path) -> None:
    mine = compiler(tmp_path / "opt/clang", "echo mine")
    environ = {"PATH": str(tmp_path / "empty"), "CC": str(mine)}
    changed = compiler_gate.make_stand_ins(tmp_path / "tree/bin", compiled, None, environ)
    assert changed["CC"] == str(tmp_path / "tree/bin/CC/clang")


def test_compilers_by_their_whole_path_get_stand_ins_of_their_own(
    compiled: Path, tmp_path: Path
) -> None:
    mine = compiler(tmp_path / "opt/clang", "echo mine")
    compiler(tmp_path / "path/clang", "echo theirs")
    environ = {"PATH": str(tmp_path / "path"), "CC": str(mine), "CXX": "clang++ -m64"}
    changed = compiler_gate.make_stand_ins(tmp_path / "bin", compiled, None, environ)
    assert set(changed) == {"PATH", "CC"}
    assert Path(changed["CC"]).name == "clang"
    assert str(mine) in Path(changed["CC"]).read_text()
    assert str(tmp_path / "path/clang") in (tmp_path / "bin/clang").read_text()


def test_one_by_its_whole_path_keeps_its_flags(compiled: Path, tmp_path: Path) -> None:
    mine, spaced = compiler(tmp_path / "opt/g++", "echo"), compiler(tmp_path / "my opt/g++", "echo")
    environ = {"PATH": "", "CC": f"{mine} -m64 -DA='b c'", "CXX": str(spaced)}
    changed = compiler_gate.make_stand_ins(tmp_path / "bin", compiled, None, environ)
    assert changed["CC"] == f"{tmp_path}/bin/CC/g++ -m64 -DA='b c'"
    assert str(mine) in (tmp_path / "bin/CC/g++").read_text()
    assert changed["CXX"] == str(tmp_path / "bin/CXX/g++")


def test_nvcc_gets_one_that_is_not_on_path(compiled: Path, tmp_path: Path) -> None:
    real = compiler(tmp_path / "cuda/bin/nvcc", "echo")
    for environ in (
        {"CUDA_HOME": str(tmp_path / "cuda")},
        {"CUDACXX": str(real), "CUDA_HOME": "/gone"},
    ):
        named = compiler_gate.make_nvcc_stand_in(tmp_path / "bin", compiled, None, environ)
        assert set(named) == {"PYTORCH_NVCC", "CUDA_NVCC_EXECUTABLE"}
        there = Path(named["PYTORCH_NVCC"])
        assert there.name == "nvcc"
        assert there.parent != tmp_path / "bin"
        assert f'exec {compiled} {real} "$@"' in there.read_text()
    for without in ({"CUDA_HOME": "/gone"}, {}):
        assert compiler_gate.make_nvcc_stand_in(tmp_path / "bin", compiled, None, without) == {}
        assert compiler_gate.surround_nvcc(tmp_path / "bin", without) == {}


def test_nvcc_without_dependency_flags_is_not_cached(compiled: Path, tmp_path: Path) -> None:
    compiler(tmp_path / "cuda/bin/nvcc", 'echo "nvcc $CCACHE_DISABLE" "$@"')
    cache = compiler(tmp_path / "ccache", 'shift; echo "cached $CCACHE_DEPEND" "$@"')
    named = compiler_gate.make_nvcc_stand_in(
        tmp_path / "bin", compiled, str(cache), {"CUDA_HOME": str(tmp_path / "cuda")}
    )

    def run(*words: str) -> str:
        command = [named["PYTORCH_NVCC"], *words]
        return subprocess.run(
            command, env=environment(), capture_output=True, check=True, text=True
        ).stdout.strip()

    for asks in ("-MD", "--generate-dependencies-with-compile"):
        assert run("-c", "a b.cu", asks) == f"cached 1 -c a b.cu {asks}"
    assert run("-c", "a b.cu", "-I", "-MDir") == "nvcc 1 -c a b.cu -I -MDir"


def test_the_toolkit_around_the_stand_in_is_the_real_one(compiled: Path, tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    for name in ("nvcc", "ptxas"):
        compiler(home / "bin" / name, f"echo {name}")
    (home / "include").mkdir()
    (home / "include/cuda.h").write_text("new")
    environ, folder = {"CUDA_HOME": str(home)}, tmp_path / "tree/bin"
    there = folder / "cuda"
    (there / "bin").mkdir(parents=True)
    (there / "include").symlink_to(
        tmp_path
    )  # of another toolkit, with which the tree was built before
    (there / "bin/gone").symlink_to(tmp_path / "gone")
    for _ in range(2):
        compiler_gate.make_nvcc_stand_in(folder, compiled, None, environ)
        assert compiler_gate.surround_nvcc(folder, environ) == {"CUDA_HOME": str(there)}
        assert {path.name for path in there.iterdir()} == {"bin", "include"}
        assert {path.name for path in (there / "bin").iterdir()} == {"nvcc", "ptxas"}
        assert (there / "include/cuda.h").read_text() == "new"
        assert (there / "bin/ptxas").samefile(home / "bin/ptxas")
        assert not (there / "bin/nvcc").samefile(home / "bin/nvcc")


def test_a_path_with_blanks_is_quoted(tmp_path: Path) -> None:
    there = compiler_gate.place_gate(None, tmp_path / "my tree/gate")
    compiler(tmp_path / "my path/cc", 'echo ran "$@"')
    path = f"{tmp_path}/my path:{os.environ['PATH']}"
    changed = compiler_gate.make_stand_ins(tmp_path / "my tree/bin", there, None, {"PATH": path})
    done = subprocess.run(
        ["cc", "a"], env={**environment(), **changed}, capture_output=True, check=True, text=True
    )
    assert done.stdout == "ran a\n"


def has_worked(leader: psutil.Process) -> bool:
    """Tell whether a compiler, which may have started another process for that, is compiling."""
    return sum(sum(one.cpu_times()[:2]) for one in (leader, *leader.children())) > 0.1


def test_a_compile_that_was_ended_and_rerun_makes_the_right_object(
    compiled: Path, tmp_path: Path
) -> None:
    functions = "".join(
        f"int f{n}(int x) {{ return x > {n} ? f{n - 1}(x * {n}) : x; }}\n" for n in range(1, 800)
    )
    (tmp_path / "a.c").write_text(f"int f0(int x) {{ return x; }}\n{functions}")
    words = (CC, "-O2", "-c", "a.c", "-o")
    subprocess.run([*words, "right.o"], cwd=tmp_path, check=True)
    with Meeting(tmp_path / "folder") as meeting:
        process = meeting.start(
            compiled, *words, "a.o", cwd=tmp_path, env={"TMPDIR": str(tmp_path / "folder")}
        )
        heard = meeting.met()
        heard.asked()
        for _ in range(2):
            heard.say("go")
            until(partial(has_worked, psutil.Process(heard.group())), "compiling")
            heard.say(
                "again"
            )  # not sooner: gcc forgets a file that it is just making when the signal comes
            heard.asked()
        heard.say("go")
        assert result(process) == (0, b"", b"")
    assert (tmp_path / "a.o").read_bytes() == (tmp_path / "right.o").read_bytes()
    assert [path.name for path in meeting.folder.iterdir()] == [
        "s"
    ]  # temporary files went with their runs


# With a real ccache.


class Cached:
    """A folder in which ccache stands before a real compiler, and the gate behind it."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder = folder
        self.gate = compiler_gate.place_gate(compiled, folder / "tree/gate")
        self.ccache = shutil.which("ccache")
        if self.ccache is None:
            pytest.skip("ccache is not installed")
        self.caching = {"CCACHE_DIR": str(folder / "cache"), "CCACHE_CONFIGPATH": "/dev/null"}
        (folder / "a.c").write_text("int a(void) { return 1; }\n")

    def variables(self) -> dict[str, str]:
        """Return what the hooks add, and what makes ccache ours."""
        return self.caching | {
            "CCACHE_PREFIX": compiler_gate.gate_hooks(self.gate, self.caching)["CCACHE_PREFIX"]
        }

    def direct(self, variables: dict[str, str]) -> bytes:
        """Compile with slots, none of which is free: it ends only where it comes to no gate."""
        env = environment() | variables
        command = [str(self.ccache), CC, "-O2", "-c", "a.c", "-o", "a.o"]
        subprocess.run(command, cwd=self.folder, env=env, check=True, timeout=30)
        made = (self.folder / "a.o").read_bytes()
        (self.folder / "a.o").unlink()
        return made


def test_cache_hits_never_reach_the_gate(compiled: Path, tmp_path: Path) -> None:
    cached = Cached(tmp_path, compiled)
    with Meeting(tmp_path / "folder") as meeting:
        variables = cached.variables()
        command = (str(cached.ccache), CC, "-O2", "-c", "a.c", "-o", "a.o")
        process = meeting.start(*command, cwd=tmp_path, env=variables)
        heard = meeting.met()
        assert heard.asked()[2:4] == ["-O2", "-c"]
        heard.say("go")
        heard.group()
        heard.say("again")  # too late, or in time: it makes the object all the same
        if heard.line().startswith("ask"):
            heard.say("go")
        assert result(process)[0] == 0
        first = (tmp_path / "a.o").read_bytes()
        (tmp_path / "a.o").unlink()
        # nobody answers: what came here would wait for ever
        assert cached.direct(variables | {"MILLGUARD_GATE": str(meeting.folder)}) == first


def test_the_gate_changes_no_key(compiled: Path, tmp_path: Path) -> None:
    cached = Cached(tmp_path, compiled)
    made = cached.direct(cached.caching)
    with Meeting(tmp_path / "folder") as meeting:
        assert cached.direct(cached.variables() | {"MILLGUARD_GATE": str(meeting.folder)}) == made


def test_stand_ins_cache_compiles_and_gate_links(compiled: Path, tmp_path: Path) -> None:
    cached = Cached(tmp_path, compiled)
    variables = cached.variables()
    changed = compiler_gate.make_stand_ins(
        tmp_path / "tree/bin", cached.gate, cached.ccache, os.environ
    )
    (tmp_path / "main.c").write_text("int a(void); int main(void) { return a(); }\n")
    with Meeting(tmp_path / "folder") as meeting:
        for words in (["-c", "a.c"], ["-c", "main.c"], ["a.o", "main.o", "-o", "main"]):
            process = meeting.start("cc", *words, cwd=tmp_path, env=variables | changed)
            heard = meeting.met()
            assert heard.asked()[-1] == words[-1]
            heard.say("go")
            assert result(process)[0] == 0
        process = meeting.start("cc", "-c", "a.c", cwd=tmp_path, env=variables | changed)
        assert result(process)[0] == 0
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 1
