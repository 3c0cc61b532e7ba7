"""Read packages/*.toml and releases/*.toml."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.model import Cuda, Edition, Package, Release, Rule
from torchmill.config.rules import is_within
from torchmill.config.toml_reader import TomlTable, read_toml, version_key


def read_package(path: Path, problems: list[str]) -> Package:
    """Read what is known of a package in all its releases."""
    file = read_toml(path, problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    found = file.read(
        Package,
        repository=file.text("repository", ""),
        checks=file.text("checks", "package"),
        tag=file.text("tag", "v{version}"),
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        rules=tuple(table.read(Rule, name=table.where) for table in file.tables("rule")),
        debian=debian.mapping("sources"),
        debian_fill=debian.mapping("fill"),
        smoke=_smoke(file),
        editions=tuple(_edition(table) for table in file.tables("release")),
    )
    debian.check_unknown_keys()
    if not found.repository and found.pypi is None:
        file.problem("neither 'repository' nor 'pypi' says where its source is")
    if found.editions and found.after is None:
        file.problem("it has [[release]], which pair with a release of 'after', but it has no 'after'")
    return found


def _smoke(file: TomlTable) -> tuple[str, ...]:
    """Take lines of Python, which need not be ones that this Python runs."""
    lines = file.texts("smoke", ())
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        file.problem(f"'smoke', line {error.lineno}: {error.msg}")
    return lines


def _edition(table: TomlTable) -> Edition:
    if "torch" not in table.data:
        table.problem("'torch' is missing: it says which releases it goes with, such as '>=2.2,<2.13'")
    return table.read(Edition, version=table.version("version"))


def read_releases(
    folder: Path, packages: Mapping[str, Package], problems: list[str]
) -> dict[str, tuple[Release, ...]]:
    """Read every release file: the base package's table first, its dependents after it."""
    found: dict[str, list[Release]] = {name: [] for name in packages}
    in_order = sorted(packages.values(), key=lambda package: package.after is not None)
    for path in sorted(folder.glob("*.toml")):
        file = read_toml(path, problems)
        base: Release | None = None
        for package in in_order:
            if package.name in file.data:
                release = _release(file.table(package.name), package, base)
                base = base or release
                found[package.name].append(release)
            file.requested.append(package.name)
        file.check_unknown_keys()
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
    editions = sorted(package.editions, key=lambda one: version_key(one.version), reverse=True)
    found = []
    for base in bases:
        edition = next((one for one in editions if is_within(one.torch, base.version)), None)
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
        pythons=tuple(one for one in base.pythons if is_within(edition.python, one.rstrip("t"))),
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


def _release(table: TomlTable, package: Package, base: Release | None) -> Release:
    version = table.version("version")
    cuda = table.table("cuda")
    if base is not None and not cuda.data:
        toolkits = {"cuda": base.cuda, "cuda_official": base.cuda_official, "cuda_pypi": base.cuda_pypi}
    else:
        toolkits = {
            "cuda": cuda.specifier("range"),
            "cuda_official": cuda.map("official", lambda inner, name: _cuda(inner.table(name))),
            "cuda_pypi": cuda.optional("pypi"),
        }
    cuda.check_unknown_keys()
    return table.read(
        Release,
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        pythons=table.texts("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        torch=base.version if base else None,
        built_from=_built_from(table),
        sha256=None,
        **toolkits,
    )


def _built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    return table.map("built_from", TomlTable.texts)


def _cuda(table: TomlTable) -> Cuda:
    lists = {"x86_64": table.optional("capabilities"), "aarch64": table.optional("capabilities_aarch64")}
    return table.read(Cuda, capabilities={arch: listed for arch, listed in lists.items() if listed})


def _by_version(release: Release) -> tuple[Version, Version]:
    return version_key(release.version), version_key(release.torch or "0")
