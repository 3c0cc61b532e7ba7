"""Find the cell that an identifier names, and explain why a cell cannot be built.

In this module `native` is the arch of the machine that builds, which identifiers leave out, and
`selected` the release of torch that the user selected, None if any will do.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name
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
from torchmill.plan.published import recorded_wheel
from torchmill.plan.trial import find_trial, is_merely_untried

REFUSED_VARIANTS: dict[str, str] = read_table_beside(__file__, "not_variants.toml")
_OTHER_MACHINES = read_table_beside(__file__, "other_machines.toml")
# A name that is spelled as a cell's: "wheel-3.10-cu118", "flash-attn-3.13t-cpu-aarch64".
_CELL_NAME = re.compile(r"(?P<word>[a-z][\w.-]*?)-\d+\.\d+t?-(?:cpu|cu\d+)(?:-\w+)?")
# A name that is spelled as a package's alone: "mmcv", "tiny-cuda-nn".
_PACKAGE_NAME = re.compile(r"(?P<word>[a-z][a-z0-9]*(?:[-_.][a-z][a-z0-9]*)*)")
_PYTHON_IN_NAME = re.compile(
    r"-(?:cp|py|python)?"  # "-py312", "-python3.12"
    r"(\d)\.?(\d+)(?:\.\d+)?(t?)"  # "312", "3.12", "3.12.1"; with "t" a Python without a GIL
    r"(?=-|$)"
)
_CUDA_IN_NAME = re.compile(
    r"(-\d\.\d+t?)"  # the Python before it
    r"-(?:cu|cuda)?-?"  # "-cu121", "-cuda12.1", "-cuda-12.1", "-12.1"
    r"(\d+)\.?(\d)(?:\.\d+)?$"  # "121", "12.1", "12.1.1"
)
# The least ratio of difflib for a misspelling: "whel" is "wheel", "pytorch3d" is not "torch".
_MISSPELT = 0.75
_PACKAGE_PAGE = "docs/how-to/add-a-package.md"
_SUGGESTIONS = 3  # most names of cells that a message suggests
NEIGHBOURS = 6  # most cells with another Python, or another variant, that a message lists
SERIES = 8  # most series of releases, such as 2.1.*, that a message lists


def find_cell(facts: Facts, identifier: str, native: str, selected: Release | None) -> Cell:
    """Return the possible cell that an identifier names, of the newest release that has it.

    Raises ImpossibleBuildError for an impossible cell, with the reasons and the nearest possible
    cells, and the errors of `find_build`.
    """
    build = find_build(facts, identifier, native, selected)
    for cell in _cells_of_build(facts, build, selected):
        if cell.is_possible:
            return cell
    raise ImpossibleBuildError(
        explain_cell(facts, identifier, native, selected), code="impossible-build"
    )


def find_build(facts: Facts, identifier: str, native: str, selected: Release | None) -> Build:
    """Return the build that an identifier names, possible or not.

    Raises UnknownReleaseError, with near matches, for a name of no build, and if no release of the
    package is described, or goes with the selected one. A name of no build raises
    ImpossibleBuildError instead on a machine that no fact describes, and ConfigError if the facts
    of its package have mistakes.
    """
    # A user may name this machine's arch too, which identifiers leave out.
    identifier = identifier.removesuffix(f"-{native}")
    build = _named_build(facts, identifier, native)
    if build is None:
        raise _unknown_build(facts, identifier, native, selected)
    if not facts.releases[build.package]:
        raise UnknownReleaseError(
            f"no release of {build.package} is described: [[release]] in "
            f"build_configs/packages/{build.package}.toml says which torch each goes with "
            f"({locate_page(_PACKAGE_PAGE)})",
            code="no-release",
        )
    if selected is not None and paired_release(facts, build.package, selected) is None:
        raise UnknownReleaseError(
            _explain_missing_partner(facts, build, selected), code="no-partner-release"
        )
    return build


def _named_build(facts: Facts, identifier: str, native: str) -> Build | None:
    """Return the build with an identifier, possible or not; None if there is none."""
    # Identifiers are never parsed: those of all builds of a package are compared with the name.
    for package in facts.packages.values():
        if not identifier.startswith(f"{package.session}-"):
            continue
        for build in matrix.all_builds(facts, package):
            if build.identifier(native) == identifier:
                return build
    return None


def _unknown_build(
    facts: Facts, identifier: str, native: str, selected: Release | None
) -> UnknownReleaseError:
    """Return the error for a name that is no build's identifier.

    Raises ConfigError instead if facts about the package have mistakes and were left out,
    ImpossibleBuildError on a machine that no fact describes.
    """
    spelling = usual_spelling(identifier)
    match = _CELL_NAME.fullmatch(spelling)
    if match:
        refuse_left_out(facts, match["word"])
    require_machine(facts, native)
    message = _explain_unknown_package(facts, spelling)
    if not message:
        hint = _explain_refused_variant(identifier)
        if not hint:
            hint = _suggest_cells(facts, spelling, native, selected)
        if not hint:
            identifiers: list[str] = []
            for package in facts.packages.values():
                for build in matrix.all_builds(facts, package):
                    identifiers.append(build.identifier(native))
            hint = did_you_mean(spelling, [*identifiers, *facts.packages], _SUGGESTIONS)
        message = f"'{identifier}' names no build{hint} (`invoke matrix` prints them all)"
    return UnknownReleaseError(message, code="unknown-build")


def _explain_refused_variant(identifier: str) -> str:
    """Return why torchmill does not build a variant that a name has, such as "rocm6.0".

    It is the end of a message; "" if the name has no such variant.
    """
    # If a name has several, the last explains it: the variant is at the end of a name.
    for word in reversed(identifier.lower().split("-")):
        answer = REFUSED_VARIANTS.get(word.rstrip("0123456789."))
        if answer:
            return f": {answer}"
    return ""


def _explain_unknown_package(facts: Facts, spelling: str) -> str:
    """Return that no fact describes the package that a name begins with, or is.

    It is "" if the name is spelled neither as a cell's nor as a package's, if its package is
    described or may be misspelt, and for the beginning of a cell's name or a refused variant.
    """
    from difflib import get_close_matches  # loaded only for messages about errors

    match = _CELL_NAME.fullmatch(spelling) or _PACKAGE_NAME.fullmatch(spelling)
    if match is None or match["word"] in REFUSED_VARIANTS:
        return ""
    sessions = {package.session for package in facts.packages.values()}
    if match.re is _PACKAGE_NAME and spelling.partition("-")[0] in sessions:
        return ""  # an unfinished name of a cell: "wheel-cpu"
    package_names: list[str] = []
    described: list[str] = []
    for package in facts.packages.values():
        package_names.extend((package.session, package.name))
        described.append(f"{package.name} ({package.session})")
    word = match["word"]
    if get_close_matches(word, package_names, 1, _MISSPELT):
        return ""
    return (
        f"torchmill does not know how to build '{word}'; "
        f"it builds {', '.join(described)}. "
        f"Another extension of torch is described in one file: `invoke add {word}` drafts it "
        f"({locate_page(_PACKAGE_PAGE)})"
    )


def undescribed_packages(facts: Facts, names: Iterable[str]) -> list[str]:
    """Return those of some names that are spelled as a package's, and that no fact describes.

    A name that resembles one of the facts' is left out: it may be a misspelling.
    """
    undescribed: list[str] = []
    for name in names:
        spelling = canonicalize_name(name)
        is_package = _PACKAGE_NAME.fullmatch(spelling) and not _CELL_NAME.fullmatch(spelling)
        if is_package and _explain_unknown_package(facts, spelling):
            undescribed.append(name)
    return undescribed


def _explain_missing_partner(facts: Facts, build: Build, torch: Release) -> str:
    """Return that no release of a package goes with a release of torch, and what can be done."""
    package = build.package
    torch_versions = {release.torch for release in facts.releases[package]}
    partners = [
        release for release in facts.releases[torch.package] if release.version in torch_versions
    ]
    lines = [f"no release of {package} is known to go with {torch.package} {torch.version}"]
    if partners:
        series = _format_series(facts, reversed(partners))
        lines.append(f"releases that {package} is known to go with: {series}")
    project = facts.packages[package].source.pypi
    recorded = recorded_wheel(facts, build, torch.version)
    if recorded is None:
        # A wheel without code for GPUs is worth a line, too: it says "without CUDA".
        without_cuda = replace(build, variant=CPU, cuda=None)
        recorded = recorded_wheel(facts, without_cuda, torch.version)
    if recorded is not None:
        lines.append(str(recorded))
    elif project:
        wheel = f"`pip install --only-binary :all: {project} {torch.package}=={torch.version}`"
        lines.append(
            f"pip takes the newest wheel of {project} whose METADATA do not exclude that torch, "
            f"which need not mean that it goes with it: {wheel}"
        )
    if project:
        page = locate_page(_PACKAGE_PAGE)
        lines.append(f"another release of {package} can be described, and tried: {page}")
    return "\n".join(lines)


def _suggest_cells(facts: Facts, name: str, native: str, selected: Release | None) -> str:
    """Return the possible cells that a name may mean, as the end of a message; "" if none is near.

    If the name has a toolkit without its minor version, "wheel-3.12-cu13", they are the cells with
    toolkits of that major version: those that somebody has built, else all.
    """
    cells = {
        cell.build.identifier(native): cell
        for cell in matrix.buildable_cells(facts, selected, native)
    }
    match = _CELL_NAME.fullmatch(name)
    package = facts.packages.get(match["word"]) if match else None
    if package is not None:
        # It has the name of a package in place of its session's: "torch-3.12-cpu".
        by_session = f"{package.session}{name.removeprefix(package.name)}"
        if by_session in cells:
            return f"; did you mean {by_session}?"
    with_minor = re.compile(rf"{re.escape(name)}\d")
    completed: list[Cell] = []
    for identifier, cell in cells.items():
        if cell.build.cuda and with_minor.fullmatch(identifier):
            completed.append(cell)
    if not completed:
        return did_you_mean(name, cells, _SUGGESTIONS)
    tried = [cell for cell in completed if find_trial(facts, cell).witness]
    # Toolkits are in ascending order, and the newest is the most probable.
    names = [cell.build.identifier(native) for cell in reversed(tried or completed)]
    return f"; did you mean {' or '.join(names)}?"


def usual_spelling(identifier: str) -> str:
    """Return a name in lower case, with Python and CUDA spelled as identifiers have them.

    "Wheel-py312-cuda12.1" becomes "wheel-3.12-cu121". Other parts of the name are unchanged.
    """
    name = _PYTHON_IN_NAME.sub(r"-\1.\2\3", identifier.strip().lower(), count=1)
    return _CUDA_IN_NAME.sub(r"\1-cu\2\3", name)


def require_machine(facts: Facts, native: str) -> None:
    """Raise ImpossibleBuildError if the facts do not describe an arch, such as "linux_ppc64le"."""
    if native in facts.arches:
        return
    hint = ""
    if native in _OTHER_MACHINES:
        hint = f": {_OTHER_MACHINES[native]['way_out']}"
    raise ImpossibleBuildError(
        f"torchmill builds for {', '.join(facts.arches)}, not for {native}{hint}",
        code="unknown-machine",
    )


def uncontained_arch(facts: Facts, names: Iterable[str], native: str) -> str:
    """Return the arch whose builds run on this machine itself: `native`, or "" for none.

    Builds for other architectures run in containers. So do all builds if a name ends with the
    machine's own arch, which is redundant otherwise: on x86_64, "wheel-3.13-cpu-x86_64" asks for a
    container. Only Linux has these containers.
    """
    arch = facts.arches.get(native)
    if arch is None or arch.system != "linux":
        return native
    return "" if any(name.endswith(f"-{native}") for name in names) else native


def _cells_of_build(facts: Facts, build: Build, selected: Release | None) -> Iterator[Cell]:
    """Yield the cells of a build, possible or not: one for each release, newest first."""
    for release in releases_of(facts, selected):
        if release.package == build.package:
            yield matrix.make_cell(facts, release, build)


def explain_cell(facts: Facts, identifier: str, native: str, selected: Release | None) -> str:
    """Return why an impossible build is so with every release, and what can be built instead.

    The build must not be possible with any of them. Raises the errors of `find_build`.
    """
    build = find_build(facts, identifier, native, selected)
    cells = list(_cells_of_build(facts, build, selected))
    # The user most probably means the release that has the fewest reasons against it.
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
    # Some packages declare their releases, called editions, in their own file.
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
    """Yield lines with cells of the same release that can be built in place of a cell.

    First a line with cells that somebody has built, then one with untried cells. `tag` is that of
    the release.
    """
    tried: list[str] = []
    untried: list[str] = []
    for build in _neighbours(facts, cell):
        neighbour = matrix.make_cell(facts, cell.release, build)
        if find_trial(facts, neighbour).witness:
            tried.append(build.identifier(native))
        else:
            untried.append(build.identifier(native))
    if tried:
        yield f"possible instead with {tag}: {', '.join(tried)}"
    if untried:
        condition = "too" if tried else f"with {tag}"
        yield f"untried, and possible {condition}: {', '.join(untried)}"


def _other_releases(facts: Facts, cell: Cell) -> Iterator[str]:
    """Yield a line with the releases that can make the same build, if there are any.

    If somebody has made it with some of these releases, the others are left out.
    """
    possible = [other for other in _cells_of_build(facts, cell.build, None) if other.is_possible]
    tried = [other.release for other in possible if find_trial(facts, other).witness]
    if tried:
        yield f"releases that were built this way: {_format_series(facts, tried)}"
    elif possible:
        releases = [other.release for other in possible]
        yield f"releases that may be built this way, untried: {_format_series(facts, releases)}"


def _neighbours(facts: Facts, cell: Cell) -> list[Build]:
    """Return the nearest possible builds of a cell's release, for the same machine.

    First those with the same variant and another Python, then those with the same Python and
    another variant. If there are neither, they are builds without CUDA for other Pythons.
    """
    build = cell.build
    possible = [other.build for other in matrix.possible_cells(facts, cell.release, build.arch)]
    other_pythons = [other for other in possible if other.variant == build.variant]
    other_variants = [other for other in possible if other.python == build.python]
    if not other_pythons and not other_variants:
        other_pythons = [other for other in possible if other.variant == CPU]
    python = python_key(build.python)
    cuda = Version(build.cuda or "0")
    older_pythons = [other for other in other_pythons if python_key(other.python) < python]
    older_variants = [other for other in other_variants if Version(other.cuda or "0") < cuda]
    # Both lists are sorted, so the number of older builds is the place of the build itself.
    return [
        *_around(other_pythons, len(older_pythons)),
        *_around(other_variants, len(older_variants)),
    ]


def _around(builds: Sequence[Build], place: int) -> Sequence[Build]:
    """Return the builds before and after a place in a list, NEIGHBOURS if there are as many."""
    # Near an end of the list there are fewer on one side, and so more on the other.
    last_start = max(len(builds) - NEIGHBOURS, 0)
    start = min(max(place - NEIGHBOURS // 2, 0), last_start)
    return builds[start : start + NEIGHBOURS]


def _format_series(facts: Facts, releases: Iterable[Release]) -> str:
    """Return the tags of the newest release of each series: "v2.4.1, v2.3.1, v2.2.2".

    `releases` are sorted from the newest, and so is the result. "…" stands for the middle of more
    than SERIES tags.
    """
    tag_by_series: dict[tuple[int, ...], str] = {}
    for release in releases:
        series = Version(release.torch_version).release[:2]
        tag_by_series.setdefault(series, selecting_tag(facts, release))
    tags = list(tag_by_series.values())
    # Of many, the middle is left out: the newest help most, and the two oldest show the range.
    if len(tags) > SERIES:
        tags[SERIES - 2 : -2] = ["…"]
    return ", ".join(tags)


def requested_cells(
    facts: Facts,
    selected: Release | None,
    names: Collection[str],
    further: Callable[[Cell], Iterable[str]] = lambda _: (),
) -> Iterator[tuple[str, Cell]]:
    """Yield the cells that names with an arch stand for, as "wheel-3.10-cpu-aarch64" does.

    With each cell comes the name without the arch, by which a machine of that arch calls the
    session. Names of no possible cell are left out. A session may also make something of a cell's
    wheel, as "libtorch-3.10-cpu-aarch64" does: `further` returns the first words of such sessions.
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
    """Return the command by which a user fetches the source of a cell."""
    command = f"invoke fetch --tag {selecting_tag(facts, cell.release)}"
    package = cell.build.package
    if package == base_package(facts).name:
        return command
    return f"{command} --package {package}"
