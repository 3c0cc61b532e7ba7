"""Read build_configs/ into values; all problems are collected into one error.

A problem is one line about a mistake in a file. A file of a package or a release with a mistake is
left out, and the builds of the others go on. A mistake in any other file stops everything.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from torchmill.config.build import Arch
from torchmill.config.catalogue_reader import PackagesAndReleases, read_packages_and_releases
from torchmill.config.conda_facts import CondaFacts, CondaName
from torchmill.config.costs import (
    CompilePeak,
    CostAssumptions,
    CostFacts,
    KnownUnit,
    MeasuredRun,
)
from torchmill.config.facts import (
    Cxx11Abi,
    Facts,
    FailureCause,
    OfferedWheels,
    OfficialFacts,
)
from torchmill.config.gpu import (
    ArchName,
    Board,
    BoardIndex,
    Capability,
    DeviceMaker,
    GpuFacts,
)
from torchmill.config.images import Archive, BaseImage, ImageFacts
from torchmill.config.link_facts import LinkFacts
from torchmill.config.package_wheels import WheelSource
from torchmill.config.parsed import ParsedSource
from torchmill.config.rule import OfficialPart
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.toolkit import PROVIDERS, Toolkit, ToolkitPart, ToolkitSource
from torchmill.config.versions import version_key
from torchmill.config.wheel_code import (
    FeatureLibrary,
    LibraryReading,
    PackageCode,
    ProcessorNeed,
    WheelCode,
)
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout, facts_folder
from torchmill.core.stat_cache import StatCache

T = TypeVar("T")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def load_facts(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHMILL_CONFIGS names instead.

    The contents of the files are remembered in the user's cache. Raises ConfigError as
    `read_usable_facts` does.
    """
    cache = StatCache(Layout.of_checkout(root).facts_cache)
    try:
        return read_usable_facts(facts_folder(root), cache)
    finally:
        cache.save()


def read_facts(folder: Path) -> Facts:
    """Read the facts in `folder`. Raises ConfigError with one line for each problem."""
    facts = read_usable_facts(folder)
    require_whole(facts)
    return facts


def require_whole(facts: Facts) -> None:
    """Raise ConfigError, with one line for each problem, if a file is left out of the facts."""
    _raise_if_any(_problems_of_left_out(facts))


def _problems_of_left_out(facts: Facts) -> list[str]:
    """Return the problems of all files that are left out of the facts."""
    problems: list[str] = []
    for file in facts.left_out:
        problems.extend(file.problems)
    return problems


def _raise_if_any(problems: list[str]) -> None:
    """Raise ConfigError with a line for each problem, if there is one."""
    if problems:
        lines = "\n".join(f"  {line}" for line in problems)
        raise ConfigError(f"build_configs has problems:\n{lines}", code="facts-invalid")


class _FactsFolder:
    """A folder of facts being read; `problems` has a line for each mistake in its files."""

    def __init__(self, path: Path, cache: StatCache | None) -> None:
        self.path = path
        self.problems: list[str] = []
        self._cache = cache
        self._opened: list[TomlTable] = []

    def file(self, name: str, *, required: bool = False) -> TomlTable:
        """Return the table of NAME.toml; it is empty if there is no such file.

        A missing file that is required is a problem.
        """
        path = self.path / f"{name}.toml"
        table = read_toml(path, self.problems, required=required, cache=self._cache)
        self._opened.append(table)
        return table

    def check_unknown_keys(self) -> None:
        """Note a problem for every key that no reader asked for."""
        for table in self._opened:
            table.check_unknown_keys()


def read_usable_facts(folder: Path, cache: StatCache | None = None) -> Facts:
    """Read the facts in `folder`; `cache` remembers the contents of files.

    A package or a release whose own file has mistakes is left out, and that file stands in
    `Facts.left_out`: a mistake in one must not stop the builds of the others. Raises ConfigError,
    with one line for each problem, if any other file has a mistake, or if the package that all
    others are built against would be left out.
    """
    files = _FactsFolder(folder, cache)
    toolkits = _read_toolkits(files.file("toolkits", required=True))
    arches = {arch.name: arch for arch in _read_named(files.file("arches", required=True), Arch)}
    described = read_packages_and_releases(folder, arches, toolkits, cache)
    facts = _read_everything(files, toolkits, arches, described)
    files.check_unknown_keys()

    problems = files.problems
    # The name of an arch is a part of identifiers and of file names.
    for name in facts.arches:
        if not re.fullmatch(r"\w+", name, re.ASCII):
            problems.append(f"arches.toml: '{name}' cannot name an arch: use letters, digits and _")
    problems.extend(_unknown_packages(facts))
    # Without the base package nothing can be built, and so its mistakes stop everything.
    left_out = _problems_of_left_out(facts)
    has_base = any(package.after is None for package in facts.packages.values())
    if not has_base and not left_out:
        problems.append(f"{folder} holds no packages/*.toml")
    if problems or not has_base:
        _raise_if_any([*left_out, *problems])
    return _without_left_out(facts)


