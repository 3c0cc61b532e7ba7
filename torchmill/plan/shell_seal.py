"""Seal a build from its user's shell: which variables get through to it, and which of the others to name."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torchmill.core.files import read_table_beside
from torchmill.core.paths import GUEST

_TABLE = read_table_beside(__file__, "shell_seal.toml")
GUEST_PATTERNS: Sequence[str] = _TABLE["guest"]["compilers"]
_GROUPS = ("programs", "compilers", "network", "caches")
# GNU make passes these on to a make that it starts, and no others of its options matter to a build:
# https://www.gnu.org/software/make/manual/html_node/Job-Slots.html
_JOB_OPTIONS = re.compile(r"(?:^|(?<=\s))(?:-j\d*|--jobserver-(?:auth|fds|style)=\S+)(?=\s|$)")
_MAKE_VARIABLES = re.compile(r"(?:^|\s)-- ")  # what follows are variables, not options


def passing_patterns(system: str) -> tuple[str, ...]:
    """Return the patterns of the variables that get through to a build on "linux", "macos" or "windows"."""
    return tuple(pattern for group in _GROUPS for pattern in _patterns(group, system))


def compiler_patterns(system: str, *, guest: bool) -> tuple[str, ...]:
    """Return the patterns of those among them by which two builds of one plan may differ.

    `guest` tells that the build runs in a container that torchmill started.
    """
    return (*_patterns("compilers", system), *(GUEST_PATTERNS if guest else ()))


def _patterns(group: str, system: str) -> tuple[str, ...]:
    tables = (_TABLE["everywhere"], _TABLE.get(system, {}))
    return tuple(pattern for table in tables for pattern in table.get(group, ()))


def is_guest(environ: Mapping[str, str]) -> bool:
    """Tell whether an environment is that of a container that torchmill started."""
    return bool(environ.get(GUEST))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether one of some patterns matches the whole name of a variable."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def sealed_variables(environ: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """Return the variables of a user's shell that get through to a build.

    Of MAKEFLAGS only the jobserver of a make that runs the build gets through. Of the locale only its characters
    do: the memory guard and the diagnosis read compilers' messages in English.
    """
    passed = {name: value for name, value in environ.items() if matches(name, patterns)}
    options = _MAKE_VARIABLES.split(environ.get("MAKEFLAGS", ""))[0]
    if job_options := _JOB_OPTIONS.findall(options):
        passed["MAKEFLAGS"] = " ".join(job_options)
    characters = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), None)
    if characters:
        passed["LC_CTYPE"] = characters
    return passed


def dropped_settings(
    environ: Mapping[str, str], patterns: Sequence[str], prefixes: Iterable[str]
) -> list[str]:
    """Return the names of variables that may have been meant for a build and do not get through, sorted.

    `prefixes` begin the names that a package's own build files read: "XFORMERS_".
    """
    table = _TABLE["named"]
    meant = (*table["settings"], *(f"{prefix}*" for prefix in prefixes))
    dropped = (name for name in sorted(environ) if not matches(name, patterns))
    names = [
        name for name in dropped if matches(name, meant) and not matches(name, table["unrelated"])
    ]
    if "MAKEFLAGS" in names and not _JOB_OPTIONS.sub("", environ["MAKEFLAGS"]).strip():
        names.remove("MAKEFLAGS")  # all of it got through
    return names
