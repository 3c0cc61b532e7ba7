"""Read packages/*.toml and releases/*.toml."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from torchmill.config.model import Cuda, Edition, Package, Release, Rule, When
from torchmill.config.rules import is_within
from torchmill.config.toml_reader import TomlTable, read_toml


def read_package(path: Path, problems: list[str]) -> Package:
    """Read what is known of a package in all its releases."""
    file = read_toml(path, problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    found = Package(
        name=file.text("name"),
        session=file.text("session"),
        repository=file.text("repository", ""),
        import_name=file.text("import_name"),
        checks=file.text("checks", "package"),
        after=file.optional("after"),
        tag=file.text("tag", "v{version}"),
        version_variables=file.mapping("version_variables"),
        unset=file.texts("unset"),
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        memory_per_job=file.size("memory_per_job"),
        disk=file.size("disk"),
        rules=tuple(_rule(table) for table in file.tables("rule")),
        kit=file.texts("kit", ()),
        compilers=file.choice("compilers", ("cmake", "path"), "cmake"),
        debian=debian.mapping("sources"),
        debian_fill=debian.mapping("fill"),
        pypi=file.optional("pypi"),
        smoke=_smoke(file),
        editions=tuple(_edition(table) for table in file.tables("release")),
    )
    debian.check_unknown_keys()
    file.check_unknown_keys()
    if not found.repository and found.pypi is None:
        file.problem("neither 'repository' nor 'pypi' says where its source is")
    if found.editions and found.after is None:
        file.problem("it has [[release]], which pair with a release of 'after', and there is no 'after'")
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
    edition = Edition(
        version=table.version("version"),
        torch=_bounds(table, "torch"),
        source=table.text("source"),
        python=table.specifier("python"),
        arches=table.texts("arches", ()),
        cuda=table.specifier("cuda"),
        commit=table.optional("commit"),
        sha256=table.optional("sha256"),
        date=table.optional("date"),
    )
    table.check_unknown_keys()
    return edition


def _bounds(table: TomlTable, key: str) -> SpecifierSet:
    """Take a specifier that must be there."""
    if key not in table.data:
        table.problem(f"'{key}' is missing: it says which releases it goes with, such as '>=2.2,<2.13'")
    return table.specifier(key) or SpecifierSet()


def _rule(table: TomlTable) -> Rule:
    packages = table.table("system_packages")
    rule = Rule(
        name=table.where,
        when=_when(table.table("when")),
        reason=table.text("reason"),
        source=table.text("source", ""),
        conflict=table.flag("conflict"),
        set=table.mapping("set"),
        append=table.mapping("append"),
        requires=table.texts("requires", ()),
        patches=table.texts("patches", ()),
        prepare=tuple(tuple(map(str, argv)) for argv in table.take("prepare", [])),
        system_packages={manager: packages.texts(manager) for manager in list(packages.data)},
        front_end=table.optional("front_end"),
        needs=table.specifiers("needs"),
        advises=table.specifiers("advises"),
        cxx=table.count("cxx"),
    )
    table.check_unknown_keys()
    return rule


def _when(table: TomlTable) -> When:
    def names(key: str) -> tuple[str, ...] | None:
        return table.texts(key, ()) or None

    if not table.data:
        return When()
    when = When(
        release=table.specifier("release"),
        python=table.specifier("python"),
        cuda=table.specifier("cuda"),
        variant=names("variant"),
        arch=names("arch"),
        system=names("system"),
        provider=names("provider"),
        gcc=table.specifier("gcc"),
        clang=table.specifier("clang"),
        kept=names("kept"),
        lacking=names("lacking"),
        another_toolkit=table.flag("another_toolkit"),
    )
    table.check_unknown_keys()
    return when


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
    editions = sorted(package.editions, key=lambda one: _number(one.version), reverse=True)
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
        one.check_unknown_keys()
    return release


def _built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    commits = table.table("built_from")
    return {commit: commits.texts(commit) for commit in list(commits.data)}


def _cuda(table: TomlTable) -> Cuda:
    lists = {"x86_64": table.optional("capabilities"), "aarch64": table.optional("capabilities_aarch64")}
    found = Cuda(
        cudnn=table.optional("cudnn"),
        nccl=table.optional("nccl"),
        magma=table.optional("magma"),
        capabilities={arch: listed for arch, listed in lists.items() if listed},
        requires=table.texts("requires", ()),
    )
    table.check_unknown_keys()
    return found


def _by_version(release: Release) -> tuple[Version, Version]:
    return _number(release.version), _number(release.torch or "0")


def _number(text: str) -> Version:
    """Return a version to order by; what is none was told, and stands first."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
