"""Seal a build from its user's shell.

Only the variables pass to the build that match the patterns of shell_seal.toml. A user may have set
some of the others for the build: these are found, so that a message can name them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import CONTAINER_ARCH

_TABLE = read_table_beside(__file__, "shell_seal.toml")
# By these variables, a container that torchmill started chooses compilers that are not emulated.
CONTAINER_PATTERNS: Sequence[str] = _TABLE["container"]["compilers"]
_GROUPS = ("programs", "compilers", "network", "caches")
# GNU make hands these to a make that it starts; no other option of make matters to a build:
# https://www.gnu.org/software/make/manual/html_node/Job-Slots.html
_JOB_OPTIONS = re.compile(r"(?:^|(?<=\s))(?:-j\d*|--jobserver-(?:auth|fds|style)=\S+)(?=\s|$)")
_MAKE_VARIABLES = re.compile(r"(?:^|\s)-- ")  # in MAKEFLAGS, variables follow it
# In this order the C library asks for the encoding of characters: locale(7).
_LOCALE_VARIABLES = ("LC_ALL", "LC_CTYPE", "LANG")


def passing_patterns(system: str) -> tuple[str, ...]:
    """Return the patterns of the variables that pass to a build.

    `system` is "linux", "macos" or "windows".
    """
    patterns: list[str] = []
    for group in _GROUPS:
        patterns.extend(_patterns(group, system))
    return tuple(patterns)


def compiler_patterns(system: str, *, in_container: bool) -> tuple[str, ...]:
    """Return the patterns of the variables that choose compilers.

    Two builds of one plan may differ by these, so a tree is built anew if they change.
    `in_container` tells whether the build runs in a container that torchmill started.
    """
    patterns = _patterns("compilers", system)
    return (*patterns, *CONTAINER_PATTERNS) if in_container else patterns


def _patterns(group: str, system: str) -> tuple[str, ...]:
    """Return the patterns of a group in shell_seal.toml, for all systems and for one of them."""
    of_system = _TABLE.get(system, {})
    return (*_TABLE["everywhere"].get(group, ()), *of_system.get(group, ()))


def is_in_container(environ: Mapping[str, str]) -> bool:
    """Tell whether an environment is that of a container that torchmill started."""
    return bool(environ.get(CONTAINER_ARCH))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether the whole name of a variable matches one of some patterns."""
    return any(_matches_pattern(name, pattern) for pattern in patterns)


def _matches_pattern(name: str, pattern: str) -> bool:
    """Tell whether a name matches a pattern, in which each `*` stands for any characters.

    fnmatch would compile each of the 200 patterns first, in seven times the time.
    """
    if "*" not in pattern:
        return name == pattern
    beginning, *middles, end = pattern.split("*")
    if not name.startswith(beginning):
        return False
    position = len(beginning)
    for middle in middles:
        start = name.find(middle, position)
        if start < 0:
            return False
        position = start + len(middle)
    return name.endswith(end) and position + len(end) <= len(name)


def passed_variables(environ: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """Return the variables of a user's shell that pass to a build.

    Two of them change on the way. Of MAKEFLAGS only the options about jobs pass, because a make may
    run the build. Of the locale only the encoding of characters passes, as LC_CTYPE: the memory
    guard and the diagnosis read the messages of compilers in English.
    """
    passed = {name: value for name, value in environ.items() if matches(name, patterns)}
    make_options = _MAKE_VARIABLES.split(environ.get("MAKEFLAGS", ""))[0]
    job_options = _JOB_OPTIONS.findall(make_options)
    if job_options:
        passed["MAKEFLAGS"] = " ".join(job_options)
    for name in _LOCALE_VARIABLES:
        if environ.get(name):
            passed["LC_CTYPE"] = environ[name]
            break
    return passed


def dropped_settings(
    environ: Mapping[str, str], patterns: Sequence[str], prefixes: Iterable[str]
) -> list[str]:
    """Return the names, sorted, of variables that a user seems to have set for the build in vain.

    They do not pass to the build. They match the settings that shell_seal.toml names, or begin with
    one of `prefixes`, as the variables do that a package's own build files read: "XFORMERS_".
    """
    table = _TABLE["named"]
    settings = [*table["settings"], *(f"{prefix}*" for prefix in prefixes)]
    dropped: list[str] = []
    for name in sorted(environ):
        if matches(name, patterns) or matches(name, table["unrelated"]):
            continue
        if matches(name, settings):
            dropped.append(name)
    if "MAKEFLAGS" in dropped and not _JOB_OPTIONS.sub("", environ["MAKEFLAGS"]).strip():
        dropped.remove("MAKEFLAGS")  # it has nothing but options about jobs, and these pass
    return dropped
