"""`nox -s check-…`: run upstream's own tests on a verified wheel and on the published one, and compare."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from millguard import limits, processes
from packaging.specifiers import SpecifierSet

from tools.proof.compared_wheels import (
    ComparedWheel,
    choose_published,
    describe_ours,
    installed_wheel,
    read_own_facts,
)
from torchmill.config.versions import is_within
from torchmill.core import formats, process
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import ProgressBar, show_progress
from torchmill.core.digests import hash_file
from torchmill.core.errors import ConfigError, SourceError, VerifyError
from torchmill.core.paths import PROOFS_CACHE
from torchmill.core.stat_cache import digest_data
from torchmill.core.strict_json import parse_json
from torchmill.core.units import format_bytes, format_duration
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.fetch.source.source_dir import load_source
from torchmill.host import interpreters
from torchmill.host.native import processor_flags
from torchmill.plan.cell_lookup import fetch_command
from torchmill.plan.plan import Plan
from torchmill.wheel import dist_files
from torchmill.wheel.verify import clean_environment

POLL_SECONDS = 0.5
MOST_RESTARTS = 20  # of the tests of one file, after one of them took the process with it
PART_SECONDS = 3600.0  # that the tests of one part may take together
MEMORY_SHARE = 0.9  # of the memory that is free, for all tests that run at a time
MOST_ALIKE = 5  # tests that are named of those that fail for one reason
MOST_PARTS = 8  # of one file: each has to collect all of its tests first
WELL = {0, 1, 5}  # exit codes of pytest: all passed, some failed, none was left to run
BOTH, THEIRS, FLAKY = "fail on both", "fail on the published wheel alone", "passed when run again"
PASSED, SKIPPED = "passed", "skipped"


class Outcome(NamedTuple):
    """What came of one test."""

    result: str  # "passed", "skipped", "failed", "not collected", "ended"
    why: str = ""

    @property
    def bad(self) -> bool:
        """Tell whether the test says that something is wrong."""
        return self.result not in {PASSED, SKIPPED}


Outcomes = Mapping[str, Outcome]


def differences(ours: Outcomes, theirs: Outcomes) -> dict[str, str]:
    """Return the tests that fail on our wheel and not on the published one, are skipped on ours alone, or missing."""
    found = {}
    for test, one in ours.items():
        other = theirs.get(test)
        if one.bad and not (other and other.bad):
            found[test] = f"{one.result}: {one.why}"
        elif one.result == SKIPPED and other and other.result == PASSED:
            found[test] = f"skipped, and passes on the published wheel: {one.why}"
    missing = (
        test for test, other in theirs.items() if other.result == PASSED and test not in ours
    )
    return found | dict.fromkeys(missing, "not there, and passes on the published wheel")


def compare(ours: Outcomes, theirs: Outcomes, explained: Mapping[str, str]) -> dict[str, Any]:
    """Return what the manifest says of the tests; `explained` has parts of names, and why those may fail on ours."""
    fail_there = sorted(test for test, one in theirs.items() if one.bad and test in ours)
    return {
        "results": dict(Counter(one.result for one in ours.values())),
        "published": dict(Counter(one.result for one in theirs.values())),
        BOTH: [test for test in fail_there if ours[test].bad],
        THEIRS: [test for test in fail_there if ours[test].result == PASSED],
        FLAKY: sorted(test for test, one in ours.items() if one.result == PASSED and one.why),
        "alone": {
            test: {
                "why": why,
                "explained": next((text for part, text in explained.items() if part in test), ""),
            }
            for test, why in differences(ours, theirs).items()
        },
    }


def describe(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that say what came of the tests; the last ones name what nobody has explained."""
    for title, results in ((said["wheel"], said["results"]), (said["against"], said["published"])):
        counts = ", ".join(f"{number} {result}" for result, number in sorted(results.items()))
        yield f"{title}: {sum(results.values())} tests, {counts or 'none'}"
    yield from (f"  {sentence}" for sentence in said["unlike"])
    for title in (BOTH, THEIRS, FLAKY):
        yield ": ".join([f"{title}: {len(said[title])}", *said[title][:1]])
    explained = sum(bool(one["explained"]) for one in said["alone"].values())
    yield f"not as on the published wheel: {len(said['alone'])}, of which {explained} are explained"
    alike: dict[tuple[str, str], list[str]] = {}
    for test, one in sorted(said["alone"].items()):
        alike.setdefault((one["explained"], one["why"]), []).append(test)
    for (explanation, why), tests in sorted(alike.items()):  # what is not explained comes first
        reason = f" (explained: {explanation})" if explanation else ""
        yield from (f"  {test}: {why}{reason}" for test in tests[:MOST_ALIKE])
        if len(tests) > MOST_ALIKE:
            yield f"  and {len(tests) - MOST_ALIKE} more, for the same reason"


