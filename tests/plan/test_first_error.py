"""The first real error in what real tools print."""

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from torchmill.core.ninja import Edge, parse_edge
from torchmill.plan import first_error
from torchmill.plan.first_error import BuildFailure
from torchmill.plan.log_lines import LogLine, last_run

needs_build_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "ninja", "cmake"))),
    reason="g++, ninja and cmake are not all installed",
)


def find_failure(lines: list[str]) -> BuildFailure | None:
    return first_error.first_failure(last_run(lines).lines)


def require_failure(lines: list[str]) -> BuildFailure:
    failure = find_failure(lines)
    assert failure is not None
    return failure


def run_failing(argv: list[str], cwd: Path) -> list[str]:
    """Run a program that must fail; return the lines that it prints."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0, done.stdout
    return done.stdout.splitlines()


def run_under_ninja(folder: Path, *commands: str) -> BuildFailure:
    """Let a real ninja run each command as an edge of its own; return the first failure."""
    edges = []
    for number, command in enumerate(commands):
        edges.append(f"rule r{number}\n  command = {command}\n")
        edges.append(f"build out{number}: r{number}\n")
    (folder / "build.ninja").write_text("".join(edges))
    lines = run_failing(["ninja", "-j1", "-k0"], folder)
    assert "ninja: build stopped" in lines[-1]
    return require_failure(lines)


@needs_build_tools
@pytest.mark.parametrize(
    ("source", "flags", "expected"),
    [
        (
            "int f() { return g; }",
            "-c",
            BuildFailure("compiler", "'g' was not declared in this scope", "a.cpp", 1),
        ),
        (
            "\n#include <nope.h>",
            "-c",
            BuildFailure("compiler", "nope.h: No such file or directory", "a.cpp", 2),
        ),
        (
            "template<class T> int h(T t) { return t.x; }\nint k() { return h(3); }",
            "-c -fdiagnostics-color=always",
            BuildFailure(
                "compiler",
                "request for member 'x' in 't', which is of non-class type 'int'",
                "a.cpp",
                1,
            ),
        ),
        (
            'int f() { asm("bogus"); }',
            "-c",
            BuildFailure("compiler", "no such instruction: `bogus'", "a.cpp", 1),
        ),
        (
            "int g(); int main() { return g(); }",
            "",
            BuildFailure("linker", "undefined reference to `g()'", "a.cpp"),
        ),
        (
            "int main() {}",
            "-lnope",
            BuildFailure("linker", "cannot find -lnope: No such file or directory"),
        ),
    ],
    ids=["name", "header", "template, in colour", "assembler", "symbol", "library"],
)
def test_gcc_under_ninja(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, flags: str, expected: BuildFailure
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    (tmp_path / "a.cpp").write_text(source)
    failure = run_under_ninja(tmp_path, f"g++ a.cpp {flags} -o $out")
    assert failure.kind == expected.kind
    assert failure.file == expected.file
    assert failure.line == expected.line
    # Linkers differ in what they write behind a colon.
    assert failure.message.split(":")[0] == expected.message.split(":")[0]


@needs_build_tools
def test_the_first_edge_that_failed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int f() { return first; }")
    (tmp_path / "b.cpp").write_text("int f() { return second; }")
    failure = run_under_ninja(tmp_path, "echo fine", "g++ -c a.cpp", "g++ -c b.cpp")
    assert "first" in failure.message


@needs_build_tools
def test_a_generator_in_python_under_ninja(tmp_path: Path) -> None:
    script = tmp_path / "gen.py"
    script.write_text("def main():\n    import nope\nmain()\n")
    assert run_under_ninja(tmp_path, f"{sys.executable} gen.py") == BuildFailure(
        "python", "ModuleNotFoundError: No module named 'nope'", str(script), 2
    )


@needs_build_tools
def test_the_last_line_of_a_command_without_an_error_is_quoted(tmp_path: Path) -> None:
    failure = run_under_ninja(tmp_path, "echo sorry && false")
    assert failure == BuildFailure("other", "sorry", "out0")
    failure = run_under_ninja(tmp_path, "false")
    assert failure == BuildFailure("other", "failed without a message", "out0")


@needs_build_tools
def test_an_input_that_ninja_misses(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text("rule r\n  command = true\nbuild out: r gone.cpp\n")
    failure = require_failure(run_failing(["ninja"], tmp_path))
    assert "'gone.cpp', needed by 'out'" in failure.message


@needs_build_tools
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            'message(FATAL_ERROR "Headers are missing.\\nInstall them.")',
            "Headers are missing. Install them.",
        ),
        ("find_package(Nope REQUIRED)", 'By not providing "FindNope.cmake"'),
        ("add_subdirectory(third_party/fmt)", 'add_subdirectory given source "third_party/fmt"'),
    ],
    ids=["message", "package", "submodule"],
)
def test_cmake(tmp_path: Path, command: str, message: str) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.10)\nproject(x NONE)\n{command}\n"
    )
    failure = require_failure(run_failing(["cmake", "-S", ".", "-B", "build"], tmp_path))
    assert (failure.kind, failure.file, failure.line) == ("cmake", "CMakeLists.txt", 3)
    assert failure.message.startswith(message)


def test_of_python_the_exception_behind_the_wrapper_is_reported(tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text("raise ValueError('no wheel for you')\n")
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\nsubprocess.check_call([sys.executable, 'inner.py'])\n"
    )
    failure = find_failure(run_failing([sys.executable, "outer.py"], tmp_path))
    assert failure == BuildFailure("python", "ValueError: no wheel for you", str(inner), 1)


def test_of_a_program_that_failed_silently_the_wrapper_is_reported(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.check_call(['false'])"
    failure = require_failure(run_failing([sys.executable, "-c", code], tmp_path))
    assert "returned non-zero exit status 1" in failure.message


def test_python_that_does_not_parse(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("def f(:\n")
    failure = find_failure(run_failing([sys.executable, "a.py"], tmp_path))
    assert failure == BuildFailure("python", "SyntaxError: invalid syntax", str(script), 1)


@needs_build_tools
def test_setuptools_hides_the_compiler_behind_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int f(void) { return g; }\n")
    lines = run_failing(["gcc", "-c", "a.c"], tmp_path)
    lines.append("error: command '/usr/bin/gcc' failed with exit code 1")
    failure = require_failure(lines)
    assert (failure.kind, failure.file, failure.line) == ("compiler", "a.c", 1)


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        (
            'k.cu(7): error: identifier "y" is undefined',
            BuildFailure("compiler", 'identifier "y" is undefined', "k.cu", 7),
        ),
        (
            'a/k.cuh(12): error #20: identifier "y" is undefined',
            BuildFailure("compiler", 'identifier "y" is undefined', "a/k.cuh", 12),
        ),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
            BuildFailure("compiler", "nvcc fatal   : Unsupported gpu architecture 'compute_35'"),
        ),
        (
            r"C:\src\a.cpp(3,5): error C2065: 'x': undeclared identifier",
            BuildFailure("compiler", "'x': undeclared identifier", r"C:\src\a.cpp", 3),
        ),
        (
            "a.obj : error LNK2019: unresolved external symbol g",
            BuildFailure("linker", "LNK2019: unresolved external symbol g", "a.obj"),
        ),
        (
            "a.cpp:(.text+0x1f): relocation truncated to fit: R_X86_64_PC32 against `.bss'",
            BuildFailure("linker", "relocation truncated to fit: R_X86_64_PC32 against `.bss'"),
        ),
        (
            "/usr/bin/ld: a.o: relocation R_X86_64_32 against `.rodata' can not be used",
            BuildFailure("linker", "relocation R_X86_64_32 against `.rodata' can not be used"),
        ),
        (
            "a.cpp:9:3: error: no matching function for call to 'f'",  # clang
            BuildFailure("compiler", "no matching function for call to 'f'", "a.cpp", 9),
        ),
        ("ld.lld: error: undefined symbol: g()", BuildFailure("linker", "undefined symbol: g()")),
        ('  "_g", referenced from:', BuildFailure("linker", '"_g", referenced from:')),
        (
            "fatal: unable to access 'https://host/x.git/'",
            BuildFailure("other", "fatal: unable to access 'https://host/x.git/'"),
        ),
    ],
)
def test_tools_that_are_not_on_every_machine(line: str, failure: BuildFailure) -> None:
    lines = ["-- Found OpenMP", line, "ninja: build stopped: subcommand failed."]
    assert find_failure(lines) == failure


def test_words_of_the_source_are_not_taken_for_an_error() -> None:
    log = """\
        a.cpp:7:1: warning: unused variable
            7 |   throw E("No space left on device, Cannot allocate memory");
              |   ^~~~~
        a.cpp:8:1: error: expected ';'
        """
    failure = find_failure(dedent(log).splitlines())
    assert failure == BuildFailure("compiler", "expected ';'", "a.cpp", 8)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "a.cpp:1:2: warning: unused",
        "[1/2] Building error: x",
        "-- error handling: on",
        "Traceback of hope",
    ],
)
def test_a_log_without_an_error_has_none(line: str) -> None:
    assert find_failure([line]) is None


def test_many_failed_steps_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counting_parse_edge(line: str) -> Edge | None:
        calls.append(line)
        return parse_edge(line)

    monkeypatch.setattr(first_error, "parse_edge", counting_parse_edge)
    lines = [LogLine(number, f"FAILED: a{number}.o") for number in range(1, 5001)]
    assert first_error.first_failure(lines) is not None
    assert len(calls) < 3 * len(lines)
