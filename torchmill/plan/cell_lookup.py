"""Find the cell that an identifier names, and explain why one cannot be built."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from packaging.version import Version

from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import (
    base_package,
    paired_release,
    refuse_left_out,
    releases_of,
    selecting_tag,
)
from torchmill.config.versions import python_key
from torchmill.core.errors import ImpossibleBuildError, UnknownReleaseError, did_you_mean
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import locate_page
from torchmill.plan import matrix
from torchmill.plan.cell import Cell
from torchmill.plan.trial import find_trial, is_merely_untried

NO_VARIANTS: dict[str, str] = read_table_beside(__file__, "not_variants.toml")
_WAYS_OUT = {
    arch: table["way_out"]
    for arch, table in read_table_beside(__file__, "other_machines.toml").items()
}
_CELL_NAME = re.compile(r"(?P<word>[a-z][\w.-]*?)-\d+\.\d+t?-(?:cpu|cu\d+)(?:-\w+)?")
_MISSPELT = 0.75  # of difflib's ratio: "whel" is "wheel", "pytorch3d" is not "torch"
_PACKAGE_PAGE = "docs/how-to/add-a-package.md"
NEIGHBOURS = 6  # of each kind that a message names
SERIES = 8


def find_cell(facts: Facts, identifier: str, native: str, selected: Release | None) -> Cell:
    """Return the possible cell that an identifier names.

    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is
    impossible, with its reasons and what is possible instead.
    """
    for found in _cells(facts, find_build(facts, identifier, native, selected), selected):
        if found.possible:
            return found
    raise ImpossibleBuildError(
        explain_cell(facts, identifier, native, selected), code="impossible-build"
    )


def find_build(facts: Facts, identifier: str, native: str, selected: Release | None) -> Build:
    """Return the build with this name.

    Raises UnknownReleaseError, with near matches, also where the selection has no release of its package,
    ImpossibleBuildError on a machine that no fact speaks of.
    """
    known = {
        build.identifier(native): build
        for package in facts.packages.values()
        for build in matrix.all_builds(facts, package)
    }
    identifier = identifier.removesuffix(f"-{native}")  # said in full, as on another machine
    if identifier not in known:
        if match := _CELL_NAME.fullmatch(usual_spelling(identifier)):
            refuse_left_out(facts, match["word"])
        require_machine(facts, native)
        hint = _near_names(facts, usual_spelling(identifier), native, selected) or did_you_mean(
            identifier, known, 3
        )
        for word in identifier.lower().split("-"):
            hint = (
                f": {reason}" if (reason := NO_VARIANTS.get(word.rstrip("0123456789."))) else hint
            )
        raise UnknownReleaseError(
            _undescribed_package(facts, identifier)
            or f"'{identifier}' names no build{hint} (`invoke matrix` prints them all)",
            code="unknown-build",
        )
    build = known[identifier]
    if selected is not None and paired_release(facts, build.package, selected) is None:
        raise UnknownReleaseError(
            _without_partner(facts, build.package, selected), code="no-partner-release"
        )
    return build


def _undescribed_package(facts: Facts, identifier: str) -> str:
    """Say that a name is a cell's but for its package, which no fact describes; "" for any other name."""
    from difflib import get_close_matches  # only where something is wrong

    match = _CELL_NAME.fullmatch(usual_spelling(identifier))
    packages = facts.packages.values()
    words = [word for package in packages for word in (package.session, package.name)]
    if (
        match is None
        or match["word"] in NO_VARIANTS
        or get_close_matches(match["word"], words, 1, _MISSPELT)
    ):
        return ""
    described = ", ".join(f"{package.name} ({package.session})" for package in packages)
    return (
        f"torchmill does not know how to build '{match['word']}'; it builds {described}. "
        f"Another extension of torch is described in one file: {locate_page(_PACKAGE_PAGE)}"
    )


