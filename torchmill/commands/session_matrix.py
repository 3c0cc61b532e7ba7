"""The sessions that nox lists: the buildable cells of a checkout, remembered between runs.

A cell is one build of one release: a package, a Python, and a variant such as "cpu" or "cu118".
Facts and matrix are imported only if nothing is remembered: without them, sessions are listed in
half the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchmill.core.paths import Layout, facts_folder
from torchmill.core.strict_json import parse_json

if TYPE_CHECKING:
    from torchmill.config.facts import Facts
    from torchmill.plan.cell import Cell


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
    standing: str  # how well it is known to build: "wheel", "tried" or "untried" (plan/trial.py)

    @property
    def description(self) -> str:
        """Return nox's description: "torch 1.13.1", or "torch 1.13.1, untried"."""
        return f"{self.title}, {self.standing}" if self.standing == "untried" else self.title


class SessionList(NamedTuple):
    """The sessions that nox lists, and a line for each file of facts that is left out of them."""

    sessions: list[MatrixSession]
    warnings: list[str]


def list_sessions(root: Path, arch: str, tag: str | None) -> SessionList:
    """Return the sessions of a checkout on a machine, for the release with a tag or for all.

    They are remembered in the user's cache for as long as the facts, and the code that decides, are
    the same. Raises ConfigError for broken facts, UnknownReleaseError for a tag that
    no release has.
    """
    from torchmill.config.facts_state import read_facts_state
    from torchmill.core.stat_cache import StatCache, stat_file

    facts = facts_folder(root)
    states = [read_facts_state(facts, "plan"), stat_file(__file__)]
    cache = StatCache(Layout.of_checkout(root).facts_memory(facts).sessions)
    key = f"{facts.absolute()} {arch} {tag}"
    text = cache.remember(key, states, lambda: _compute_sessions(root, arch, tag))
    cache.save()
    remembered = parse_json(text)
    sessions = [MatrixSession(*row) for row in remembered["sessions"]]
    return SessionList(sessions, remembered["warnings"])


def newest_release_alone(sessions: Iterable[MatrixSession]) -> list[MatrixSession]:
    """Return the sessions of the newest release of torch.

    torch is the base package: the only one whose sessions do not depend on another package.
    """
    from packaging.version import Version

    base_sessions = [session for session in sessions if not session.dependent]
    versions: dict[str, Version] = {}
    for session in base_sessions:
        versions[session.tag] = Version(session.title.rpartition(" ")[2])
    newest_tag = max(versions, key=lambda tag: versions[tag], default="")
    return [session for session in base_sessions if session.tag == newest_tag]


def matrix_session(facts: Facts, cell: Cell, native: str) -> MatrixSession:
    """Return the session of a cell on a machine of the arch `native`."""
    from torchmill.config.release_lookup import base_package
    from torchmill.plan.trial import find_trial

    build = cell.build
    return MatrixSession(
        name=build.identifier(native),
        word=build.session,
        package=build.package,
        python=build.python,
        variant=build.variant,
        tag=cell.release.tag,
        title=str(cell.release),
        dependent=build.package != base_package(facts).name,
        standing=find_trial(facts, cell).standing,
    )


def _compute_sessions(root: Path, arch: str, tag: str | None) -> str:
    """Return the `SessionList` as JSON: the text that is remembered."""
    from torchmill.config.release_lookup import base_package, find_release
    from torchmill.config.remembered_facts import load_facts
    from torchmill.plan.matrix import buildable_cells

    facts = load_facts(root)
    base = base_package(facts).name
    release = find_release(facts, base, tag) if tag else None
    cells = buildable_cells(facts, release, arch)
    sessions = [matrix_session(facts, cell, arch) for cell in cells]
    warnings = [file.warning for file in facts.left_out]
    return json.dumps({"sessions": sessions, "warnings": warnings})
