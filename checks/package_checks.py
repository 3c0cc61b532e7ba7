"""Try a package by its facts alone: its import, its versions, and the lines of Python they give."""

from harness import check_import, expect_equal, run, run_lines


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
    return run_lines(expected.get("smoke", []))


CHECKS = [
    ("import", check_import),
    ("version", check_version),
    ("base", check_base),
    ("smoke", check_smoke),
]

if __name__ == "__main__":
    run(CHECKS)