def _read_everything(
    files: _FactsFolder,
    toolkits: tuple[Toolkit, ...],
    arches: Mapping[str, Arch],
    described: PackagesAndReleases,
) -> Facts:
    """Return the facts of all files; `described` are the packages and releases that can be used."""
    linking = files.file("linking")
    conda = files.file("conda")
    answers = files.file("known_names").map("names", TomlTable.text)
    return Facts(
        packages=described.packages,
        releases=described.releases,
        toolkits=toolkits,
        arches=arches,
        patches=files.path / "patches",
        gpus=_read_gpus(files),
        costs=_read_costs(files),
        parsed=files.file("parsed").read_each("source", ParsedSource),
        official=_read_official(files, described.packages),
        causes=tuple(_read_causes(files.file("causes"), answers)),
        linking=linking.read(LinkFacts) if linking.data else None,
        toolkit_sources=tuple(_read_toolkit_sources(files.file("toolkit_sources"))),
        toolkit_parts=tuple(_read_named(files.file("toolkit_parts"), ToolkitPart)),
        offered_wheels=files.file("indexes").read_each("wheels", OfferedWheels),
        package_wheels=_read_package_wheels(files, described.packages),
        unslimmed_libraries=files.file("kept_libraries").texts("names", ()),
        images=_read_images(files.file("images"), files.file("archives")),
        conda=conda.read(CondaFacts, names=_read_conda_names(conda)) if conda.data else None,
        left_out=described.left_out,
    )


def _read_gpus(files: _FactsFolder) -> GpuFacts:
    """Read the facts about GPUs, capabilities by number."""
    arch_names = files.file("arch_names")
    capabilities = _read_named(files.file("gpus"), Capability)
    return GpuFacts(
        capabilities=tuple(
            sorted(capabilities, key=lambda capability: version_key(capability.name))
        ),
        arch_names=arch_names.read_each("name", ArchName),
        arch_spelling=arch_names.map("spelling", TomlTable.bounds),
        device_makers=tuple(_read_maker(table) for table in files.file("makers").tables("maker")),
        boards=files.file("gpu_hosts").read_each("board", Board),
        board_indexes=files.file("board_indexes").read_each("index", BoardIndex),
    )


def _read_costs(files: _FactsFolder) -> CostFacts:
    """Read the facts about the costs of builds."""
    runs = files.file("runs")
    return CostFacts(
        # Before `runs`: a table that is read has no data left, as if there were no file.
        assumptions=runs.table("assumed").read(CostAssumptions) if runs.data else None,
        runs=runs.read_each("run", MeasuredRun),
        peaks=runs.read_each("peak", CompilePeak),
        known_units=files.file("units").read_each("unit", KnownUnit),
    )


def _read_official(files: _FactsFolder, packages: Iterable[str]) -> OfficialFacts:
    """Read the facts about official wheels; `packages` are those that may have readings."""
    nvidia_code = files.file("wheel_code/nvidia")
    wheel_code: list[WheelCode] = []
    for package in packages:
        wheel_code.extend(_read_wheel_code(files.file(f"wheel_code/{package}"), package))
    official = files.file("official")
    return OfficialFacts(
        parts=official.read_each("part", OfficialPart),
        cxx11_abi=official.read_each("cxx11_abi", Cxx11Abi),
        wheel_code=tuple(wheel_code),
        package_code=nvidia_code.read_each("package", PackageCode),
        feature_libraries=nvidia_code.read_each("feature", FeatureLibrary),
        processor_needs=files.file("processors").read_each("need", ProcessorNeed),
    )


def _read_package_wheels(
    files: _FactsFolder, packages: Iterable[str]
) -> dict[str, tuple[WheelSource, ...]]:
    """Return the recorded wheels of those packages that have any."""
    places: dict[str, tuple[WheelSource, ...]] = {}
    for package in packages:
        recorded = files.file(f"package_wheels/{package}").read_each("place", WheelSource)
        if recorded:
            places[package] = recorded
    return places


def _read_named(file: TomlTable, kind: type[T]) -> Iterator[T]:
    """Yield a value for each table of a file; the name of the table becomes the field `name`."""
    for name in list(file.data):
        yield file.table(name).read(kind, name=name)


def _read_toolkits(file: TomlTable) -> tuple[Toolkit, ...]:
    """Read the CUDA toolkits, the oldest first."""
    toolkits: list[Toolkit] = []
    for version in sorted(file.data, key=version_key):
        variant = "cu" + version.replace(".", "")
        toolkits.append(file.table(version).read(Toolkit, version=version, variant=variant))
    return tuple(toolkits)


def _read_toolkit_sources(file: TomlTable) -> Iterator[ToolkitSource]:
    """Yield the sources of each provider, in the order in which providers are tried."""
    for provider in PROVIDERS:
        for table in file.tables(provider):
            # In the file either list may be left out. The dataclass has no default for it, because
            # whoever makes a value has to say it.
            values: dict[str, Any] = {
                "provider": provider,
                "versions": table.texts("versions", ()),
                "where": table.texts("where", ()),
            }
            yield table.read(ToolkitSource, **values)


