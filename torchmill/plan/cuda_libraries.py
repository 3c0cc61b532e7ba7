"""Which cuDNN, NCCL and MAGMA a build uses: the machine's, or those in the user's cache.

The latter are "provisioned": `invoke toolkit` fetched them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.arch_list import listed_capabilities
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.served_gpus import unserved_capabilities, without_cudnn
from torchmill.config.versions import is_version
from torchmill.host.host import Host
from torchmill.host.provisioned import MAGMA, ProvisionedMagma, provisioned_magma
from torchmill.plan.build_options import SWITCHED_OFF
from torchmill.plan.plan import Plan
from torchmill.plan.rules import CellConstraints, axis_conditions, make_case, rule_matches

# torch brings the source of its own version of these libraries. One that a machine happens to have
# is only for users who ask for it.
_COMPILED_ALONG = frozenset({"nccl"})
# Since this release, the aarch64 wheels on PyPI have CUDA and require NVIDIA's packages, as those
# for x86_64 do.
_REQUIRED_ON_ARM = Version("2.11")
# A wheel that was compiled without these has no trace of them, and needs no package of them.
_OPTIONAL = ("cusparselt", "nvshmem")


def official_version(constraints: CellConstraints, name: str) -> str | None:
    """Return the version of a library in the release's official build with the cell's toolkit.

    If it is not known for this toolkit, that of the nearest one is taken: of the same major
    version, else of an older one. If the release has no official build of that major version, the
    newest older release that has one stands for it.
    """
    toolkit = Version(constraints.cell.build.cuda or "0")
    release = _release_with_toolkit(constraints, toolkit.major)
    versions: dict[Version, str] = {}
    for cuda, official in release.cuda_official.items():
        library = getattr(official, name)
        if library:
            versions[Version(cuda)] = library
    nearest = _nearest_toolkit(sorted(versions), toolkit)
    return versions[nearest] if nearest else None


def _release_with_toolkit(constraints: CellConstraints, major: int) -> Release:
    """Return the cell's release, or the newest older one that was built with a major of CUDA."""
    own_release = constraints.cell.release
    releases = constraints.facts.releases[own_release.package]
    candidates = [own_release]
    if own_release in releases:
        older = releases[: releases.index(own_release)]
        candidates.extend(reversed(older))
    for release in candidates:
        if any(Version(cuda).major == major for cuda in release.cuda_official):
            return release
    return own_release


def _nearest_toolkit(toolkits: Sequence[Version], toolkit: Version) -> Version | None:
    """Return the one of some toolkits, oldest first, that is nearest to another.

    That is the newest that is not newer, of the same major version if possible; else the oldest
    of the same major version.
    """
    same_major = [version for version in toolkits if version.major == toolkit.major]
    not_newer = [version for version in same_major or toolkits if version <= toolkit]
    if not_newer:
        return not_newer[-1]
    return same_major[0] if same_major else None


def choose_libraries(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str], arch_list: str
) -> dict[str, str]:
    """Return the versions of the provisioned libraries that a cell takes, by library.

    Those are libraries for which rules of its package have `kept`. One is left out if the user has
    variables for it, or if the machine has one that fits. `arch_list` has the cell's compute
    capabilities; "" if they are left to the build.
    """
    libraries: dict[str, str] = {}
    for name in _libraries_in_rules(constraints, "kept"):
        # Which MAGMA fits follows from its code for GPUs: see choose_magma.
        if name == MAGMA or _is_user_configured(name, settings):
            continue
        if _has_usable(constraints, host, name):
            continue
        version = _version_to_use(constraints, host, name, arch_list)
        if version is not None:
            libraries[name] = version
    return libraries


