"""Run upstream's tests in one environment, each within bounds of time and memory.

A test may hang, take all memory, or end the process that runs it. So each file has processes of its
own, which note at once what they begin and how it ended (checks/upstream_tests.py). A process that
does not come to its end is started again, without the tests that have an outcome.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from millguard import processes
from packaging.specifiers import SpecifierSet

from tools.proof.outcomes import PASSED, Outcome
from torchmill.core import process
from torchmill.core.console import ProgressBar
from torchmill.core.strict_json import parse_json
from torchmill.core.units import format_bytes, format_duration
from torchmill.plan.plan import Plan
from torchmill.wheel.verify import clean_environment

_POLL_SECONDS = 0.5
_MOST_RESTARTS = 20  # of the process for one file, after one of its tests ended it
_PART_SECONDS = 3600.0  # that the tests of one part may take together
_MOST_PARTS = 8  # of one file: each has to collect all of its tests first
# Exit codes of pytest: all tests passed, some failed, none was left to run.
_COMPLETE = {0, 1, 5}


@dataclass(frozen=True, slots=True)
class UpstreamTests:
    """Which of a package's own tests judge a wheel of some releases, and what they need."""

    requires: tuple[str, ...]  # what pip installs for them, of the release's time
    source: str
    folder: str = ""  # in the source; "": of an extension, tests or test
    # File in the folder -> which share of its tests is run; none: all files of an extension.
    files: Mapping[str, float] = field(default_factory=dict)
    # File of an extension that is not run -> why it cannot be.
    left_out: Mapping[str, str] = field(default_factory=dict)
    elsewhere: str = ""  # what has tests of an extension, if its archive on PyPI has none
    release: SpecifierSet | None = None
    always: tuple[str, ...] = ()  # parts of the names of tests that are run whatever the share
    seconds: float = 300.0  # after which a test hangs
    explained: Mapping[str, str] = field(default_factory=dict)
    """By part of a test's name, why it may fail on our wheel alone."""
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By what a wheel was built without, parts of the names of tests that are skipped then."""

    def explained_for(self, plan: Plan) -> dict[str, str]:
        """Return the reasons why tests may not pass on the wheel of a plan, by parts of their names."""
        reasons = dict(self.explained)
        lacking = {shortfall.part for shortfall in plan.official.shortfalls}
        for part, test_names in self.skipped.items():
            if part in lacking:
                reasons |= dict.fromkeys(test_names, f"built without {part}")
        return reasons


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of the tests of one file, for one process."""

    file: str
    number: int  # from 0
    count: int  # of the parts of this file
    only: tuple[str, ...] = ()  # the tests to run; (): those that the share of the file draws


