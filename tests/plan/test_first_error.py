"""The root cause in what real tools print, in logs of any encoding, container or runner."""

import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.refusals import refused
from torchmill.core.log_reader import read_log
from torchmill.core.ninja import Edge, parse_edge
from torchmill.plan import first_error, log_lines
from torchmill.plan.first_error import BuildFailure
from torchmill.plan.log_lines import LogLine, telling_lines


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be-bom"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = "first: größer\r\nsecond\rthird\n" * 20
    log = tmp_path / "a.log"
    if encoding == "utf-16-be-bom":
        log.write_bytes(b"\xfe\xff" + text.encode("utf-16-be"))
    else:
        log.write_bytes(text.encode(encoding))
    assert [line.text for line in telling_lines(read_log(str(log)))][:3] == [
        "first: größer",
        "second",
        "third",
    ]


def test_bytes_that_are_no_utf_8_do_not_stop_the_reading(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes("a.cpp:1: error: Größe\n".encode("latin-1"))
    assert [line.text for line in telling_lines(read_log(str(tmp_path / "a.log")))] == [
        "a.cpp:1: error: Gr\ufffd\ufffde"
    ]


def test_standard_input() -> None:
    code = "from torchmill.core.log_reader import read_log; print(list(read_log('-')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="a\nb\n",
        cwd=Path(__file__).parents[2],
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout == "['a\\n', 'b\\n']\n"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "log-unreadable"),
        (b"", "log-empty"),
        (b"\x7fELF\x02\x01\x01" + bytes(90), "log-not-text"),
        (b"\x1f\x8b\x08\x00" + bytes(range(256)), "log-not-text"),
    ],
    ids=["missing", "empty", "program", "compressed"],
)
def test_what_is_no_log_is_one_sentence(tmp_path: Path, content: bytes | None, code: str) -> None:
    log = tmp_path / "a.log"
    if content is not None:
        log.write_bytes(content)
    with refused(code):
        list(read_log(str(log)))
    with refused("no-log"):
        list(read_log(""))
    with refused("log-unreadable"):
        list(read_log(str(tmp_path)))


@pytest.mark.parametrize(
    "line",
    [
        "#12 345.6 Killed",
        "0.123 Killed",
        "build-1  | Killed",
        "2024-05-06T12:34:56.1234567Z Killed",
        "2024-05-06T12:34:56.1234567Z ##[error]Killed",
        "2024-05-06T12:34:56.1Z #12 345.6 \x1b[31mKilled\x1b[0m",
        "wheel (3.10)\tBuild it\t2024-05-06T12:34:56.1234567Z Killed",
        "[2024-05-06T12:34:56.123Z] Killed",
        "23:49:13 Killed",
        "[ 1468s] Killed",
        "\ufeffKilled",
    ],
)
def test_what_others_wrote_before_a_line_goes(line: str) -> None:
    assert list(telling_lines(["x", line])) == [LogLine(1, "x"), LogLine(2, "Killed")]


@pytest.mark.parametrize(
    "line", ["[12/99] Building a.o", "[ 12%] Building a.o", "12:3 odd", "gcc 12.2 it is"]
)
def test_what_only_looks_like_a_prefix_stays(line: str) -> None:
    assert list(telling_lines([line])) == [LogLine(1, line)]


def test_of_progress_only_the_first_line_is_kept() -> None:
    lines = ["[1/3] a", "[2/3] b", "error: x", "[3/3] c", "-- Found it"]
    assert [line.number for line in telling_lines(lines)] == [1, 3, 4]


def test_the_command_below_failed_is_left_out() -> None:
    assert [
        line.number for line in telling_lines(["FAILED: a.o", "odd-tool a.c # Killed", "said"])
    ] == [1, 3]


def test_a_message_of_cmake_is_one_line() -> None:
    lines = [
        "      CMake Error at third_party/CMakeLists.txt:5 (add_subdirectory):",
        "        The source directory",
        "",
        "          /pytorch/third_party/fmt",
        "",
        "        does not contain a CMakeLists.txt file.",
        "      Call Stack (most recent call first):",
        "        CMakeLists.txt:7 (include)",
    ]
    first, stack, _ = telling_lines(lines)
    assert first == LogLine(
        1,
        "      CMake Error at third_party/CMakeLists.txt:5 (add_subdirectory): The source directory "
        "/pytorch/third_party/fmt does not contain a CMakeLists.txt file.",
    )
    assert stack.number == 7


