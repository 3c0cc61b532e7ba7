"""Which cuDNN, NCCL, cuSPARSELt, NVSHMEM and MAGMA a build uses.

A library may be the machine's: it is in the toolkit, or in the folders of the system. Or it is
provisioned: `invoke toolkit` fetched it into the user's cache. Rules of a package say which
libraries can be provisioned (their condition `provisioned_libraries`), and what changes if a
machine does not have a library (their condition `absent_libraries`). A rule "provides for" a
library that it names in a condition.

Official is what PyTorch's own wheels have. `CellConstraints` are a cell and the demands of all
rules on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.arch_list import listed_capabilities
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.served_gpus import unserved_by_cudnn, unserved_capabilities
from torchmill.config.versions import is_version
from torchmill.host.host import Host
from torchmill.host.provisioned import MAGMA, ProvisionedMagma, provisioned_magma
from torchmill.plan.build_options import SWITCHED_OFF
from torchmill.plan.plan import Plan
from torchmill.plan.providers import board_kind
from torchmill.plan.rules import CellConstraints, axis_conditions, make_case, rule_matches

# torch has the source of these libraries and compiles it, unless the user asks for a version that
# the machine has.
_COMPILED_WITH_TORCH = frozenset({"nccl"})
# Since this release, the aarch64 wheels on PyPI have CUDA and require NVIDIA's packages, as those
# for x86_64 do.
_REQUIRED_ON_ARM = Version("2.11")
# NVSHMEM is for GPUs of data centres, and a Jetson has one GPU:
# https://docs.nvidia.com/nvshmem/release-notes-install-guide/install-guide/abstract.html
_NOT_FOR_BOARDS = frozenset({"nvshmem"})
# A wheel that was compiled without these libraries does not load them, and needs no package of
# them.
_OPTIONAL = ("cusparselt", "nvshmem")


def official_version(constraints: CellConstraints, name: str) -> str | None:
    """Return the version of a library in the official build that is nearest to a cell.

    That is the official build of the cell's release with the cell's toolkit. If there is none, it
    is that with the nearest toolkit of the same major version. If there is none, either, an older
    release counts, and at last an older toolkit (`_nearest_toolkit`). None if no version is known.
    """
    toolkit = Version(constraints.cell.build.cuda or "0")
    release = _release_with_toolkit(constraints, toolkit.major)
    versions: dict[Version, str] = {}
    for cuda, official in release.cuda.official.items():
        version = getattr(official, name)
        if version:
            versions[Version(cuda)] = version
    nearest = _nearest_toolkit(sorted(versions), toolkit)
    return versions[nearest] if nearest else None


def _release_with_toolkit(constraints: CellConstraints, major: int) -> Release:
    """Return the newest release, up to the cell's, with official builds for a major CUDA version.

    If there is none, return the cell's release.
    """
    cell_release = constraints.cell.release
    releases = constraints.facts.releases[cell_release.package]
    candidates = [cell_release]
    if cell_release in releases:
        older = releases[: releases.index(cell_release)]
        candidates.extend(reversed(older))
    for release in candidates:
        if any(Version(cuda).major == major for cuda in release.cuda.official):
            return release
    return cell_release


def _nearest_toolkit(toolkits: Sequence[Version], toolkit: Version) -> Version | None:
    """Return the version in `toolkits`, oldest first, that is nearest to `toolkit`.

    If some are of the same major version, that is the newest of them that is not newer than
    `toolkit`, else the oldest of them. Otherwise it is the newest that is older than `toolkit`;
    None if all are newer.
    """
    same_major = [version for version in toolkits if version.major == toolkit.major]
    candidates = same_major or toolkits
    not_newer = [version for version in candidates if version <= toolkit]
    if not_newer:
        return not_newer[-1]
    return same_major[0] if same_major else None


def choose_libraries(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str], arch_list: str
) -> dict[str, str]:
    """Return the libraries that a cell takes from the user's cache, with their versions.

    They need not be in the cache yet: a plan tells which to fetch. A library is left out if the
    user's settings configure it, if the machine has a version that fits, or if no rule provides for
    it. A Jetson whose CUDA is its own takes none: providers have those of Arm servers. `arch_list`
    has the cell's compute capabilities; "" if they are left to the build.
    """
    board = board_kind(host)
    if board == "own-cuda":
        return {}
    libraries: dict[str, str] = {}
    for name in _libraries_in_rules(constraints, "provisioned_libraries"):
        if board and name in _NOT_FOR_BOARDS:
            continue
        # Which MAGMA fits depends on its code for GPUs: see choose_magma.
        if name == MAGMA or _is_user_configured(name, settings):
            continue
        if _machine_serves(constraints, host, name):
            continue
        version = _version_to_provision(constraints, host, name, arch_list)
        if version is not None:
            libraries[name] = version
    return libraries


def required_nvidia_packages(
    constraints: CellConstraints, libraries: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the packages of NVIDIA that a wheel requires, as the official wheel does.

    () if the official wheel has another toolkit, machine, or version of cuDNN or NCCL, or if there
    is none: then the built wheel contains the libraries. `libraries` are the provisioned libraries,
    with their versions. The packages of cuSPARSELt and NVSHMEM are left out unless they are among
    these.
    """
    build = constraints.cell.build
    release = constraints.cell.release
    official = release.cuda.official.get(build.cuda or "")
    if official is None:
        return ()
    if build.arch == "aarch64":
        if Version(release.torch_version) < _REQUIRED_ON_ARM:
            return ()
    elif build.arch != "x86_64":
        return ()
    for text in official.requires:
        requirement = Requirement(text)
        for library in ("cudnn", "nccl"):
            if not requirement.name.startswith(f"nvidia-{library}-"):
                continue
            # The package must be of the version that the wheel is compiled with.
            version = libraries.get(library)
            if version is None or str(requirement.specifier) != f"=={version}":
                return ()
    unused = tuple(f"nvidia-{library}-" for library in _OPTIONAL if library not in libraries)
    return tuple(text for text in official.requires if not text.startswith(unused))