def _without_partner(facts: Facts, package: str, torch: Release) -> str:
    """Say with which releases of torch a package is known to go, where the selected one is not among them."""
    partners = {release.torch for release in facts.releases[package]}
    taken = [release for release in facts.releases[torch.package] if release.version in partners]
    lines = [f"no release of {package} is known to go with {torch.package} {torch.version}"]
    if taken:
        lines.append(
            f"releases that {package} is known to go with: {_series(facts, reversed(taken))}"
        )
    if project := facts.packages[package].pypi:
        wheel = f"`pip install --only-binary :all: {project} {torch.package}=={torch.version}`"
        lines.append(
            f"pip finds a wheel of another release that goes with it, if PyPI has one: {wheel}"
        )
        lines.append(
            f"another release of {package} can be described, and tried: {locate_page(_PACKAGE_PAGE)}"
        )
    return "\n".join(lines)


def _near_names(facts: Facts, name: str, native: str, selected: Release | None) -> str:
    """Return the possible cells that a name may have meant, as the end of a message; "" without any.

    A toolkit without its minor version, "wheel-3.12-cu13", means those that somebody has built such a wheel with.
    """
    cells = {
        cell.build.identifier(native): cell
        for cell in matrix.buildable_cells(facts, selected, native)
    }
    minors = [
        cell
        for one, cell in cells.items()
        if re.fullmatch(rf"{re.escape(name)}\d", one) and cell.build.cuda
    ]
    if not minors:
        return did_you_mean(name, cells, 3)
    tried = [cell for cell in minors if find_trial(facts, cell).witness] or minors
    return (
        f"; did you mean {' or '.join(cell.build.identifier(native) for cell in reversed(tried))}?"
    )


def uncontained_arch(facts: Facts, names: Iterable[str], native: str) -> str:
    """Return the arch whose builds need no container: the machine's own, or "" where a name says it, too.

    On Linux, "wheel-3.13-cpu-x86_64" asks for a container also where wheel-3.13-cpu is for x86_64.
    """
    arch = facts.arches.get(native)
    contains = (
        arch is not None
        and arch.system == "linux"
        and any(name.endswith(f"-{native}") for name in names)
    )
    return "" if contains else native


def require_machine(facts: Facts, native: str) -> None:
    """Raise ImpossibleBuildError where no fact speaks of a machine's system and processor: "linux_ppc64le"."""
    if native not in facts.arches:
        known = ", ".join(facts.arches)
        way_out = f": {_WAYS_OUT[native]}" if native in _WAYS_OUT else ""
        raise ImpossibleBuildError(
            f"torchmill builds for {known}, not for {native}{way_out}", code="unknown-machine"
        )


def usual_spelling(identifier: str) -> str:
    """Return a name with Python and CUDA as ours have them: "wheel-py312-cuda12.1" is "wheel-3.12-cu121"."""
    name = re.sub(
        r"-(?:cp|py|python)?(\d)\.?(\d+)(?:\.\d+)?(t?)(?=-|$)",
        r"-\1.\2\3",
        identifier.strip().lower(),
        count=1,
    )
    return re.sub(r"(-\d\.\d+t?)-(?:cu|cuda)?-?(\d+)\.?(\d)(?:\.\d+)?$", r"\1-cu\2\3", name)


def _cells(facts: Facts, build: Build, selected: Release | None) -> Iterator[Cell]:
    """Yield a build's cell of each release it could be of, newest first."""
    for release in releases_of(facts, selected):
        if release.package == build.package:
            yield matrix.make_cell(facts, release, build)


def explain_cell(facts: Facts, identifier: str, native: str, selected: Release | None) -> str:
    """Say why a cell is impossible with every release that it could be of, and what can be built instead.

    Raises UnknownReleaseError for a name that is no cell.
    """
    cells = list(_cells(facts, find_build(facts, identifier, native, selected), selected))
    nearest = min(cells, key=lambda one: len(one.reasons))
    tag = selecting_tag(facts, nearest.release)
    which = "" if len(cells) == 1 else f" with every release; with {tag}"
    first, *more = nearest.reasons
    merely_untried = is_merely_untried(nearest)
    word = "untried" if merely_untried else "impossible"
    lines = [f"{identifier} is {word}{which}: {first}", *(f"also: {reason}" for reason in more)]
    lines += [*_alternatives(facts, nearest, native, tag), *_other_releases(facts, nearest)]
    if len(lines) == len(nearest.reasons):
        lines.append("nothing near it can be built: `invoke matrix` shows what can")
    if merely_untried:
        release = nearest.release
        declared = (
            f"packages/{release.package}.toml" if facts.packages[release.package].editions else ""
        )
        file = declared or f"releases/{release.torch_version}.toml"
        lines.append(
            f"to try it all the same, add it to `pythons`, or to `range` below `cuda`, in build_configs/{file}"
            if not declared
            else f"to try it all the same, widen `python` or `cuda` of that release in build_configs/{file}"
        )
    return "\n".join(lines)