@dataclass(frozen=True, slots=True)
class UpstreamTests:
    """Which of a package's own tests judge a wheel of some releases, and what they need."""

    folder: str  # in the source
    files: Mapping[str, float]  # in the folder -> which share of its tests is run
    requires: tuple[str, ...]  # what pip installs for them, of the release's time
    source: str
    release: SpecifierSet | None = None
    always: tuple[str, ...] = ()  # parts of the names of tests that are run whatever the share
    seconds: float = 300.0  # after which a test hangs
    explained: Mapping[str, str] = field(default_factory=dict)
    """By part of a test's name, why it may fail on our wheel alone."""
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By what a wheel was built without, parts of the names of tests that are skipped then."""

    def explained_for(self, plan: Plan) -> dict[str, str]:
        """Return why tests may not pass on the wheel of a plan, by parts of their names."""
        lacks = {one.part: f"built without {one.part}" for one in plan.official.shortfalls}
        return {
            **self.explained,
            **{part: why for what, why in lacks.items() for part in self.skipped.get(what, ())},
        }


def tests_of(found: VerifiedWheel) -> UpstreamTests:
    """Return which of upstream's tests judge a wheel; raises ConfigError where the facts name none."""
    package, version = found.cell.build.package, found.cell.release.version
    every = read_own_facts(
        found, "upstream_tests", lambda file: file.read_each(package, UpstreamTests)
    )
    tests = next((one for one in every if is_within(one.release, version)), None)
    if tests is None:
        raise ConfigError(
            f"build_configs/upstream_tests.toml names no tests of {found.cell.release}: add them as [[{package}]]",
            code="no-upstream-tests",
        )
    return tests


