"""Read build_configs/ into values; all problems are collected into one error.

A problem is one line about a mistake in a file. If it is the file of a package or a release, that
is left out, and the others can still be built. A mistake in any other file stops everything.
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
from torchmill.config.toml_reader import CAPABILITY, TomlTable, read_toml
from torchmill.config.toolkit import PROVIDERS, Toolkit, ToolkitPart, ToolkitSource
from torchmill.config.versions import cuda_label, is_version, version_key
from torchmill.config.vulnerability import Vulnerability, VulnerabilityFacts, vulnerability_problems
from torchmill.config.wheel_code import (
    FeatureLibrary,
    LibraryReading,
    PackageCode,
    ProcessorNeed,
    WheelCode,
)
from torchmill.core.errors import ConfigError
from torchmill.core.stat_cache import StatCache

T = TypeVar("T")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def read_facts(folder: Path) -> Facts:
    """Return the facts in `folder`. Raises ConfigError if any file has a problem."""
    facts = read_usable_facts(folder)
    require_complete(facts)
    return facts


def require_complete(facts: Facts) -> None:
    """Raise ConfigError, with a line for each problem, if a file is left out of the facts."""
    _raise_if_any(_problems_of_left_out(facts))


def _problems_of_left_out(facts: Facts) -> list[str]:
    """Return the problems for which files are left out of the facts."""
    problems: list[str] = []
    for file in facts.left_out:
        problems.extend(file.problems)
    return problems


def _raise_if_any(problems: list[str]) -> None:
    """Raise ConfigError with a line for each problem, unless there are none."""
    if problems:
        lines = "\n".join(f"  {line}" for line in problems)
        raise ConfigError(f"build_configs has problems:\n{lines}", code="facts-invalid")


class _FactsFolder:
    """The files of a folder of facts; `problems` gets a line for each mistake in them."""

    def __init__(self, path: Path, cache: StatCache | None) -> None:
        self.path = path
        self.problems: list[str] = []
        self._cache = cache
        self._tables: list[TomlTable] = []  # of all files that were read

    def file(self, name: str, *, required: bool = False) -> TomlTable:
        """Return the table of NAME.toml; it is empty if there is no such file.

        A missing file that is required is a problem.
        """
        path = self.path / f"{name}.toml"
        table = read_toml(path, self.problems, required=required, cache=self._cache)
        self._tables.append(table)
        return table

    def check_unknown_keys(self) -> None:
        """Note a problem for every key at the top of a file that was not read.

        To be called when all files have been read.
        """
        for table in self._tables:
            table.check_unknown_keys()


def read_usable_facts(folder: Path, cache: StatCache | None = None) -> Facts:
    """Return the facts in `folder` that can be used; `cache` remembers the contents of files.

    If the file of a package or a release has a mistake, it is left out, and listed in
    `Facts.left_out`: the other packages and releases can still be built. Raises ConfigError, with a
    line for each problem, if any other file has a mistake, or if there is no base package, the one
    that all others are built against, or no release of it.
    """
    files = _FactsFolder(folder, cache)
    toolkits = _read_toolkits(files.file("toolkits", required=True))
    arches = {arch.name: arch for arch in _read_named(files.file("arches", required=True), Arch)}
    catalogue = read_packages_and_releases(folder, arches, toolkits, cache)
    facts = _read_everything(files, toolkits, arches, catalogue)
    files.check_unknown_keys()

    problems = files.problems
    # The name of an arch becomes a part of cells' identifiers and of file names.
    for name in facts.arches:
        if not re.fullmatch(r"\w+", name, re.ASCII):
            problems.append(f"arches.toml: '{name}' cannot name an arch: use letters, digits and _")
    package_names = _package_names(facts)
    problems.extend(_unknown_package_problems(facts, package_names))
    problems.extend(vulnerability_problems(facts.vulnerabilities, facts.packages, package_names))
    lacking = _lacking_folder(facts)
    if lacking and not any(file.name.startswith(f"{lacking}/") for file in facts.left_out):
        problems.append(f"{folder} holds no {lacking}/*.toml")
    # Without a release of the base package nothing can be built, and so its mistakes stop
    # everything.
    if problems or lacking:
        _raise_if_any([*_problems_of_left_out(facts), *problems])
    return _without_left_out(facts)


def _lacking_folder(facts: Facts) -> str:
    """Return "packages" without a base package, "releases" without one of its releases, else ""."""
    bases = [package.name for package in facts.packages.values() if package.after is None]
    if not bases:
        return "packages"
    return "" if any(facts.releases[name] for name in bases) else "releases"


def _read_everything(
    files: _FactsFolder,
    toolkits: tuple[Toolkit, ...],
    arches: Mapping[str, Arch],
    catalogue: PackagesAndReleases,
) -> Facts:
    """Return the facts of all files, with the values that are read already.

    Measurements of packages that are left out are among them.
    """
    linking = files.file("linking")
    conda = files.file("conda")
    answers = files.file("known_names").map("names", TomlTable.text)
    return Facts(
        packages=catalogue.packages,
        releases=catalogue.releases,
        toolkits=toolkits,
        arches=arches,
        patches=files.path / "patches",
        gpus=_read_gpus(files),
        costs=_read_costs(files),
        parsed=files.file("parsed").read_each("source", ParsedSource),
        official=_read_official(files, catalogue.packages),
        causes=tuple(_read_causes(files.file("causes"), answers)),
        linking=linking.read(LinkFacts) if linking.data else None,
        toolkit_sources=tuple(_read_toolkit_sources(files.file("toolkit_sources"))),
        toolkit_parts=tuple(_read_named(files.file("toolkit_parts"), ToolkitPart)),
        offered_wheels=files.file("indexes").read_each("wheels", OfferedWheels),
        package_wheels=_read_package_wheels(files, catalogue.packages),
        unslimmed_libraries=files.file("kept_libraries").texts("names", ()),
        images=_read_images(files.file("images"), files.file("archives")),
        conda=conda.read(CondaFacts, names=_read_conda_names(conda)) if conda.data else None,
        vulnerabilities=_read_vulnerabilities(files.file("vulnerabilities")),
        left_out=catalogue.left_out,
    )


def _read_gpus(files: _FactsFolder) -> GpuFacts:
    """Return the facts about GPUs; capabilities are sorted by number, the lowest first."""
    arch_names = files.file("arch_names")
    capabilities = list(_read_named(files.file("gpus"), Capability))
    for capability in capabilities:
        if not CAPABILITY.fullmatch(capability.name):
            files.problems.append(f"gpus.toml: '{capability.name}' is no capability such as '8.6'")
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
    """Return the facts about the costs of builds."""
    runs = files.file("runs")
    return CostFacts(
        # First, because to read a key is to remove it: without keys, `runs` seems to have no file.
        assumptions=runs.table("assumed").read(CostAssumptions) if runs.data else None,
        runs=runs.read_each("run", MeasuredRun),
        peaks=runs.read_each("peak", CompilePeak),
        known_units=files.file("units").read_each("unit", KnownUnit),
    )


def _read_official(files: _FactsFolder, packages: Iterable[str]) -> OfficialFacts:
    """Return the facts about official wheels, with the readings of wheels of `packages`."""
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
    """Return the places with wheels of packages, by package, if any are recorded."""
    sources_by_package: dict[str, tuple[WheelSource, ...]] = {}
    for package in packages:
        sources = files.file(f"package_wheels/{package}").read_each("place", WheelSource)
        if sources:
            sources_by_package[package] = sources
    return sources_by_package


def _read_vulnerabilities(file: TomlTable) -> VulnerabilityFacts:
    """Return the known vulnerabilities; those of a file without a day of reading are a problem."""
    if not file.data:
        return VulnerabilityFacts()
    entries: list[Vulnerability] = []
    for table in file.tables("vulnerability"):
        # Messages say "CVE-2025-32434" instead of "vulnerability 17", which is hard to find.
        table.place = f"{file.place}: {table.data.get('id')}"
        entries.append(table.read(Vulnerability))
    read = file.date("read")
    if read is None:
        file.note_problem("'read' is missing: the day on which the sources were read")
    return VulnerabilityFacts(tuple(entries), read)


def _read_named(file: TomlTable, kind: type[T]) -> Iterator[T]:
    """Yield a value for each table of a file; the name of the table becomes the field `name`."""
    for name in list(file.data):  # a list, because reading removes the keys
        yield file.table(name).read(kind, name=name)


def _read_toolkits(file: TomlTable) -> tuple[Toolkit, ...]:
    """Return the CUDA toolkits, the oldest first."""
    toolkits: list[Toolkit] = []
    for version in sorted(file.data, key=version_key):
        if not is_version(version):
            file.note_problem(f"'{version}' is not a version of CUDA, such as '12.4'")
        variant = cuda_label(version)
        toolkits.append(file.table(version).read(Toolkit, version=version, variant=variant))
    return tuple(toolkits)


def _read_toolkit_sources(file: TomlTable) -> Iterator[ToolkitSource]:
    """Yield the sources of toolkits, in the order in which their providers are tried."""
    for provider in PROVIDERS:
        for table in file.tables(provider):
            # These two lists are optional in the file only. The dataclass has no defaults for them,
            # so that code that makes a value must give both.
            values: dict[str, Any] = {
                "provider": provider,
                "versions": table.texts("versions", ()),
                "places": table.texts("places", ()),
            }
            yield table.read(ToolkitSource, **values)


def _read_causes(file: TomlTable, answers: Mapping[str, str]) -> Iterator[FailureCause]:
    """Yield the causes of failures, in the order of the file.

    `answers` are the texts of known_names.toml by their keys. A cause may have such a key as its
    `known`, and then gets the text.
    """
    for table in file.tables("cause"):
        # Messages say "NAME" instead of "cause 217", which would be hard to find in the file.
        table.place = f"{file.place}: {table.data.get('name')}"
        key = table.text("known", "")
        if key not in {"", *answers}:
            keys = ", ".join(answers)
            table.note_problem(f"'known' is '{key}', expected a table of known_names.toml: {keys}")
        yield table.read(FailureCause, answers=answers.get(key, ""))


def _read_conda_names(file: TomlTable) -> dict[str, CondaName]:
    """Return the conda package of each project on PyPI; several projects may share a package."""
    names: dict[str, CondaName] = {}
    for table in file.tables("name"):
        projects = table.texts("pypi")
        conda_name = table.read(CondaName, name=table.text("conda"))
        for project in projects:
            canonical = canonicalize_name(project)
            if project != canonical:
                table.note_problem(f"'{project}' must be written '{canonical}' here")
            if project in names:
                table.note_problem(f"'{project}' already has a name, {names[project].name}")
            names[project] = conda_name
    return names


def _read_images(file: TomlTable, archives: TomlTable) -> ImageFacts:
    """Return the facts about container images and archives; without `file`, those of archives."""
    read_archives = archives.read_each("archive", Archive)
    if not file.data:
        return ImageFacts(archives=read_archives)
    uv = file.table("uv")
    images = file.read(
        ImageFacts,
        bases=tuple(_read_base_image(table) for table in file.tables("base")),
        archives=read_archives,
        uv=uv.version("version"),
        uv_pythons=uv.pythons("pythons"),
    )
    # The source is only for people who read the file: it is obligatory, but no field holds it.
    uv.text("source")
    uv.check_unknown_keys()
    return images


def _read_base_image(table: TomlTable) -> BaseImage:
    """Return a base image, and note a problem if its digest is wrong or its toolkit is missing."""
    # In the file, the digest is optional and the source is obligatory. In the dataclass it is the
    # other way round, for images that users name.
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
    """Return the reading of the library whose path is the key `name`."""
    return table.table(name).read(LibraryReading, name=name)


def _read_maker(table: TomlTable) -> DeviceMaker:
    """Return a maker of devices, and note a problem for each invalid regular expression."""
    maker = table.read(DeviceMaker)
    for pattern in maker.names:
        try:
            re.compile(pattern)
        except re.error as error:
            table.note_problem(f"'names' has '{pattern}', which is no regular expression: {error}")
    return maker


def _without_left_out(facts: Facts) -> Facts:
    """Return facts without costs and parsed sources of packages that are left out."""
    if not facts.left_out:
        return facts
    packages = facts.packages
    costs = facts.costs
    # A unit without a package applies to all packages.
    units = [unit for unit in costs.known_units if unit.package in {"", *packages}]
    usable_costs = replace(
        costs,
        runs=tuple(run for run in costs.runs if run.package in packages),
        peaks=tuple(peak for peak in costs.peaks if peak.package in packages),
        known_units=tuple(units),
    )
    parsed = tuple(source for source in facts.parsed if source.package in packages)
    return replace(facts, costs=usable_costs, parsed=parsed)


def _package_names(facts: Facts) -> set[str]:
    """Return the names of all packages, also of those that are left out for mistakes."""
    names = set(facts.packages)
    for file in facts.left_out:
        names.update(file.names)
    return names


def _unknown_package_problems(facts: Facts, package_names: set[str]) -> Iterator[str]:
    """Yield a problem for each cost or parsed source of a package that no file describes."""
    places = [(f"units.toml: '{unit.pattern}'", unit.package) for unit in facts.costs.known_units]
    places.extend(("runs.toml", run.package) for run in facts.costs.runs)
    places.extend(("runs.toml", peak.package) for peak in facts.costs.peaks)
    places.extend(("parsed.toml", source.package) for source in facts.parsed)
    for place, name in places:
        if name and name not in package_names:
            packages = ", ".join(facts.packages)
            yield f"{place}: unknown package '{name}'; packages/ has {packages}"
