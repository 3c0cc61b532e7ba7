"""Read build_configs/ into values; all problems are collected into one error."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar, get_args

from packaging.utils import canonicalize_name

from torchmill.config import package_reader
from torchmill.config.facts_model import (
    BaseImage,
    CompilePeak,
    CondaFacts,
    CondaName,
    CostAssumptions,
    ImageFacts,
    LinkFacts,
    MeasuredRun,
    SystemManager,
    ToolkitPart,
    ToolkitSource,
)
from torchmill.config.model import (
    Arch,
    ArchName,
    Capability,
    Facts,
    FailureCause,
    KnownUnit,
    OfferedWheels,
    Package,
    Toolkit,
)
from torchmill.config.toml_reader import TomlTable, read_toml, remembering, version_key
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout, facts_folder

T = TypeVar("T")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PROVIDERS = ("conda", "debian", "pypi")  # in the order in which they are asked


def _named(file: TomlTable, kind: type[T], key: str = "name") -> Iterator[T]:
    """Yield what each table of a file says; the table's own name is a field of it."""
    for name in list(file.data):
        yield file.table(name).read(kind, **{key: name})


def _causes(file: TomlTable) -> Iterator[FailureCause]:
    """Yield the catalogue of failures, in its order."""
    for table in file.tables("cause"):
        table.where = f"{file.where}: {table.data.get('name')}"
        yield table.read(FailureCause)


def _conda_names(file: TomlTable) -> dict[str, CondaName]:
    found: dict[str, CondaName] = {}
    for table in file.tables("name"):
        projects = table.texts("pypi")
        name = table.read(CondaName, name=table.text("conda"))
        for project in projects:
            if project != canonicalize_name(project):
                table.problem(f"'{project}' is written '{canonicalize_name(project)}' here")
            if project in found:
                table.problem(f"'{project}' has a name already, {found[project].name}")
            found[project] = name
    return found


def _images(file: TomlTable) -> ImageFacts:
    """Return what is known of container images; without the file nothing is."""
    if not file.data:
        return ImageFacts()
    tools, uv = file.table("tools"), file.table("uv")
    found = file.read(
        ImageFacts,
        bases=tuple(_base_image(table) for table in file.tables("base")),
        tools={manager: tools.texts(manager) for manager in get_args(SystemManager)},
        uv=uv.version("version"),
        uv_pythons=uv.texts("pythons"),
    )
    uv.text("source")
    for table in (tools, uv):
        table.check_unknown_keys()
    return found


def _base_image(table: TomlTable) -> BaseImage:
    found = table.read(BaseImage, digest=table.text("digest", ""), source=table.text("source"))
    if found.digest and not DIGEST.fullmatch(found.digest):
        table.problem(f"'digest' is '{found.digest}', expected sha256: and 64 hexadecimal digits")
    if found.role in {"cuda", "toolkit"} and found.toolkit is None:
        table.problem("key 'toolkit' is missing")
    return found


def cuda_variant(cuda: str) -> str:
    """Return the variant that stands for a toolkit: "11.8" -> "cu118"."""
    return "cu" + cuda.replace(".", "")


def _toolkits(file: TomlTable) -> tuple[Toolkit, ...]:
    found = (
        file.table(version).read(Toolkit, version=version, variant=cuda_variant(version))
        for version in list(file.data)
    )
    return tuple(sorted(found, key=lambda one: version_key(one.version)))


def _toolkit_sources(file: TomlTable) -> Iterator[ToolkitSource]:
    """Yield what each provider has, in the order in which they are asked."""
    for provider in PROVIDERS:
        for table in file.tables(provider):
            versions, where = table.texts("versions", ()), table.texts("where", ())
            yield table.read(ToolkitSource, provider=provider, versions=versions, where=where)


def load_facts(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHMILL_CONFIGS names instead.

    What the files hold is remembered in the user's cache. Raises ConfigError as `read_facts` does.
    """
    with remembering(Layout.of_checkout(root).facts_cache):
        return read_facts(facts_folder(root))


def read_facts(folder: Path) -> Facts:
    """Read the facts in `folder`.

    Raises ConfigError with one line for each problem found.
    """
    problems: list[str] = []
    opened: list[TomlTable] = []

    def file(name: str, *, required: bool = False) -> TomlTable:
        opened.append(read_toml(folder / f"{name}.toml", problems, required=required))
        return opened[-1]

    packages = {
        package.name: package
        for path in sorted((folder / "packages").glob("*.toml"))
        for package in (package_reader.read_package(path, problems),)
    }
    if not packages:
        problems.append(f"{folder} holds no packages/*.toml")
    arch_names, runs, linking, conda = file("arch_names"), file("runs"), file("linking"), file("conda")
    capabilities = _named(file("gpus"), Capability)
    facts = Facts(
        packages,
        package_reader.read_releases(folder / "releases", packages, problems),
        _toolkits(file("toolkits", required=True)),
        {arch.name: arch for arch in _named(file("arches", required=True), Arch)},
        folder / "patches",
        capabilities=tuple(sorted(capabilities, key=lambda one: version_key(one.name))),
        arch_names=arch_names.read_each("name", ArchName),
        arch_spelling=arch_names.map("spelling", TomlTable.bounds),
        causes=tuple(_causes(file("causes"))),
        assumed=runs.table("assumed").read(CostAssumptions) if runs.data else None,
        runs=runs.read_each("run", MeasuredRun),
        peaks=runs.read_each("peak", CompilePeak),
        linking=linking.read(LinkFacts) if linking.data else None,
        units=file("units").read_each("unit", KnownUnit),
        toolkit_sources=tuple(_toolkit_sources(file("toolkit_sources"))),
        toolkit_parts=tuple(_named(file("toolkit_parts"), ToolkitPart)),
        elsewhere=file("indexes").read_each("wheels", OfferedWheels),
        images=_images(file("images")),
        conda=conda.read(CondaFacts, names=_conda_names(conda)) if conda.data else None,
    )
    for table in opened:
        table.check_unknown_keys()
    _cross_check(facts, problems)
    if problems:
        lines = "\n".join(f"  {line}" for line in problems)
        raise ConfigError(f"build_configs has problems:\n{lines}", code="facts-invalid")
    return facts


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
    problems.extend(
        f"units.toml: '{unit.pattern}': unknown package '{unit.package}'; packages/ has "
        f"{', '.join(facts.packages)}"
        for unit in facts.units
        if unit.package and unit.package not in facts.packages
    )
    for package in facts.packages.values():
        problems.extend(_misnamed(facts, package))
        for rule in package.rules:
            problems.extend(
                f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"
                for patch in rule.patches
                if not (facts.patches / package.name / patch).is_file()
            )


def _misnamed(facts: Facts, package: Package) -> Iterator[str]:
    """Yield what a package says of another that is not so."""
    if package.after is not None and package.after not in facts.packages:
        yield f"{package.name}.toml: 'after' is '{package.after}'; packages/ has {', '.join(facts.packages)}"
    for other in facts.packages.values():
        if other.session == package.session and other.name < package.name:
            yield f"{package.name}.toml: 'session' is '{package.session}', which is that of {other.name}"
