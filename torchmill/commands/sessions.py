"""The sessions that nox lists: the buildable cells of a checkout, remembered between runs.

Facts and matrix are imported only if nothing is remembered: listing sessions takes half the time without them.
"""

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from torchmill.core.paths import Layout, facts_folder
from torchmill.core.strict_json import parse_json

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
    standing: str  # "wheel", "tried" or "untried", as plan/trial.py has it

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
    code = (Path(__file__).parents[1].glob(f"{wing}/*.py") for wing in ("config", "core", "plan"))
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
    from torchmill.config import facts_reader
    from torchmill.config.release_lookup import base_package, find_release
    from torchmill.plan import matrix, trial

    facts = facts_reader.load_facts(root)
    base = base_package(facts).name
    release = find_release(facts, base, tag) if tag else None
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
