"""`nox -s check-…`: run upstream's own tests on a verified wheel and on the published one, and compare."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millguard import limits

from tools.proof import outcomes
from tools.proof.compared_wheels import (
    ComparedWheel,
    begin_comparison,
    installed_wheel,
    read_session_facts,
)
from tools.proof.outcomes import PASSED, Outcome, Outcomes
from tools.proof.upstream_run import UpstreamRun, UpstreamTests
from torchmill.config.versions import is_within
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import show_progress
from torchmill.core.digests import hash_file
from torchmill.core.errors import ConfigError, SourceError, VerifyError
from torchmill.core.paths import PROOFS_CACHE
from torchmill.core.stat_cache import digest_data
from torchmill.core.strict_json import parse_json
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import load_source
from torchmill.host.native import processor_flags
from torchmill.plan.cell_lookup import fetch_command
from torchmill.wheel import dist_files

_MEMORY_SHARE = 0.9  # of the memory that is free, for all tests that run at a time
_DIGITS = 16  # of the digest that names the record of a published wheel


def check_wheel(verified: VerifiedWheel, options: ProductOptions) -> str:
    """Run upstream's tests on a wheel and on the published one; return their comparison as text.

    The comparison is also written into the wheel's manifest, and every outcome beside the logs.
    Raises VerifyError, with the names of tests, if some fail on ours alone and are not explained.
    """
    tests = find_tests(verified)
    source = _require_source(verified)
    wheels = begin_comparison(verified, options, "check")
    our_log = wheels.file("-ours.log")
    our_outcomes = _run_tests(verified, wheels.ours, tests, source.path, our_log)
    if not _has_passed(our_outcomes):
        raise VerifyError(
            f"none of upstream's tests passed on {wheels.ours.title}: see {our_log}",
            code="upstream-tests-fail",
        )
    published = wheels.published
    published_outcomes, note = _published_outcomes(
        verified, published, tests, source, wheels.file("-published.log")
    )
    explained = tests.explained_for(verified.plan)
    comparison = {
        "at": _now(),
        "wheel": wheels.ours.title,
        "against": published.title,
        "unlike": [*published.differences, *([note] if note else [])],
        **outcomes.compare(our_outcomes, published_outcomes, explained),
    }
    every_outcome = {formats.KEY: formats.PROOF, **comparison, "outcomes": our_outcomes}
    record = wheels.file(".json")
    write_atomically(record, json.dumps(every_outcome, indent=1) + "\n")
    manifest = {**dist_files.read_manifest(verified.wheel), "upstream_tests": comparison}
    manifest_path = dist_files.manifest_path(verified.wheel)
    write_atomically(manifest_path, json.dumps(manifest, indent=1) + "\n")
    text = "\n".join([*outcomes.describe(comparison), f"every outcome: {record}"])
    alone: Mapping[str, Any] = comparison["alone"]
    if not all(difference["explained"] for difference in alone.values()):
        raise VerifyError(text, code="upstream-tests-fail")
    return text


def find_tests(verified: VerifiedWheel) -> UpstreamTests:
    """Return upstream's tests that judge a wheel. Raises ConfigError if the facts name none."""
    package = verified.cell.build.package
    candidates = read_session_facts(
        verified, "upstream_tests", lambda file: file.read_each(package, UpstreamTests)
    )
    for tests in candidates:
        if is_within(tests.release, verified.cell.release.version):
            return tests
    raise ConfigError(
        f"build_configs/upstream_tests.toml names no tests of {verified.cell.release}: "
        f"add them as [[{package}]]",
        code="no-upstream-tests",
    )


def _require_source(verified: VerifiedWheel) -> Source:
    """Return the fetched source, which has the tests. Raises SourceError if it is not there."""
    cell = verified.cell
    source = load_source(verified.layout, cell.build.package, cell.release.tag)
    if source is None:
        raise SourceError(
            f"the tests of {cell.release} are in its source: "
            f"run `{fetch_command(verified.facts, cell)}`",
            code="source-not-fetched",
        )
    return source


def _published_outcomes(
    verified: VerifiedWheel,
    wheel: ComparedWheel,
    tests: UpstreamTests,
    source: Source,
    log: Path,
) -> tuple[Outcomes, str]:
    """Return the outcomes on the published wheel, and a sentence about them, which may be "".

    They are recorded for this machine, because neither the wheel nor its tests change. If the wheel
    cannot be installed, there are none.
    """
    record = verified.layout.cache / PROOFS_CACHE / f"{_record_name(wheel, tests, source)}.json"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return _read_record(record)
    try:
        published = _run_tests(verified, wheel, tests, source.path, log)
    except VerifyError as error:
        return {}, f"{wheel.title} cannot be had ({error}): what fails is held against ours"
    if _has_passed(published):  # if no test passed, something hindered all of them
        write_atomically(record, json.dumps({"at": _now(), "outcomes": published}))
    return published, ""


def _record_name(wheel: ComparedWheel, tests: UpstreamTests, source: Source) -> str:
    """Return the digest of everything that can change the outcomes on a published wheel."""
    files = [Path(package) for package in wheel.packages]
    inputs = [
        [hash_file(file) for file in files if file.is_file()],
        wheel.packages,
        wheel.python,
        tests.requires,
        tests.files,
        tests.always,
        source.identity,
        sorted(processor_flags()),
    ]
    return digest_data([str(inputs)])[:_DIGITS]


def _read_record(record: Path) -> tuple[Outcomes, str]:
    """Return recorded outcomes, and a sentence that says so.

    Raises OSError, ValueError, KeyError, TypeError or AttributeError if there are none.
    """
    data = parse_json(record.read_text(encoding="utf-8"))
    recorded = {test: Outcome(*values) for test, values in data["outcomes"].items()}
    return recorded, f"as recorded at {data['at']} (delete {record} to run its tests again)"


def _run_tests(
    verified: VerifiedWheel, wheel: ComparedWheel, tests: UpstreamTests, source: Path, log: Path
) -> dict[str, Outcome]:
    """Run the tests on one of the wheels, in its environment and on a copy of upstream's tests.

    Raises VerifyError if the wheel cannot be installed.
    """
    workers = limits.LimitMeter().cores().count
    with (
        log.open("w", encoding="utf-8") as out,
        installed_wheel(wheel, verified, tests.requires, out) as python,
        tempfile.TemporaryDirectory(prefix="tests-") as name,
    ):
        out.flush()  # the tests append to the same file
        folder = Path(name, wheel.side)
        shutil.copytree(source / tests.folder, folder / tests.folder, symlinks=True)
        with suppress(FileNotFoundError):
            shutil.copy2(source / "pytest.ini", folder)
        memory = int(limits.LimitMeter().memory().available * _MEMORY_SHARE / workers)
        with show_progress() as display:
            bar = display.start_bar(f"upstream's tests on {wheel.title}")
            run = UpstreamRun(python, folder, tests, memory, log, bar)
            test_outcomes = run.outcomes(workers)
            bar.close()
        return test_outcomes


def _has_passed(test_outcomes: Outcomes) -> bool:
    return any(outcome.result == PASSED for outcome in test_outcomes.values())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
