"""The selected release, what `invoke fetch` recorded or TORCHMILL_TAG names, and its sessions for nox.

What only some of it needs is loaded there: listing sessions takes half the time without facts and matrix.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchmill.core.errors import SourceError
from torchmill.core.files import exists, load_object, parse_json, write_atomically
from torchmill.core.paths import Layout, facts_folder

if TYPE_CHECKING:
    from torchmill.config.model import Facts, Release

MADE_FROM_WHEELS = (
    "conda",
    "libtorch",
    "check",
    "speed",
)  # the words of sessions that make something of a wheel
_MADE_FROM_WHEEL = re.compile(rf"({'|'.join(MADE_FROM_WHEELS)})-(?=\D|(\d))")
READ = ("*.toml", "packages/*.toml", "releases/*.toml")  # what there is of facts


class MatrixSession(NamedTuple):
    """A cell that can be built, as nox lists it."""

    name: str  # "wheel-3.10-cpu"
    word: str  # "wheel"
    package: str
    python: str
    variant: str
    tag: str  # of the release
    title: str  # "torch 1.13.1"
    dependent: bool  # its package is built against another
    standing: str  # "wheel", "tried" or "untried", as config/trial.py has it

    @property
    def description(self) -> str:
        """Return what nox says of it: "torch 1.13.1", with a word if nobody is known to have built it."""
        return f"{self.title}, {self.standing}" if self.standing == "untried" else self.title


class SessionList(NamedTuple):
    """The sessions that nox lists, and a line for each file of facts that is left out of them."""

    sessions: list[MatrixSession]
    warnings: list[str]


def list_sessions(root: Path, arch: str, tag: str | None) -> SessionList:
    """Return the sessions of a checkout on a machine: those of the release with a tag, or of all releases.

    They are remembered for as long as facts and code look the same.

    Raises ConfigError for broken facts, UnknownReleaseError for a tag that no release has.
    """
    from torchmill.core.stat_cache import FileStat, StatCache, stat_file

    layout, folder = Layout.of_checkout(root), facts_folder(root)
    code = (Path(__file__).parents[1].glob(f"{wing}/*.py") for wing in ("config", "core"))
    read = sorted(chain(*code, *(folder.glob(pattern) for pattern in READ)))
    names = FileStat(" ".join(map(str, read)), 0)
    key = f"{folder.absolute()} {arch} {tag}"
    cache = StatCache(layout.sessions_cache)
    text = cache.remember(key, [names, *map(stat_file, read)], lambda: _sessions(root, arch, tag))
    cache.save()
    remembered = parse_json(text)
    sessions = [MatrixSession(*row) for row in remembered["sessions"]]
    return SessionList(sessions, remembered["warnings"])


def newest_release_alone(sessions: Iterable[MatrixSession]) -> list[MatrixSession]:
    """Return the sessions of the newest release of the package that the others are built against."""
    from packaging.version import Version

    listed = [one for one in sessions if not one.dependent]
    newest = max(listed, key=lambda one: Version(one.title.rpartition(" ")[2]), default=None)
    return [one for one in listed if newest and one.tag == newest.tag]


def _sessions(root: Path, arch: str, tag: str | None) -> str:
    from torchmill.config import facts_reader, matrix, trial

    facts = facts_reader.load_facts(root)
    base = matrix.base_package(facts).name
    release = matrix.find_release(facts, base, tag) if tag else None
    sessions = []
    for cell in matrix.buildable_cells(facts, release, arch):
        build = cell.build
        session = MatrixSession(
            build.identifier(arch),
            build.session,
            build.package,
            build.python,
            build.variant,
            cell.release.tag,
            str(cell.release),
            build.package != base,
            trial.find_trial(facts, cell).standing,
        )
        sessions.append(session)
    warnings = [file.warning for file in facts.left_out]
    return json.dumps({"sessions": sessions, "warnings": warnings})


def asked_sessions(words: Iterable[str], environ_names: str = "") -> list[str]:
    """Return the names of the sessions that nox is told to run: what follows -s, or -rs, and what NOXSESSION says."""
    names, named = [environ_names], False
    for word in takewhile(lambda each: each != "--", words):
        flag, _, value = word.partition("=")
        if word.startswith("-"):
            named = re.fullmatch("-[A-Za-z]*[es]|--sessions?", flag) is not None
        if named:
            names.append(value if word.startswith("-") else word)
    return [name.strip() for word in names for name in word.split(",") if name.strip()]


def split_product(name: str) -> tuple[str, str]:
    """Return what a session makes of a wheel, "" for the wheel itself, and the wheel's: "conda", "wheel-3.10-cpu"."""
    match = _MADE_FROM_WHEEL.match(name)
    return (match[1], ("wheel-" if match[2] else "") + name[match.end() :]) if match else ("", name)


def selected_tag(layout: Layout) -> str | None:
    """Return the tag of the selected release: what TORCHMILL_TAG names, or else `invoke fetch` recorded.

    Raises SourceError for a record that names none.
    """
    if tag := os.environ.get("TORCHMILL_TAG"):
        return tag
    if not exists(layout.selection):
        return None
    if not isinstance(tag := load_object(layout.selection).get("tag"), str):
        raise SourceError(
            f"{layout.selection} does not name a release: run `invoke fetch --tag TAG` again",
            code="selection-invalid",
        )
    return tag


def selected_release(facts: Facts, layout: Layout, tag: str | None = None) -> Release | None:
    """Return the selected release of the base package, or None when nothing is selected.

    `tag` is what the user said on the command line; it wins over the environment, and that over the record.
    Raises UnknownReleaseError for a tag that no release has, SourceError for a record that names none.
    """
    from torchmill.config.matrix import base_package, find_release

    tag = tag or selected_tag(layout)
    return find_release(facts, base_package(facts).name, tag) if tag else None


def describe_selection(layout: Layout, tag: str) -> str:
    """Return which release a question was answered for, unless it was named in the question; "" if none is selected."""
    if tag or not (selected := selected_tag(layout)):
        return ""
    by = "TORCHMILL_TAG" if os.environ.get("TORCHMILL_TAG") else "`invoke fetch`"
    return f"asked of {selected}, which {by} selected: `--tag` asks of another release"


def describe_state(layout: Layout) -> str:
    """Return which release is selected, and by what, or that none is."""
    if not (selected := selected_tag(layout)):
        return (
            "no release is selected: each command takes the newest that fits, or what `--tag` names"
        )
    by = (
        "TORCHMILL_TAG"
        if os.environ.get("TORCHMILL_TAG")
        else f"`invoke fetch` ({layout.selection})"
    )
    return f"{selected} is selected, by {by}: commands are about it unless `--tag` names another"


def selected_or_newest(facts: Facts, layout: Layout, tag: str | None = None) -> Release:
    """Return the selected release of the base package as `selected_release` does, or else the newest."""
    from torchmill.config.matrix import newest_release

    return selected_release(facts, layout, tag) or newest_release(facts)


def select_release(layout: Layout, release: Release) -> None:
    """Record a release as the selected one."""
    write_atomically(layout.selection, json.dumps({"tag": release.tag}) + "\n")