def lacking_libraries(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str]
) -> frozenset[str]:
    """Return the libraries that a machine lacks and that rules name in their condition `absent_libraries`.

    A library that the user's settings configure is left out. If a host is known only in part, the
    result is empty: a library that its description does not name may still be there.
    """
    if not host.complete:
        return frozenset()
    cuda = constraints.cell.build.cuda
    toolkit_parts = {part.name for part in constraints.facts.toolkit_parts}
    absent_libraries: set[str] = set()
    for name in _libraries_in_rules(constraints, "absent_libraries"):
        # A toolkit that is not installed will be fetched, with all its parts.
        if name in toolkit_parts and cuda not in host.toolkits.homes:
            continue
        if _is_user_configured(name, settings):
            continue
        if visible_version(host, name, cuda) is None:
            absent_libraries.add(name)
    return frozenset(absent_libraries)


def visible_version(host: Host, name: str, cuda: str | None) -> str | None:
    """Return the version of a library that a build finds: in the toolkit, then in the system.

    It is "" if the library does not tell its version, None if the machine has no such library.
    """
    # "cudnn@12.1" is in the folder of that toolkit, "cudnn" in those of the system.
    for key in (f"{name}@{cuda}", name):
        if key in host.toolkits.libraries:
            return host.toolkits.libraries[key]
    return None


def used_cudnn(plan: Plan, host: Host) -> str | None:
    """Return the version of cuDNN that a build on a host uses; None without it, or if unknown."""
    switch = plan.variables.get("USE_CUDNN", "").upper()
    if plan.build.cuda is None or switch in SWITCHED_OFF:
        return None
    provisioned = plan.cuda.libraries.get("cudnn")
    return provisioned or visible_version(host, "cudnn", plan.cuda.toolkit) or None


def _is_user_configured(name: str, settings: Mapping[str, str]) -> bool:
    """Tell whether a user's settings configure a library: USE_SYSTEM_NCCL, NCCL_ROOT."""
    word = name.upper()
    for variable, value in settings.items():
        # Provisioned libraries are shared, so USE_STATIC_CUDNN=0 does not speak against them.
        if variable == f"USE_STATIC_{word}" and value.upper() in SWITCHED_OFF:
            continue
        if variable.startswith(f"{word}_") or variable.endswith(f"_{word}"):
            return True
    return False


def library_key(name: str, version: str, cuda: str) -> str:
    """Return the name under which a library is provisioned: "cudnn-8.5.0.96-cu11"."""
    return f"{name}-{version}-cu{Version(cuda).major}"


def _libraries_in_rules(constraints: CellConstraints, condition: str) -> list[str]:
    """Return the libraries that a cell's rules name in a condition, sorted.

    Only rules for the cell's release, Python, toolkit and machine count. Their other conditions are
    not tested: they depend on the libraries, which are yet to be chosen. A cell without CUDA has no
    such libraries.
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


def _machine_serves(constraints: CellConstraints, host: Host, name: str) -> bool:
    """Tell whether the machine has a version of a library that a build uses.

    False for a library that torch compiles from its own source, whatever the machine has.
    """
    version = visible_version(host, name, constraints.cell.build.cuda)
    if version is None or name in _COMPILED_WITH_TORCH:
        return False
    if not version:
        return True  # a library that does not tell its version is taken to fit
    needs = constraints.needs(name, compiler=None)
    if needs.bounds:
        return needs.allows(version)
    return _has_official_major(constraints, name, version)


def _has_official_major(constraints: CellConstraints, name: str, version: str) -> bool:
    """Tell whether a library's major version is that in the official build, if that is known."""
    official = official_version(constraints, name)
    return official is None or Version(version).major == Version(official).major


