"""Try a wheel of the sample: tinytorch, or tinyvision that depends on it."""

import glob
import os
import platform

import harness
from harness import check_import, check_version, compare_switches, expect, expect_equal, module, run


def check_git_version(expected):
    if expected["import"] != "tinytorch":
        return "only tinytorch names its commit"
    return harness.check_git_version(expected)


def check_value(expected):
    """Compute in C++, in the package's own library or in the one of the package under it."""
    if expected["import"] == "tinytorch":
        return expect_equal(module(expected).add(1.5, 2), 3.5, "tinytorch.add(1.5, 2)")
    return expect_equal(module(expected).scale(3.0, 2), 6.0, "tinyvision.scale(3.0, 2)")


def check_switches(expected):
    if expected["import"] != "tinytorch":
        return "only tinytorch has switches"
    return compare_switches(expected, module(expected).config(), "tinytorch.config()")


def check_headers(expected):
    """Compare the interpreter with the one whose headers the extension was compiled with."""
    built_with = getattr(module(expected), "built_with", None)
    if built_with is None:
        return "nothing to compare"
    return expect_equal(
        built_with()["python"], platform.python_version(), "the Python whose headers were read"
    )


def check_library(expected):
    if expected["import"] != "tinytorch":
        return "only tinytorch has a library"
    libraries = glob.glob(
        os.path.join(os.path.dirname(module(expected).__file__), "lib", "*tiny.*")
    )
    return expect(libraries, "tinytorch/lib has no libtiny") or os.path.basename(libraries[0])


CHECKS = [
    ("import", check_import),
    ("version", check_version),
    ("git_version", check_git_version),
    ("value", check_value),
    ("switches", check_switches),
    ("headers", check_headers),
    ("library", check_library),
]

if __name__ == "__main__":
    run(CHECKS)
