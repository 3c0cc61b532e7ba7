"""Every cause is found by its examples and in no harmless line, many by failures provoked here."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import commands, provoked
from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.facts import FailureCause
from torchmill.core.log_reader import read_log
from torchmill.plan import causes
from torchmill.plan.causes import DiagnosedCause
from torchmill.plan.diagnosis import answer

ROOT = Path(__file__).parents[2]
HARMLESS = ROOT / "tests" / "golden" / "harmless-build.txt"
CATALOGUE = facts_reader.read_facts(ROOT / "build_configs").causes
BY_NAME = {cause.name: cause for cause in CATALOGUE}
KILLED = "c++: fatal error: Killed signal terminated program cc1plus"
# What docker, a runner, `gh run view --log` and colours put before a line.
LOG_PREFIXES = (
    "#12 345.6 ",
    "2024-05-06T12:34:56.1234567Z ",
    "wheel\tBuild\t2024-05-06T12:34:56.1Z ",
    "\x1b[31m",
)

for_each_cause = pytest.mark.parametrize("cause", CATALOGUE, ids=lambda cause: cause.name)


def cause_name(*lines: str, release: str | None = None) -> str | None:
    """Return the name of the cause that lines show; None if they show none."""
    match = causes.diagnose(CATALOGUE, lines, release).match
    return match.cause.name if match else None


def require_match(lines: Iterable[str]) -> DiagnosedCause:
    match = causes.diagnose(CATALOGUE, lines).match
    assert match is not None
    return match


def test_the_catalogue_is_large_and_its_names_are_unique() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    assert len(CATALOGUE) >= 45


@for_each_cause
def test_each_example_shows_its_own_cause_and_no_other(cause: FailureCause) -> None:
    names = {example: cause_name(example) for example in cause.examples}
    assert names == dict.fromkeys(cause.examples, cause.name)


@for_each_cause
def test_each_cause_is_found_in_logs_of_other_people(cause: FailureCause) -> None:
    for prefix in LOG_PREFIXES:
        line = f"{prefix}{cause.examples[0]}\x1b[0m\r\n"
        assert cause_name(line) == cause.name, line


@for_each_cause
def test_no_cause_is_found_in_a_build_that_went_well(cause: FailureCause) -> None:
    diagnosis = causes.diagnose([cause], HARMLESS.read_text(encoding="utf-8").splitlines())
    assert diagnosis.match is None, diagnosis.match
    assert diagnosis.failure is None, diagnosis.failure


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
def test_no_cause_is_found_in_a_line_that_only_looks_like_trouble(line: str) -> None:
    assert [cause.name for cause in CATALOGUE if causes.diagnose([cause], [line]).match] == []


def test_a_warning_of_cmake_is_harmless_in_all_its_lines() -> None:
    log = """\
CMake Warning at cmake/Dependencies.cmake:264 (message):
  MKL library not found. Please specify

  Could NOT find NumPy, No space left on device
Call Stack (most recent call first):
  CMakeLists.txt:724 (include)
