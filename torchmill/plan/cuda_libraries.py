"""Which cuDNN, NCCL and MAGMA a build uses."""

from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.arch_list import listed_capabilities
from torchmill.config.facts import Facts
from torchmill.config.served_gpus import unserved_capabilities, without_cudnn
from torchmill.config.versions import is_version
from torchmill.host.host import Host
from torchmill.host.provisioned import MAGMA, ProvisionedMagma, provisioned_magma
from torchmill.plan.build_options import SWITCHED_OFF
from torchmill.plan.plan import Plan
from torchmill.plan.rules import CellConstraints, axis_conditions, make_case, rule_matches

# torch brings the source of its own version: what a machine happens to have is for those who ask
_COMPILED_ALONG = frozenset({"nccl"})
_REQUIRED_ON_ARM = Version(
    "2.11"
)  # since then PyPI's aarch64 wheels have CUDA, and require what those for x86_64 do
_OPTIONAL = (
    "cusparselt",
    "nvshmem",
)  # of which no trace is in a wheel that was compiled without them


def official_version(constraints: CellConstraints, name: str) -> str | None:
    """Return the version of a library that the release's official build with the cell's toolkit has.

    What is not known of it is that of the nearest toolkit: of the same major version, else of an older one. A
    release without official build of that major version stands back for the newest older one that has one.
    """
    cell = constraints.cell
    own = Version(cell.build.cuda or "0")
    releases = constraints.facts.releases[cell.release.package]
    older = reversed(releases[: releases.index(cell.release)] if cell.release in releases else ())
    alike = (
        one
        for one in (cell.release, *older)
        if own.major in {Version(cuda).major for cuda in one.cuda_official}
    )
    release = next(alike, cell.release)
    said = {Version(cuda): getattr(one, name) for cuda, one in release.cuda_official.items()}
    known = sorted(cuda for cuda, version in said.items() if version)
    same = [cuda for cuda in known if cuda.major == own.major]
    not_newer = [cuda for cuda in same or known if cuda <= own]
    nearest = not_newer[-1:] or same[:1]
    return said[nearest[0]] if nearest else None


def choose_libraries(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str], listed: str
) -> dict[str, str]:
    """Return the libraries that a cell takes from the kept ones, with the versions that it wants.

    These are the ones that rules of its package have `kept` for. A user's variables for a library, or one of
    the machine's that fits, leave it out. `listed` are its compute capabilities, "" where they are left to the build.
    """
    # of MAGMA, what fits follows from its code for GPUs: see choose_magma
    asked = [one for one in libraries_in_rules(constraints, "kept") if one != MAGMA]
    lacking = [
        one
        for one in asked
        if not (is_user_configured(one, settings) or _has_usable(constraints, host, one))
    ]
    wanted = {one: _version_to_use(constraints, host, one, listed) for one in lacking}
    return {name: version for name, version in wanted.items() if version is not None}


def required_nvidia_packages(
    constraints: CellConstraints, taken: Mapping[str, str]
) -> tuple[str, ...]:
    """Return what a wheel requires of NVIDIA's packages: what the official one of the very same toolkit does.

    Nothing where it was compiled against another cuDNN or NCCL than those packages hold: it brings its own.
    """
    build = constraints.cell.build
    release = constraints.cell.release
    said = release.cuda_official.get(build.cuda or "")
    on_arm = build.arch == "aarch64" and Version(release.torch_version) >= _REQUIRED_ON_ARM
    if said is None or not (build.arch == "x86_64" or on_arm):
        return ()
    pins = {one.name: str(one.specifier) for one in map(Requirement, said.requires)}
    for library in ("cudnn", "nccl"):
        pinned = next(
            (pin for name, pin in pins.items() if name.startswith(f"nvidia-{library}-")), None
        )
        if pinned is not None and pinned != f"=={taken.get(library)}":
            return ()
    unused = tuple(f"nvidia-{library}-" for library in _OPTIONAL if library not in taken)
    return tuple(one for one in said.requires if not one.startswith(unused))


def lacking_libraries(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str]
) -> frozenset[str]:
    """Return the libraries that rules ask about and that are known not to be where a build would look."""
    if not host.complete:
        return frozenset()
    parts = {
        one.name for one in constraints.facts.toolkit_parts
    }  # a toolkit that is brought has its own
    return frozenset(
        name
        for name in libraries_in_rules(constraints, "lacking")
        if not is_user_configured(name, settings)
        and visible_version(host, name, constraints.cell.build.cuda) is None
        if name not in parts or constraints.cell.build.cuda in host.toolkits
    )


def visible_version(host: Host, name: str, cuda: str | None) -> str | None:
    """Return the version of a library where a build looks: in the toolkit, else in the system.

    "" where it does not say, None where there is none.
    """
    return next(
        (host.libraries[place] for place in (f"{name}@{cuda}", name) if place in host.libraries),
        None,
    )


def used_cudnn(plan: Plan, host: Host) -> str | None:
    """Return the version of cuDNN that a build on a machine has; None where it has none, or that is not known."""
    off = plan.build.cuda is None or plan.variables.get("USE_CUDNN", "").upper() in SWITCHED_OFF
    return (
        None
        if off
        else plan.cuda.libraries.get("cudnn")
        or visible_version(host, "cudnn", plan.cuda.toolkit)
        or None
    )


