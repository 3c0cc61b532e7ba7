"""Read arches.toml, toolkits.toml, gpus.toml and arch_names.toml."""

from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.facts.costs import numbers
from torchmill.model import Arch, ArchName, Capability, Toolkit
from torchmill.tables import each, read


def arches(path: Path, problems: list[str]) -> dict[str, Arch]:
    """Read the machines."""
    return {
        name: Arch(
            name,
            table.text("system"),
            table.texts("machines"),
            table.text("platform_tag"),
            numbers(table, "emulated") if "emulated" in table.data else None,
            table.text("oldest_glibc") if "oldest_glibc" in table.data else None,
        )
        for name, table in each(path, problems)
    }


def variant_of(cuda: str) -> str:
    """Return the variant that stands for a toolkit: "11.8" -> "cu118"."""
    return "cu" + cuda.replace(".", "")


def toolkits(path: Path, problems: list[str]) -> tuple[Toolkit, ...]:
    """Read what is known of each CUDA toolkit, oldest first."""
    file = read(path, problems)
    found = []
    for version in list(file.data):
        table = file.table(version)
        found.append(
            Toolkit(
                version=version,
                variant=variant_of(version),
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
        table.done()
    return tuple(sorted(found, key=lambda toolkit: Version(toolkit.version)))


def capabilities(path: Path, problems: list[str]) -> tuple[Capability, ...]:
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
        for name, table in each(path, problems)
    )
    return tuple(sorted(found, key=lambda one: Version(one.name)))


def arch_names(path: Path, problems: list[str]) -> tuple[dict[str, SpecifierSet], tuple[ArchName, ...]]:
    """Read how releases write lists of capabilities: spellings and names; without the file none is known."""
    if not path.exists():
        return {}, ()
    file = read(path, problems)
    spelling = file.specifiers("spelling")
    found = []
    for table in file.tables("name"):
        release = table.specifier("release") or SpecifierSet()
        found.append(ArchName(table.text("name"), release, table.texts("means")))
        table.done()
    file.done()
    return spelling, tuple(found)