@dataclass(frozen=True, slots=True)
class UpstreamRun:
    """Tests that run in one environment: a process for each part of a file, each within bounds."""

    python: Path  # of the environment
    folder: Path  # with a copy of upstream's tests
    tests: UpstreamTests
    memory: int  # bytes that one process may take
    log: Path
    bar: ProgressBar

    def outcomes(self, workers: int) -> dict[str, Outcome]:
        """Run all tests of the sample; those that are not well are run once more."""
        parts = min(workers, MOST_PARTS)
        found = self._run(
            workers, [(file, part, parts, ()) for file in self.tests.files for part in range(parts)]
        )
        again: dict[str, list[str]] = {}
        for test in (test for test, one in found.items() if one.bad and "::" in test):
            file = test.partition("::")[0].removeprefix(f"{self.tests.folder}/")
            again.setdefault(file, []).append(test)
        second = self._run(workers, [(file, 0, 1, tuple(tests)) for file, tests in again.items()])
        for test, one in second.items():
            if test in found and one.result == PASSED:
                found[test] = Outcome(PASSED, f"{found[test].result} once: {found[test].why}")
        return found

    def _run(
        self, workers: int, parts: Iterable[tuple[str, int, int, tuple[str, ...]]]
    ) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        with ThreadPoolExecutor(workers) as threads:
            try:
                for one in [threads.submit(self._run_part, *part) for part in parts]:
                    found |= one.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                process.end_children()
                raise
        return found

    def _run_part(
        self, file: str, part: int, parts: int, only: tuple[str, ...]
    ) -> dict[str, Outcome]:
        """Run a part of a file's tests until each has a result; a test that took the process with it has one."""
        stem = f"{self.folder.name}-{file}-{part}{'-again' * bool(only)}".replace("/", "-")
        notes = self.folder.with_name(f"{stem}.jsonl")
        drawn = {"share": self.tests.files[file], "always": self.tests.always, "only": only}
        settings = {"notes": str(notes), "part": part, "parts": parts, **drawn}
        notes.with_suffix(".json").write_text(json.dumps(settings), encoding="utf-8")
        notes.write_text("", encoding="utf-8")
        until, done = time.monotonic() + PART_SECONDS, 0
        for _ in range(MOST_RESTARTS):
            why = self._run_once(file, notes, until)
            found, running = read_notes(notes)
            if not why:
                return found
            before, done = done, sum("::" in test for test in found)
            more = bool(running) or done > before  # else it ends before the first test
            with notes.open("a", encoding="utf-8") as lines:
                lines.write(
                    json.dumps([running or file, "ended" if more else "not collected", why]) + "\n"
                )
            if not more or time.monotonic() > until:
                break
        return read_notes(notes)[0]

    def _run_once(self, file: str, notes: Path, until: float) -> str:
        """Run what has no result yet; return why the process did not come to its end, "" where it did."""
        path = self.folder / self.tests.folder / file
        options = (
            "-q",
            "-p",
            "upstream_tests",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
        )
        argv = [str(self.python), "-m", "pytest", *options, f"--rootdir={self.folder}", str(path)]
        variables = {
            **{
                name: value
                for name, value in clean_environment.clean_variables().items()
                if name != "CI"
            },
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
            while (code := running.poll()) is None:
                time.sleep(POLL_SECONDS)
                self.bar.update(
                    sum(
                        one.read_text("utf-8").count("\n") // 2
                        for one in notes.parent.glob("*.jsonl")
                    )
                )
                if why := self._excess(running, notes, until):
                    processes.end_processes([*running.children(recursive=True), running])
                    return why
        return "" if code in WELL else f"the process ended with exit code {code}"

    def _excess(self, running: psutil.Popen, notes: Path, until: float) -> str:
        """Return which bound a process is beyond, "" where it is within all."""
        begun = notes.read_text(encoding="utf-8").endswith(
            '"started"]\n'
        )  # else they are still collected
        if begun and time.time() - notes.stat().st_mtime > self.tests.seconds:
            return f"hangs: nothing came of it in {format_duration(self.tests.seconds)}"
        if time.monotonic() > until:
            return (
                f"cut off: the tests of its file took longer than {format_duration(PART_SECONDS)}"
            )
        used = 0
        with suppress(psutil.Error):
            used = sum(
                one.memory_info().rss for one in (running, *running.children(recursive=True))
            )
        return (
            f"takes more than {format_bytes(self.memory)} of memory" if used > self.memory else ""
        )


def read_notes(notes: Path) -> tuple[dict[str, Outcome], str]:
    """Return what came of tests, and the name of the one that has begun and has no result, "" for none."""
    found: dict[str, Outcome] = {}
    running = ""
    for line in notes.read_text(encoding="utf-8").splitlines():
        test, *said = parse_json(line)
        running = test if said == ["started"] else ""
        if not running:
            found[test] = Outcome(*said)
    return found, running


def check_wheel(found: VerifiedWheel, own: ProductOptions) -> str:
    """Run upstream's tests on a wheel and on the published one, record what came of it, and return it as text.

    Raises VerifyError with the names of the tests that fail on ours alone and are not explained.
    """
    tests = tests_of(found)
    source = load_source(found.layout, found.cell.build.package, found.cell.release.tag)
    if source is None:
        raise SourceError(
            f"the tests of {found.cell.release} are in its source: run `{fetch_command(found.facts, found.cell)}`",
            code="source-not-fetched",
        )
    ours = describe_ours(found)
    theirs = choose_published(
        found.facts, found.cell, interpreters.installed_interpreters(), own.published
    )
    stem = found.layout.logs / f"{found.cell.release.tag}-check-{found.plan.identifier}"
    found.layout.logs.mkdir(parents=True, exist_ok=True)
    outcomes = _outcomes(found, ours, tests, source.path, Path(f"{stem}-ours.log"))
    if not any(one.result == PASSED for one in outcomes.values()):
        told = f"none of upstream's tests passed on {ours.title}: see {stem}-ours.log"
        raise VerifyError(told, code="upstream-tests-fail")
    named = [hash_file(Path(one)) for one in theirs.packages if Path(one).is_file()]
    parts = [
        named,
        theirs.packages,
        theirs.python,
        tests.requires,
        tests.files,
        tests.always,
        source.identity,
        sorted(processor_flags()),
    ]
    record = found.layout.cache / PROOFS_CACHE / f"{digest_data([str(parts)])[:16]}.json"
    published, told = _recorded(record)
    if published is None:
        try:
            published = _outcomes(found, theirs, tests, source.path, Path(f"{stem}-published.log"))
            told = ""
            if any(one.result == PASSED for one in published.values()):  # else it was no run
                write_atomically(record, json.dumps({"at": _now(), "outcomes": published}))
        except VerifyError as error:
            told = f"{theirs.title} cannot be had ({error}): what fails is held against ours"
    said = {
        "at": _now(),
        "wheel": ours.title,
        "against": theirs.title,
        "unlike": [*theirs.unlike, *filter(None, [told])],
        **compare(outcomes, published or {}, tests.explained_for(found.plan)),
    }
    write_atomically(
        Path(f"{stem}.json"),
        json.dumps({formats.KEY: formats.PROOF, **said, "outcomes": outcomes}, indent=1) + "\n",
    )
    manifest = {**dist_files.read_manifest(found.wheel), "upstream_tests": said}
    write_atomically(dist_files.manifest_path(found.wheel), json.dumps(manifest, indent=1) + "\n")
    text = "\n".join([*describe(said), f"every outcome: {stem}.json"])
    if not all(one["explained"] for one in said["alone"].values()):
        raise VerifyError(text, code="upstream-tests-fail")
    return text


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _recorded(record: Path) -> tuple[dict[str, Outcome] | None, str]:
    """Return what was recorded of the published wheel on this machine, and a sentence that says so."""
    try:
        data = parse_json(record.read_text(encoding="utf-8"))
        outcomes = {test: Outcome(*one) for test, one in data["outcomes"].items()}
        return outcomes, f"as recorded at {data['at']} (delete {record} to run its tests again)"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, ""


def _outcomes(
    found: VerifiedWheel, one: ComparedWheel, tests: UpstreamTests, source: Path, log: Path
) -> dict[str, Outcome]:
    """Run the tests on one of the wheels, in an environment of its own and on a copy of upstream's tests."""
    workers = limits.LimitMeter().cores().count
    with (
        log.open("w", encoding="utf-8") as out,
        installed_wheel(one, found, tests.requires, out) as python,
    ):
        out.flush()
        with tempfile.TemporaryDirectory(prefix="tests-") as name:
            folder = Path(name, one.side)
            shutil.copytree(source / tests.folder, folder / tests.folder, symlinks=True)
            with suppress(FileNotFoundError):
                shutil.copy2(source / "pytest.ini", folder)
            memory = int(limits.LimitMeter().memory().available * MEMORY_SHARE / workers)
            with show_progress() as display:
                bar = display.task(f"upstream's tests on {one.title}")
                found_outcomes = UpstreamRun(python, folder, tests, memory, log, bar).outcomes(
                    workers
                )
                bar.close()
            return found_outcomes