"""
    assert cause_name(*log.splitlines()) is None


def missing_tools(case: provoked.Case) -> str:
    """Return the tools of a case that this machine lacks; the name of its processor is none."""
    tools = [tool for tool in case.tools.split() if tool != platform.machine()]
    return " ".join(tool for tool in tools if shutil.which(tool) is None)


def provoked_cases() -> list[object]:
    parameters: list[object] = []
    for number, case in enumerate(provoked.CASES):
        missing = missing_tools(case)
        marks = [
            pytest.mark.skipif(sys.platform != "linux", reason="the tools are Linux's"),
            pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}"),
        ]
        parameters.append(pytest.param(case, id=f"{case.cause} {number}", marks=marks))
    return parameters


@pytest.mark.parametrize("case", provoked_cases())
def test_a_provoked_failure_shows_its_cause(tmp_path: Path, case: provoked.Case) -> None:
    for name, text in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = case.command.replace("{python}", f"{sys.executable} -I -S")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0, done.stdout
    lines = done.stdout.decode(errors="replace").splitlines()
    assert require_match(lines).cause.name == case.cause, lines


def test_what_the_machine_lacks_goes_before_what_failed_because_of_it() -> None:
    log = [
        "FAILED: a.o",
        "c++ -c a.cpp",
        "a.cpp:1:1: error: 'uint32_t' does not name a type",
        "FAILED: b.o",
        "c++ -c b.cpp",
        KILLED,
        "ninja: build stopped: subcommand failed.",
    ]
    diagnosis = causes.diagnose(CATALOGUE, log)
    assert diagnosis.headline == f"b.o: {KILLED}"
    assert diagnosis.line_number == 6
    assert diagnosis.exit_code == 0
    assert answer.diagnosis_as_text(diagnosis, "x.log").splitlines()[-1] == (
        "  before that, on line 3: a.cpp:1: 'uint32_t' does not name a type"
    )


def test_the_earliest_line_wins_and_a_general_cause_only_alone() -> None:
    cmake = BY_NAME["cmake-4"].examples[0]
    numpy = BY_NAME["numpy-2"].examples[0]
    general = BY_NAME["header-missing"].examples[0]
    assert cause_name(general, cmake, numpy) == "cmake-4"
    assert cause_name(numpy, general, cmake) == "numpy-2"
    assert cause_name("nothing", general) == "header-missing"


def test_on_one_line_the_earlier_entry_wins() -> None:
    line = BY_NAME["gloo"].examples[1]  # misses <cstdint>, in gloo
    names = list(BY_NAME)
    assert names.index("gloo") < names.index("missing-cstdint")
    assert cause_name(line) == "gloo"
    assert causes.diagnose([BY_NAME["missing-cstdint"]], [line]).match is not None


def test_a_known_release_rules_causes_out() -> None:
    line = BY_NAME["breakpad"].examples[0]
    assert cause_name(line) == "breakpad"
    assert cause_name(line, release="1.11.0") == "breakpad"
    assert cause_name(line, release="2.0.0") != "breakpad"


def test_of_an_unknown_failure_the_error_is_reported() -> None:
    diagnosis = causes.diagnose(CATALOGUE, ["fine", "ERROR: frobnicated"])
    assert diagnosis.match is None
    assert diagnosis.exit_code == 8
    text = answer.diagnosis_as_text(diagnosis, "x.log")
    assert text.startswith("x.log:2: ERROR: frobnicated\n")
    assert "has no entry" in text


@pytest.mark.parametrize(
    ("line", "answer"),
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
def test_the_answer_to_a_name_in_the_log_is_given(line: str, answer: str) -> None:
    cause = require_match([line]).cause
    assert answer in cause.cause + cause.cure


@for_each_cause
def test_no_placeholder_stays_in_a_text(cause: FailureCause) -> None:
    for example in cause.examples:
        filled = require_match([example]).cause
        assert re.findall(r"{(?:name|answer)}", filled.cause + filled.cure) == []


def test_a_mere_report_does_not_count_as_a_known_cause() -> None:
    diagnosis = causes.diagnose(CATALOGUE, BY_NAME["only-a-report"].examples[:1])
    assert diagnosis.match is not None
    assert diagnosis.exit_code == 8


def test_a_log_without_a_failure_shows_none() -> None:
    diagnosis = causes.diagnose(CATALOGUE, ["fine"])
    assert answer.diagnosis_as_text(diagnosis, "x.log") == "x.log shows no failure"
    assert diagnosis.line_number == 0
    assert diagnosis.exit_code == 1


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with refused("invalid-cause-pattern"):
        causes.diagnose([replace(BY_NAME["memory"], patterns=("(",))], ["x"])


def test_the_cause_at_the_end_of_a_log_with_many_warnings_is_found(tmp_path: Path) -> None:
    step = "[1/2] Building CXX object a.o\na.cpp:1:2: warning: unused [-Wunused]\n"
    log = tmp_path / "log"
    log.write_text((step + "copying a -> b\n" * 9) * 2_500 + KILLED)
    assert require_match(read_log(str(log))).cause.name == "memory"


def unknown_errors(count: int) -> list[str]:
    return [f"a{number}.cpp:1:1: error: nothing that is known {number}" for number in range(count)]


def test_the_cause_at_the_end_of_many_unknown_errors_is_found() -> None:
    assert require_match([*unknown_errors(1_000), KILLED]).cause.name == "memory"


def test_a_diagnosis_that_takes_too_long_stops_and_reports_it() -> None:
    times = iter(range(1000))  # a second for each line
    diagnosis = causes.diagnose(CATALOGUE, unknown_errors(100), clock=lambda: next(times))
    assert diagnosis.failure is not None
    assert diagnosis.unread == (
        "lines from 2 on were not compared with the catalogue: that took too long"
    )
    assert diagnosis.unread in answer.diagnosis_as_text(diagnosis, "log")
    assert answer.diagnosis_as_data(diagnosis, "log")["unread"] == diagnosis.unread


def test_the_end_of_a_flood_of_errors_is_read_although_its_beginning_takes_too_long() -> None:
    """A build that runs out of memory after 20,000 other errors shows it at its end."""
    times = (step / 1000 for step in range(1_000_000))  # a millisecond for each line
    log = [*unknown_errors(20_100), KILLED]
    diagnosis = causes.diagnose(CATALOGUE, log, clock=lambda: next(times))
    assert diagnosis.match is not None
    assert diagnosis.match.cause.name == "memory"
    assert diagnosis.unread


def test_invoke_diagnose(tmp_path: Path) -> None:
    line = "#9 1.5 ModuleNotFoundError: No module named 'yaml'\r\n"
    log = tmp_path / "docker.log"
    log.write_bytes(b"\xff\xfe" + line.encode("utf-16-le"))
    done = commands.run("invoke", "diagnose", str(log), "--tag", "v1.13.1", home=tmp_path)
    assert done.returncode == 0, done.stderr
    headline = f"{log}:1: ModuleNotFoundError: No module named 'yaml'"
    assert done.stdout.startswith(f"{headline}\n  cause: ")
    assert "\n  fix:   " in done.stdout


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"a.cpp:1:1: error: odd\n", 8, ""),
        (b"", 2, "is empty"),
    ],
    ids=["unknown", "empty"],
)
def test_invoke_diagnose_ends_with_a_code_for_scripts(
    tmp_path: Path, content: bytes, code: int, message: str
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(content)
    done = commands.run("invoke", "diagnose", str(log), home=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
