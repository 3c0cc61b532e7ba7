"""Which toolkit compiles a cell: its variant's, or a newer one of the same major version on request."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from packaging.version import Version

from torchmill import matrix
from torchmill.errors import ConfigError, ImpossibleBuildError
from torchmill.host.kept import COMPLETED
from torchmill.matrix import Cell
from torchmill.model import Facts, Host, Toolkit

VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # by which a user names a toolkit


def chosen(facts: Facts, cell: Cell, asked: str | None, identifier: str) -> str | None:
    """Return the version of the toolkit that compiles a cell, None for a build without CUDA.

    Raises ConfigError for a version that is not known or cannot stand for the variant's,
    ImpossibleBuildError for one that the release does not build with.
    """
    own = cell.build.cuda
    if asked is None or asked == own:
        return own
    if own is None:
        raise ConfigError(
            f"--toolkit {asked}: {identifier} is built without CUDA; leave the option out, or take a CUDA "
            "build (`nox -l` lists them)"
        )
    toolkit = _known(facts, asked)
    if Version(asked).major != Version(own).major or Version(asked) < Version(own):
        newer = [one.version for one in facts.toolkits if _stands_for(one.version, own)]
        there = f"CUDA {own}" if newer == [own] else f"CUDA {own} or a newer one up to {newer[-1]}"
        raise ConfigError(
            f"--toolkit {asked}: {identifier} must run where CUDA {own} does, for which only {there} can "
            f"compile it; take that, or the variant {toolkit.variant}"
        )
    _accept(facts, cell, toolkit)
    return asked


def _known(facts: Facts, version: str) -> Toolkit:
    toolkit = facts.toolkit(version)
    if toolkit is not None:
        return toolkit
    known = [one.version for one in facts.toolkits]
    there = ", ".join(get_close_matches(version.removeprefix("cu"), known, 3) or known)
    raise ConfigError(f"--toolkit {version}: no such version of CUDA is known; there is {there}")


def _stands_for(version: str, own: str) -> bool:
    return Version(version).major == Version(own).major and Version(version) >= Version(own)


def stand_ins(facts: Facts, cell: Cell, versions: Iterable[str]) -> list[str]:
    """Return those of some toolkits that can compile a cell in place of its own, oldest first."""
    own = str(cell.build.cuda)
    known = [one for one in facts.toolkits if one.version in set(versions)]
    newer = [one for one in known if one.version != own and _stands_for(one.version, own)]
    return [one.version for one in newer if not _against(facts, cell, one)]


def _accept(facts: Facts, cell: Cell, toolkit: Toolkit) -> None:
    """Raise ImpossibleBuildError for a toolkit that no build of the release on that machine can have."""
    reasons = _against(facts, cell, toolkit)
    if reasons:
        raise ImpossibleBuildError(
            f"--toolkit {toolkit.version} cannot be used for {cell.release}: {'; '.join(reasons)}"
        )


def _against(facts: Facts, cell: Cell, toolkit: Toolkit) -> tuple[str, ...]:
    return matrix.cell(facts, cell.release, replace(cell.build, cuda=toolkit.version)).reasons


def passed_over(environ: Mapping[str, str], host: Host, version: str | None) -> str | None:
    """Return a sentence on a toolkit that the user's shell names and that a build does not use."""
    if version is None:
        return None
    used = host.toolkits.get(version)
    completed = host.completed.get(version, "").partition(COMPLETED)[0]
    for name in VARIABLES:
        folder = environ.get(name)
        if folder and not any(_is(home, folder) for home in (used, completed) if home):
            there = next((each for each, home in host.toolkits.items() if _is(home, folder)), None)
            found = f"CUDA {there}" if there else "no toolkit that can be used"
            takes = f"takes from {used}" if used else "finds nowhere"
            return f"{name}={folder} holds {found}; the build needs CUDA {version}, which it {takes}"
    return None


def _is(home: str, folder: str) -> bool:
    return Path(home).resolve() == Path(folder).resolve()