@dataclass(frozen=True, slots=True)
class UpstreamRun:
    """Tests that run in one environment: a process for each part of a file, each within bounds."""

    python: Path  # of the environment
    folder: Path  # with a copy of upstream's tests
    tests: UpstreamTests
    memory: int  # bytes that one process may take
    log: Path
    bar: ProgressBar
    # On a machine without a GPU, a test that fails for lack of one is skipped.
    skips_gpu_tests: bool = False

    def outcomes(self, workers: int) -> dict[str, Outcome]:
        """Run all tests of the sample, `workers` processes at a time; repeat those that go wrong.

        A test that passes when it is repeated has that as its outcome, and the first one as the
        reason.
        """
        count = min(workers, _MOST_PARTS)
        parts = []
        for file in self.tests.files:
            parts += [FilePart(file, number, count) for number in range(count)]
        outcomes = self._run(workers, parts)
        repeated: dict[str, list[str]] = {}  # file -> tests
        for test, outcome in outcomes.items():
            # A name without "::" is that of a whole file.
            if outcome.bad and "::" in test:
                file = test.partition("::")[0].removeprefix(f"{self.tests.folder}/")
                repeated.setdefault(file, []).append(test)
        repetitions = []
        for file, tests in repeated.items():
            repetitions.append(FilePart(file, 0, 1, only=tuple(tests)))
        for test, outcome in self._run(workers, repetitions).items():
            if test in outcomes and outcome.result == PASSED:
                first = outcomes[test]
                outcomes[test] = Outcome(PASSED, f"{first.result} once: {first.why}")
        return outcomes

    def _run(self, workers: int, parts: Iterable[FilePart]) -> dict[str, Outcome]:
        """Run parts in processes of their own, `workers` at a time; return all outcomes."""
        outcomes: dict[str, Outcome] = {}
        with ThreadPoolExecutor(workers) as threads:
            try:
                for future in [threads.submit(self._run_part, part) for part in parts]:
                    outcomes |= future.result()
            except BaseException:  # the user interrupts, too
                threads.shutdown(wait=False, cancel_futures=True)
                process.end_children()
                raise
        return outcomes

    def _run_part(self, part: FilePart) -> dict[str, Outcome]:
        """Run a part until each of its tests has an outcome, and return the outcomes.

        If a test ends the process, that is its outcome, and the process is started again for the
        others. If a process ends before its first test, the file as a whole has an outcome.
        """
        notes = self._write_settings(part)
        deadline = time.monotonic() + _PART_SECONDS
        done = 0
        for _ in range(_MOST_RESTARTS):
            problem = self._run_once(part.file, notes, deadline)
            outcomes, running_test = read_notes(notes)
            if not problem:
                return outcomes
            done_before = done
            done = sum("::" in test for test in outcomes)
            has_progressed = bool(running_test) or done > done_before
            result = "ended" if has_progressed else "not collected"
            note = json.dumps([running_test or part.file, result, problem])
            with notes.open("a", encoding="utf-8") as lines:
                lines.write(f"{note}\n")
            if not has_progressed or time.monotonic() > deadline:
                break
        outcomes, _ = read_notes(notes)
        return outcomes

    def _write_settings(self, part: FilePart) -> Path:
        """Write what the plugin of pytest needs to know; return the empty file for its notes."""
        again = "-again" if part.only else ""
        stem = f"{self.folder.name}-{part.file}-{part.number}{again}".replace("/", "-")
        notes = self.folder.with_name(f"{stem}.jsonl")
        settings = {
            "notes": str(notes),
            "part": part.number,
            "parts": part.count,
            "share": self.tests.files[part.file],
            "always": self.tests.always,
            "only": part.only,
            "skips_gpu_tests": self.skips_gpu_tests,
        }
        notes.with_suffix(".json").write_text(json.dumps(settings), encoding="utf-8")
        notes.write_text("", encoding="utf-8")
        return notes

    def _run_once(self, file: str, notes: Path, deadline: float) -> str:
        """Run the tests of a file that have no outcome yet.

        Returns "" if the process came to its end, or else the reason why it did not. `deadline` is
        on the monotonic clock.
        """
        path = self.folder / self.tests.folder / file
        argv = [str(self.python), "-m", "pytest", "-q"]
        argv += ["-p", "upstream_tests", "-p", "no:cacheprovider"]
        argv += ["--continue-on-collection-errors", f"--rootdir={self.folder}", str(path)]
        variables = clean_environment.clean_variables()
        variables.pop("CI", None)  # it makes upstream's tests behave as on upstream's own CI
        variables |= {
            "PYTHONPATH": str(clean_environment.CHECK_SCRIPTS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",  # as many processes run as there are processors
            "UPSTREAM_TESTS": str(notes.with_suffix(".json")),
        }
        with self.log.open("a", encoding="utf-8") as out:
            running = psutil.Popen(
                argv,
                cwd=path.parent,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            while running.poll() is None:
                time.sleep(_POLL_SECONDS)
                self.bar.update(_count_notes(notes.parent))
                excess = self._excess(running, notes, deadline)
                if excess:
                    processes.end_processes([*running.children(recursive=True), running])
                    return excess
        if running.returncode in _COMPLETE:
            return ""
        return f"the process ended with exit code {running.returncode}"

    def _excess(self, running: psutil.Popen, notes: Path, deadline: float) -> str:
        """Return the bound that a process has passed, as a sentence; "" if it is within all."""
        # Before the first note of a test, the tests are still being collected.
        is_in_test = notes.read_text(encoding="utf-8").endswith('"started"]\n')
        if is_in_test and time.time() - notes.stat().st_mtime > self.tests.seconds:
            return f"hangs: nothing came of it in {format_duration(self.tests.seconds)}"
        if time.monotonic() > deadline:
            duration = format_duration(_PART_SECONDS)
            return f"cut off: the tests of its file took longer than {duration}"
        used = 0
        with suppress(psutil.Error):  # a process that ends meanwhile
            for member in (running, *running.children(recursive=True)):
                used += member.memory_info().rss
        if used > self.memory:
            return f"takes more than {format_bytes(self.memory)} of memory"
        return ""


def _count_notes(folder: Path) -> int:
    """Return how many tests have ended, by all notes in a folder: each has two lines."""
    tests = 0
    for notes in folder.glob("*.jsonl"):
        tests += notes.read_text("utf-8").count("\n") // 2
    return tests


def read_notes(notes: Path) -> tuple[dict[str, Outcome], str]:
    """Return the outcomes in the notes, and the name of a test that began and did not end ("")."""
    outcomes: dict[str, Outcome] = {}
    running_test = ""
    for line in notes.read_text(encoding="utf-8").splitlines():
        test, *words = parse_json(line)
        if words == ["started"]:
            running_test = test
        else:
            running_test = ""
            outcomes[test] = Outcome(*words)
    return outcomes, running_test
