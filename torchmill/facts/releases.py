"""Read releases/*.toml: what is true of one release of each package."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torchmill.model import Cuda, Edition, Package, Release
from torchmill.rules import within
from torchmill.tables import Table, read


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
    for package in packages.values():
        if package.editions and package.after in found:
            found[package.name] += _declared(package, found[package.name], found[package.after], problems)
    return {name: _completed(sorted(all_, key=_by_version)) for name, all_ in found.items()}


def _declared(
    package: Package, listed: Iterable[Release], bases: Iterable[Release], problems: list[str]
) -> list[Release]:
    """Return what a package's own file declares: with each torch goes the newest release that takes it."""
    where = f"{package.name}.toml"
    problems.extend(f"{where}: {one} stands in releases/ too; say it in one place" for one in listed)
    editions = sorted(package.editions, key=lambda one: _number(one.version), reverse=True)
    found = []
    for base in bases:
        edition = next((one for one in editions if within(one.torch, base.version)), None)
        if edition is not None:
            found.append(_of_edition(package, edition, base))
    used = {release.version for release in found}
    problems.extend(
        f"{where}: release {one.version}: {package.after} '{one.torch}' leaves it no release of "
        f"{package.after} that goes with no newer one"
        for one in editions
        if one.version not in used
    )
    return found


def _of_edition(package: Package, edition: Edition, base: Release) -> Release:
    return Release(
        package=package.name,
        version=edition.version,
        tag=package.tag.format(version=edition.version),
        commit=edition.commit,
        pythons=tuple(one for one in base.pythons if within(edition.python, one.rstrip("t"))),
        arches=tuple(one for one in base.arches if one in (edition.arches or base.arches)),
        cuda=base.cuda if edition.cuda is None else edition.cuda,
        cuda_official=base.cuda_official,
        torch=base.version,
        wheel_tag=None,
        source=edition.source,
        date=edition.date,
        cuda_pypi=base.cuda_pypi,
        sha256=edition.sha256,
    )


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
    version = table.version("version")
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
    return _number(release.version), _number(release.torch or "0")


def _number(text: str) -> Version:
    """Return a version to order by; what is none was told, and stands first."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