def _read_causes(file: TomlTable, answers: Mapping[str, str]) -> Iterator[FailureCause]:
    """Yield the catalogue of failures, in its order.

    `answers` are the texts of known_names.toml by their names. A cause names one of them by its key
    `known`, and gets the text.
    """
    for table in file.tables("cause"):
        # Messages name a cause by its name: of hundreds, nobody finds one by its number.
        table.place = f"{file.place}: {table.data.get('name')}"
        name = table.text("known", "")
        if name not in {"", *answers}:
            names = ", ".join(answers)
            table.note_problem(
                f"'known' is '{name}', expected a table of known_names.toml: {names}"
            )
        yield table.read(FailureCause, answers=answers.get(name, ""))


def _read_conda_names(file: TomlTable) -> dict[str, CondaName]:
    """Return the conda packages by the projects on PyPI; one can be that of several projects."""
    names: dict[str, CondaName] = {}
    for table in file.tables("name"):
        projects = table.texts("pypi")
        name = table.read(CondaName, name=table.text("conda"))
        for project in projects:
            canonical = canonicalize_name(project)
            if project != canonical:
                table.note_problem(f"'{project}' must be written '{canonical}' here")
            if project in names:
                table.note_problem(f"'{project}' already has a name, {names[project].name}")
            names[project] = name
    return names


def _read_images(file: TomlTable, archives: TomlTable) -> ImageFacts:
    """Return the facts about container images; none without the file."""
    if not file.data:
        return ImageFacts()
    uv = file.table("uv")
    images = file.read(
        ImageFacts,
        bases=tuple(_read_base_image(table) for table in file.tables("base")),
        archives=archives.read_each("archive", Archive),
        uv=uv.version("version"),
        uv_pythons=uv.pythons("pythons"),
    )
    # The source is only for people who read the file, and so no field holds it. It must be there.
    uv.text("source")
    uv.check_unknown_keys()
    return images


def _read_base_image(table: TomlTable) -> BaseImage:
    """Read a base image, and report a wrong digest or a missing toolkit."""
    # In the file a digest may be left out, and a source may not. The dataclass has it the other way
    # round, for images that users name.
    image = table.read(BaseImage, digest=table.text("digest", ""), source=table.text("source"))
    if image.digest and not DIGEST.fullmatch(image.digest):
        table.note_problem(
            f"'digest' is '{image.digest}', expected sha256: and 64 hexadecimal digits"
        )
    if image.role in {"cuda", "toolkit"} and image.toolkit is None:
        table.note_problem("key 'toolkit' is missing")
    return image


def _read_wheel_code(file: TomlTable, package: str) -> Iterator[WheelCode]:
    """Yield the readings of a package's wheels."""
    for table in file.tables("wheel"):
        code = table.map("code", _read_library)
        yield table.read(WheelCode, package=package, code=code)


def _read_library(table: TomlTable, name: str) -> LibraryReading:
    """Read what was found in a library of a wheel."""
    return table.table(name).read(LibraryReading, name=name)


def _read_maker(table: TomlTable) -> DeviceMaker:
    """Read a maker of devices, and report patterns that are not regular expressions."""
    maker = table.read(DeviceMaker)
    for pattern in maker.names:
        try:
            re.compile(pattern)
        except re.error as error:
            table.note_problem(f"'names' has '{pattern}', which is no regular expression: {error}")
    return maker


def _without_left_out(facts: Facts) -> Facts:
    """Return facts without the measurements of packages that are left out."""
    if not facts.left_out:
        return facts
    packages = facts.packages
    costs = facts.costs
    # The cost of a unit without a package holds for all.
    units = [unit for unit in costs.known_units if unit.package in {"", *packages}]
    usable_costs = replace(
        costs,
        runs=tuple(run for run in costs.runs if run.package in packages),
        peaks=tuple(peak for peak in costs.peaks if peak.package in packages),
        known_units=tuple(units),
    )
    parsed = tuple(source for source in facts.parsed if source.package in packages)
    return replace(facts, costs=usable_costs, parsed=parsed)


def _unknown_packages(facts: Facts) -> Iterator[str]:
    """Yield a line for each place that names a package which no file describes."""
    places = [(f"units.toml: '{unit.pattern}'", unit.package) for unit in facts.costs.known_units]
    places.extend(("runs.toml", run.package) for run in facts.costs.runs)
    places.extend(("runs.toml", peak.package) for peak in facts.costs.peaks)
    places.extend(("parsed.toml", source.package) for source in facts.parsed)
    described = set(facts.packages)
    for file in facts.left_out:
        described.update(file.names)
    for place, name in places:
        if name and name not in described:
            packages = ", ".join(facts.packages)
            yield f"{place}: unknown package '{name}'; packages/ has {packages}"
