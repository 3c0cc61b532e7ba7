"""Read packages and releases; a file with mistakes is left out, and does not stop the others."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from torchmill.config.build import CPU
from torchmill.config.facts import BrokenFile
from torchmill.config.package import Edition, Package
from torchmill.config.release import Cuda, Release
from torchmill.config.rule import Rule
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_version, is_within, version_key
from torchmill.core.stat_cache import StatCache

_SAID_ONCE = (
    "date",
    "commit",
    "built_from",
    "wheels",
    "explained",
)  # of a release that pairs with several torch
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")  # of a file or a folder, wherever it is made


@dataclass(frozen=True)
class Described:
    """The packages and releases that can be used, and the files that are left out."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    left_out: tuple[BrokenFile, ...]


@dataclass
class _PackageFile:
    """A file below packages/, and what is wrong in it."""

    name: str  # "torchvision.toml"
    package: Package
    problems: list[str] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return self.name.removesuffix(".toml")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that mean this package; of a file that cannot be read, the file's own."""
        names = (self.package.name, self.package.session, self.stem)
        return tuple(dict.fromkeys(filter(None, names)))


def read_package(path: Path, problems: list[str], cache: StatCache | None) -> Package:
    """Read what is known of a package in all its releases; `problems`, still empty, takes mistakes."""
    file = read_toml(path, problems, cache=cache)
    unreadable = bool(problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    found = file.read(
        Package,
        tag=file.template("tag", ("version",), "v{version}"),
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        rules=tuple(table.read(Rule, name=table.where) for table in file.tables("rule")),
        debian=debian.map("sources", TomlTable.text),
        debian_fill=debian.map("fill", lambda fill, suite: fill.map(suite, TomlTable.text)),
        editions=tuple(_edition(table) for table in file.tables("release")),
    )
    debian.check_unknown_keys()
    _check_names(file, found)
    for key, lines in (("smoke", found.smoke), ("gpu_smoke", found.gpu_smoke)):
        try:  # which need not be lines that this Python runs
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            file.problem(f"{key!r}, line {error.lineno}: {error.msg}")
    if not found.repository and found.pypi is None:
        file.problem("neither 'repository' nor 'pypi' says where its source is")
    if found.editions and found.after is None:
        file.problem(
            "it has [[release]], which pair with a release of 'after', but it has no 'after'"
        )
    if unreadable:
        del problems[1:]  # every key is missing, which says nothing more
    return found


def _check_names(file: TomlTable, package: Package) -> None:
    """Note names of a package that cannot be those of files and folders: facts may come from anybody."""
    tag = package.tag.replace("{version}", "1.0")
    names = {
        "name": package.name,
        "session": package.session,
        "import_name": package.import_name,
        "tag": tag,
    }
    for key, name in {**names, "checks": package.checks}.items():
        if name and not _PLAIN_NAME.fullmatch(name):
            file.problem(
                f"'{key}' is '{name}', which cannot name a folder: use letters, digits and . _ + -"
            )
    for patch in (patch for rule in package.rules for patch in rule.patches):
        if not all(_PLAIN_NAME.fullmatch(part) for part in patch.split("/")):
            file.problem(
                f"patch '{patch}' cannot be a file in patches/{package.name}/: use letters, digits and . _ + -"
            )


def _edition(table: TomlTable) -> Edition:
    if "torch" not in table.data:
        table.problem(
            "'torch' is missing: it says which releases it goes with, such as '>=2.2,<2.13'"
        )
    return table.read(Edition, version=table.version("version"))


def read_packages_and_releases(
    folder: Path,
    arches: Collection[str],
    toolkits: Iterable[Toolkit],
    cache: StatCache | None,
) -> Described:
    """Read packages/*.toml and releases/*.toml below `folder`.

    A file with a mistake is left out, and with a package those that are built on it.
    """
    files = _read_package_files(folder, cache)
    variants = {CPU, *(toolkit.variant for toolkit in toolkits)}
    tried = variants | {f"{variant}-{arch}" for variant in variants for arch in arches}
    releases, broken_releases = _read_release_files(
        folder / "releases", files, arches, tried, cache
    )
    for file in files:
        package = file.package
        if not package.name or not package.editions or package.after not in releases:
            continue
        declared, problems = _declared(package, releases[package.name], releases[package.after])
        releases[package.name] += declared
        for release in declared:
            file.problems += _unknown_machines(release, arches, tried)
        if not broken_releases:  # an edition may be for a torch that is only left out
            file.problems += problems
    broken_packages = _blame_dependents(files)
    for package_releases in releases.values():
        package_releases.sort(
            key=lambda one: (version_key(one.version), version_key(one.torch or "0"))
        )
    whole = {file.package.name: file.package for file in files if not file.problems}
    return Described(
        whole,
        {name: _completed(releases[name]) for name in whole},
        (*broken_packages, *broken_releases),
    )


def _read_package_files(folder: Path, cache: StatCache | None) -> list[_PackageFile]:
    """Read every package; what is wrong in a file, names of other packages too, stands beside it."""
    files = []
    for path in sorted((folder / "packages").glob("*.toml")):
        problems: list[str] = []
        package = read_package(path, problems, cache)
        files.append(_PackageFile(path.name, package, problems))
    names = [file.package.name for file in files]
    for file in files:
        if not file.package.name:
            continue
        file.problems += _misnamed(file.package, names)
        file.problems += _absent_patches(file.package, folder / "patches")
        for other in files:
            if _takes_session(file.package, other.package):
                file.problems.append(
                    f"{file.name}: 'session' is '{file.package.session}', "
                    f"which is that of {other.package.name}"
                )
    return files


def _takes_session(package: Package, other: Package) -> bool:
    """Tell whether a package claims the session of another.

    The package that all others are built against keeps its own: without it nothing could be built.
    """
    if package.name == other.name or package.session != other.session:
        return False
    return package.after is not None


def _misnamed(package: Package, names: Collection[str]) -> Iterator[str]:
    """Yield a line for each package that another names and that is not there."""
    after = [package.after] if package.after else []
    for key, others in (("after", after), ("imports", package.imports)):
        for name in others:
            if name not in names:
                there = ", ".join(names)
                yield f"{package.name}.toml: '{key}' names '{name}'; packages/ has {there}"


def _absent_patches(package: Package, patches: Path) -> Iterator[str]:
    for rule in package.rules:
        for patch in rule.patches:
            if not (patches / package.name / patch).is_file():
                yield f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"


def _blame_dependents(files: Iterable[_PackageFile]) -> list[BrokenFile]:
    """Return the files with mistakes; what is built on a package that is left out is left out too."""
    broken: dict[str, BrokenFile] = {}
    while found := [file for file in files if file.problems and file.name not in broken]:
        for file in found:
            broken[file.name] = BrokenFile(
                f"packages/{file.name}", file.names, tuple(file.problems)
            )
        missing = {name for file in found for name in file.names}
        for file in files:
            needed = {file.package.after, *file.package.imports} & missing
            if needed and not file.problems:
                name = ", ".join(sorted(filter(None, needed)))
                file.problems.append(f"{file.name}: it is built on {name}, which is left out")
    return list(broken.values())


def _read_release_files(
    folder: Path,
    files: Iterable[_PackageFile],
    arches: Collection[str],
    tried: Collection[str],
    cache: StatCache | None,
) -> tuple[dict[str, list[Release]], list[BrokenFile]]:
    """Read every release file: the base package's table first, its dependents after it.

    Return the releases by package, and the files with mistakes, of which no release is taken.
    `tried` has the keys that a table `tried` may have: "cu118", "cu118-aarch64".
    """
    releases: dict[str, list[Release]] = {file.package.name: [] for file in files}
    broken = []
    # A dependent that forgets `after` looks like the base, so packages with mistakes come last.
    in_order = sorted(files, key=lambda file: (file.package.after is not None, bool(file.problems)))
    for path in sorted(folder.glob("*.toml")):
        problems: list[str] = []
        table = read_toml(path, problems, cache=cache)
        found: list[Release] = []
        for file in in_order:
            name = file.package.name
            if not name:  # its file could not be read, so nobody knows what its releases look like
                table.data.pop(file.stem, None)
                continue
            if name in table.data:
                base = found[0] if found else None
                found.append(_release(table.table(name), file.package, base))
            table.requested.append(name)
        table.check_unknown_keys()
        for release in found:
            problems += _unknown_machines(release, arches, tried)
        if problems:
            names = (path.stem, f"v{path.stem}", *(release.tag for release in found))
            broken.append(BrokenFile(f"releases/{path.name}", names, tuple(problems)))
            continue
        for release in found:
            releases[release.package].append(release)
    return releases, broken


def _unknown_machines(
    release: Release, arches: Collection[str], tried: Collection[str]
) -> Iterator[str]:
    for arch in release.arches:
        if arch not in arches:
            yield f"{release}: unknown arch '{arch}'; arches.toml has {', '.join(arches)}"
    for key in release.tried:
        if key not in tried:
            yield (
                f"{release}: 'tried' names '{key}', expected a variant, "
                "as in 'cu118' or 'cu118-aarch64'"
            )


def _declared(
    package: Package, listed: Iterable[Release], bases: Iterable[Release]
) -> tuple[list[Release], list[str]]:
    """Return what a package's own file declares, and what is wrong with it.

    With each torch goes the newest release that takes it.
    """
    where = f"{package.name}.toml"
    problems = [f"{where}: {one} stands in releases/ too; say it in one place" for one in listed]
    editions = sorted(package.editions, key=lambda one: version_key(one.version), reverse=True)
    taking = (
        (base, next((one for one in editions if is_within(one.torch, base.version)), None))
        for base in bases
    )
    found = [_of_edition(package, edition, base) for base, edition in taking if edition is not None]
    used = {release.version for release in found}
    problems.extend(
        f"{where}: release {one.version}: {package.after} '{one.torch}' leaves it no release of "
        f"{package.after} that goes with no newer one"
        for one in editions
        if one.version not in used
    )
    return found, problems


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
        wheel_tag=edition.wheel_tag,
        source=edition.source,
        date=edition.date,
        cuda_pypi=base.cuda_pypi,
        sha256=edition.sha256,
        stable_abi=edition.stable_abi,
        tried=dict.fromkeys(edition.built, edition.source),
    )