def _version_to_provision(
    constraints: CellConstraints, host: Host, name: str, arch_list: str
) -> str | None:
    """Return the version of a library to take from the user's cache, or to fetch into it.

    A version fits if it has the official major version, if rules allow it, and if it has code for
    all GPUs of `arch_list`. The result is

    - the official version, if it can be had and has code for all GPUs
    - else the nearest version that fits, the next newer one or else the newest: of those in the
      cache, or if none of them fits, of those that providers offer
    - else the official version all the same, so that the doctor reports its absence

    None if no provider has the library for the cell's toolkit, if the facts do not tell the
    official version, or if torch has the library's source and the official version cannot be had.
    """
    cuda = str(constraints.cell.build.cuda)
    official = official_version(constraints, name)
    offered = _offered_versions(constraints, name)
    if official is None or offered is None:
        return None
    # Code for GPUs is recorded of cuDNN alone.
    capabilities = listed_capabilities(constraints.facts, arch_list) if name == "cudnn" else ()
    is_provisioned = library_key(name, official, cuda) in host.toolkits.provisioned
    is_available = official in offered or is_provisioned
    if is_available and not unserved_by_cudnn(official, capabilities):
        return official
    if name in _COMPILED_WITH_TORCH:
        return None
    needs = constraints.needs(name, compiler=None)
    for versions in (_provisioned_versions(host, name, cuda), offered):
        fitting: list[str] = []
        for version in versions:
            if not _has_official_major(constraints, name, version):
                continue
            if needs.allows(version) and not unserved_by_cudnn(version, capabilities):
                fitting.append(version)
        newer = [version for version in fitting if Version(version) >= Version(official)]
        if newer:
            return min(newer, key=Version)
        if fitting:
            return max(fitting, key=Version)
    return official


def _offered_versions(constraints: CellConstraints, name: str) -> frozenset[str] | None:
    """Return the versions of a library that providers offer for a cell's toolkit and machine.

    None if no provider has the library for them.
    """
    build = constraints.cell.build
    major = str(Version(build.cuda or "0").major)
    versions: set[str] = set()
    has_provider = False
    for source in constraints.facts.toolkit_sources:
        is_for_build = build.arch in source.arches and source.cuda in {None, major}
        if source.kind == name and is_for_build:
            has_provider = True
            versions.update(source.versions)
    return frozenset(versions) if has_provider else None


def _provisioned_versions(host: Host, name: str, cuda: str) -> Iterator[str]:
    """Yield the versions of a library that are provisioned for the major version of a toolkit."""
    for key in host.toolkits.provisioned:
        version = key.removeprefix(f"{name}-").rpartition("-cu")[0]
        if is_version(version) and key == library_key(name, version, cuda):
            yield version


def choose_magma(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str], arch_list: str
) -> ProvisionedMagma | None:
    """Return the MAGMA in the user's cache that a cell takes, with code for its GPUs.

    None if the cache has none, if the user's settings configure it, if the machine has a MAGMA, or
    if no rule provides for it.
    """
    cuda = constraints.cell.build.cuda
    if cuda is None or MAGMA not in _libraries_in_rules(constraints, "provisioned_libraries"):
        return None
    if _is_user_configured(MAGMA, settings) or visible_version(host, MAGMA, cuda) is not None:
        return None
    official = official_version(constraints, MAGMA)
    return best_magma(constraints.facts, host.toolkits.provisioned, cuda, arch_list, official)


def best_magma(
    facts: Facts, names: Iterable[str], cuda: str, arch_list: str, official: str | None
) -> ProvisionedMagma | None:
    """Return the MAGMA with code for all GPUs of a list: the `official` version, else the newest.

    `names` are the names of folders in the user's cache, "magma-2.6.1-cu118-7.0_8.6+PTX". None if
    no MAGMA has that code.
    """
    serving: list[ProvisionedMagma] = []
    for magma in provisioned_magma(names, cuda):
        if not unserved_capabilities(facts, magma.code, arch_list):
            serving.append(magma)

    def preference(magma: ProvisionedMagma) -> tuple[bool, Version, str]:
        return magma.version == official, Version(magma.version), magma.name

    return max(serving, key=preference, default=None)
