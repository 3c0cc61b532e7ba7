"""Read build_configs/ into values; all problems are collected into one error."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config import cost_reader, package_reader
from torchmill.config.cost_reader import take_pair
from torchmill.config.delivery_model import (
    CONDA_BOUNDS,
    BaseImage,
    Companion,
    CondaFacts,
    CondaName,
    ImageFacts,
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
from torchmill.config.toml_reader import TomlTable, read_tables, read_toml, remembering
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout


def read_causes(path: Path, problems: list[str]) -> tuple[FailureCause, ...]:
    """Read the catalogue of failures, in its order; without the file there is none."""
    if not path.exists():
        return ()
    file = read_toml(path, problems)
    tables = [TomlTable(f"{path.name}: {one.get('name')}", one, problems) for one in file.take("cause", [])]
    found = tuple(_cause(table) for table in tables)
    file.check_unknown_keys()
    return found


def _cause(table: TomlTable) -> FailureCause:
    cause = FailureCause(
        name=table.text("name"),
        patterns=table.texts("patterns"),
        cause=table.text("cause"),
        cure=table.text("cure"),
        source=table.text("source"),
        examples=table.texts("examples"),
        release=table.specifier("release"),
        precedence=table.choice("precedence", PRECEDENCE, "specific"),
    )
    table.check_unknown_keys()
    return cause


def read_conda(path: Path, problems: list[str]) -> CondaFacts | None:
    """Read what is known of conda; None without the file, and then no packages can be made for it."""
    if not path.exists():
        return None
    file = read_toml(path, problems)
    compiled = file.table("compiled_with")
    found = CondaFacts(
        subdirs=file.mapping("subdirs"),
        cuda=file.mapping("cuda"),
        licenses=file.mapping("licenses"),
        compiled_with={name: compiled.texts(name) for name in list(compiled.data)},
        libstdcxx=file.mapping("libstdcxx"),
        names=_names(file),
    )
    file.check_unknown_keys()
    return found


def _names(file: TomlTable) -> dict[str, CondaName]:
    found: dict[str, CondaName] = {}
    for table in file.tables("name"):
        name = CondaName(table.text("conda"), table.choice("bounds", CONDA_BOUNDS, "same"))
        for project in table.texts("pypi"):
            if project != canonicalize_name(project):
                table.problem(f"'{project}' is written '{canonicalize_name(project)}' here")
            if project in found:
                table.problem(f"'{project}' has a name already, {found[project].name}")
            found[project] = name
        table.check_unknown_keys()
    return found


ROLES = ("manylinux", "system", "cuda", "toolkit", "python")
MANAGERS = ("apt", "dnf", "yum")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def read_images(path: Path, problems: list[str]) -> ImageFacts:
    """Read what is known of images; without the file nothing is."""
    if not path.exists():
        return ImageFacts()
    file = read_toml(path, problems)
    bases = tuple(_base(table) for table in file.tables("base"))
    companions = tuple(_companion(table) for table in file.tables("companion"))
    tools, uv = file.table("tools"), file.table("uv")
    found = ImageFacts(
        bases,
        {manager: tools.texts(manager) for manager in MANAGERS},
        uv.version("version"),
        uv.texts("pythons"),
        file.mapping("unsupported"),
        companions,
    )
    uv.text("source")
    for table in (tools, uv, file):
        table.check_unknown_keys()
    return found


def _base(table: TomlTable) -> BaseImage:
    found = BaseImage(
        role=table.choice("role", ROLES),
        image=table.text("image"),
        tag=table.text("tag"),
        digest=table.text("digest", ""),
        arches=table.texts("arches"),
        distribution=table.text("distribution"),
        version=table.text("version"),
        manager=table.choice("manager", MANAGERS),
        glibc=table.optional("glibc"),
        pythons=table.texts("pythons", ()),
        toolkit=table.optional("toolkit"),
        gcc=table.optional("gcc"),
        compilers=table.texts("compilers", ()),
        compiler=table.text("compiler", ""),
        lacks=table.texts("lacks", ()),
        source=table.text("source"),
    )
    if found.digest and not DIGEST.fullmatch(found.digest):
        table.problem(f"'digest' is '{found.digest}', expected sha256: and 64 hexadecimal digits")
    if found.role in {"cuda", "toolkit"} and found.toolkit is None:
        table.problem("key 'toolkit' is missing")
    table.check_unknown_keys()
    return found


def _companion(table: TomlTable) -> Companion:
    found = Companion(
        table.specifier("release") or SpecifierSet(),
        table.text("package", ""),
        table.texts("requires"),
        table.text("source"),
    )
    table.check_unknown_keys()
    return found


def read_offered_wheels(path: Path, problems: list[str]) -> tuple[OfferedWheels, ...]:
    """Read which wheels others offer, in the order in which they count; none are known without the file."""
    if not path.exists():
        return ()
    file = read_toml(path, problems)
    found = []
    for table in file.tables("wheels"):
        found.append(
            OfferedWheels(
                name=table.text("name"),
                url=table.text("url"),
                packages=table.texts("packages"),
                release=table.specifier("release") or SpecifierSet(),
                variants=table.texts("variant"),
                arches=table.texts("arches"),
                label=table.text("label", ""),
                source=table.text("source"),
                default=table.flag("default"),
            )
        )
        table.check_unknown_keys()
    file.check_unknown_keys()
    return tuple(found)


def read_arches(path: Path, problems: list[str]) -> dict[str, Arch]:
    """Read the machines."""
    return {
        name: Arch(
            name,
            table.text("system"),
            table.texts("machines"),
            table.text("platform_tag"),
            take_pair(table, "emulated") if "emulated" in table.data else None,
            table.text("oldest_glibc") if "oldest_glibc" in table.data else None,
        )
        for name, table in read_tables(path, problems)
    }


def cuda_variant(cuda: str) -> str:
    """Return the variant that stands for a toolkit: "11.8" -> "cu118"."""
    return "cu" + cuda.replace(".", "")


def read_toolkits(path: Path, problems: list[str]) -> tuple[Toolkit, ...]:
    """Read what is known of each CUDA toolkit, oldest first."""
    file = read_toml(path, problems)
    found = []
    for version in list(file.data):
        table = file.table(version)
        found.append(
            Toolkit(
                version=version,
                variant=cuda_variant(version),
                arches=table.texts("arches"),
                gcc=table.specifier("gcc") or SpecifierSet(),
                clang=table.specifier("clang") or SpecifierSet(),
                capabilities=table.texts("capabilities"),
                driver=table.optional("driver"),
                source=table.text("source"),
                deprecated=table.texts("deprecated", ()),
                driver_windows=table.optional("driver_windows"),
                driver_ptx=table.optional("driver_ptx"),
                jetson=table.texts("jetson", ()),
            )
        )
        table.check_unknown_keys()
    return tuple(sorted(found, key=lambda toolkit: Version(toolkit.version)))


def read_capabilities(path: Path, problems: list[str]) -> tuple[Capability, ...]:
    """Read the GPUs of each compute capability, oldest first; without the file none are known."""
    if not path.exists():
        return ()
    found = (
        Capability(
            name=name,
            architecture=table.text("architecture"),
            gpus=table.texts("gpus"),
            tegra=table.flag("tegra"),
            extensions=table.specifiers("extensions"),
        )
        for name, table in read_tables(path, problems)
    )
    return tuple(sorted(found, key=lambda one: Version(one.name)))


def read_arch_names(path: Path, problems: list[str]) -> tuple[dict[str, SpecifierSet], tuple[ArchName, ...]]:
    """Read how releases write lists of capabilities: spellings and names; without the file none is known."""
    if not path.exists():
        return {}, ()
    file = read_toml(path, problems)
    spelling = file.specifiers("spelling")
    found = []
    for table in file.tables("name"):
        release = table.specifier("release") or SpecifierSet()
        found.append(ArchName(table.text("name"), release, table.texts("means")))
        table.check_unknown_keys()
    file.check_unknown_keys()
    return spelling, tuple(found)


PROVIDERS = ("conda", "debian", "pypi")  # in the order in which they are asked
KINDS = ("toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "magma")


def read_toolkit_sources(path: Path, problems: list[str]) -> tuple[ToolkitSource, ...]:
    """Read what each provider has, in the order in which they are asked; nobody has anything without it."""
    if not path.exists():
        return ()
    file = read_toml(path, problems)
    found = []
    for provider in PROVIDERS:
        for table in file.tables(provider):
            found.append(
                ToolkitSource(
                    provider=provider,
                    kind=table.choice("kind", KINDS),
                    versions=table.texts("versions", ()),
                    packages=table.texts("packages"),
                    arches=table.texts("arches"),
                    where=table.texts("where", ()),
                    cuda=table.optional("cuda"),
                    source=table.text("source"),
                    capabilities=table.texts("capabilities", ()),
                )
            )
            table.check_unknown_keys()
    file.check_unknown_keys()
    return tuple(found)


def read_toolkit_parts(path: Path, problems: list[str]) -> tuple[ToolkitPart, ...]:
    """Read the parts of toolkits; without the file no toolkit is known to lack any."""
    if not path.exists():
        return ()
    return tuple(
        ToolkitPart(
            name=name,
            called=table.text("called"),
            package=table.text("package"),
            headers=table.texts("headers"),
            libraries=table.texts("libraries"),
            cuda=table.specifier("cuda"),
            without=table.text("without", ""),
            source=table.text("source"),
        )
        for name, table in read_tables(path, problems)
    )


def read_units(path: Path, problems: list[str]) -> tuple[KnownUnit, ...]:
    """Read what is known of units, in the file's order; without the file there is nothing."""
    if not path.exists():
        return ()
    file = read_toml(path, problems)
    found = tuple(_unit(table) for table in file.tables("unit"))
    file.check_unknown_keys()
    return found


