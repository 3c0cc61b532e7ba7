"""The library that sends compilers through the gate, in real programs of many kinds."""

import ctypes.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from millguard.interception import intercept_library, interception_environment

Intercept = Callable[..., list[str]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return intercept_library(tmp_path_factory.mktemp("cache"), ["cc"])


@pytest.fixture
def intercept(tmp_path: Path, library: Path) -> Intercept:
    """Return a function that runs a command, and returns the lines of a gate that only notes them."""
    gate = tmp_path / "noting gate"
    notes = tmp_path / "notes"
    gate.write_text(
        "#!/bin/sh\n"
        f'echo "$MILLGUARD_ARGV0|${{LD_PRELOAD-none}}|$*" >> "{notes}"\n'
        'export MILLGUARD_GATED=1\nexec "$@"\n'
    )
    gate.chmod(0o755)
    (tmp_path / "a.c").write_text("int a;\n")

    def run(command: Sequence[str], **variables: str) -> list[str]:
        environ = {**os.environ, "MILLGUARD_GATE": str(tmp_path), **variables}
        environ |= interception_environment(library, gate, environ)
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "ld.so" not in done.stderr
        return notes.read_text().splitlines() if notes.exists() else []

    return run


CC = str(shutil.which("cc"))
PYTHON = """
import os, subprocess
subprocess.run(["cc", "-c", "a.c"], check=True)
subprocess.run(["cc", "-c", "a.c"], env={"PATH": os.environ["PATH"]}, check=True)
os.waitpid(os.posix_spawnp("cc", ["cc", "-c", "a.c"], os.environ), 0)
if os.fork() == 0:
    os.execlp("cc", "cc", "-c", "a.c")
os.wait()
"""


@pytest.mark.parametrize(
    ("command", "noted"),
    [
        (["sh", "-c", "cc -c a.c"], [f"cc|none|{CC} -c a.c"]),
        (["sh", "-c", f"{CC} -c a.c"], [f"{CC}|none|{CC} -c a.c"]),
        (["env", "-i", f"PATH={os.environ['PATH']}", "cc", "-c", "a.c"], [f"cc|none|{CC} -c a.c"]),
        (["python3", "-c", PYTHON], [f"cc|none|{CC} -c a.c"] * 4),
        (["sh", "-c", "cc -c a.c & cc -c a.c -o b.o & wait"], None),
    ],
)
def test_compilers_go_through_the_gate(
    intercept: Intercept, command: list[str], noted: list[str] | None
) -> None:
    lines = intercept(command)
    if noted is None:
        assert len(lines) == 2
    else:
        assert lines == noted


# As a program does that does not load the library: it starts a compiler by no function of the C library.
UNSEEN = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
int main(int count, char **words) {
    char *path = words[1];
    words[1] = count > 2 ? "c99" : path;
    return (int)syscall(SYS_execve, path, (char *[]){words[1], "-c", "a.c", 0}, environ);
}
"""


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (CC, [f"{CC}|none|{CC} -c a.c"]),
        (f"{CC} by-another-name", [f"c99|none|{CC} -c a.c"]),
        ("MILLGUARD_GATED=1", []),
        ("/bin/true", []),
        ("./gcc", []),  # a script: its interpreter is no compiler
    ],
)
def test_a_compiler_that_was_started_unseen_goes_to_the_gate_itself(
    intercept: Intercept, tmp_path: Path, words: str, noted: list[str]
) -> None:
    (tmp_path / "unseen.c").write_text(UNSEEN)
    subprocess.run([CC, "-o", "unseen", "unseen.c"], cwd=tmp_path, check=True)
    (tmp_path / "gcc").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "gcc").chmod(0o755)
    command = f"{words} ./unseen {CC}" if "=" in words else f"./unseen {words}"
    assert intercept(["sh", "-c", command]) == noted


def test_a_compiler_runs_without_a_gate_that_is_gone(intercept: Intercept, tmp_path: Path) -> None:
    (tmp_path / "unseen.c").write_text(UNSEEN)
    subprocess.run([CC, "-o", "unseen", "unseen.c"], cwd=tmp_path, check=True)
    assert intercept(["sh", "-c", f"MILLGUARD_PROGRAM=/gone ./unseen {CC}"]) == []
    assert (tmp_path / "a.o").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_and_what_it_runs_is_seen(intercept: Intercept) -> None:
    assert intercept(["make", "-s", "a.o"]) == [f"cc|none|{CC} -c -o a.o a.c"]


@pytest.mark.skipif(not shutil.which("ccache"), reason="needs ccache")
def test_only_what_a_cache_lacks_comes_to_the_gate(intercept: Intercept, tmp_path: Path) -> None:
    cached = ["sh", "-c", "ccache cc -c a.c"]
    before = len(intercept(cached, CCACHE_DIR=str(tmp_path / "cc")))
    assert before >= 1
    assert len(intercept(cached, CCACHE_DIR=str(tmp_path / "cc"))) == before


@pytest.mark.parametrize(
    "command",
    [
        "echo cc",
        "true",
        f"MILLGUARD_GATED=1 sh -c '{CC} -c a.c'",
        f"MILLGUARD_GATE= sh -c '{CC} -c a.c'",  # a user takes one command out of the guard
        "ln -s /bin/true cc1 && ./cc1 a.c",
        "ln -s /bin/true clang-format && ./clang-format a.c",
        "ln -s /bin/true protoc-gen-cc && ./protoc-gen-cc a.c",
    ],
)
def test_other_programs_run_as_ever(intercept: Intercept, command: str) -> None:
    assert intercept(["sh", "-c", command]) == []


@pytest.mark.parametrize(
    "name", ["gcc-12", "aarch64-linux-gnu-g++", "x86_64-conda-linux-gnu-cc", "nvcc", "clang++-17"]
)
def test_compilers_are_known_by_their_names(intercept: Intercept, name: str) -> None:
    lines = intercept(["sh", "-c", f"ln -s /bin/true {name} && ./{name} a.c"])
    assert lines == [f"./{name}|none|./{name} a.c"]


def test_the_library_of_a_user_stays(intercept: Intercept) -> None:
    other = ctypes.util.find_library("m")
    assert other is not None
    assert intercept(["sh", "-c", "cc -c a.c"], LD_PRELOAD=other) == [f"cc|{other}|{CC} -c a.c"]


def test_a_program_that_is_missing_fails_as_ever(tmp_path: Path, library: Path) -> None:
    environ = {**os.environ, "MILLGUARD_GATE": str(tmp_path)}
    environ |= interception_environment(library, tmp_path / "gate", environ)
    done = subprocess.run(
        ["python3", "-c", "import os; os.execvp('gcc-99', ['gcc-99'])"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FileNotFoundError" in done.stderr


def test_without_a_gate_the_compiler_runs(tmp_path: Path, library: Path) -> None:
    """Somebody emptied the cache while a build ran."""
    (tmp_path / "a.c").write_text("int a;\n")
    environ = {**os.environ, "MILLGUARD_GATE": str(tmp_path)}
    environ |= interception_environment(library, tmp_path / "gone", environ)
    subprocess.run(["sh", "-c", "cc -c a.c && test -f a.o"], cwd=tmp_path, env=environ, check=True)
    (tmp_path / "a.o").unlink()
    spawn = 'import os; os.waitpid(os.posix_spawnp("cc", ["cc", "-c", "a.c"], os.environ), 0)'
    subprocess.run(["python3", "-c", spawn], cwd=tmp_path, env=environ, check=True)
    assert (tmp_path / "a.o").exists()


def test_a_path_that_ld_so_would_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="LD_PRELOAD"):
        intercept_library(tmp_path / "with blank", ["cc"])


def test_options_for_sanitizers_are_added_to_the_users(tmp_path: Path) -> None:
    environ = {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": "/a.so"}
    added = interception_environment(tmp_path / "l.so", tmp_path / "gate", environ)
    assert added["ASAN_OPTIONS"] == "detect_leaks=0:verify_asan_link_order=0"
    assert added["LD_PRELOAD"] == f"{tmp_path / 'l.so'}:/a.so"
