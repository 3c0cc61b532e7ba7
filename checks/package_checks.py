"""Try a package by its facts alone: its import, its versions, and the lines of Python they give."""

import sys
import traceback

from harness import CheckError, check_import, expect_equal, run


def installed(name):
    """Return the version of an installed distribution."""
    try:
        from importlib.metadata import version
    except ImportError:  # Python 3.7 and older
        from pkg_resources import get_distribution

        return get_distribution(name).version
    return version(name)


def check_version(expected):
    name = expected["package"]
    return expect_equal(installed(name), expected["version"], "the version of {}".format(name))


def check_base(expected):
    """Compare the package it depends on with the one that it was compiled against."""
    name, _, wanted = (expected.get("base") or "").partition("==")
    if not name:
        return "it depends on no other package"
    expect_equal(installed(name), wanted, "the version of {}".format(name))
    return "{} {}".format(name, wanted)


def check_smoke(expected):
    """Run the lines in the facts, as one script."""
    lines = expected.get("smoke", [])
    try:
        exec(compile("\n".join(lines), "smoke", "exec"), {"__name__": "smoke"})  # noqa: S102
    except Exception as error:  # noqa: BLE001 (whatever a broken wheel raises is the result)
        numbers = [frame[1] for frame in traceback.extract_tb(sys.exc_info()[2]) if frame[0] == "smoke"]
        line = lines[numbers[-1] - 1].strip() if numbers else "the lines"
        cause = "{}: {}".format(type(error).__name__, error) if str(error) else type(error).__name__
        raise CheckError("{!r} of its facts: {}".format(line, cause))  # noqa: B904 (the message has it)
    return "{} lines".format(len(lines))


CHECKS = [("import", check_import), ("version", check_version), ("base", check_base), ("smoke", check_smoke)]

if __name__ == "__main__":
    run(CHECKS)
