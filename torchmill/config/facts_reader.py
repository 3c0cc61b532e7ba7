"""Read build_configs/ into values; all problems are collected into one error."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from torchmill.config.build import Arch
from torchmill.config.conda_facts import CondaFacts, CondaName
from torchmill.config.costs import CompilePeak, CostAssumptions, KnownUnit, MeasuredRun
from torchmill.config.facts import Facts, FailureCause, OfferedWheels
from torchmill.config.gpu import ArchName, BoardIndex, Capability, DeviceMaker, GpuHost
from torchmill.config.images import Archive, BaseImage, ImageFacts
from torchmill.config.link_facts import LinkFacts
from torchmill.config.package_reader import read_packages_and_releases
from torchmill.config.rule import OfficialPart
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.toolkit import PROVIDERS, Toolkit, ToolkitPart, ToolkitSource
from torchmill.config.versions import version_key
from torchmill.config.wheel_code import (
    FeatureLibrary,
    PackageCode,
    ProcessorNeed,
    ReadLibrary,
    WheelCode,
)
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout, facts_folder
from torchmill.core.stat_cache import StatCache

T = TypeVar("T")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _named(file: TomlTable, kind: type[T]) -> Iterator[T]:
    """Yield what each table of a file says; the table's own name is a field of it."""
    for name in list(file.data):
        yield file.table(name).read(kind, name=name)


def _causes(file: TomlTable, names: Mapping[str, str]) -> Iterator[FailureCause]:
    """Yield the catalogue of failures, in its order; `names` are the tables that `known` may name."""
    for table in file.tables("cause"):
        table.where = f"{file.where}: {table.data.get('name')}"
        cause = table.read(FailureCause)
        if cause.known not in {"", *names}:
            table.problem(
                f"'known' is '{cause.known}', expected a table of known_names.toml: {', '.join(names)}"
            )
        yield replace(cause, known=names.get(cause.known, ""))


def _conda_names(file: TomlTable) -> dict[str, CondaName]:
    found: dict[str, CondaName] = {}
    for table in file.tables("name"):
        projects = table.texts("pypi")
        name = table.read(CondaName, name=table.text("conda"))
        for project in projects:
            if project != canonicalize_name(project):
                table.problem(f"'{project}' must be written '{canonicalize_name(project)}' here")
            if project in found:
                table.problem(f"'{project}' already has a name, {found[project].name}")
            found[project] = name
    return found


def _images(file: TomlTable, archives: TomlTable) -> ImageFacts:
    """Return what is known of container images; without the file nothing is."""
    if not file.data:
        return ImageFacts()
    uv = file.table("uv")
    found = file.read(
        ImageFacts,
        bases=tuple(_base_image(table) for table in file.tables("base")),
        archives=archives.read_each("archive", Archive),
        uv=uv.version("version"),
        uv_pythons=uv.pythons("pythons"),
    )
    uv.text("source")
    uv.check_unknown_keys()
    return found


def _base_image(table: TomlTable) -> BaseImage:
    found = table.read(BaseImage, digest=table.text("digest", ""), source=table.text("source"))
    if found.digest and not DIGEST.fullmatch(found.digest):
        table.problem(f"'digest' is '{found.digest}', expected sha256: and 64 hexadecimal digits")
    if found.role in {"cuda", "toolkit"} and found.toolkit is None:
        table.problem("key 'toolkit' is missing")
    return found


def _wheel_code(file: TomlTable, package: str) -> Iterator[WheelCode]:
    """Yield what was read in the wheels of a package."""
    for table in file.tables("wheel"):
        code = table.map("code", lambda code, name: code.table(name).read(ReadLibrary, name=name))
        yield table.read(WheelCode, package=package, code=code)


def _of_official_wheels(
    file: Callable[[str], TomlTable], packages: Iterable[str]
) -> dict[str, Any]:
    """Return what is known of official wheels and of machines that they are for, by the field of the facts."""
    beside = file("wheel_code/nvidia")
    return {
        "wheel_code": tuple(
            one for name in packages for one in _wheel_code(file(f"wheel_code/{name}"), name)
        ),
        "package_code": beside.read_each("package", PackageCode),
        "feature_libraries": beside.read_each("feature", FeatureLibrary),
        "processor_needs": file("processors").read_each("need", ProcessorNeed),
        "boards": file("gpu_hosts").read_each("board", GpuHost),
        "board_indexes": file("board_indexes").read_each("index", BoardIndex),
    }


def _toolkit_sources(file: TomlTable) -> Iterator[ToolkitSource]:
    """Yield what each provider has, in the order in which they are asked."""
    for provider in PROVIDERS:
        for table in file.tables(provider):
            versions, where = table.texts("versions", ()), table.texts("where", ())
            yield table.read(ToolkitSource, provider=provider, versions=versions, where=where)


