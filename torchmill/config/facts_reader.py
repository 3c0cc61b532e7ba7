"""Read build_configs/ into values; all problems are collected into one error."""

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchmill.config import package_reader
from torchmill.config.facts_model import (
    CONDA_BOUNDS,
    BaseImage,
    CodeCompression,
    Companion,
    CompilePeak,
    CondaFacts,
    CondaName,
    CostAssumptions,
    ImageFacts,
    LinkFacts,
    LinkReport,
    MeasuredRun,
    StaticLibrary,
    ToolkitPart,
    ToolkitSource,
)
from torchmill.config.model import (
    PRECEDENCE,
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
from torchmill.config.toml_reader import (
    TomlTable,
    read_list,
    read_tables,
    read_toml,
    remembering,
    version_key,
)
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout, facts_folder

IMAGE_ROLES = ("manylinux", "system", "cuda", "toolkit", "python")
MANAGERS = ("apt", "dnf", "yum")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PROVIDERS = ("conda", "debian", "pypi")  # in the order in which they are asked
KINDS = ("toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "magma")
SCOPES = ("compile", "job")
SPREADS = ("own", "cpu", "cuda", "other")


def read_causes(path: Path, problems: list[str]) -> tuple[FailureCause, ...]:
    """Read the catalogue of failures, in its order."""
    file = read_toml(path, problems, required=False)
    found = []
    for table in file.tables("cause"):
        table.where = f"{path.name}: {table.data.get('name')}"
        precedence = table.choice("precedence", PRECEDENCE, "specific")
        found.append(table.read(FailureCause, precedence=precedence))
    file.check_unknown_keys()
    return tuple(found)


def read_conda(path: Path, problems: list[str]) -> CondaFacts | None:
    """Read what is known of conda; None without the file, and then no packages can be made for it."""
    file = read_toml(path, problems, required=False)
    return file.read(CondaFacts, names=_conda_names(file)) if file.data else None


def _conda_names(file: TomlTable) -> dict[str, CondaName]:
    found: dict[str, CondaName] = {}
    for table in file.tables("name"):
        projects = table.texts("pypi")
        bounds = table.choice("bounds", CONDA_BOUNDS, "same")
        name = table.read(CondaName, name=table.text("conda"), bounds=bounds)
        for project in projects:
            if project != canonicalize_name(project):
                table.problem(f"'{project}' is written '{canonicalize_name(project)}' here")
            if project in found:
                table.problem(f"'{project}' has a name already, {found[project].name}")
            found[project] = name
    return found


def read_images(path: Path, problems: list[str]) -> ImageFacts:
    """Read what is known of container images; without the file nothing is."""
    file = read_toml(path, problems, required=False)
    if not file.data:
        return ImageFacts()
    tools, uv = file.table("tools"), file.table("uv")
    found = file.read(
        ImageFacts,
        bases=tuple(_base_image(table) for table in file.tables("base")),
        tools={manager: tools.texts(manager) for manager in MANAGERS},
        uv=uv.version("version"),
        uv_pythons=uv.texts("pythons"),
        unsupported=file.mapping("unsupported"),
        companions=file.read_each("companion", Companion),
    )
    uv.text("source")
    for table in (tools, uv):
        table.check_unknown_keys()
    return found


def _base_image(table: TomlTable) -> BaseImage:
    role, manager = table.choice("role", IMAGE_ROLES), table.choice("manager", MANAGERS)
    found = table.read(
        BaseImage, role=role, manager=manager, digest=table.text("digest", ""), source=table.text("source")
    )
    if found.digest and not DIGEST.fullmatch(found.digest):
        table.problem(f"'digest' is '{found.digest}', expected sha256: and 64 hexadecimal digits")
    if found.role in {"cuda", "toolkit"} and found.toolkit is None:
        table.problem("key 'toolkit' is missing")
    return found


def read_arches(path: Path, problems: list[str]) -> dict[str, Arch]:
    """Read the machines."""
    return {name: table.read(Arch, name=name) for name, table in read_tables(path, problems)}


def cuda_variant(cuda: str) -> str:
    """Return the variant that stands for a toolkit: "11.8" -> "cu118"."""
    return "cu" + cuda.replace(".", "")


def read_toolkits(path: Path, problems: list[str]) -> tuple[Toolkit, ...]:
    """Read what is known of each CUDA toolkit, oldest first."""
    found = (
        table.read(Toolkit, version=version, variant=cuda_variant(version))
        for version, table in read_tables(path, problems)
    )
    return tuple(sorted(found, key=lambda one: version_key(one.version)))


def read_capabilities(path: Path, problems: list[str]) -> tuple[Capability, ...]:
    """Read the GPUs of each compute capability, oldest first; without the file none are known."""
    found = (table.read(Capability, name=name) for name, table in read_tables(path, problems, required=False))
    return tuple(sorted(found, key=lambda one: version_key(one.name)))


def read_arch_names(path: Path, problems: list[str]) -> tuple[dict[str, SpecifierSet], tuple[ArchName, ...]]:
    """Read how releases write lists of capabilities: spellings and names; without the file none is known."""
    file = read_toml(path, problems, required=False)
    found = file.map("spelling", TomlTable.bounds), file.read_each("name", ArchName)
    file.check_unknown_keys()
    return found


def read_toolkit_sources(path: Path, problems: list[str]) -> tuple[ToolkitSource, ...]:
    """Read what each provider has, in the order in which they are asked; nobody has anything without it."""
    file = read_toml(path, problems, required=False)
    found = tuple(
        table.read(
            ToolkitSource,
            provider=provider,
            kind=table.choice("kind", KINDS),
            versions=table.texts("versions", ()),
            where=table.texts("where", ()),
        )
        for provider in PROVIDERS
        for table in file.tables(provider)
    )
    file.check_unknown_keys()
    return found


def read_toolkit_parts(path: Path, problems: list[str]) -> tuple[ToolkitPart, ...]:
    """Read the parts of toolkits; without the file no toolkit is known to lack any."""
    return tuple(
        table.read(ToolkitPart, name=name, without=table.text("without", ""))
        for name, table in read_tables(path, problems, required=False)
    )


def read_runs(
    path: Path, problems: list[str]
) -> tuple[tuple[MeasuredRun, ...], tuple[CompilePeak, ...], CostAssumptions | None]:
    """Read measured builds, the largest compiles, and what is assumed; without the file there is nothing."""
    file = read_toml(path, problems, required=False)
    if not file.data:
        return (), (), None
    runs = [
        table.read(MeasuredRun, scope=table.choice("scope", SCOPES), environment=None)
        for table in file.tables("run")
    ]
    terms = file.table("assumed")
    spread = terms.table("spread")
    found = (
        tuple(runs),
        file.read_each("peak", CompilePeak),
        terms.read(CostAssumptions, spread={name: spread.number(name) for name in SPREADS}),
    )
    for table in (spread, file):
        table.check_unknown_keys()
    return found


def read_linking(path: Path, problems: list[str]) -> LinkFacts | None:
    """Read what is known of the link of libtorch_cuda; without the file nothing is."""
    file = read_toml(path, problems, required=False)
    if not file.data:
        return None
    return file.read(
        LinkFacts,
        static=file.read_each("static", StaticLibrary),
        compression=file.read_each("compression", CodeCompression),
        reports=file.read_each("report", LinkReport),
    )


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
    arches = read_arches(folder / "arches.toml", problems)
    toolkits = read_toolkits(folder / "toolkits.toml", problems)
    files = sorted((folder / "packages").glob("*.toml"))
    packages = {
        package.name: package for package in (package_reader.read_package(path, problems) for path in files)
    }
    if not packages:
        problems.append(f"{folder} holds no packages/*.toml")
    releases = package_reader.read_releases(folder / "releases", packages, problems)
    spelling, names = read_arch_names(folder / "arch_names.toml", problems)
    runs, peaks, assumed = read_runs(folder / "runs.toml", problems)
    facts = Facts(
        packages,
        releases,
        toolkits,
        arches,
        folder / "patches",
        capabilities=read_capabilities(folder / "gpus.toml", problems),
        arch_names=names,
        arch_spelling=spelling,
        causes=read_causes(folder / "causes.toml", problems),
        runs=runs,
        peaks=peaks,
        assumed=assumed,
        linking=read_linking(folder / "linking.toml", problems),
        units=read_list(folder / "units.toml", problems, "unit", KnownUnit),
        toolkit_sources=read_toolkit_sources(folder / "toolkit_sources.toml", problems),
        toolkit_parts=read_toolkit_parts(folder / "toolkit_parts.toml", problems),
        elsewhere=read_list(folder / "indexes.toml", problems, "wheels", OfferedWheels),
        images=read_images(folder / "images.toml", problems),
        conda=read_conda(folder / "conda.toml", problems),
    )
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