def _unit(table: TomlTable) -> KnownUnit:
    unit = KnownUnit(
        pattern=table.text("pattern"),
        peak=table.size("peak"),
        seconds=table.count("seconds"),
        package=table.text("package", ""),
        release=table.specifier("release"),
        source=table.text("source"),
    )
    table.check_unknown_keys()
    return unit


def load_facts(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHMILL_CONFIGS names instead.

    What the files hold is remembered in the user's cache. Raises ConfigError as `read_facts` does.
    """
    folder = Path(os.environ.get("TORCHMILL_CONFIGS", root / "build_configs"))
    with remembering(Layout.of_checkout(root).cache / "facts.json"):
        return read_facts(folder)


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
        problems.append(f"{folder}: there is no packages/*.toml in it")
    releases = package_reader.read_releases(folder / "releases", packages, problems)
    spelling, names = read_arch_names(folder / "arch_names.toml", problems)
    runs, peaks, assumed = cost_reader.read_runs(folder / "runs.toml", problems)
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
        linking=cost_reader.read_linking(folder / "linking.toml", problems),
        units=read_units(folder / "units.toml", problems),
        toolkit_sources=read_toolkit_sources(folder / "toolkit_sources.toml", problems),
        toolkit_parts=read_toolkit_parts(folder / "toolkit_parts.toml", problems),
        elsewhere=read_offered_wheels(folder / "indexes.toml", problems),
        images=read_images(folder / "images.toml", problems),
        conda=read_conda(folder / "conda.toml", problems),
    )
    _cross_check(facts, problems)
    if problems:
        raise ConfigError("build_configs has problems:\n" + "\n".join(f"  {line}" for line in problems))
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