def _alternatives(facts: Facts, cell: Cell, native: str, tag: str) -> Iterator[str]:
    """Yield which cells of the release can be built in place of an impossible one: those that somebody built first."""
    near = [matrix.make_cell(facts, cell.release, build) for build in _neighbours(facts, cell)]
    known = {one.build.identifier(native): find_trial(facts, one).witness for one in near}
    if tried := [name for name, witness in known.items() if witness]:
        yield f"possible instead with {tag}: {', '.join(tried)}"
    if untried := [name for name, witness in known.items() if not witness]:
        yield f"untried, and possible {'too' if tried else f'with {tag}'}: {', '.join(untried)}"


def _other_releases(facts: Facts, cell: Cell) -> Iterator[str]:
    """Yield which releases can build what one cannot: those that somebody built so, or else others."""
    able = [one for one in _cells(facts, cell.build, None) if one.possible]
    if tried := [one.release for one in able if find_trial(facts, one).witness]:
        yield f"releases that were built so: {_series(facts, tried)}"
    elif able:
        yield f"releases that may be built so, untried: {_series(facts, [one.release for one in able])}"


def requested_cells(
    facts: Facts,
    selected: Release | None,
    names: Collection[str],
    further: Callable[[Cell], Iterable[str]] = lambda _: (),
) -> Iterator[tuple[str, Cell]]:
    """Yield the cells that are among `names` with an architecture, each with its session's name there.

    `further` returns what else is made of a cell's wheel: "libtorch-3.10-cpu-aarch64" is "libtorch-3.10-cpu"
    on an aarch64 machine.
    """
    for arch in facts.arches:
        if not any(name.endswith(f"-{arch}") for name in names):
            continue
        for cell in matrix.buildable_cells(facts, selected, arch):
            for word in (cell.build.session, *further(cell)):
                session = replace(cell.build, session=word).identifier(arch)
                if f"{session}-{arch}" in names:
                    yield session, cell


def fetch_command(facts: Facts, cell: Cell) -> str:
    """Return the command that fetches what a cell is built from."""
    package = cell.build.package
    extra = "" if package == base_package(facts).name else f" --package {package}"
    return f"invoke fetch --tag {selecting_tag(facts, cell.release)}{extra}"


def _neighbours(facts: Facts, cell: Cell) -> list[Build]:
    """Return what a release can build that differs in one axis, or else in both: the nearest of each."""
    build, cuda = cell.build, Version(cell.build.cuda or "0")
    same = [one.build for one in matrix.possible_cells(facts, cell.release, build.arch)]
    pythons = [one for one in same if one.variant == build.variant]
    variants = [one for one in same if one.python == build.python]
    if not pythons and not variants:
        pythons = [one for one in same if one.variant == CPU]
    return [
        *_nearest(
            pythons,
            sum(python_key(one.python) < python_key(build.python) for one in pythons),
        ),
        *_nearest(variants, sum(Version(one.cuda or "0") < cuda for one in variants)),
    ]


def _nearest(builds: Sequence[Build], place: int) -> Sequence[Build]:
    """Return the builds around the place where one would stand."""
    first = min(max(place - NEIGHBOURS // 2, 0), max(len(builds) - NEIGHBOURS, 0))
    return builds[first : first + NEIGHBOURS]


def _series(facts: Facts, releases: Iterable[Release]) -> str:
    """Name the newest patch release of each series, the newest series first, without the middle of many."""
    newest: dict[tuple[int, ...], str] = {}
    for release in releases:  # newest first
        newest.setdefault(Version(release.torch_version).release[:2], selecting_tag(facts, release))
    tags = list(newest.values())
    if len(tags) > SERIES:
        tags[SERIES - 2 : -2] = ["…"]
    return ", ".join(tags)