def is_user_configured(name: str, settings: Mapping[str, str]) -> bool:
    """Tell whether a user's own variables say something of a library: USE_SYSTEM_NCCL, NCCL_ROOT.

    That it shall not be static, as no kept one is, says nothing.
    """
    upper = name.upper()
    shared = (
        {f"USE_STATIC_{upper}"}
        if settings.get(f"USE_STATIC_{upper}", "").upper() in SWITCHED_OFF
        else set()
    )
    return any(
        one.startswith(f"{upper}_") or one.endswith(f"_{upper}") for one in settings.keys() - shared
    )


def library_key(name: str, version: str, cuda: str) -> str:
    """Return what a library is called where it is kept: "cudnn-8.5.0.96-cu11"."""
    return f"{name}-{version}-cu{Version(cuda).major}"


def libraries_in_rules(constraints: CellConstraints, condition: str) -> list[str]:
    """Return the libraries that the rules of a cell ask about, as `kept` or as `lacking`."""
    cell = constraints.cell
    if cell.build.cuda is None:
        return []
    known = make_case(constraints.facts, cell.build, cell.release, constraints.provider)
    rules = constraints.facts.packages[cell.build.package].rules
    asking = [rule.when for rule in rules if getattr(rule.when, condition)]
    holding = [when for when in asking if rule_matches(axis_conditions(when), known)]
    return sorted({name for when in holding for name in getattr(when, condition)})


def _has_usable(constraints: CellConstraints, host: Host, name: str) -> bool:
    """Tell whether a build would find one on the machine that it can use."""
    version = visible_version(host, name, constraints.cell.build.cuda)
    if version is None or name in _COMPILED_ALONG:
        return False
    if not version:
        return True
    needs = constraints.needs(name, None)
    return (
        needs.allows(version) if needs.bounds else _has_official_major(constraints, name, version)
    )


def _has_official_major(constraints: CellConstraints, name: str, version: str) -> bool:
    """Tell whether a version is of the official build's major version."""
    theirs = official_version(constraints, name)
    return theirs is None or Version(version).major == Version(theirs).major


def _version_to_use(constraints: CellConstraints, host: Host, name: str, listed: str) -> str | None:
    """Return the version to take: the official build's, or the next of its major version that can be had.

    One with code for all GPUs of the list goes before. None where nobody has any for that major version of
    CUDA, or nothing is known of what the release takes.
    """
    cuda, theirs = str(constraints.cell.build.cuda), official_version(constraints, name)
    offered = _available_versions(constraints, name)
    if theirs is None or offered is None:
        return None
    gpus = listed_capabilities(constraints.facts, listed) if name == "cudnn" else ()

    def serves(version: str) -> bool:
        return not without_cudnn(version, gpus)

    if serves(theirs) and (theirs in offered or library_key(name, theirs, cuda) in host.kept):
        return theirs
    if name in _COMPILED_ALONG:
        return None
    for there in (_provisioned_versions(host, name, cuda), offered):
        alike = [version for version in there if _has_official_major(constraints, name, version)]
        fitting = [
            version
            for version in alike
            if constraints.needs(name, None).allows(version) and serves(version)
        ]
        if fitting:
            newer = [version for version in fitting if Version(version) >= Version(theirs)]
            return min(newer, key=Version) if newer else max(fitting, key=Version)
    return theirs


def _available_versions(constraints: CellConstraints, name: str) -> frozenset[str] | None:
    """Return the versions that providers say they have, as far as they say it; None where none has any."""
    build = constraints.cell.build
    major = str(Version(build.cuda or "0").major)
    sources = [
        one
        for one in constraints.facts.toolkit_sources
        if one.kind == name and build.arch in one.arches and one.cuda in {None, major}
    ]
    return frozenset(version for one in sources for version in one.versions) if sources else None


def _provisioned_versions(host: Host, name: str, cuda: str) -> Iterator[str]:
    suffix = f"-cu{Version(cuda).major}"
    for one in host.kept:
        version = one.removeprefix(f"{name}-").removesuffix(suffix)
        if one == f"{name}-{version}{suffix}" and is_version(version):
            yield version


def choose_magma(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str], listed: str
) -> ProvisionedMagma | None:
    """Return the kept one that a cell takes, the official build's version before others; None: it takes none.

    `listed` are its compute capabilities, "" where they are left to the build. A user's variables for MAGMA,
    or one that the machine has, leave it out, as for other libraries.
    """
    cuda = constraints.cell.build.cuda
    asked = MAGMA in libraries_in_rules(constraints, "kept") and not is_user_configured(
        MAGMA, settings
    )
    if cuda is None or not asked or visible_version(host, MAGMA, cuda) is not None:
        return None
    return best_magma(
        constraints.facts, host.kept, cuda, listed, official_version(constraints, MAGMA)
    )


def best_magma(
    facts: Facts, names: Iterable[str], cuda: str, listed: str, theirs: str | None
) -> ProvisionedMagma | None:
    """Return the kept one that serves a list: the version `theirs`, else the newest."""
    serving = [
        one
        for one in provisioned_magma(names, cuda)
        if not unserved_capabilities(facts, one.code, listed)
    ]
    return max(
        serving,
        key=lambda one: (one.version == theirs, Version(one.version), one.name),
        default=None,
    )
