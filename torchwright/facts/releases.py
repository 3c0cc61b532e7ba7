"""Read releases/*.toml: what is true of one release of each package."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torchwright.model import Cuda, Package, Release
from torchwright.tables import Table, read


def releases(
    folder: Path, packages: Mapping[str, Package], problems: list[str]
) -> dict[str, tuple[Release, ...]]:
    """Read every release file: the base package's table first, its dependents after it."""
    found: dict[str, list[Release]] = {name: [] for name in packages}
    in_order = sorted(packages.values(), key=lambda package: package.after is not None)
    for path in sorted(folder.glob("*.toml")):
        file = read(path, problems)
        base: Release | None = None
        for package in in_order:
            if package.name in file.data:
                release = _release(file.table(package.name), package, base)
                base = base or release
                found[package.name].append(release)
            file.asked.append(package.name)
        file.done()
    return {name: _completed(sorted(all_, key=_by_version)) for name, all_ in found.items()}


def _completed(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return the releases of a package; one that pairs with several torch is described where it is first."""
    found: dict[str, Release] = {}
    completed = []
    for release in releases:
        first = found.setdefault(release.version, release)
        completed.append(
            replace(
                release,
                date=release.date or first.date,
                commit=release.commit or first.commit,
                built_from=release.built_from or first.built_from,
                wheels=release.wheels or first.wheels,
                explained=release.explained or first.explained,
            )
        )
    return tuple(completed)


def _release(table: Table, package: Package, base: Release | None) -> Release:
    version = table.text("version")
    try:
        Version(version)
    except InvalidVersion:
        table.problem(f"'{version}' is no version")
    cuda = table.table("cuda")
    inherits = base is not None and not cuda.data
    official = cuda.table("official")
    wheels = table.table("wheels")
    release = Release(
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        commit=table.optional("commit"),
        pythons=table.texts("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        cuda=base.cuda if inherits and base else cuda.specifier("range"),
        cuda_official={name: _cuda(official.table(name)) for name in list(official.data)},
        torch=base.version if base else None,
        wheel_tag=table.optional("wheel_tag"),
        source=table.text("source"),
        date=table.optional("date"),
        wheels={tag: wheels.texts(tag) for tag in list(wheels.data)},
        glibc=table.optional("glibc"),
        cuda_pypi=cuda.optional("pypi"),
        sizes=table.counts("sizes"),
        partners=table.mapping("partners"),
        built_from=_built_from(table),
        explained=table.mapping("explained"),
    )
    if base is not None and inherits:
        release = replace(release, cuda_official=base.cuda_official, cuda_pypi=base.cuda_pypi)
    for one in (cuda, table):
        one.done()
    return release


def _built_from(table: Table) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    commits = table.table("built_from")
    return {commit: commits.texts(commit) for commit in list(commits.data)}


def _cuda(table: Table) -> Cuda:
    lists = {"x86_64": table.optional("capabilities"), "aarch64": table.optional("capabilities_aarch64")}
    found = Cuda(
        cudnn=table.optional("cudnn"),
        nccl=table.optional("nccl"),
        magma=table.optional("magma"),
        capabilities={arch: listed for arch, listed in lists.items() if listed},
        requires=table.texts("requires", ()),
    )
    table.done()
    return found


def _by_version(release: Release) -> tuple[Version, Version]:
    try:
        return Version(release.version), Version(release.torch or "0")
    except InvalidVersion:
        return Version("0"), Version("0")
