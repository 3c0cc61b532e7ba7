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

REFUSED_VARIANTS: dict[str, str] = read_table_beside(__file__, "not_variants.toml")
_OTHER_MACHINES = read_table_beside(__file__, "other_machines.toml")
_CELL_NAME = re.compile(r"(?P<word>[a-z][\w.-]*?)-\d+\.\d+t?-(?:cpu|cu\d+)(?:-\w+)?")
_MISSPELT = 0.75  # of difflib's ratio: "whel" is "wheel", "pytorch3d" is not "torch"
_PACKAGE_PAGE = "docs/how-to/add-a-package.md"
_SUGGESTIONS = 3  # names of cells that a message suggests
NEIGHBOURS = 6  # cells of each kind that a message names
SERIES = 8  # of releases that a message names


def find_cell(facts: Facts, identifier: str, native: str, selected: Release | None) -> Cell:
    """Return the possible cell that an identifier names.

    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for an impossible
    one, with its reasons and the possible ones near it.
    """
    build = find_build(facts, identifier, native, selected)
    for cell in _cells_of_build(facts, build, selected):
        if cell.possible:
            return cell
    raise ImpossibleBuildError(
        explain_cell(facts, identifier, native, selected), code="impossible-build"
    )


def find_build(facts: Facts, identifier: str, native: str, selected: Release | None) -> Build:
    """Return the build with this name.

    Raises UnknownReleaseError, with near matches, for another name, and if no release of its
    package goes with the selected one; ImpossibleBuildError on a machine that no fact describes.
    """
    # No name is parsed: it is that of a build, or none.
    builds: dict[str, Build] = {}
    for package in facts.packages.values():
        for build in matrix.all_builds(facts, package):
            builds[build.identifier(native)] = build
    # The arch of this machine may be named as that of another is.
    identifier = identifier.removesuffix(f"-{native}")
    if identifier not in builds:
        raise _unknown_build(facts, identifier, builds, native, selected)
    build = builds[identifier]
    if selected is not None and paired_release(facts, build.package, selected) is None:
        raise UnknownReleaseError(
            _explain_missing_partner(facts, build.package, selected), code="no-partner-release"
        )
    return build


def _unknown_build(
    facts: Facts,
    identifier: str,
    builds: Iterable[str],
    native: str,
    selected: Release | None,
) -> UnknownReleaseError:
    """Return the error for a name that is none of `builds`.

    Raises ConfigError if its package is left out of the facts, ImpossibleBuildError on a machine
    that no fact describes.
    """
    spelling = usual_spelling(identifier)
    match = _CELL_NAME.fullmatch(spelling)
    if match:
        refuse_left_out(facts, match["word"])
    require_machine(facts, native)
    message = _explain_unknown_package(facts, spelling)
    if not message:
        hint = _suggest_cells(facts, spelling, native, selected)
        if not hint:
            hint = did_you_mean(identifier, builds, _SUGGESTIONS)
        for word in identifier.lower().split("-"):
            # "rocm6.0" is told as "rocm" is.
            answer = REFUSED_VARIANTS.get(word.rstrip("0123456789."))
            if answer:
                hint = f": {answer}"
        message = f"'{identifier}' names no build{hint} (`invoke matrix` prints them all)"
    return UnknownReleaseError(message, code="unknown-build")


def _explain_unknown_package(facts: Facts, spelling: str) -> str:
    """Return that a name is a cell's of a package that no fact describes; "" for another name."""
    from difflib import get_close_matches  # only if something is wrong

    match = _CELL_NAME.fullmatch(spelling)
    if match is None or match["word"] in REFUSED_VARIANTS:
        return ""
    words: list[str] = []
    described: list[str] = []
    for package in facts.packages.values():
        words.extend((package.session, package.name))
        described.append(f"{package.name} ({package.session})")
    if get_close_matches(match["word"], words, 1, _MISSPELT):
        return ""
    return (
        f"torchmill does not know how to build '{match['word']}'; "
        f"it builds {', '.join(described)}. "
        f"Another extension of torch is described in one file: {locate_page(_PACKAGE_PAGE)}"
    )


