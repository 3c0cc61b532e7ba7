"""Every cause is told by its examples and by no harmless line, and many by failures provoked here."""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import commands, provoked
from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.facts import FailureCause
from torchmill.core import log_reader
from torchmill.plan import causes

ROOT = Path(__file__).parents[2]
HARMLESS = Path(__file__).parents[1] / "golden" / "harmless-build.txt"


CATALOGUE = facts_reader.read_facts(ROOT / "build_configs").causes
BY_NAME = {cause.name: cause for cause in CATALOGUE}
each_cause = pytest.mark.parametrize("cause", CATALOGUE, ids=lambda cause: cause.name)


def told(*lines: str, release: str | None = None) -> str | None:
    found = causes.diagnose(CATALOGUE, lines, release).match
    return found.cause.name if found else None


def test_the_catalogue_is_large_and_its_names_are_unique() -> None:
    assert len(BY_NAME) == len(CATALOGUE) >= 45


@each_cause
def test_each_example_tells_its_own_cause_and_no_other(cause: FailureCause) -> None:
    assert {one: told(one) for one in cause.examples} == dict.fromkeys(cause.examples, cause.name)


@each_cause
def test_each_cause_is_told_in_other_peoples_logs(cause: FailureCause) -> None:
    for prefix in (
        "#12 345.6 ",
        "2024-05-06T12:34:56.1234567Z ",
        "wheel\tBuild\t2024-05-06T12:34:56.1Z ",
        "\x1b[31m",
    ):
        assert told(prefix + cause.examples[0] + "\x1b[0m\r\n") == cause.name, prefix


@each_cause
def test_no_cause_is_told_by_a_build_that_went_well(cause: FailureCause) -> None:
    found = causes.diagnose([cause], HARMLESS.read_text(encoding="utf-8").splitlines())
    assert found.match is None, found.match
    assert found.failure is None, found.failure


@pytest.mark.parametrize(
    "line",
    [
        "-- Performing Test C_HAS_AVX512_1 - Failed",
        "-- Could NOT find CUDA (missing: CUDA_TOOLKIT_ROOT_DIR CUDA_NVCC_EXECUTABLE)",
        "-- Could NOT find Python (missing: Python_INCLUDE_DIRS)",
        "--   Library mkl_intel: not found",
        "-- Looking for pthread_create in pthreads - not found",
        "[12/99] /usr/bin/c++ -Werror=maybe-uninitialized -Wno-error=uninitialized -c x.cc",
        "/usr/bin/ccache /usr/bin/c++ -DNAME='\"Killed\"' -Werror -lopenblas -o a.o",
        "gcc -pthread -Wno-error=deprecated -I/x/numpy/arrayobject.h -c a.c",
        "+ make CUDA_HOME=/usr/local/cuda NVCC=nvcc: not found",
        '  606 |   throw E("No space left on device, Killed, Cannot allocate memory");',
        "      |   ^~~~ error: 'uint32_t' does not name a type",
        "a.cpp:8:1: warning: unused variable 'x' [-Wunused] (not an error: [-Werror=unused])",
        "b.h:2:1: note: 'uint32_t' is defined in header '<cstdint>'; did you forget to '#include <cstdint>'?",
        "k.cu(12): warning #20012-D: error: No space left on device",
        "copying torch/errors/Killed.py -> build/lib/torch/errors: No space left on device",
        "adding 'torch/include/numpy/arrayobject.h: No such file or directory'",
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(…)': /simple/",
        "x/setuptools/command/install.py:34: SetuptoolsDeprecationWarning: setup.py install is deprecated.",
        "fatal: not a git repository (or any of the parent directories): .git",
        "CMake Warning at cmake/Dependencies.cmake:264 (message): MKL library not found. Please specify",
    ],
)  # fmt: skip
def test_no_cause_is_told_by_a_line_that_only_looks_like_trouble(line: str) -> None:
    assert [cause.name for cause in CATALOGUE if causes.diagnose([cause], [line]).match] == []


def test_a_warning_of_cmake_is_harmless_in_all_its_lines() -> None:
    log = """\
CMake Warning at cmake/Dependencies.cmake:264 (message):
  MKL library not found. Please specify

  Could NOT find NumPy, No space left on device
Call Stack (most recent call first):
  CMakeLists.txt:724 (include)
"""
    assert told(*log.splitlines()) is None


