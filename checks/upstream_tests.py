"""A plugin of pytest that runs a share of the tests and notes at once what came of each (Python 3.6 and newer).

    UPSTREAM_TESTS=settings.json python -m pytest -p upstream_tests test_ops.py

Each line of the notes is a list of JSON: [test, "started"] before a test, [test, result, why] after it. Whoever
reads them knows the name of a test that never came back. What has a result there is not run again.
"""

import json
import os
import zlib

with open(os.environ["UPSTREAM_TESTS"], encoding="utf-8") as settings:
    SETTINGS = json.load(settings)  # "notes", "share", "always", "part", "parts", "only"
LONGEST_CHARACTERS = 300
results = {}  # of the test that runs, by its phase


def note(*words):
    with open(SETTINGS["notes"], "a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")


def is_drawn(test):
    """Tell whether a test is in the sample: by a checksum of its name, the same on every machine."""
    if SETTINGS["only"]:
        return test in SETTINGS["only"]
    number = zlib.crc32(test.encode())
    drawn = number < SETTINGS["share"] * 2**32 or any(part in test for part in SETTINGS["always"])
    return drawn and number % SETTINGS["parts"] == SETTINGS["part"]


def pytest_collection_modifyitems(items):
    with open(SETTINGS["notes"], encoding="utf-8") as file:
        done = {test for test, result, *_ in map(json.loads, file) if result != "started"}
    items[:] = [item for item in items if item.nodeid not in done and is_drawn(item.nodeid)]


def pytest_collectreport(report):
    if report.failed:
        note(report.nodeid, "not collected", last_line(report.longrepr))


def pytest_runtest_logstart(nodeid):
    results.clear()
    note(nodeid, "started")


def pytest_runtest_logreport(report):
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        results["failed"] = (
            crash.message.split("\n")[0][:LONGEST_CHARACTERS]
            if crash
            else last_line(report.longrepr)
        )
    elif report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        results["skipped"] = last_line(reason)


def pytest_runtest_logfinish(nodeid):
    result = next((one for one in ("failed", "skipped") if one in results), "passed")
    note(nodeid, result, results.get(result, ""))


def last_line(text):
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[-1][:LONGEST_CHARACTERS] if lines else ""
