"""A family of packages that are all built against one torch: its cells, their order, their results.

A cell *needs* the cells of packages that its package imports, such as torch-scatter for
torch-sparse: it is checked together with their wheels, which are therefore built first. The torch
is on the index that pip uses, and newer than the facts; its own facts are drafted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from packaging.utils import canonicalize_name

from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, paired_release
from torchmill.config.versions import format_bounds, version_key
from torchmill.core.errors import ConfigError, did_you_mean
from torchmill.plan import cell_lookup, matrix
from torchmill.plan.base_package import base_version, recorded_pypi_variant
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell import Cell
from torchmill.plan.new_torch import IndexTorch, newest_completed
from torchmill.plan.package_request import named_packages
from torchmill.plan.trial import find_trial

# - pending: it can be built, and no run on this machine has tried
# - built, failed: the result of a session
# - skipped: a cell that it needs has no wheel
# - unfinished: something other than its build stopped it, such as a network that did not answer
# - refused: facts or the torch rule it out
State = Literal["pending", "built", "failed", "skipped", "unfinished", "refused"]
# Results that count: later runs do not try these cells again with the same torch.
_SETTLED: Mapping[str, State] = {"built": "built", "failed": "failed", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class FamilyCell:
    """A package for one Python and variant, to be built against the new torch."""

    identifier: str  # of its session: "scatter-3.12-cu132"
    package: str
    release: str  # "torch-scatter 2.1.2"; "" if none goes with the torch
    python: str
    variant: str
    needs: tuple[str, ...]  # identifiers of the cells that are built before it
    claim: str  # who is known to have built it, as a clause
    state: State = "pending"
    reason: str = ""  # why it is refused, skipped or unfinished; the first error if it has failed
    wheel: str = ""  # the path of the finished wheel


def choose_family(facts: Facts, names: Sequence[str]) -> list[Package]:
    """Return the packages that names mean; without names, all that declare their own releases.

    Packages that they import are added, each before those that import it. Raises ConfigError for a
    name of no package, and for the package that all others are built against.
    """
    base = base_package(facts)
    by_name = named_packages(facts, names)
    chosen: dict[str, Package] = {}
    for name in names:
        if name not in by_name:
            choices = sorted(canonicalize_name(package) for package in facts.packages)
            raise ConfigError(
                f"--new-torch takes packages by their names on PyPI, and '{name}' is not one that "
                f"the facts have: choose from {', '.join(choices)}{did_you_mean(name, choices)}",
                code="unknown-package",
            )
        if by_name[name] == base:
            raise ConfigError(
                f"--new-torch builds against the {base.name} of the index, and not {base.name} "
                f"itself: leave '{name}' out",
                code="contradictory-options",
            )
        _add_with_imports(facts, by_name[name], chosen)
    if not names:
        for package in facts.packages.values():
            if package.editions:
                _add_with_imports(facts, package, chosen)
    return list(chosen.values())


def _add_with_imports(facts: Facts, package: Package, chosen: dict[str, Package]) -> None:
    """Add the packages that a package imports to the chosen ones, and then the package itself."""
    if package.name in chosen:
        return
    for name in package.checks.imports:
        _add_with_imports(facts, facts.packages[name], chosen)
    chosen[package.name] = package


@dataclass(frozen=True, slots=True)
class FamilyBase:
    """The torch that a family is built against, on the machine that builds."""

    release: Release  # its drafted facts
    on_index: IndexTorch
    arch: str
    variant: str  # of its wheels on the index: "cu132", "cpu"


def describe_base(facts: Facts, release: Release, on_index: IndexTorch, arch: str) -> FamilyBase:
    """Return the torch of an index as the base of a family; its variant is that of its wheels."""
    variant = CPU
    if release.cuda.pypi:
        variant = recorded_pypi_variant(facts, release, arch) or CPU
    return FamilyBase(release, on_index, arch, variant)


def plan_family(
    facts: Facts,
    packages: Iterable[Package],
    base: FamilyBase,
    *,
    pythons: Sequence[str],
    variants: Sequence[str],
    options: Options,
) -> list[FamilyCell]:
    """Return the cells of a family, refused ones included, each after the cells that it needs.

    `packages` are in the order of `choose_family`. `pythons` and `variants` may be spelled as for
    `invoke build`. Without variants, the only one is that of the torch's own wheels.
    """
    cells: dict[str, FamilyCell] = {}
    for package in packages:
        for python in pythons:
            for variant in variants or [base.variant]:
                spelled = f"{package.session}-{python}-{variant}"
                build = _build_of_name(facts, package, spelled, base.arch)
                cell = _plan_cell(facts, package, build, base, options)
                cells[cell.identifier] = _refused_by_needs(cell, cells)
    return list(cells.values())


def _build_of_name(facts: Facts, package: Package, name: str, arch: str) -> Build:
    """Return the build of a package that a name means, in any spelling of Python and toolkit.

    A variant that no toolkit of the facts has gives a build without a toolkit's version.
    """
    _, python, variant = cell_lookup.usual_spelling(name).rsplit("-", 2)
    toolkits = {toolkit.variant: toolkit.version for toolkit in facts.toolkits}
    cuda = toolkits.get(variant)
    return Build(package.name, package.session, python, variant, arch, cuda)


def _plan_cell(
    facts: Facts, package: Package, build: Build, base: FamilyBase, options: Options
) -> FamilyCell:
    """Return the cell of one build, refused if the torch or the facts rule it out."""
    needs = []
    for name in package.checks.imports:
        imported = facts.packages[name]
        needed = replace(build, package=imported.name, session=imported.session)
        needs.append(needed.identifier(build.arch))
    cell = FamilyCell(
        identifier=build.identifier(build.arch),
        package=package.name,
        release="",
        python=build.python,
        variant=build.variant,
        needs=tuple(needs),
        claim="",
    )
    refusal = _refusal_by_torch(build, base)
    if refusal:
        return replace(cell, state="refused", reason=refusal)
    release = paired_release(facts, package.name, base.release)
    if release is None:
        return replace(cell, state="refused", reason=_no_partner_reason(facts, package, base))
    cell = replace(cell, release=str(release))
    planned = matrix.make_cell(facts, release, build)
    if not planned.is_possible:
        return replace(cell, state="refused", reason="; ".join(planned.reasons))
    mismatch = _base_mismatch(facts, planned, options)
    if mismatch:
        return replace(cell, state="refused", reason=mismatch)
    return replace(cell, claim=find_trial(facts, planned).text)


def _refusal_by_torch(build: Build, base: FamilyBase) -> str:
    """Return why a build has no torch or no toolkit to build with, as a clause; "" if it has."""
    torch = base.release
    if build.python not in base.on_index.pythons:
        listed = ", ".join(base.on_index.pythons)
        return (
            f"the index has no {torch} for Python {build.python} on {build.arch}, but for {listed}"
        )
    if build.variant == CPU or build.cuda is not None:
        return ""
    if build.variant == base.variant:
        return (
            f"{torch} on the index is built with CUDA {torch.cuda.pypi}, which toolkits.toml does "
            "not have: describe it there, or `--cuda cpu` builds without CUDA"
        )
    return f"'{build.variant}' is no toolkit that the facts have"


def _no_partner_reason(facts: Facts, package: Package, base: FamilyBase) -> str:
    """Return why no release of a package goes with a torch, as a clause."""
    if not package.editions:
        return f"the index has no release of {package.name} that goes with {base.release}"
    newest = max(package.editions, key=lambda edition: version_key(edition.version))
    return (
        f"{package.name} {newest.version} goes with {base.release.package} "
        f"{format_bounds(newest.torch)}, which leaves out {newest_completed(facts).version} already"
    )


def _base_mismatch(facts: Facts, cell: Cell, options: Options) -> str:
    """Return why options or facts keep a cell from the torch of the index; "" if nothing does."""
    try:
        base_version(facts, cell, replace(options, torch=PYPI))
    except ConfigError as error:
        return str(error)
    return ""


def _refused_by_needs(cell: FamilyCell, cells: Mapping[str, FamilyCell]) -> FamilyCell:
    """Return a cell, refused if one of the cells that it needs is refused; `cells` has these."""
    for identifier in cell.needs:
        needed = cells.get(identifier)
        if needed is not None and needed.state == "refused" and cell.state != "refused":
            reason = f"it needs {identifier}, which cannot be built: {needed.reason}"
            return replace(cell, state="refused", reason=reason)
    return cell


def with_records(
    cells: Iterable[FamilyCell], records: Mapping[str, Mapping[str, str]]
) -> list[FamilyCell]:
    """Return cells with the results of earlier runs, `records` by the identifiers of cells.

    Refused cells stay refused, and a result that does not count leaves its cell pending.
    """
    updated = []
    for cell in cells:
        record = records.get(cell.identifier, {})
        state = _SETTLED.get(record.get("state", ""))
        if cell.state == "pending" and state is not None:
            reason = record.get("reason", "")
            wheel = record.get("wheel", "")
            updated.append(replace(cell, state=state, reason=reason, wheel=wheel))
        else:
            updated.append(cell)
    return updated


def pending_cells(cells: Iterable[FamilyCell]) -> list[FamilyCell]:
    """Return the cells that are still to be built."""
    return [cell for cell in cells if cell.state == "pending"]


def obstacle_of(cell: FamilyCell, cells: Mapping[str, FamilyCell]) -> str:
    """Return why a cell has to be skipped, as a clause; "" if it can be built.

    The reason is a cell that it needs and that was not built. One that is still pending is none.
    `cells` has the cells of the family, by identifier.
    """
    for identifier in cell.needs:
        needed = cells.get(identifier)
        if needed is not None and needed.state not in {"pending", "built"}:
            return f"it needs {identifier}, which is {needed.state}"
    return ""


def settled_records(cells: Iterable[FamilyCell]) -> dict[str, dict[str, str]]:
    """Return the results that count, by identifier, as `with_records` takes them.

    Cells that need an unfinished one, or need such a cell, do not count either. `cells` are in the
    order of `plan_family`.
    """
    unfinished: set[str] = set()
    records: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.state == "unfinished" or not unfinished.isdisjoint(cell.needs):
            unfinished.add(cell.identifier)
        elif cell.state in _SETTLED:
            records[cell.identifier] = {
                "state": cell.state,
                "reason": cell.reason,
                "wheel": cell.wheel,
            }
    return records


@dataclass(frozen=True, slots=True)
class FamilyJob:
    """Sessions that one machine runs, all for one Python and variant, because some need others."""

    python: str
    variant: str
    sessions: str  # their names, in the order in which they run: "scatter-3.12-cpu sparse-3.12-cpu"


def group_jobs(cells: Iterable[FamilyCell]) -> list[FamilyJob]:
    """Return jobs that can run on several machines; each has its cells and all that they need.

    `cells` are in the order of `plan_family`; cells that are not among them are in no job.
    """
    groups: list[list[FamilyCell]] = []
    for cell in cells:
        merged = [cell]  # the cell, after all cells that are built in the same job
        unrelated = []
        for group in groups:
            identifiers = {member.identifier for member in group}
            if identifiers.isdisjoint(cell.needs):
                unrelated.append(group)
            else:
                merged = group + merged
        groups = [*unrelated, merged]
    jobs = []
    for group in groups:
        sessions = " ".join(cell.identifier for cell in group)
        jobs.append(FamilyJob(group[0].python, group[0].variant, sessions))
    return jobs
