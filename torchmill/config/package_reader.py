"""Read packages and releases; a file with mistakes is left out, and does not stop the others."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.build import CPU
from torchmill.config.facts import BrokenFile
from torchmill.config.package import Edition, Package
from torchmill.config.release import Cuda, Release
from torchmill.config.rule import Rule
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_version, is_within, version_key
from torchmill.core.stat_cache import StatCache

# Fields of a release that goes with several torch: the first one's count for all.
_WRITTEN_ONCE = ("date", "commit", "built_from", "wheels", "explained")
# Of a file or a folder, on every system. Facts may come from anybody, and must not name "../x".
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclass(frozen=True)
class PackagesAndReleases:
    """The packages and releases that can be used, and the files that are left out."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    left_out: tuple[BrokenFile, ...]


@dataclass
class _PackageFile:
    """A file below packages/, and the problems in it."""

    name: str  # "torchvision.toml"
    package: Package
    problems: list[str] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return self.name.removesuffix(".toml")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that mean this package; for an unreadable file, the file's own."""
        names = (self.package.name, self.package.session, self.stem)
        return tuple(dict.fromkeys(name for name in names if name))


def read_packages_and_releases(
    folder: Path,
    arches: Collection[str],
    toolkits: Iterable[Toolkit],
    cache: StatCache | None,
) -> PackagesAndReleases:
    """Read packages/*.toml and releases/*.toml below `folder`.

    A file with a mistake is left out, and with a package those that are built on it.
    """
    files = _read_package_files(folder, cache)
    variants = {CPU, *(toolkit.variant for toolkit in toolkits)}
    tried_keys = set(variants)
    for arch in arches:
        tried_keys.update(f"{variant}-{arch}" for variant in variants)
    reader = _ReleaseReader(files, arches, tried_keys, cache)
    broken_releases = reader.read_files(folder / "releases")
    releases = reader.releases
    for file in files:
        package = file.package
        if not package.name or not package.editions or package.after not in releases:
            continue
        bases = releases[package.after]
        declared, problems = _pair_editions(package, releases[package.name], bases)
        releases[package.name].extend(declared)
        for release in declared:
            file.problems.extend(reader.unknown_machines(release))
        # If releases are left out, one of them may be the torch of an edition that has none.
        if not broken_releases:
            file.problems.extend(problems)
    broken_packages = _blame_dependents(files)
    for package_releases in releases.values():
        package_releases.sort(key=_release_key)
    usable = {file.package.name: file.package for file in files if not file.problems}
    return PackagesAndReleases(
        packages=usable,
        releases={name: _complete_releases(releases[name]) for name in usable},
        left_out=(*broken_packages, *broken_releases),
    )


def _release_key(release: Release) -> tuple[Version, Version]:
    return version_key(release.version), version_key(release.torch or "0")


# Packages


def _read_package_files(folder: Path, cache: StatCache | None) -> list[_PackageFile]:
    """Read every package, and note the problems of each, also with the names of others."""
    files: list[_PackageFile] = []
    for path in sorted((folder / "packages").glob("*.toml")):
        problems: list[str] = []
        package = read_package(path, problems, cache)
        files.append(_PackageFile(path.name, package, problems))
    names = [file.package.name for file in files]
    for file in files:
        if not file.package.name:
            continue
        file.problems.extend(_unknown_names(file.package, names))
        file.problems.extend(_absent_patches(file.package, folder / "patches"))
        for other in files:
            if _takes_session(file.package, other.package):
                file.problems.append(
                    f"{file.name}: 'session' is '{file.package.session}', "
                    f"which is that of {other.package.name}"
                )
    return files