def _completed(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return the releases of a package; one that pairs with several torch is described where it is first."""
    found: dict[str, Release] = {}
    completed = []
    for release in releases:
        first = found.setdefault(release.version, release)
        said = {name: getattr(release, name) or getattr(first, name) for name in _SAID_ONCE}
        completed.append(replace(release, **said))
    return tuple(completed)


def _release(table: TomlTable, package: Package, base: Release | None) -> Release:
    version = table.version("version")
    cuda = table.table("cuda")
    if base is not None and not cuda.data:
        toolkits = {
            "cuda": base.cuda,
            "cuda_official": base.cuda_official,
            "cuda_pypi": base.cuda_pypi,
        }
    else:
        toolkits = {
            "cuda": cuda.specifier("range"),
            "cuda_official": cuda.map(
                "official", lambda inner, name: _cuda(inner.table(name), name)
            ),
            "cuda_pypi": cuda.optional("pypi"),
        }
    cuda.check_unknown_keys()
    return table.read(
        Release,
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        pythons=table.pythons("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        torch=base.version if base else None,
        built_from=_built_from(table),
        sha256=None,
        stable_abi=None,
        **toolkits,
    )


def _built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    return table.map("built_from", TomlTable.texts)


def _cuda(table: TomlTable, version: str) -> Cuda:
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
    pinned = {
        library: table.optional(library)
        or next((one.partition("==")[2] for one in requires if f"-{library}-" in one), None)
        for library in ("cusparselt", "nvshmem")
    }
    capabilities = {arch: listed for arch, listed in lists.items() if listed}
    return table.read(Cuda, capabilities=capabilities, requires=requires, **pinned)