def _missing(tools: str) -> list[str]:
    return [one for one in tools.split() if one != platform.machine() and shutil.which(one) is None]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.cause} {number}",
            marks=[
                pytest.mark.skipif(sys.platform != "linux", reason="the tools are Linux's"),
                pytest.mark.skipif(bool(_missing(case.tools)), reason=f"not here: {case.tools}"),
            ],
        )
        for number, case in enumerate(provoked.CASES)
    ],
)
def test_a_provoked_failure_is_told(tmp_path: Path, case: provoked.Case) -> None:
    found = causes.diagnose(CATALOGUE, _provoke(tmp_path, case)).match
    assert found is not None
    assert found.cause.name == case.cause, found


def _provoke(folder: Path, case: provoked.Case) -> list[str]:
    """Return what the tools say that a case makes fail."""
    work = folder / str(time.monotonic_ns())
    work.mkdir()
    for name, text in case.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = case.command.replace("{python}", f"{sys.executable} -I -S")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=work,
        env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0, done.stdout
    return done.stdout.decode(errors="replace").splitlines()


def test_what_the_machine_lacks_goes_before_what_failed_of_it() -> None:
    log = [
        "FAILED: a.o",
        "c++ -c a.cpp",
        "a.cpp:1:1: error: 'uint32_t' does not name a type",
        "FAILED: b.o",
        "c++ -c b.cpp",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "ninja: build stopped: subcommand failed.",
    ]
    found = causes.diagnose(CATALOGUE, log)
    assert found.headline == "b.o: c++: fatal error: Killed signal terminated program cc1plus"
    assert causes.diagnosis_as_text(found, "x.log").splitlines()[-1] == (
        "  before that, on line 3: a.cpp:1: 'uint32_t' does not name a type"
    )
    assert (found.line_number, found.exit_code) == (6, 0)


def test_the_earliest_line_wins_and_a_general_cause_only_alone() -> None:
    first, then = BY_NAME["cmake-4"].examples[0], BY_NAME["numpy-2"].examples[0]
    general = BY_NAME["header-missing"].examples[0]
    assert told(general, first, then) == "cmake-4"
    assert told(then, general, first) == "numpy-2"
    assert told("nothing", general) == "header-missing"


def test_on_one_line_the_earlier_entry_wins() -> None:
    line = BY_NAME["gloo"].examples[1]  # misses <cstdint>, in gloo
    assert (
        next(name for name in BY_NAME if name in {"gloo", "missing-cstdint"})
        == told(line)
        == "gloo"
    )
    assert causes.diagnose([BY_NAME["missing-cstdint"]], [line]).match is not None


def test_a_known_release_rules_causes_out() -> None:
    line = BY_NAME["breakpad"].examples[0]
    assert told(line) == told(line, release="1.11.0") == "breakpad"
    assert told(line, release="2.0.0") != "breakpad"


def test_an_unknown_failure_is_said_to_be_unknown() -> None:
    found = causes.diagnose(CATALOGUE, ["fine", "ERROR: frobnicated"])
    assert (found.match, found.exit_code) == (None, 8)
    text = causes.diagnosis_as_text(found, "x.log")
    assert text.startswith("x.log:2: ERROR: frobnicated\n")
    assert "has no entry" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a.c:1:10: fatal error: zmq.h: No such file or directory", "libzmq3-dev"),
        ("/usr/bin/ld: cannot find -lzmq", "libzmq3-dev"),
        (
            "ImportError: a.so: undefined symbol: _ZN5boost6python6detail11init_moduleEv",
            "-lboost_python",
        ),
        ("CMake Error: Could NOT find ZLIB (missing: ZLIB_LIBRARY ZLIB_INCLUDE_DIR)", "zlib1g-dev"),
        ("a.cpp:3:9: error: 'frobnicate' is not a member of 'zmq'", "`zmq`"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_90a'", "CUDA 12.0 and newer"),
        ("AttributeError: module 'typing' has no attribute '_ClassVar'", "dataclasses"),
    ],
)
def test_what_is_known_of_a_name_in_the_log_is_told(line: str, said: str) -> None:
    found = causes.diagnose(CATALOGUE, [line]).match
    assert found is not None
    assert said in found.cause.cause + found.cause.cure


