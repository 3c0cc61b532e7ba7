"""A machine described in a TOML file: read strictly, and written so that it is read again.

The file's keys are flat; they predate the classes that now group them. A table (`TomlTable`)
gathers the problems of its file in a list, each as a line for the user. A host is "complete" if
what its description does not name is absent, and not merely unknown.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchmill.config.distributions import WITH_MUSL, usual_managers
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.toml_reader import PYTHON, TomlTable, read_toml
from torchmill.config.versions import is_version
from torchmill.core.errors import ConfigError
from torchmill.core.system_errors import report_unwritable
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostCrossing,
    HostGpus,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostPrograms,
    HostResources,
    HostToolkits,
)
from torchmill.host.native import ARCHES, SYSTEMS

_MOST_CORES = 10**6  # more than any machine has
_LONGEST_NUMBER = 30  # digits that a message shows
FAMILIES = ("gcc", "clang", "apple-clang", "msvc")
# Keys of the tables "versions" and "libraries" whose values are not versions: the name of a Linux
# release, and the path of a library.
_NOT_VERSIONS = {"codename", "libstdc++"}
_HEADER = (
    "# A machine, as `invoke doctor --save` wrote it; examine it with `invoke doctor --host FILE`\n"
)


def load_host(path: Path) -> Host:
    """Read a host from a TOML file. Raises ConfigError with all mistakes, a line each."""
    if not path.is_file():
        state = "is a folder" if path.is_dir() else "is not there, or no file"
        raise ConfigError(
            f"{path} {state}: write one with `invoke doctor --save FILE`, or leave --host out",
            code="host-file-missing",
        )
    problems: list[str] = []
    table = read_toml(path, problems)
    if problems:  # the file is not TOML: each key would be reported as missing, too
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    host = _read_host(table)
    _check_host(table, host)
    if problems:  # those of `table`, which reading and checking have reported
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    return host


def _read_host(table: TomlTable) -> Host:
    """Read the known keys of a description and report unknown ones.

    A field is read from the key of its name, unless the call names another key for it.
    """
    system = table.choice("system", SYSTEMS.values())
    # Compilers that cannot be read are None, and were reported.
    by_command = table.map("compilers", _read_compiler)
    compilers = HostCompilers(
        default=_read_compiler(table, "compiler"),
        cuda=_read_compiler(table, "cuda_compiler"),
        by_command={name: compiler for name, compiler in by_command.items() if compiler},
        fault=table.optional("compiler_fault") or "",
    )
    # The disks are those of one checkout's folders, which a description does not have.
    resources = table.read_fields(
        HostResources,
        {"free_disk": "disk"},
        cores=_read_cores(table),
        memory=_read_memory(table),
        disks=(),
    )
    host = Host(
        arch=_read_arch(table, system),
        system=system,
        resources=resources,
        platform=table.read_fields(
            HostPlatform,
            {"processor_features": "processor"},
            distribution=_read_distribution(table, system),
        ),
        compilers=compilers,
        programs=table.read_fields(HostPrograms, {"paths": "tools"}),
        packages=table.read_fields(HostPackages, {"may_use_root": "root", "installed": "packages"}),
        toolkits=table.read_fields(
            HostToolkits, {"homes": "toolkits", "lacking_parts": "lacking", "provisioned": "kept"}
        ),
        interpreters=table.read_fields(
            HostInterpreters,
            {
                "paths": "interpreters",
                "broken": "broken_interpreters",
                "without_headers": "headless_interpreters",
                "translated": "translated_interpreters",
            },
        ),
        gpus=table.read_fields(
            HostGpus,
            {"compat_folders": "compat", "stub_folders": "stubs"},
            devices=table.read_each("gpus", Gpu),
        ),
        complete=table.flag("complete"),
        crossings=table.map("crossings", _read_crossing),
    )
    table.check_unknown_keys()
    return host


def _read_crossing(table: TomlTable, arch: str) -> HostCrossing:
    """Read what a host has to build for another arch."""
    crossing = table.table(arch)
    by_command = crossing.map("compilers", _read_compiler)
    compilers = {name: compiler for name, compiler in by_command.items() if compiler}
    return crossing.read(HostCrossing, compilers=compilers)


def _check_host(table: TomlTable, host: Host) -> None:
    """Report values that have the right type and cannot be right."""
    for name, version in {**host.programs.versions, **host.toolkits.libraries}.items():
        if version and name not in _NOT_VERSIONS and not is_version(version):
            table.note_problem(
                f"'{name}' is '{version}', expected a version, such as '2.35' (PEP 440)"
            )
    for gpu in host.gpus.devices:
        if gpu.capability and not re.fullmatch(r"\d+\.\d", gpu.capability):
            table.note_problem(
                f"'capability' of '{gpu.name}' is '{gpu.capability}', expected one such as '8.6'"
            )
    interpreters = {
        "interpreters": host.interpreters.paths,
        "broken_interpreters": host.interpreters.broken,
        "headless_interpreters": host.interpreters.without_headers,
        "translated_interpreters": host.interpreters.translated,
    }
    for key, paths in interpreters.items():
        for python in paths:
            if not PYTHON.fullmatch(python):
                table.note_problem(
                    f"'{key}' has '{python}', which is not a Python such as '3.10' or '3.13t'"
                )
    for problem in contradictions(host):
        table.note_problem(problem)


def contradictions(host: Host) -> Iterator[str]:
    """Yield the contradictions in the description of a host, each as a sentence."""
    glibc = host.platform.glibc
    distribution = host.platform.distribution
    manager = host.packages.manager
    usual = usual_managers(distribution)
    # conda and brew run on every distribution.
    if usual and manager and manager not in {*usual, "conda", "brew"}:
        yield (
            f"'manager' is '{manager}', and packages of {distribution} are installed with "
            f"{usual[0]}: correct one of the two"
        )
    if glibc and host.system in ARCHES and host.system != "linux":
        yield f"'glibc' is a C library of Linux, and 'system' is '{host.system}': leave it out"
    if glibc and distribution and distribution.id in WITH_MUSL:
        yield f"'glibc' is given, and the C library of {distribution} is musl: leave it out"
    if distribution and distribution.l4t and host.arch != "aarch64":
        yield (
            "'l4t' is for Jetson boards, which are aarch64, "
            f"and 'arch' is '{host.arch}': correct one of the two"
        )
    if host.toolkits.homes and host.system == "macos" and host.arch == "arm64":
        yield "'toolkits' is given, and there is no CUDA toolkit for Apple silicon: leave it out"


def save_host(host: Host, path: Path) -> None:
    """Write a host to a file that `load_host` reads. Raises HostError if it cannot be written."""
    with report_unwritable(path):
        path.write_text(describe_host(host), encoding="utf-8")


def describe_host(host: Host) -> str:
    """Return the TOML from which `load_host` reads this host again.

    Its runs, its disks, and the arch that a view crosses to (`Host.crosses`) are left out.
    """
    import tomlkit  # which few commands need

    compilers = host.compilers
    values: dict[str, Any] = {
        "arch": host.arch,
        "system": host.system,
        "cores": host.resources.cores,
        "memory": _format_bytes(host.resources.memory),
        "disk": _format_bytes(host.resources.free_disk),
        "processor_seconds": host.resources.processor_seconds,
        "open_files": host.resources.open_files,
        "processes": host.resources.processes,
        "largest_file": _format_bytes(host.resources.largest_file),
        "shared_memory": _format_bytes(host.resources.shared_memory),
        "glibc": host.platform.glibc,
        "distribution": _without_empty(host.platform.distribution),
        "complete": host.complete,
        "translated": host.platform.translated,
        "compiler": str(compilers.default) if compilers.default else None,
        "cuda_compiler": str(compilers.cuda) if compilers.cuda else None,
        "compilers": {name: str(compiler) for name, compiler in compilers.by_command.items()},
        "compiler_fault": compilers.fault,
        "tools": host.programs.paths,
        "versions": host.programs.versions,
        "libraries": host.toolkits.libraries,
        "loader_libraries": host.toolkits.loader_libraries,
        "missing_certificates": host.platform.missing_certificates,
        "manager": host.packages.manager,
        "managers": host.packages.managers,
        "archives": host.packages.archives,
        "root": host.packages.may_use_root,
        "packages": host.packages.installed,
        "toolkits": host.toolkits.homes,
        "completed": host.toolkits.completed,
        "lacking": host.toolkits.lacking_parts,
        "kept": host.toolkits.provisioned,
        "interpreters": host.interpreters.paths,
        "broken_interpreters": host.interpreters.broken,
        "headless_interpreters": host.interpreters.without_headers,
        "lacking_modules": host.interpreters.lacking_modules,
        "translated_interpreters": host.interpreters.translated,
        "processor": host.platform.processor_features,
        "driver": host.gpus.driver,
        "kernel_driver": host.gpus.kernel_driver,
        "compat": host.gpus.compat_folders,
        "stubs": host.gpus.stub_folders,
        "compat_driver": host.gpus.compat_driver,
        "gpus": [_without_empty(gpu) for gpu in host.gpus.devices],
        "unanswered": host.programs.unanswered,
        "crossings": {arch: _crossing_as_data(item) for arch, item in host.crossings.items()},
    }
    written = {}
    for key, value in values.items():
        # An empty value is the default, except for `root`: false differs from unknown.
        if value or (key == "root" and value is not None):
            written[key] = value
    return _HEADER + tomlkit.dumps(written)


def _crossing_as_data(crossing: HostCrossing) -> dict[str, Any]:
    """Return what a host has to build for another arch, without empty values."""
    data = asdict(crossing)
    data["compilers"] = {name: str(compiler) for name, compiler in crossing.compilers.items()}
    return {key: value for key, value in data.items() if value}


def _format_bytes(size: int | None) -> str | None:
    """Return a size as the file has it, "1024 B"; None for 0 and None, which are left out."""
    return f"{size} B" if size else None


def _without_empty(value: LinuxDistribution | Gpu | None) -> dict[str, Any]:
    """Return the fields of a value that are not empty; {} for None."""
    if value is None:
        return {}
    return {key: field for key, field in asdict(value).items() if field}


def _read_arch(table: TomlTable, system: str) -> str:
    """Read the arch: a usual one of the system, or "<system>_…" for any other.

    `native_arch` makes such names, so that a machine of another arch can be described.
    """
    arch = table.text("arch")
    usual = ARCHES.get(system, ())
    if arch and usual and arch not in usual and not arch.startswith(f"{system}_"):
        choices = " or ".join(usual)
        table.note_problem(f"'arch' is '{arch}', expected {choices} if 'system' is '{system}'")
    return arch


def _read_distribution(table: TomlTable, system: str) -> LinuxDistribution | None:
    """Read the distribution, a table with at least an `id`; None if there is none."""
    if "distribution" not in table.data:
        # If a key is unknown, `check_unknown_keys` suggests one that was asked for, such as this.
        table.requested.append("distribution")
        return None
    if system in ARCHES and system != "linux":
        table.note_problem(
            f"'distribution' is one of Linux, and 'system' is '{system}': leave it out"
        )
    inner = table.table("distribution")
    distribution = inner.read(LinuxDistribution)
    l4t = distribution.l4t
    if l4t and not is_version(l4t):
        inner.note_problem(
            f"'l4t' is '{l4t}', expected a release of Jetson Linux, such as '36.4.3'"
        )
    return distribution


def _read_compiler(table: TomlTable, key: str) -> Compiler | None:
    """Read a compiler, written as "gcc 12.2.0"; None if the key is absent or its value is wrong."""
    text = table.optional(key)
    if not text:
        return None
    family, _, version = text.partition(" ")
    if family not in FAMILIES or not is_version(version):
        families = ", ".join(FAMILIES)
        table.note_problem(
            f"'{key}' is '{text}', expected one of {families} and a version, as in 'gcc 12.2.0'"
        )
        return None
    return Compiler(family, version)


def _read_cores(table: TomlTable) -> int:
    """Read the number of processors; anything but a whole number from 1 to a million is reported.

    The result is 1 then.
    """
    expected = f"a whole number from 1 to {_MOST_CORES}"
    cores = table.take("cores", int, expected)
    if cores is None:  # missing, or no number: `take` has reported that
        return 1
    if not 1 <= cores <= _MOST_CORES:
        digits = len(hex(cores))  # str() refuses a number of more than 4300 digits
        shown = cores if digits < _LONGEST_NUMBER else f"a number of some {digits} digits"
        table.note_problem(f"'cores' is {shown}, expected {expected}")
        return 1
    return cores


def _read_memory(table: TomlTable) -> int:
    """Read the memory in bytes; 0 for a wrong value, which is reported."""
    text = table.data.get("memory")
    problems_before = len(table.problems)
    memory = table.size("memory")
    # A value that cannot be read is 0, too.
    was_read = len(table.problems) == problems_before
    if was_read and memory <= 0:
        table.note_problem(f"'memory' is '{text}', expected what the machine has, such as '16 GiB'")
    return memory