def _explain_missing_partner(facts: Facts, package: str, torch: Release) -> str:
    """Return which releases of torch a package goes with, as the selected one is none of them."""
    partners = {release.torch for release in facts.releases[package]}
    paired = [release for release in facts.releases[torch.package] if release.version in partners]
    lines = [f"no release of {package} is known to go with {torch.package} {torch.version}"]
    if paired:
        series = _format_series(facts, reversed(paired))
        lines.append(f"releases that {package} is known to go with: {series}")
    project = facts.packages[package].pypi
    if project:
        wheel = f"`pip install --only-binary :all: {project} {torch.package}=={torch.version}`"
        page = locate_page(_PACKAGE_PAGE)
        lines.append(
            f"pip finds a wheel of another release that goes with it, if PyPI has one: {wheel}"
        )
        lines.append(f"another release of {package} can be described, and tried: {page}")
    return "\n".join(lines)


def _suggest_cells(facts: Facts, name: str, native: str, selected: Release | None) -> str:
    """Return the possible cells that a name may mean, as the end of a message; "" without any.

    A toolkit without its minor version, "wheel-3.12-cu13", means those that somebody has built
    such a wheel with.
    """
    cells = {
        cell.build.identifier(native): cell
        for cell in matrix.buildable_cells(facts, selected, native)
    }
    with_minor = re.compile(rf"{re.escape(name)}\d")
    completed = [
        cell
        for identifier, cell in cells.items()
        if with_minor.fullmatch(identifier) and cell.build.cuda
    ]
    if not completed:
        return did_you_mean(name, cells, _SUGGESTIONS)
    tried = [cell for cell in completed if find_trial(facts, cell).witness] or completed
    names = [cell.build.identifier(native) for cell in reversed(tried)]
    return f"; did you mean {' or '.join(names)}?"


def usual_spelling(identifier: str) -> str:
    """Return a name with the usual words for Python and CUDA.

    "wheel-py312-cuda12.1" is "wheel-3.12-cu121".
    """
    name = re.sub(
        r"-(?:cp|py|python)?(\d)\.?(\d+)(?:\.\d+)?(t?)(?=-|$)",
        r"-\1.\2\3",
        identifier.strip().lower(),
        count=1,
    )
    return re.sub(r"(-\d\.\d+t?)-(?:cu|cuda)?-?(\d+)\.?(\d)(?:\.\d+)?$", r"\1-cu\2\3", name)


def require_machine(facts: Facts, native: str) -> None:
    """Raise ImpossibleBuildError if no fact describes an arch: "linux_ppc64le"."""
    if native in facts.arches:
        return
    hint = f": {_OTHER_MACHINES[native]['way_out']}" if native in _OTHER_MACHINES else ""
    raise ImpossibleBuildError(
        f"torchmill builds for {', '.join(facts.arches)}, not for {native}{hint}",
        code="unknown-machine",
    )


def uncontained_arch(facts: Facts, names: Iterable[str], native: str) -> str:
    """Return the arch whose builds need no container: the machine's own, or "" if a name has it.

    On Linux, "wheel-3.13-cpu-x86_64" asks for a container also if wheel-3.13-cpu is for x86_64.
    """
    arch = facts.arches.get(native)
    if arch is None or arch.system != "linux":
        return native
    return "" if any(name.endswith(f"-{native}") for name in names) else native


def _cells_of_build(facts: Facts, build: Build, selected: Release | None) -> Iterator[Cell]:
    """Yield a build's cell of each release that it could be of, newest first."""
    for release in releases_of(facts, selected):
        if release.package == build.package:
            yield matrix.make_cell(facts, release, build)


def explain_cell(facts: Facts, identifier: str, native: str, selected: Release | None) -> str:
    """Return why a cell is impossible with every release, and what can be built instead.

    Raises UnknownReleaseError for a name that is no cell.
    """
    build = find_build(facts, identifier, native, selected)
    cells = list(_cells_of_build(facts, build, selected))
    # The release with the fewest reasons is the one that its user most probably means.
    nearest = min(cells, key=lambda cell: len(cell.reasons))
    tag = selecting_tag(facts, nearest.release)
    every_release = f" with every release; with {tag}" if len(cells) > 1 else ""
    verdict = "untried" if is_merely_untried(nearest) else "impossible"
    lines = [f"{identifier} is {verdict}{every_release}: {nearest.reasons[0]}"]
    lines.extend(f"also: {reason}" for reason in nearest.reasons[1:])
    alternatives = [*_alternatives(facts, nearest, native, tag), *_other_releases(facts, nearest)]
    if not alternatives:
        alternatives = ["nothing near it can be built: `invoke matrix` shows what can"]
    lines.extend(alternatives)
    if is_merely_untried(nearest):
        lines.append(_how_to_try(facts, nearest.release))
    return "\n".join(lines)