def read_package(path: Path, problems: list[str], cache: StatCache | None) -> Package:
    """Read the facts about a package; `problems`, still empty, takes a line for each mistake."""
    file = read_toml(path, problems, cache=cache)
    unreadable = bool(problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    package = file.read(
        Package,
        tag=file.template("tag", ("version",), "v{version}"),
        # Without releases no version is in bounds, and so the spelling is never used.
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        rules=tuple(table.read(Rule, name=table.place) for table in file.tables("rule")),
        debian=debian.map("sources", TomlTable.text),
        debian_fill=debian.map("fill", lambda fill, suite: fill.map(suite, TomlTable.text)),
        editions=tuple(_read_edition(table) for table in file.tables("release")),
    )
    debian.check_unknown_keys()
    _check_names(file, package)
    _check_python(file, "smoke", package.smoke)
    _check_python(file, "gpu_smoke", package.gpu_smoke)
    if not package.repository and package.pypi is None:
        file.problem("neither 'repository' nor 'pypi' says where its source is")
    if package.editions and package.after is None:
        file.problem(
            "it has [[release]], which pair with a release of 'after', but it has no 'after'"
        )
    if unreadable:
        # Every key of such a file is missing, which is no news.
        del problems[1:]
    return package


def _read_edition(table: TomlTable) -> Edition:
    if "torch" not in table.data:
        table.problem(
            "'torch' is missing: it says which releases it goes with, such as '>=2.2,<2.13'"
        )
    return table.read(Edition, version=table.version("version"))


def _check_names(file: TomlTable, package: Package) -> None:
    """Complain about names of a package that cannot be those of files and folders."""
    names = {
        "name": package.name,
        "session": package.session,
        "import_name": package.import_name,
        "tag": package.tag.replace("{version}", "1.0"),
        "checks": package.checks,
    }
    for key, name in names.items():
        if name and not _PLAIN_NAME.fullmatch(name):
            file.problem(
                f"'{key}' is '{name}', which cannot name a folder: use letters, digits and . _ + -"
            )
    for rule in package.rules:
        for patch in rule.patches:
            if not all(_PLAIN_NAME.fullmatch(part) for part in patch.split("/")):
                file.problem(
                    f"patch '{patch}' cannot be a file in patches/{package.name}/: "
                    "use letters, digits and . _ + -"
                )


def _check_python(file: TomlTable, key: str, lines: Iterable[str]) -> None:
    """Complain about lines that are not Python; they are only parsed here."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        file.problem(f"{key!r}, line {error.lineno}: {error.msg}")


def _takes_session(package: Package, other: Package) -> bool:
    """Tell whether a package claims the session of another.

    The package that all others are built against keeps its own: without it nothing could be built.
    """
    if package.name == other.name or package.session != other.session:
        return False
    return package.after is not None


def _unknown_names(package: Package, names: Collection[str]) -> Iterator[str]:
    """Yield a line for each package that another names and that no file describes."""
    after = [package.after] if package.after else []
    for key, dependencies in (("after", after), ("imports", package.imports)):
        for name in dependencies:
            if name not in names:
                choices = ", ".join(names)
                yield f"{package.name}.toml: '{key}' names '{name}'; packages/ has {choices}"


def _absent_patches(package: Package, patches: Path) -> Iterator[str]:
    for rule in package.rules:
        for patch in rule.patches:
            if not (patches / package.name / patch).is_file():
                yield f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"


def _blame_dependents(files: Iterable[_PackageFile]) -> list[BrokenFile]:
    """Return the files with mistakes, and those of packages that are built on theirs."""
    broken: dict[str, BrokenFile] = {}
    while True:
        further = [file for file in files if file.problems and file.name not in broken]
        if not further:
            return list(broken.values())
        missing: set[str] = set()
        for file in further:
            name = f"packages/{file.name}"
            broken[file.name] = BrokenFile(name, file.names, tuple(file.problems))
            missing.update(file.names)
        for file in files:
            needed = {file.package.after, *file.package.imports} & missing
            if needed and not file.problems:
                names = ", ".join(sorted(name for name in needed if name))
                file.problems.append(f"{file.name}: it is built on {names}, which is left out")


# Releases


class _ReleaseReader:
    """Reads files of releases into `releases`, those of each package in the order of the files."""

    def __init__(
        self,
        files: Iterable[_PackageFile],
        arches: Collection[str],
        tried_keys: Collection[str],
        cache: StatCache | None,
    ) -> None:
        self.releases: dict[str, list[Release]] = {file.package.name: [] for file in files}
        # The base package first, because its table has values for its dependents. A dependent
        # whose file forgets `after` looks like the base, so packages with mistakes come last.
        self._packages = sorted(
            files, key=lambda file: (file.package.after is not None, bool(file.problems))
        )
        self._arches = arches
        self._tried_keys = tried_keys  # of the table `tried`: "cu118", "cu118-aarch64"
        self._cache = cache

    def read_files(self, folder: Path) -> list[BrokenFile]:
        """Take the releases of all files in a folder; return those that have mistakes instead."""
        broken: list[BrokenFile] = []
        for path in sorted(folder.glob("*.toml")):
            problems: list[str] = []
            releases = self._read_file(path, problems)
            if problems:
                names = (path.stem, f"v{path.stem}", *(release.tag for release in releases))
                broken.append(BrokenFile(f"releases/{path.name}", names, tuple(problems)))
                continue
            for release in releases:
                self.releases[release.package].append(release)
        return broken

    def _read_file(self, path: Path, problems: list[str]) -> list[Release]:
        table = read_toml(path, problems, cache=self._cache)
        releases: list[Release] = []
        for file in self._packages:
            name = file.package.name
            if not name:
                # The package's file cannot be read, so its releases cannot be checked.
                table.data.pop(file.stem, None)
                continue
            if name in table.data:
                base = releases[0] if releases else None
                releases.append(_read_release(table.table(name), file.package, base))
            table.requested.append(name)
        table.check_unknown_keys()
        for release in releases:
            problems.extend(self.unknown_machines(release))
        return releases

    def unknown_machines(self, release: Release) -> Iterator[str]:
        """Yield a line for each arch or variant of a release that no file describes."""
        for arch in release.arches:
            if arch not in self._arches:
                choices = ", ".join(self._arches)
                yield f"{release}: unknown arch '{arch}'; arches.toml has {choices}"
        for key in release.tried:
            if key not in self._tried_keys:
                yield (
                    f"{release}: 'tried' names '{key}', expected a variant, "
                    "as in 'cu118' or 'cu118-aarch64'"
                )


def _read_release(table: TomlTable, package: Package, base: Release | None) -> Release:
    """Read a release; keys that it lacks are taken from its base release, if it has one."""
    version = table.version("version")
    return table.read(
        Release,
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        pythons=table.pythons("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        torch=base.version if base else None,
        built_from=_read_built_from(table),
        sha256=None,
        stable_abi=None,
        **_read_toolkits(table.table("cuda"), base),
    )


def _read_toolkits(cuda: TomlTable, base: Release | None) -> dict[str, Any]:
    """Return the fields of a release about CUDA; without a table they are those of its base."""
    if base is not None and not cuda.data:
        return {
            "cuda": base.cuda,
            "cuda_official": base.cuda_official,
            "cuda_pypi": base.cuda_pypi,
        }
    fields = {
        "cuda": cuda.specifier("range"),
        "cuda_official": cuda.map("official", _read_cuda),
        "cuda_pypi": cuda.optional("pypi"),
    }
    cuda.check_unknown_keys()
    return fields


def _read_cuda(official: TomlTable, version: str) -> Cuda:
    """Read the facts about official wheels with one toolkit: NVIDIA's libraries and the arch lists.

    The version of a library that has no key is the one that the wheels require.
    """
    table = official.table(version)
    if not is_version(version):
        table.problem(f"'{version}' is not a version of CUDA, such as '12.4'")
    lists = {
        "x86_64": table.optional("capabilities"),
        "aarch64": table.optional("capabilities_aarch64"),
    }
    requires = table.texts("requires", ())
    for text in requires:
        try:
            Requirement(text)
        except InvalidRequirement:
            table.problem(f"'requires' has '{text}', which is not a requirement (PEP 508)")
    return table.read(
        Cuda,
        capabilities={arch: listed for arch, listed in lists.items() if listed},
        requires=requires,
        cusparselt=table.optional("cusparselt") or _required_version(requires, "cusparselt"),
        nvshmem=table.optional("nvshmem") or _required_version(requires, "nvshmem"),
    )


def _required_version(requires: Iterable[str], library: str) -> str | None:
    """Return the version of "nvidia-LIBRARY-cu12==VERSION" in requirements."""
    for requirement in requires:
        if f"-{library}-" in requirement:
            return requirement.partition("==")[2]
    return None


def _read_built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    return table.map("built_from", TomlTable.texts)


# Editions: releases that a package's own file declares


def _pair_editions(
    package: Package, listed: Iterable[Release], bases: Iterable[Release]
) -> tuple[list[Release], list[str]]:
    """Return the releases that a package's editions are for each torch, and the problems of them.

    Each torch goes with the newest edition that takes it. `listed` are the package's releases in
    releases/, which it may not have beside editions.
    """
    file = f"{package.name}.toml"
    problems = [
        f"{file}: {release} stands in releases/ too; say it in one place" for release in listed
    ]
    newest_first = sorted(
        package.editions, key=lambda edition: version_key(edition.version), reverse=True
    )
    releases: list[Release] = []
    for base in bases:
        for edition in newest_first:
            if is_within(edition.torch, base.version):
                releases.append(_pair_edition(package, edition, base))
                break
    paired_versions = {release.version for release in releases}
    unpaired = [edition for edition in newest_first if edition.version not in paired_versions]
    problems.extend(
        f"{file}: release {edition.version}: {package.after} '{edition.torch}' leaves it "
        f"no release of {package.after} that goes with no newer one"
        for edition in unpaired
    )
    return releases, problems


def _pair_edition(package: Package, edition: Edition, base: Release) -> Release:
    """Return an edition as the release of a package for one torch, `base`."""
    return Release(
        package=package.name,
        version=edition.version,
        tag=package.tag.format(version=edition.version),
        commit=edition.commit,
        pythons=tuple(
            python for python in base.pythons if is_within(edition.python, python.rstrip("t"))
        ),
        arches=tuple(arch for arch in base.arches if arch in (edition.arches or base.arches)),
        cuda=base.cuda if edition.cuda is None else edition.cuda,
        cuda_official=base.cuda_official,
        torch=base.version,
        wheel_tag=edition.wheel_tag,
        source=edition.source,
        date=edition.date,
        cuda_pypi=base.cuda_pypi,
        sha256=edition.sha256,
        stable_abi=edition.stable_abi,
        tried=dict.fromkeys(edition.built, edition.source),
    )


def _complete_releases(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return the releases of a package; one for several torch is described at the oldest."""
    first_by_version: dict[str, Release] = {}
    completed: list[Release] = []
    for release in releases:
        first = first_by_version.setdefault(release.version, release)
        fields = {name: getattr(release, name) or getattr(first, name) for name in _WRITTEN_ONCE}
        completed.append(replace(release, **fields))
    return tuple(completed)