def required_nvidia_packages(
    constraints: CellConstraints, libraries: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the packages of NVIDIA that a wheel requires: those of the official wheel.

    It must be compiled with the very same toolkit. If it is compiled against another cuDNN or NCCL
    than those packages hold, it requires none, and brings its own. `libraries` are the provisioned
    ones, with their versions.
    """
    build = constraints.cell.build
    release = constraints.cell.release
    official = release.cuda_official.get(build.cuda or "")
    if official is None:
        return ()
    if build.arch == "aarch64":
        if Version(release.torch_version) < _REQUIRED_ON_ARM:
            return ()
    elif build.arch != "x86_64":
        return ()
    requirements = [Requirement(text) for text in official.requires]
    for library in ("cudnn", "nccl"):
        for requirement in requirements:
            if requirement.name.startswith(f"nvidia-{library}-"):
                if str(requirement.specifier) != f"=={libraries.get(library)}":
                    return ()
                break
    unused = tuple(f"nvidia-{library}-" for library in _OPTIONAL if library not in libraries)
    return tuple(text for text in official.requires if not text.startswith(unused))


def lacking_libraries(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str]
) -> frozenset[str]:
    """Return the libraries for which rules have `lacking` and that a build would not find."""
    if not host.complete:
        return frozenset()
    cuda = constraints.cell.build.cuda
    parts = {part.name for part in constraints.facts.toolkit_parts}
    names: set[str] = set()
    for name in _libraries_in_rules(constraints, "lacking"):
        if name in parts and cuda not in host.toolkits.homes:
            continue  # the toolkit that will be fetched brings it
        if _is_user_configured(name, settings):
            continue
        if visible_version(host, name, cuda) is None:
            names.add(name)
    return frozenset(names)


def visible_version(host: Host, name: str, cuda: str | None) -> str | None:
    """Return the version of a library where a build looks: in the toolkit, then in the system.

    "" if the library does not tell its version, None if there is none.
    """
    for place in (f"{name}@{cuda}", name):
        if place in host.toolkits.libraries:
            return host.toolkits.libraries[place]
    return None


def used_cudnn(plan: Plan, host: Host) -> str | None:
    """Return the version of cuDNN that a build on a host uses; None if none, or not known."""
    switch = plan.variables.get("USE_CUDNN", "").upper()
    if plan.build.cuda is None or switch in SWITCHED_OFF:
        return None
    provisioned = plan.cuda.libraries.get("cudnn")
    return provisioned or visible_version(host, "cudnn", plan.cuda.toolkit) or None


def _is_user_configured(name: str, settings: Mapping[str, str]) -> bool:
    """Tell whether a user's variables configure a library: USE_SYSTEM_NCCL, NCCL_ROOT.

    That it must not be static does not count: no provisioned library is.
    """
    word = name.upper()
    static = f"USE_STATIC_{word}"
    for variable in settings:
        if variable == static and settings[static].upper() in SWITCHED_OFF:
            continue
        if variable.startswith(f"{word}_") or variable.endswith(f"_{word}"):
            return True
    return False


def library_key(name: str, version: str, cuda: str) -> str:
    """Return the name under which a library is provisioned: "cudnn-8.5.0.96-cu11"."""
    return f"{name}-{version}-cu{Version(cuda).major}"


def _libraries_in_rules(constraints: CellConstraints, condition: str) -> list[str]:
    """Return the libraries that a cell's rules have in a condition, "kept" or "lacking", sorted.

    Only the rule's conditions on axes must hold: the others depend on the answer.
    """
    cell = constraints.cell
    if cell.build.cuda is None:
        return []
    case = make_case(constraints.facts, cell.build, cell.release, constraints.provider)
    names: set[str] = set()
    for rule in constraints.facts.packages[cell.build.package].rules:
        libraries = getattr(rule.when, condition)
        if libraries and rule_matches(axis_conditions(rule.when), case):
            names.update(libraries)
    return sorted(names)


def _has_usable(constraints: CellConstraints, host: Host, name: str) -> bool:
    """Tell whether a build would find a library on the machine that it can use."""
    version = visible_version(host, name, constraints.cell.build.cuda)
    if version is None or name in _COMPILED_ALONG:
        return False
    if not version:
        return True  # it does not tell its version; nothing speaks against it
    needs = constraints.needs(name, None)
    if needs.bounds:
        return needs.allows(version)
    return _has_official_major(constraints, name, version)


def _has_official_major(constraints: CellConstraints, name: str, version: str) -> bool:
    """Tell whether a version is of the official build's major version."""
    official = official_version(constraints, name)
    return official is None or Version(version).major == Version(official).major


def _version_to_use(
    constraints: CellConstraints, host: Host, name: str, arch_list: str
) -> str | None:
    """Return the version of a library to provision: the official build's, if it can be had.

    Else it is the next of the same major version; a version with code for all GPUs of the list goes
    first. None if nobody offers the library for that major version of CUDA, or if the facts do not
    tell what the release takes.
    """
    cuda = str(constraints.cell.build.cuda)
    official = official_version(constraints, name)
    offered = _offered_versions(constraints, name)
    if official is None or offered is None:
        return None
    gpus = listed_capabilities(constraints.facts, arch_list) if name == "cudnn" else ()
    is_provisioned = library_key(name, official, cuda) in host.toolkits.provisioned
    if not without_cudnn(official, gpus) and (official in offered or is_provisioned):
        return official
    if name in _COMPILED_ALONG:
        return None
    needs = constraints.needs(name, None)
    # A provisioned version goes before one that would have to be fetched.
    for versions in (_provisioned_versions(host, name, cuda), offered):
        fitting: list[str] = []
        for version in versions:
            if not _has_official_major(constraints, name, version):
                continue
            if needs.allows(version) and not without_cudnn(version, gpus):
                fitting.append(version)
        newer = [version for version in fitting if Version(version) >= Version(official)]
        if newer:
            return min(newer, key=Version)
        if fitting:
            return max(fitting, key=Version)
    return official


def _offered_versions(constraints: CellConstraints, name: str) -> frozenset[str] | None:
    """Return the versions of a library that providers list; None if no provider has it."""
    build = constraints.cell.build
    major = str(Version(build.cuda or "0").major)
    sources = [
        source
        for source in constraints.facts.toolkit_sources
        if source.kind == name and build.arch in source.arches and source.cuda in {None, major}
    ]
    if not sources:
        return None
    versions: set[str] = set()
    for source in sources:
        versions.update(source.versions)
    return frozenset(versions)


def _provisioned_versions(host: Host, name: str, cuda: str) -> Iterator[str]:
    """Yield the versions of a library that are provisioned for the major version of a toolkit."""
    for key in host.toolkits.provisioned:
        version = key.removeprefix(f"{name}-").rpartition("-cu")[0]
        if is_version(version) and key == library_key(name, version, cuda):
            yield version


def choose_magma(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str], arch_list: str
) -> ProvisionedMagma | None:
    """Return the provisioned MAGMA that a cell takes: the official version first; None for none.

    It is left out for the same reasons as other libraries: see `choose_libraries`.
    """
    cuda = constraints.cell.build.cuda
    if cuda is None or MAGMA not in _libraries_in_rules(constraints, "kept"):
        return None
    if _is_user_configured(MAGMA, settings) or visible_version(host, MAGMA, cuda) is not None:
        return None
    official = official_version(constraints, MAGMA)
    return best_magma(constraints.facts, host.toolkits.provisioned, cuda, arch_list, official)


def best_magma(
    facts: Facts, names: Iterable[str], cuda: str, arch_list: str, official: str | None
) -> ProvisionedMagma | None:
    """Return the provisioned MAGMA that serves a list: the official version, else the newest."""
    serving = [
        magma
        for magma in provisioned_magma(names, cuda)
        if not unserved_capabilities(facts, magma.code, arch_list)
    ]

    def preference(magma: ProvisionedMagma) -> tuple[bool, Version, str]:
        return magma.version == official, Version(magma.version), magma.name

    return max(serving, key=preference, default=None)
