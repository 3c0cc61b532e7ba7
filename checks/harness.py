"""Run checks with the wheel's own interpreter (Python 3.5 and newer) and print their results.

    python torch_checks.py expectations.json

prints, as the last line, {check name: {"ok": bool, "detail": str}}.
"""

import faulthandler
import importlib
import json
import os
import sys
import traceback

HANG_TIMEOUT_SECONDS = (
    900  # after which the stack of a hanging check is printed, and the script ends
)
ON = {"1", "ON", "TRUE", "YES", "Y"}
OFF = {"0", "OFF", "FALSE", "NO", "N"}


class CheckError(Exception):
    """A check failed."""


def expect(condition, message):
    if not condition:
        raise CheckError(message)


def expect_equal(actual, wanted, what):
    expect(actual == wanted, "{} is {!r}, not {!r}".format(what, actual, wanted))


def expect_close(actual, wanted, tolerance, what):
    many = isinstance(wanted, (list, tuple))
    actual, wanted = (actual, wanted) if many else ([actual], [wanted])
    expect_equal(len(actual), len(wanted), "the number of values of {}".format(what))
    for one, other in zip(actual, wanted):  # noqa: B905 (strict= is younger than these interpreters)
        # written so that nan is not close to anything
        expect(abs(one - other) <= tolerance, "{} is {!r}, not {!r}".format(what, one, other))


def switches_of(settings):
    """Return {"USE_X": True or False} of the switches among `settings`, NO_X spelled the new way."""
    switches = {}
    for name, value in settings.items():
        word = str(value).upper()
        if word not in ON | OFF:
            continue
        if name.startswith("NO_"):
            switches["USE_" + name[len("NO_") :]] = word in OFF
        elif name.startswith("USE_"):
            switches[name] = word in ON
    return switches


def expect_planned(expected, switch, present, what):
    """Compare whether something is in the wheel with the plan, and return "there" or "missing"."""
    state, planned = "there" if present else "missing", planned_switch(expected, switch)
    expect(planned in {None, present}, "{} is {}, unlike planned".format(what, state))
    return state


def compare_switches(expected, actual, place):
    """Compare the planned switches with those among the `actual` settings in some place."""
    planned, actual = switches_of(expected.get("switches", {})), switches_of(actual)
    common = sorted(set(planned) & set(actual))
    wrong = [
        "{} is {}, the plan says {}".format(
            name, *("on" if each[name] else "off" for each in (actual, planned))
        )
        for name in common
        if actual[name] != planned[name]
    ]
    expect(not wrong, "; ".join(wrong))
    return "{} of {} switches are in {}".format(len(common), len(planned), place)


class LazyModule:
    """A module that is imported where a check first uses it, so that the check says why it cannot be."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self.name), attribute)


def module(expected, name=""):
    """Return the package that is tried, or a module of it (".version")."""
    return importlib.import_module(expected["import"] + name)


def planned_switch(expected, name):
    """Return whether the plan sets a switch ("USE_NCCL"); None where it does not say."""
    return switches_of(expected.get("switches", {})).get(name)


def check_import(expected):
    name, folder = expected["import"], os.path.dirname(module(expected).__file__)
    message = "{} came from {}, not from the clean environment".format(name, folder)
    expect(folder.startswith(sys.prefix), message)
    return folder


def check_version(expected):
    what = "{}.__version__".format(expected["import"])
    return expect_equal(str(module(expected).__version__), expected["version"], what)


def check_git_version(expected):
    if not expected.get("git_version"):
        return "nothing names the commit of the source"
    what = "{}.version.git_version".format(expected["import"])
    return expect_equal(module(expected, ".version").git_version, expected["git_version"], what)


def run(checks):
    """Run each (name, function) with the expectations; each function returns a detail or raises."""
    faulthandler.enable()
    with open(sys.argv[1], encoding="utf-8") as file:
        expected = json.load(file)
    results = {}
    for name, check in checks:
        faulthandler.dump_traceback_later(HANG_TIMEOUT_SECONDS, exit=True)  # anew for each
        # after a crash of the interpreter, this is the last line
        sys.stderr.write("checking {}\n".format(name))
        sys.stderr.flush()
        results[name] = outcome(check, expected)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write("\n" + json.dumps(results) + "\n")


def run_lines(lines, **names):
    """Run the lines of Python in the facts of a package as one script, which knows some names, and return their number.

    Raises CheckError with the line that failed.
    """
    try:
        exec(compile("\n".join(lines), "smoke", "exec"), dict(names, __name__="smoke"))  # noqa: S102
    except Exception as error:  # noqa: BLE001 (whatever a broken wheel raises is the result)
        numbers = [
            frame[1] for frame in traceback.extract_tb(sys.exc_info()[2]) if frame[0] == "smoke"
        ]
        line = lines[numbers[-1] - 1].strip() if numbers else "the lines"
        cause = "{}: {}".format(type(error).__name__, error) if str(error) else type(error).__name__
        raise CheckError("{!r} of its facts: {}".format(line, cause))  # noqa: B904 (the message has it)
    return "{} lines".format(len(lines))


def outcome(check, expected):
    try:
        return {"ok": True, "detail": check(expected) or ""}
    except CheckError as error:
        return {"ok": False, "detail": str(error)}
    except Exception as error:  # noqa: BLE001 (whatever a broken wheel raises is the result)
        last = traceback.extract_tb(sys.exc_info()[2])[-1]
        where = "{}:{}".format(last[0].replace("\\", "/").rpartition("/")[2], last[1])
        return {"ok": False, "detail": "{}: {} ({})".format(type(error).__name__, error, where)}
