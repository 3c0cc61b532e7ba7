"""`nox -s check-…`: run upstream's own tests on a verified wheel and on the published one, and compare."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
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
    is_extension,
    make_stem,
    our_side,
)
from tools.proof.outcomes import PASSED, SKIPPED, Outcome, Outcomes
from tools.proof.test_files import TestFolder, find_test_folder
from tools.proof.upstream_run import UpstreamRun
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import show_progress
from torchmill.core.digests import hash_file
from torchmill.core.errors import VerifyError
from torchmill.core.paths import PROOFS_CACHE
from torchmill.core.stat_cache import digest_data
from torchmill.core.strict_json import parse_json
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.host.native import processor_flags
from torchmill.wheel import dist_files

_MEMORY_SHARE = 0.9  # of the memory that is free, for all tests that run at a time
_DIGITS = 16  # of the digest that names the record of a published wheel


def check_wheel(verified: VerifiedWheel, options: ProductOptions) -> str:
    """Run upstream's tests on a wheel and on the published one; return their comparison as text.

    An extension is tried alone, unless the user names a wheel to compare with: each of its wheels
    goes with one torch, and PyPI does not say with which. Then every test that fails counts against
    the wheel. The comparison is also written into the wheel's manifest, and every outcome beside
    the logs.

    Raises VerifyError if no test ran, and, with the names of tests, if some fail on ours alone and
    are not explained.
    """
    began = time.monotonic()
    folder = find_test_folder(verified, options)
    run_alone = is_extension(verified) and not options.published
    if run_alone:
        ours, published, stem = our_side(verified), None, make_stem(verified, "check")
    else:
        wheels = begin_comparison(verified, options, "check")
        ours, published, stem = wheels.ours, wheels.published, wheels.stem
    our_log = Path(f"{stem}-ours.log")
    our_outcomes = _run_tests(verified, ours, folder, our_log)
    _require_results(ours, folder, our_outcomes, our_log)
    published_outcomes: Outcomes = {}
    unlike: list[str] = []
    if published is not None:
        log = Path(f"{stem}-published.log")
        published_outcomes, note = _published_outcomes(verified, published, folder, log)
        unlike = [*published.differences, *([note] if note else [])]
    explained = folder.tests.explained_for(verified.plan)
    comparison = {
        "at": _now(),
        "wheel": ours.title,
        "against": published.title if published else "",
        "tests": folder.title,
        "seconds": round(time.monotonic() - began, 1),
        "unlike": unlike,
        **outcomes.compare(our_outcomes, published_outcomes, explained),
    }
    every_outcome = {formats.KEY: formats.PROOF, **comparison, "outcomes": our_outcomes}
    record = Path(f"{stem}.json")
    write_atomically(record, json.dumps(every_outcome, indent=1) + "\n")
    manifest = {**dist_files.read_manifest(verified.wheel), "upstream_tests": comparison}
    manifest_path = dist_files.manifest_path(verified.wheel)
    write_atomically(manifest_path, json.dumps(manifest, indent=1) + "\n")
    text = "\n".join([*outcomes.describe(comparison), f"every outcome: {record}"])
    alone: Mapping[str, Any] = comparison["alone"]
    if not all(difference["explained"] for difference in alone.values()):
        raise VerifyError(text, code="upstream-tests-fail")
    return text


def _require_results(
    wheel: ComparedWheel, folder: TestFolder, our_outcomes: Outcomes, log: Path
) -> None:
    """Raise VerifyError if no test ran on our wheel, or if none passed."""
    reasons = Counter(outcome.why for outcome in our_outcomes.values() if outcome.result == SKIPPED)
    if sum(reasons.values()) == len(our_outcomes):
        skips = "; ".join(f"{count} times: {reason}" for reason, count in reasons.most_common(2))
        raise VerifyError(
            f"no test ran on {wheel.title}: of the {folder.title}, "
            f"{len(our_outcomes)} were skipped{f' ({skips})' if skips else ''}: see {log}",
            code="no-test-ran",
        )
    if not _has_passed(our_outcomes):
        test, outcome = next(item for item in our_outcomes.items() if item[1].bad)
        raise VerifyError(
            f"none of upstream's tests passed on {wheel.title} ({test}: {outcome.why}): see {log}",
            code="upstream-tests-fail",
        )


def _published_outcomes(
    verified: VerifiedWheel,
    wheel: ComparedWheel,
    folder: TestFolder,
    log: Path,
) -> tuple[Outcomes, str]:
    """Return the outcomes on the published wheel, and a sentence about them, which may be "".

    They are recorded for this machine, because neither the wheel nor its tests change. If the wheel
    cannot be installed, there are none.
    """
    record = verified.layout.cache / PROOFS_CACHE / f"{_record_name(wheel, folder)}.json"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return _read_record(record)
    try:
        published = _run_tests(verified, wheel, folder, log)
    except VerifyError as error:
        return {}, f"{wheel.title} cannot be had ({error}): what fails is held against ours"
    if _has_passed(published):  # if no test passed, something hindered all of them
        write_atomically(record, json.dumps({"at": _now(), "outcomes": published}))
    return published, ""


def _record_name(wheel: ComparedWheel, folder: TestFolder) -> str:
    """Return the digest of everything that can change the outcomes on a published wheel."""
    tests = folder.tests
    files = [Path(package) for package in wheel.packages]
    inputs = [
        [hash_file(file) for file in files if file.is_file()],
        wheel.packages,
        wheel.python,
        tests.requires,
        tests.files,
        tests.always,
        folder.identity,
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
    verified: VerifiedWheel, wheel: ComparedWheel, tests: TestFolder, log: Path
) -> dict[str, Outcome]:
    """Run the tests on one of the wheels, in its environment and on a copy of upstream's tests.

    Raises VerifyError if the wheel cannot be installed.
    """
    workers = limits.LimitMeter().cores().count
    with (
        log.open("w", encoding="utf-8") as out,
        installed_wheel(wheel, verified, tests.tests.requires, out) as python,
        tempfile.TemporaryDirectory(prefix="tests-") as name,
    ):
        out.flush()  # the tests append to the same file
        folder = Path(name, wheel.side)
        shutil.copytree(tests.files, folder / tests.tests.folder, symlinks=True)
        with suppress(FileNotFoundError):
            shutil.copy2(tests.path / "pytest.ini", folder)
        memory = int(limits.LimitMeter().memory().available * _MEMORY_SHARE / workers)
        with show_progress() as display:
            bar = display.start_bar(f"upstream's tests on {wheel.title}")
            skips = is_extension(verified)
            run = UpstreamRun(python, folder, tests.tests, memory, log, bar, skips_gpu_tests=skips)
            test_outcomes = run.outcomes(workers)
            bar.close()
        return test_outcomes


def _has_passed(test_outcomes: Outcomes) -> bool:
    return any(outcome.result == PASSED for outcome in test_outcomes.values())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
