"""Read the files of packages, and find their mistakes.

Packages that are built in the same way are of one *kind*. The file of a kind has the rules of all
its packages, and values for the keys that a package's own file leaves out.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchmill.config.facts import BrokenFile
from torchmill.config.package import (
    BuildSetup,
    DebianFacts,
    Edition,
    OffSpelling,
    Package,
    PackageChecks,
    PackageKernels,
    PackageSource,
)
from torchmill.config.rule import Rule
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.core.stat_cache import StatCache

# Of a file or a folder, on every system. Facts may come from anybody, and must not name "../x".
PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")

CHECKS_KEYS = {"script": "checks"}  # field of PackageChecks -> its key, if that is another
KINDS = "kinds"  # folder of the files of kinds
KIND_KEYS = ("after", "compilers", "memory_per_job", "disk")  # beside [[rule]]


@dataclass(frozen=True, slots=True)
class PackageKind:
    """What all packages of a kind have in common."""

    rules: tuple[Rule, ...]
    values: Mapping[str, Any]  # of `KIND_KEYS`
    problems: Sequence[str]  # in the file of the kind


@dataclass
class PackageFile:
    """A file below packages/, and the problems in it."""

    name: str  # "torchvision.toml"
    package: Package
    problems: list[str] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """Return the file's name without its suffix."""
        return self.name.removesuffix(".toml")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that mean this package; for an unreadable file, the file's own."""
        names = (self.package.name, self.package.session, self.stem)
        return tuple(dict.fromkeys(name for name in names if name))


def read_package_files(folder: Path, cache: StatCache | None) -> list[PackageFile]:
    """Read every package, and note the problems of each, also with the names of others."""
    files: list[PackageFile] = []
    kinds = _read_kinds(folder / KINDS, cache)
    for path in sorted((folder / "packages").glob("*.toml")):
        problems: list[str] = []
        package = read_package(path, problems, kinds, cache)
        files.append(PackageFile(path.name, package, problems))
    names = [file.package.name for file in files]
    packages = {file.package.name: file.package for file in files}
    for file in files:
        if not file.package.name:
            continue
        file.problems.extend(_unknown_names(file.package, names))
        file.problems.extend(_circular_imports(file.package, packages))
        file.problems.extend(_absent_patches(file.package, folder / "patches"))
        for other in files:
            if _takes_session(file.package, other.package):
                file.problems.append(
                    f"{file.name}: 'session' is '{file.package.session}', "
                    f"which is that of {other.package.name}"
                )
    return files


def read_package(
    path: Path,
    problems: list[str],
    kinds: Mapping[str, PackageKind],
    cache: StatCache | None,
) -> Package:
    """Read the facts about a package; `problems`, still empty, takes a line for each mistake."""
    file = read_toml(path, problems, cache=cache)
    unreadable = bool(problems)
    kind = file.optional("kind")
    rules: tuple[Rule, ...] = ()
    if kind is not None:
        rules = _apply_kind(file, kind, kinds)
    # For users, the fields of these groups are keys of the file, but for those that are tables.
    source = file.read_fields(
        PackageSource,
        {},
        tag=file.template("tag", ("version",), "v{version}"),
        debian=_read_debian(file.table("debian")),
    )
    setup = file.read_fields(
        BuildSetup, {}, off_spelling=_read_off_spelling(file.table("off_spelling"))
    )
    package = file.read(
        Package,
        source=source,
        setup=setup,
        kind=kind,
        rules=(*rules, *_read_rules(file)),
        checks=file.read_fields(PackageChecks, CHECKS_KEYS),
        kernels=file.read_fields(PackageKernels, {}),
        editions=tuple(_read_edition(table) for table in file.tables("release")),
    )
    _check_names(file, package)
    _check_python(file, "smoke", package.checks.smoke)
    _check_python(file, "gpu_smoke", package.checks.gpu_smoke)
    if not source.repository and source.pypi is None:
        file.note_problem("neither 'repository' nor 'pypi' says where its source is")
    if package.editions and package.after is None:
        file.note_problem(
            "it has [[release]], which pair with a release of 'after', but it has no 'after'"
        )
    if unreadable:
        # Every key of such a file is missing, which need not be reported.
        del problems[1:]
    return package


def _read_rules(file: TomlTable) -> tuple[Rule, ...]:
    """Read the rules of a package or a kind."""
    return tuple(table.read(Rule, name=table.place) for table in file.tables("rule"))