def _how_to_try(facts: Facts, release: Release) -> str:
    """Return which facts to change so that an untried cell of a release becomes possible."""
    if facts.packages[release.package].editions:
        return (
            "to try it all the same, widen `python` or `cuda` of that release in "
            f"build_configs/packages/{release.package}.toml"
        )
    return (
        "to try it all the same, add it to `pythons`, or to `range` below `cuda`, in "
        f"build_configs/releases/{release.torch_version}.toml"
    )


def _alternatives(facts: Facts, cell: Cell, native: str, tag: str) -> Iterator[str]:
    """Yield cells of the release that can be built in place of one: those that were built first."""
    tried: list[str] = []
    untried: list[str] = []
    for build in _neighbours(facts, cell):
        neighbour = matrix.make_cell(facts, cell.release, build)
        names = tried if find_trial(facts, neighbour).witness else untried
        names.append(build.identifier(native))
    if tried:
        yield f"possible instead with {tag}: {', '.join(tried)}"
    if untried:
        condition = "too" if tried else f"with {tag}"
        yield f"untried, and possible {condition}: {', '.join(untried)}"


def _other_releases(facts: Facts, cell: Cell) -> Iterator[str]:
    """Yield releases that can build a cell: those that somebody built so, or else others."""
    possible = [other for other in _cells_of_build(facts, cell.build, None) if other.possible]
    tried = [other.release for other in possible if find_trial(facts, other).witness]
    if tried:
        yield f"releases that were built this way: {_format_series(facts, tried)}"
    elif possible:
        releases = [other.release for other in possible]
        yield f"releases that may be built this way, untried: {_format_series(facts, releases)}"


def _neighbours(facts: Facts, cell: Cell) -> list[Build]:
    """Return the nearest builds of the release that differ in one axis, or else in both."""
    build = cell.build
    possible = [other.build for other in matrix.possible_cells(facts, cell.release, build.arch)]
    other_pythons = [other for other in possible if other.variant == build.variant]
    other_variants = [other for other in possible if other.python == build.python]
    if not other_pythons and not other_variants:
        other_pythons = [other for other in possible if other.variant == CPU]
    cuda = Version(build.cuda or "0")
    older_pythons = [
        other for other in other_pythons if python_key(other.python) < python_key(build.python)
    ]
    older_variants = [other for other in other_variants if Version(other.cuda or "0") < cuda]
    return [
        *_around(other_pythons, len(older_pythons)),
        *_around(other_variants, len(older_variants)),
    ]


def _around(builds: Sequence[Build], place: int) -> Sequence[Build]:
    """Return the builds around an index, at most NEIGHBOURS."""
    # At an end of the list there are fewer on one side, and more on the other.
    last_start = max(len(builds) - NEIGHBOURS, 0)
    start = min(max(place - NEIGHBOURS // 2, 0), last_start)
    return builds[start : start + NEIGHBOURS]


def _format_series(facts: Facts, releases: Iterable[Release]) -> str:
    """Return the newest patch release of each series, without the middle of many.

    `releases` are sorted from the newest, and so is the result.
    """
    newest: dict[tuple[int, ...], str] = {}
    for release in releases:
        series = Version(release.torch_version).release[:2]
        newest.setdefault(series, selecting_tag(facts, release))
    tags = list(newest.values())
    # The newest ones help most, and the oldest ones show how far back it goes.
    if len(tags) > SERIES:
        tags[SERIES - 2 : -2] = ["…"]
    return ", ".join(tags)


def requested_cells(
    facts: Facts,
    selected: Release | None,
    names: Collection[str],
    further: Callable[[Cell], Iterable[str]] = lambda _: (),
) -> Iterator[tuple[str, Cell]]:
    """Yield the cells that `names` has with an arch, each with the name of its session there.

    `further` returns the words of sessions that make something of a cell's wheel:
    "libtorch-3.10-cpu-aarch64" is "libtorch-3.10-cpu" on an aarch64 machine.
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
    """Return the command that fetches the source of a cell."""
    command = f"invoke fetch --tag {selecting_tag(facts, cell.release)}"
    package = cell.build.package
    if package == base_package(facts).name:
        return command
    return f"{command} --package {package}"