def load_facts(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHMILL_CONFIGS names instead.

    What the files hold is remembered in the user's cache. Raises ConfigError as `read_usable_facts`
    does.
    """
    cache = StatCache(Layout.of_checkout(root).facts_cache)
    try:
        return read_usable_facts(facts_folder(root), cache)
    finally:
        cache.save()


def read_facts(folder: Path) -> Facts:
    """Read the facts in `folder`. Raises ConfigError with one line for each problem found."""
    facts = read_usable_facts(folder)
    require_whole(facts)
    return facts


def require_whole(facts: Facts) -> None:
    """Raise ConfigError if something is left out of facts, with one line for each problem."""
    _require_none([problem for file in facts.left_out for problem in file.problems])


def _require_none(problems: list[str]) -> None:
    if problems:
        lines = "\n".join(f"  {line}" for line in problems)
        raise ConfigError(f"build_configs has problems:\n{lines}", code="facts-invalid")


def read_usable_facts(folder: Path, cache: StatCache | None = None) -> Facts:
    """Read the facts in `folder`; `cache` remembers what files hold.

    A package or a release whose own file has mistakes is left out, and that file stands in
    `Facts.left_out`: a mistake in one must not stop the builds of the others. Raises ConfigError,
    with one line for each problem found, if any other file has a mistake, or if the package that
    all others are built against would be left out.
    """
    problems: list[str] = []
    opened: list[TomlTable] = []

    def file(name: str, *, required: bool = False) -> TomlTable:
        opened.append(read_toml(folder / f"{name}.toml", problems, required=required, cache=cache))
        return opened[-1]

    arch_names, runs, linking, conda = (
        file("arch_names"),
        file("runs"),
        file("linking"),
        file("conda"),
    )
    gpus, toolkit_file = file("gpus"), file("toolkits", required=True)
    toolkits = tuple(
        toolkit_file.table(version).read(
            Toolkit, version=version, variant=f"cu{version.replace('.', '')}"
        )
        for version in sorted(toolkit_file.data, key=version_key)
    )
    arches = {arch.name: arch for arch in _named(file("arches", required=True), Arch)}
    described = read_packages_and_releases(folder, arches, toolkits, cache)
    facts = Facts(
        described.packages,
        described.releases,
        toolkits,
        arches,
        folder / "patches",
        left_out=described.left_out,
        capabilities=tuple(sorted(_named(gpus, Capability), key=lambda one: version_key(one.name))),
        arch_names=arch_names.read_each("name", ArchName),
        arch_spelling=arch_names.map("spelling", TomlTable.bounds),
        causes=tuple(_causes(file("causes"), file("known_names").map("names", TomlTable.text))),
        assumed=runs.table("assumed").read(CostAssumptions) if runs.data else None,
        runs=runs.read_each("run", MeasuredRun),
        peaks=runs.read_each("peak", CompilePeak),
        linking=linking.read(LinkFacts) if linking.data else None,
        units=file("units").read_each("unit", KnownUnit),
        toolkit_sources=tuple(_toolkit_sources(file("toolkit_sources"))),
        toolkit_parts=tuple(_named(file("toolkit_parts"), ToolkitPart)),
        elsewhere=file("indexes").read_each("wheels", OfferedWheels),
        official=file("official").read_each("part", OfficialPart),
        kept_libraries=file("kept_libraries").texts("names", ()),
        images=_images(file("images"), file("archives")),
        conda=conda.read(CondaFacts, names=_conda_names(conda)) if conda.data else None,
        makers=tuple(_maker(table) for table in file("makers").tables("maker")),
        **_of_official_wheels(file, described.packages),
    )
    for table in opened:
        table.check_unknown_keys()
    problems += [
        f"arches.toml: '{name}' cannot name an arch: use letters, digits and _"
        for name in facts.arches
        if not re.fullmatch(r"\w+", name, re.ASCII)
    ]
    problems += _unknown_packages(facts)
    mistakes = [problem for file in facts.left_out for problem in file.problems]
    has_base = any(package.after is None for package in facts.packages.values())
    if not has_base and not mistakes:
        problems.append(f"{folder} holds no packages/*.toml")
    if problems or not has_base:
        _require_none([*mistakes, *problems])
    return _without_left_out(facts)


def _without_left_out(facts: Facts) -> Facts:
    """Return facts without what was measured of packages that are left out."""
    if not facts.left_out:
        return facts
    packages = facts.packages
    return replace(
        facts,
        runs=tuple(run for run in facts.runs if run.package in packages),
        peaks=tuple(peak for peak in facts.peaks if peak.package in packages),
        units=tuple(unit for unit in facts.units if not unit.package or unit.package in packages),
    )


def _maker(table: TomlTable) -> DeviceMaker:
    found = table.read(DeviceMaker)
    for pattern in found.names:
        try:
            re.compile(pattern)
        except re.error as error:
            table.problem(f"'names' has '{pattern}', which is no regular expression: {error}")
    return found


def _unknown_packages(facts: Facts) -> Iterator[str]:
    """Yield a line for each place that names a package which no file describes."""
    places = [(f"units.toml: '{unit.pattern}'", unit.package) for unit in facts.units]
    places += [("runs.toml", run.package) for run in facts.runs]
    places += [("runs.toml", peak.package) for peak in facts.peaks]
    described = {*facts.packages, *(name for file in facts.left_out for name in file.names)}
    for place, name in places:
        if name and name not in described:
            yield f"{place}: unknown package '{name}'; packages/ has {', '.join(facts.packages)}"