def _read_kinds(folder: Path, cache: StatCache | None) -> dict[str, PackageKind]:
    """Return the kinds in a folder by name."""
    kinds: dict[str, PackageKind] = {}
    for path in sorted(folder.glob("*.toml")):
        problems: list[str] = []
        file = read_toml(path, problems, cache=cache)
        rules = _read_rules(file)
        values: dict[str, Any] = {}
        for key in KIND_KEYS:
            file.requested.append(key)
            if key in file.data:
                values[key] = file.data.pop(key)
        file.check_unknown_keys()
        kinds[path.stem] = PackageKind(rules, values, problems)
    return kinds


def _apply_kind(file: TomlTable, name: str, kinds: Mapping[str, PackageKind]) -> tuple[Rule, ...]:
    """Return the rules of a kind, and add its values for the keys that a package's file lacks.

    Notes a problem if there is no such kind, or it has mistakes.
    """
    kind = kinds.get(name)
    if kind is None:
        file.note_problem(f"'kind' is '{name}'; {KINDS}/ has {', '.join(kinds) or 'none'}")
        return ()
    file.problems.extend(kind.problems)
    file.data = {**kind.values, **file.data}
    return kind.rules


def _read_off_spelling(table: TomlTable) -> OffSpelling:
    """Return the spelling of a package: all keys of its table but "releases" are switches."""
    releases = table.specifier("releases")
    switches = {name: table.text(name) for name in list(table.data)}
    if releases is None:
        return OffSpelling(switches)
    return OffSpelling(switches, releases)


def _read_debian(table: TomlTable) -> DebianFacts:
    """Read the facts about a package in Debian."""
    sources = table.map("sources", TomlTable.text)
    submodules = table.map("fill", lambda fill, suite: fill.map(suite, TomlTable.text))
    table.check_unknown_keys()
    return DebianFacts(sources, submodules)


def _read_edition(table: TomlTable) -> Edition:
    """Read an edition of a package, and report if its torch is missing."""
    if "torch" not in table.data:
        table.note_problem(
            "'torch' is missing: it says which releases it goes with, such as '>=2.2,<2.13'"
        )
    return table.read(Edition, version=table.version("version"))


def _check_names(file: TomlTable, package: Package) -> None:
    """Complain about names of a package that cannot be those of files and folders."""
    names = {
        "name": package.name,
        "session": package.session,
        "import_name": package.import_name,
        "tag": package.source.tag.replace("{version}", "1.0"),
        "checks": package.checks.script,
    }
    for key, name in names.items():
        if name and not PLAIN_NAME.fullmatch(name):
            file.note_problem(
                f"'{key}' is '{name}', which cannot name a folder: use letters, digits and . _ + -"
            )
    for rule in package.rules:
        for patch in rule.patches:
            if not all(PLAIN_NAME.fullmatch(part) for part in patch.split("/")):
                file.note_problem(
                    f"patch '{patch}' cannot be a file in patches/{package.name}/: "
                    "use letters, digits and . _ + -"
                )


def _check_python(file: TomlTable, key: str, lines: Iterable[str]) -> None:
    """Complain about lines that are not Python; they are only parsed here."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        file.note_problem(f"{key!r}, line {error.lineno}: {error.msg}")


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
    for key, dependencies in (("after", after), ("imports", package.checks.imports)):
        for name in dependencies:
            if name not in names:
                choices = ", ".join(filter(None, names))  # a file with mistakes may have no name
                yield f"{package.name}.toml: '{key}' names '{name}'; packages/ has {choices}"


def _circular_imports(package: Package, packages: Mapping[str, Package]) -> Iterator[str]:
    """Yield a problem if a package imports itself, alone or by way of other packages."""
    imported: set[str] = set()
    waiting = list(package.checks.imports)
    while waiting:
        name = waiting.pop()
        if name not in imported and name in packages:
            imported.add(name)
            waiting.extend(packages[name].checks.imports)
    if package.name in imported:
        yield f"{package.name}.toml: 'imports' leads back to {package.name} itself"


def _absent_patches(package: Package, patches: Path) -> Iterator[str]:
    """Yield a problem for each patch that a rule names and that is not there."""
    for rule in package.rules:
        for patch in rule.patches:
            if not (patches / package.name / patch).is_file():
                yield f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"


def blame_dependents(files: Iterable[PackageFile]) -> list[BrokenFile]:
    """Return the files with mistakes, and those of packages that are built on theirs.

    Each of the latter gets a problem that says so.
    """
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
            needed = {file.package.after, *file.package.checks.imports} & missing
            if needed and not file.problems:
                names = ", ".join(sorted(name for name in needed if name))
                file.problems.append(f"{file.name}: it is built on {names}, which is left out")