needs_build_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "ninja", "cmake"))),
    reason="g++, ninja and cmake are not all installed",
)


def diagnose(lines: list[str]) -> BuildFailure | None:
    return first_error.first_failure(log_lines.last_run(lines).lines)


def run(argv: list[str], cwd: Path) -> list[str]:
    """Run what must fail; return what it says."""
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


def ninja(tmp_path: Path, *commands: str) -> BuildFailure:
    """Let a real ninja run each command as an edge of its own; return the diagnosis."""
    edges = [
        f"rule r{n}\n  command = {command}\nbuild out{n}: r{n}\n"
        for n, command in enumerate(commands)
    ]
    (tmp_path / "build.ninja").write_text("".join(edges))
    said = run(["ninja", "-j1", "-k0"], tmp_path)
    assert "ninja: build stopped" in said[-1]
    failure = diagnose(said)
    assert failure is not None
    return failure


@needs_build_tools
@pytest.mark.parametrize(
    ("source", "flags", "failure"),
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, flags: str, failure: BuildFailure
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    (tmp_path / "a.cpp").write_text(source)
    found = ninja(tmp_path, f"g++ a.cpp {flags} -o $out")
    assert (found.kind, found.file, found.line) == (failure.kind, failure.file, failure.line)
    assert found.message.split(":")[0] == failure.message.split(":")[0]


@needs_build_tools
def test_the_first_edge_that_failed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int f() { return first; }")
    (tmp_path / "b.cpp").write_text("int f() { return second; }")
    found = ninja(tmp_path, "echo fine", "g++ -c a.cpp", "g++ -c b.cpp")
    assert "first" in found.message


@needs_build_tools
def test_a_generator_in_python_under_ninja(tmp_path: Path) -> None:
    (tmp_path / "gen.py").write_text("def main():\n    import nope\nmain()\n")
    assert ninja(tmp_path, f"{sys.executable} gen.py") == BuildFailure(
        "python", "ModuleNotFoundError: No module named 'nope'", str(tmp_path / "gen.py"), 2
    )


@needs_build_tools
def test_a_command_that_says_nothing_of_use_is_quoted(tmp_path: Path) -> None:
    assert ninja(tmp_path, "echo sorry && false") == BuildFailure("other", "sorry", "out0")
    assert ninja(tmp_path, "false") == BuildFailure("other", "failed without a message", "out0")


@needs_build_tools
def test_an_input_that_ninja_misses(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text("rule r\n  command = true\nbuild out: r gone.cpp\n")
    failure = diagnose(run(["ninja"], tmp_path))
    assert failure is not None
    assert "'gone.cpp', needed by 'out'" in failure.message


@needs_build_tools
@pytest.mark.parametrize(
    ("lists", "message", "line"),
    [
        (
            'message(FATAL_ERROR "Headers are missing.\\nInstall them.")',
            "Headers are missing. Install them.",
            3,
        ),
        ("find_package(Nope REQUIRED)", 'By not providing "FindNope.cmake"', 3),
        ("add_subdirectory(third_party/fmt)", 'add_subdirectory given source "third_party/fmt"', 3),
    ],
    ids=["message", "package", "submodule"],
)
def test_cmake(tmp_path: Path, lists: str, message: str, line: int) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.10)\nproject(x NONE)\n{lists}\n"
    )
    failure = diagnose(run(["cmake", "-S", ".", "-B", "build"], tmp_path))
    assert failure is not None
    assert (failure.kind, failure.file, failure.line) == ("cmake", "CMakeLists.txt", line)
    assert failure.message.startswith(message)


def test_python_reports_the_exception_behind_the_wrapper(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("raise ValueError('no wheel for you')\n")
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\nsubprocess.check_call([sys.executable, 'inner.py'])\n"
    )
    assert diagnose(run([sys.executable, "outer.py"], tmp_path)) == BuildFailure(
        "python", "ValueError: no wheel for you", str(tmp_path / "inner.py"), 1
    )