@each_cause
def test_nothing_is_left_to_fill_in(cause: FailureCause) -> None:
    for example in cause.examples:
        found = causes.diagnose(CATALOGUE, [example]).match
        assert found is not None
        assert re.findall(r"{(?:name|answer)}", found.cause.cause + found.cause.cure) == []


def test_a_mere_report_does_not_count_as_a_known_cause() -> None:
    report = causes.diagnose(CATALOGUE, BY_NAME["only-a-report"].examples[:1])
    assert (report.match is None, report.exit_code) == (False, 8)


def test_a_log_without_a_failure_says_so() -> None:
    found = causes.diagnose(CATALOGUE, ["fine"])
    assert causes.diagnosis_as_text(found, "x.log") == "x.log shows no failure"
    assert (found.line_number, found.exit_code) == (0, 1)


def test_a_pattern_that_is_no_regular_expression_is_named() -> None:
    with refused("invalid-cause-pattern"):
        causes.diagnose([replace(BY_NAME["memory"], patterns=("(",))], ["x"])


def test_the_cause_at_the_end_of_a_long_log_is_found(tmp_path: Path) -> None:
    """Read a build that fails at its end behind warnings, and one of nothing but unknown errors."""
    warned = (
        "[1/2] Building CXX object a.o\na.cpp:1:2: warning: unused [-Wunused]\n"
        + "copying a -> b\n" * 9
    ) * 2_500
    flood = "".join(
        f"a.cpp:{n}:1: error: no matching function for call to 'f{n}(int, double)'\n"
        for n in range(1_000)
    )
    for text in (warned, flood):
        log = tmp_path / "log"
        log.write_text(text + "c++: fatal error: Killed signal terminated program cc1plus\n")
        found = causes.diagnose(CATALOGUE, log_reader.read_log(str(log))).match
        assert found is not None
        assert found.cause.name == "memory"


def test_invoke_diagnose(tmp_path: Path) -> None:
    log = tmp_path / "docker.log"
    log.write_bytes(
        b"\xff\xfe" + "#9 1.5 ModuleNotFoundError: No module named 'yaml'\r\n".encode("utf-16-le")
    )
    done = commands.run("invoke", "diagnose", str(log), "--tag", "v1.13.1", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"{log}:1: ModuleNotFoundError: No module named 'yaml'\n  cause: "
    )
    assert "\n  fix:   " in done.stdout


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"a.cpp:1:1: error: odd\n", 8, ""),
        (b"", 2, "is empty"),
    ],
    ids=["unknown", "empty"],
)
def test_invoke_diagnose_ends_with_a_code_that_scripts_can_ask(
    tmp_path: Path, content: bytes, code: int, said: str
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(content)
    done = commands.run("invoke", "diagnose", str(log), home=tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_diagnosis_that_takes_too_long_stops_and_says_so() -> None:
    log = [f"a{number}.cpp:1:1: error: nothing that is known {number}" for number in range(100)]
    times = iter(range(1000))
    told = causes.diagnose(CATALOGUE, log, clock=lambda: next(times))
    assert told.failure is not None
    assert told.unread == "lines from 2 on were not compared with the catalogue: that took too long"
    assert told.unread in causes.diagnosis_as_text(told, "log")
    assert causes.diagnosis_as_data(told, "log")["unread"] == told.unread


def test_the_end_of_a_flood_of_errors_is_read_although_its_beginning_takes_too_long() -> None:
    """Else a build that ran out of memory after 20,000 other errors is told none of it."""
    log = [f"a{number}.cpp:1:1: error: nothing that is known {number}" for number in range(20_100)]
    log.append("c++: fatal error: Killed signal terminated program cc1plus")
    times = (step / 1000 for step in range(1_000_000))  # a millisecond for each line
    told = causes.diagnose(CATALOGUE, log, clock=lambda: next(times))
    assert told.match is not None
    assert told.match.cause.name == "memory"
    assert told.unread
