"""A plugin of pytest that runs a share of the tests and notes at once what came of each (Python 3.6 and newer).

    UPSTREAM_TESTS=settings.json python -m pytest -p upstream_tests test_ops.py

Each line of the notes is a list of JSON: [test, "started"] before a test, [test, result, why] after it. Whoever
reads them knows the name of a test that never came back. What has a result there is not run again.
"""

import json
import os
import zlib

with open(os.environ["UPSTREAM_TESTS"], encoding="utf-8") as settings:
    SETTINGS = json.load(
        settings
    )  # "notes", "share", "always", "part", "parts", "only", "skips_gpu_tests"
LONGEST_CHARACTERS = 300
results = {}  # of the test that runs, by its phase
# What torch and Triton say where there is no GPU: a test that ends so needs one, and says nothing of the wheel.
NO_GPU = (
    "Found no NVIDIA driver on your system",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "0 active drivers ([])",
)


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


def needs_gpu(text):
    """Tell whether a test failed because this machine has no GPU."""
    return SETTINGS["skips_gpu_tests"] and any(words in text for words in NO_GPU)


def pytest_collectreport(report):
    if report.failed and needs_gpu(str(report.longrepr)):
        note(report.nodeid, "skipped", "needs a GPU: " + last_line(report.longrepr))
    elif report.failed:
        note(report.nodeid, "not collected", last_line(report.longrepr))
    elif report.skipped and SETTINGS["skips_gpu_tests"]:
        note(report.nodeid, "skipped", last_line(report.longrepr[2]))


def pytest_runtest_logstart(nodeid):
    results.clear()
    note(nodeid, "started")


def pytest_runtest_logreport(report):
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash and needs_gpu(crash.message):
            results["skipped"] = "needs a GPU: " + crash.message.split("\n")[0][:LONGEST_CHARACTERS]
            return
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