def test_python_reports_a_program_that_failed_silently(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.check_call(['false'])"
    failure = diagnose(run([sys.executable, "-c", code], tmp_path))
    assert failure is not None
    assert "returned non-zero exit status 1" in failure.message


def test_python_that_does_not_parse(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(:\n")
    failure = diagnose(run([sys.executable, "a.py"], tmp_path))
    assert failure == BuildFailure(
        "python", "SyntaxError: invalid syntax", str(tmp_path / "a.py"), 1
    )


@needs_build_tools
def test_setuptools_hides_the_compiler_behind_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int f(void) { return g; }\n")
    said = run(["gcc", "-c", "a.c"], tmp_path)
    failure = diagnose([*said, "error: command '/usr/bin/gcc' failed with exit code 1"])
    assert failure is not None
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
def test_tools_that_are_not_everywhere(line: str, failure: BuildFailure) -> None:
    found = diagnose(["-- Found OpenMP", line, "ninja: build stopped: subcommand failed."])
    assert found is not None
    assert found == failure


def test_a_log_of_two_runs_is_judged_by_the_second() -> None:
    log = """\
        FAILED: a.o
        g++ -c a.cpp
        a.cpp:1:1: error: mended since
        ninja: build stopped: subcommand failed.
        [1/1] g++ -c b.cpp
        FAILED: b.o
        g++ -c b.cpp
        b.cpp:2:1: error: the one to show
        ninja: build stopped: subcommand failed.
        """
    failure = diagnose(dedent(log).splitlines())
    assert str(failure) == "b.cpp:2: the one to show"


def test_words_of_the_source_are_not_taken_for_a_cause() -> None:
    log = """\
        a.cpp:7:1: warning: unused variable
            7 |   throw E("No space left on device, Cannot allocate memory");
              |   ^~~~~
        a.cpp:8:1: error: expected ';'
        """
    assert diagnose(dedent(log).splitlines()) == BuildFailure(
        "compiler", "expected ';'", "a.cpp", 8
    )


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
def test_a_log_without_a_cause_has_none(line: str) -> None:
    assert diagnose([line]) is None


def test_a_log_of_any_size_takes_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = b"/a/b.cpp:1:2: error: " + b"x" * 3900 + b"\n"
    with log.open("wb") as file:
        file.write(b"\n/first.cpp:1:2: error: the first\n" + b"y" * 60_000_000 + b"\n")
        for _ in range(20_000):
            file.write(lines)
        file.write(b"FAILED: last.o\nc++ -c last.cpp\n/last.cpp:9: error: the last\n")
    tracemalloc.start()
    run = log_lines.last_run(read_log(str(log))).lines
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert [line.number for line in run[1:4:2]] == [2, 4]
    assert run[-1].text == "/last.cpp:9: error: the last"


def test_a_pipe_into_which_nobody_writes_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "0.5")
    os.mkfifo(tmp_path / "log")
    with refused("silent"):
        list(read_log(str(tmp_path / "log")))


def test_of_a_very_long_line_its_beginning_and_end_are_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"begin{'x' * 3_000_000}end\nnext\n")
    first, second = read_log(str(log))
    assert (first[:6], first.rstrip()[-4:], len(first) < 5000, second) == (
        "beginx",
        "xend",
        True,
        "next\n",
    )


def test_the_middle_of_a_very_long_log_is_skipped_and_lines_keep_their_numbers(
    tmp_path: Path,
) -> None:
    log = tmp_path / "a.log"
    with log.open("w") as file:
        file.writelines(f"[{number}/900000] Building a{number}.o\n" for number in range(1, 900_001))
        file.write("a.cpp:1:2: error: the last line\n")
    reading = log_lines.last_run(read_log(str(log)))
    assert reading.lines[-1].number == 900_001
    assert re.fullmatch(r"the log is too long: lines \d+ to \d+ were not read", reading.skipped)
    assert str(first_error.first_failure(reading.lines)) == "a.cpp:1: the last line"


def test_many_failed_steps_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(line: str) -> Edge | None:
        calls.append(line)
        return parse_edge(line)

    monkeypatch.setattr(first_error, "parse_edge", counted)
    lines = [LogLine(number, f"FAILED: a{number}.o") for number in range(1, 5001)]
    assert first_error.first_failure(lines) is not None
    assert len(calls) < 3 * len(lines)


def test_a_password_in_the_name_of_a_log_is_not_repeated() -> None:
    with refused("log-unreadable") as caught:
        list(read_log("https://user:secret@host/log"))
    assert "secret" not in str(caught.value)
