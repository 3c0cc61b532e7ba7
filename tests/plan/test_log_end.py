"""Logs that end in the middle, with a success after a failure, or of tools that are not read."""

import pytest

from torchmill.config import facts_reader
from torchmill.core.paths import CHECKOUT
from torchmill.plan import causes
from torchmill.plan.causes import Diagnosis
from torchmill.plan.diagnosis import answer

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
MISSING = "/x/a.cpp:1:10: fatal error: foo.h: No such file or directory"
STOPPED = "ninja: build stopped: subcommand failed."


def diagnose(*lines: str) -> Diagnosis:
    return causes.diagnose(FACTS.causes, lines, rules=FACTS)


@pytest.mark.parametrize(
    "lines",
    [
        ["npm ERR! code ELIFECYCLE", "npm ERR! Exit status 1"],
        ["[ERROR] COMPILATION ERROR :", "[INFO] BUILD FAILURE"],
        ["# example.com/x", "./main.go:10:2: undefined: foo", "FAIL\texample.com/x [build failed]"],
        ["! Undefined control sequence.", "l.12 \\foo"],
        ["> Task :compileJava FAILED", "FAILURE: Build failed with an exception."],
        ["[1/4] Building CXX object a.o", "[2/4] Linking CXX shared library b.so"],
        ["[1/4] Building CXX object a.o", "[3/4] Buil"],
        ["Successfully installed ninja-1.13", "[1/4] Building CXX object a.o"],
        ["", ""],
    ],
)
def test_a_log_of_another_tool_or_without_its_end_is_not_called_sound(lines: list[str]) -> None:
    diagnosis = diagnose(*lines)
    assert diagnosis.outcome == "unknown"
    assert answer.diagnosis_as_text(diagnosis, "build.log").startswith("cannot tell")


@pytest.mark.parametrize(
    "lines",
    [
        ["[1/2] Building CXX object a.o", "[2/2] Linking CXX shared library b.so"],
        ["[1/4] Building CXX object a.o", "Successfully built torch"],
        ["[INFO] x", "[INFO] BUILD SUCCESS"],
        ["3 tests, 0 failed", "exit code: 0"],
    ],
)
def test_a_log_that_ends_well_is_sound(lines: list[str]) -> None:
    assert diagnose(*lines).outcome == "sound"


@pytest.mark.parametrize(
    ("lines", "succeeds_at"),
    [
        (
            [MISSING, STOPPED, "[2/2] Linking CXX shared library b.so", "Successfully built torch"],
            4,
        ),
        ([MISSING, STOPPED], 0),
        (["Successfully installed ninja-1.13", MISSING, STOPPED], 0),
        ([MISSING, "Successfully built numpy", "ERROR: Failed building wheel for torch"], 0),
    ],
)
def test_success_after_a_failure_is_named(lines: list[str], succeeds_at: int) -> None:
    diagnosis = diagnose(*lines)
    assert diagnosis.succeeds_at == succeeds_at
    assert answer.diagnosis_as_data(diagnosis, "x")["succeeds_at"] == (succeeds_at or None)
    text = answer.diagnosis_as_text(diagnosis, "x")
    assert (f"line {succeeds_at} shows success after that" in text) is bool(succeeds_at)


OLD_RUN = (
    "-- The CXX compiler identification is GNU 6.5.0",
    "-- The CUDA compiler identification is NVIDIA 9.0.176",
    "FAILED: a.o",
    "nvcc fatal   : Unsupported gpu architecture 'compute_75'",
    STOPPED,
)
NEW_RUN = (
    "-- The CXX compiler identification is GNU 13.2.0",
    "-- The CUDA compiler identification is NVIDIA 11.8.89",
    "FAILED: a.o",
    "host_config.h:132:2: error: #error -- unsupported GNU version!",
    STOPPED,
)


@pytest.mark.parametrize("before", [(), OLD_RUN, (*OLD_RUN, *OLD_RUN)])
def test_the_facts_are_those_of_the_run_that_fails(before: tuple[str, ...]) -> None:
    situation = diagnose(*before, *NEW_RUN).situation
    assert (situation.value("gcc"), situation.value("cuda")) == ("13.2.0", "11.8")


def test_what_only_an_earlier_run_shows_is_still_known() -> None:
    situation = diagnose("Python version: 3.10", *OLD_RUN, *NEW_RUN).situation
    assert situation.value("python") == "3.10"


@pytest.mark.parametrize("prefix", ["job_{} | ", "build ({})\tcompile\t"])
def test_of_mixed_jobs_the_facts_of_the_failing_one_count(prefix: str) -> None:
    first, second = prefix.format(1), prefix.format(2)
    situation = diagnose(
        f"{first}-- The CUDA compiler identification is NVIDIA 11.8.89",
        f"{first}Python version: 3.8",
        f"{second}-- The CUDA compiler identification is NVIDIA 12.4.99",
        f"{second}host_config.h:132:2: error: #error -- unsupported GNU version!",
        f"{first}[2/9] Building CXX object b.o",
    ).situation
    assert situation.value("cuda") == "12.4"
    assert situation.value("python") is None
