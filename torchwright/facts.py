"""Read build_configs/ into the model; every problem is collected and told at once."""

import os
from collections.abc import Mapping
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from torchwright.errors import ConfigError
from torchwright.model import Arch, Cuda, Facts, Package, Release, Rule, Toolkit, When
from torchwright.tables import Table, read


def _arches(path: Path, problems: list[str]) -> dict[str, Arch]:
    file = read(path, problems)
    arches = {}
    for name in list(file.data):
        table = file.table(name)
        arches[name] = Arch(name, table.text("system"), table.texts("machines"), table.text("platform_tag"))
        table.done()
    return arches


def variant_of(cuda: str) -> str:
    """Return the variant that stands for a toolkit: "11.8" -> "cu118"."""
    return "cu" + cuda.replace(".", "")


def _toolkits(path: Path, problems: list[str]) -> tuple[Toolkit, ...]:
    file = read(path, problems)
    toolkits = []
    for version in list(file.data):
        table = file.table(version)
        gcc = table.specifier("gcc") or SpecifierSet()
        toolkits.append(
            Toolkit(
                version,
                variant_of(version),
                table.texts("arches"),
                gcc,
                table.text("lowest"),
                table.text("source"),
            )
        )
        table.done()
    return tuple(sorted(toolkits, key=lambda toolkit: Version(toolkit.version)))


def _when(table: Table) -> When:
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
    )
    table.done()
    return when


def _rule(table: Table) -> Rule:
    packages = table.table("system_packages")
    rule = Rule(
        name=table.where,
        when=_when(table.table("when")),
        reason=table.text("reason"),
        source=table.text("source", ""),
        conflict=table.flag("conflict"),
        set=table.mapping("set"),
        requires=table.texts("requires", ()),
        patches=table.texts("patches", ()),
        prepare=tuple(tuple(map(str, argv)) for argv in table.take("prepare", [])),
        system_packages={manager: packages.texts(manager) for manager in list(packages.data)},
        front_end=table.optional("front_end"),
    )
    table.done()
    return rule


def _package(path: Path, problems: list[str]) -> Package:
    file = read(path, problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    rules = file.take("rule", [])
    package = Package(
        name=file.text("name"),
        session=file.text("session"),
        repository=file.text("repository"),
        import_name=file.text("import_name"),
        checks=file.text("checks"),
        after=file.optional("after"),
        tag=file.text("tag"),
        version_variables=file.mapping("version_variables"),
        unset=file.texts("unset"),
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        memory_per_job=file.size("memory_per_job"),
        disk=file.size("disk"),
        rules=tuple(
            _rule(Table(f"{path.name}: rule {number}", rule, problems))
            for number, rule in enumerate(rules, 1)
        ),
        debian=debian.mapping("sources"),
        debian_fill=debian.mapping("fill"),
    )
    debian.done()
    file.done()
    return package


def _cuda(table: Table, base: Release | None) -> tuple[SpecifierSet | None, dict[str, Cuda]]:
    if not table.data:
        return (base.cuda, dict(base.cuda_official)) if base else (None, {})
    official = table.table("official")
    facts = {}
    for version in list(official.data):
        one = official.table(version)
        facts[version] = Cuda(one.optional("cudnn"), one.optional("capabilities"))
        one.done()
    versions = table.specifier("range")
    table.done()
    return versions, facts


def _release(table: Table, package: Package, base: Release | None) -> Release:
    version = table.text("version")
    try:
        Version(version)
    except InvalidVersion:
        table.problem(f"'{version}' is no version")
    cuda, official = _cuda(table.table("cuda"), base)
    release = Release(
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        commit=table.optional("commit"),
        pythons=table.texts("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        cuda=cuda,
        cuda_official=official,
        torch=base.version if base else None,
        wheel_tag=table.optional("wheel_tag"),
        source=table.text("source"),
    )
    table.done()
    return release


def _releases(
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
    return {name: tuple(sorted(all_, key=_by_version)) for name, all_ in found.items()}


def _by_version(release: Release) -> Version:
    try:
        return Version(release.version)
    except InvalidVersion:
        return Version("0")


def _cross_check(facts: Facts, problems: list[str]) -> None:
    """Note what no single file can know: names that lead nowhere."""
    for releases in facts.releases.values():
        for release in releases:
            problems.extend(
                f"{release.package} {release.version}: unknown arch '{arch}'; arches.toml has "
                f"{', '.join(facts.arches)}"
                for arch in release.arches
                if arch not in facts.arches
            )
    for package in facts.packages.values():
        for rule in package.rules:
            problems.extend(
                f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"
                for patch in rule.patches
                if not (facts.patches / package.name / patch).is_file()
            )


def chosen(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHWRIGHT_CONFIGS names instead.

    Raises ConfigError as `load` does.
    """
    return load(Path(os.environ.get("TORCHWRIGHT_CONFIGS", root / "build_configs")))


def load(folder: Path) -> Facts:
    """Read the facts in `folder`.

    Raises ConfigError with one line for each problem found.
    """
    problems: list[str] = []
    arches = _arches(folder / "arches.toml", problems)
    toolkits = _toolkits(folder / "toolkits.toml", problems)
    files = sorted((folder / "packages").glob("*.toml"))
    packages = {package.name: package for package in (_package(path, problems) for path in files)}
    if not packages:
        problems.append(f"{folder}: there is no packages/*.toml in it")
    releases = _releases(folder / "releases", packages, problems)
    facts = Facts(packages, releases, toolkits, arches, folder / "patches")
    _cross_check(facts, problems)
    if problems:
        raise ConfigError("build_configs has problems:\n" + "\n".join(f"  {line}" for line in problems))
    return facts
