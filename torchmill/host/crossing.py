"""What this machine has to build for another arch: cross compilers, toolkits, QEMU, Pythons.

A build for another arch can be *crossed*: everything runs on this machine, and its compilers make
code for the other one. What they made is tried by an emulator.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torchmill.core.lenient_paths import exists, is_file
from torchmill.core.package_data import read_table_beside
from torchmill.host import native, provisioned
from torchmill.host.compilers import identify_compiler
from torchmill.host.disk_usage import list_names
from torchmill.host.host import Compiler, Host, HostCompilers, HostCrossing, HostGpus, HostToolkits
from torchmill.host.interpreters import uv_interpreters_for
from torchmill.host.programs import RunProgram

# A folder with the files of another machine's system, among them its Python.
ROOT_VARIABLE = "TORCHMILL_SYSROOT"
_MACHINES = read_table_beside(__file__, "crossing.toml")
_EXECUTABLE = re.compile(r"python(3\.\d+t?)")
_BIN_FOLDERS = ("usr/local/bin", "usr/bin", "bin")  # in a root
# glibc names its version in its own text: "GNU C Library (Debian GLIBC 2.36-9) stable release
# version 2.36." It is read because the library itself does not run here.
_GLIBC = re.compile(rb"release version (\d+\.\d+)")


def crossed_arches() -> tuple[str, ...]:
    """Return the arches that builds on another machine can be crossed for."""
    return tuple(_MACHINES)


def triplet(arch: str) -> str:
    """Return GNU's name of a machine: "aarch64-linux-gnu".

    Raises KeyError for an arch that `crossed_arches` lacks, as the next three functions do.
    """
    return str(_MACHINES[arch]["triplet"])


def emulator_name(arch: str) -> str:
    """Return the name of the preferred emulator of a machine: "qemu-aarch64-static"."""
    return str(_MACHINES[arch]["emulators"][0])


def emulated_processor(arch: str) -> str:
    """Return the processor that QEMU emulates of a machine: "neoverse-n1"."""
    return str(_MACHINES[arch]["processor"])


def emulated_cpuinfo(arch: str, cores: int) -> str:
    """Return /proc/cpuinfo of a machine with some cores of that processor."""
    template = str(_MACHINES[arch]["cpuinfo"]).lstrip("\n")
    return "\n".join(template.format(number=number) for number in range(cores)) + "\n"


def crossing_view(host: Host, arch: str) -> Host:
    """Return a host as a build that is crossed for `arch` sees it.

    It has the cross compilers and the toolkits for that arch alone, and none of its own GPUs. Its
    `arch` stays that of the machine, and `crosses` is the other one. Without cross compilers it has
    no compilers.
    """
    crossing = host.crossings.get(arch, HostCrossing())
    # Without cross compilers, the doctor refuses the build before a C library matters.
    glibc = crossing.glibc or host.platform.glibc
    paths = {name: path for name, path in host.programs.paths.items() if name != "c++"}
    return replace(
        host,
        crosses=arch,
        platform=replace(host.platform, glibc=glibc, processor_features=()),
        compilers=HostCompilers(by_command=crossing.compilers),
        programs=replace(host.programs, paths=paths),
        toolkits=HostToolkits(homes=crossing.toolkits, lacking_parts=crossing.lacking_parts),
        gpus=HostGpus(),
    )


def measure_crossings(
    environ: Mapping[str, str], root: Path, home: Path, cache: Path, run: RunProgram
) -> dict[str, HostCrossing]:
    """Return what a Linux machine has to build for other arches, by arch; {} on other systems.

    An arch for which it has nothing is left out. `root` is the folder of the system's files, `home`
    the user's folder, and `cache` the user's cache. The parts that toolkits lack are not looked for.
    """
    if native.native_system() != "linux":
        return {}
    crossings = {}
    for arch in _MACHINES:
        if arch != native.native_arch():
            crossing = _measure_crossing(arch, environ, root=root, home=home, cache=cache, run=run)
            if crossing != HostCrossing():
                crossings[arch] = crossing
    return crossings


def _measure_crossing(
    arch: str,
    environ: Mapping[str, str],
    *,
    root: Path,
    home: Path,
    cache: Path,
    run: RunProgram,
) -> HostCrossing:
    """Return what a machine has to build for one other arch."""
    machine = _MACHINES[arch]
    compilers = _cross_compilers(machine["triplet"], environ, run)
    named_root = environ.get(ROOT_VARIABLE, "")
    roots = [Path(named_root)] if named_root else []
    # Debian's cross compilers have the C library of the machine here.
    roots.append(root / "usr" / machine["triplet"])
    system = next((str(folder) for folder in roots if exists(folder / machine["loader"])), "")
    toolkits = {}
    folders = provisioned.list_provisioned(cache, arch, native.native_arch())
    for folder in folders.values():
        if folder.record.kind == provisioned.TOOLKIT:
            toolkits[folder.record.version] = str(folder.home)
    path = environ.get("PATH", "")
    emulators = [shutil.which(name, path=path) for name in machine["emulators"]]
    return HostCrossing(
        compilers=compilers,
        glibc=_linked_glibc(compilers, run),
        toolkits=toolkits,
        emulator=next((emulator for emulator in emulators if emulator), ""),
        system=system,
        interpreters=dict(_other_interpreters(arch, named_root, environ, home)),
    )


def _cross_compilers(
    gnu_name: str, environ: Mapping[str, str], run: RunProgram
) -> dict[str, Compiler]:
    """Return the C++ compilers for a machine by their commands: "aarch64-linux-gnu-g++-12".

    `gnu_name` is the machine's, as `triplet` returns it.
    """
    name_of_compiler = re.compile(rf"{re.escape(gnu_name)}-g\+\+(-\d+)?")
    compilers = {}
    for folder in environ.get("PATH", "").split(os.pathsep):
        for name in list_names(folder) if folder else ():
            if name_of_compiler.fullmatch(name) and name not in compilers:
                compiler = identify_compiler([name], environ, run)
                if compiler is not None:
                    compilers[name] = compiler
    return compilers


def _linked_glibc(compilers: Mapping[str, Compiler], run: RunProgram) -> str | None:
    """Return the version of the glibc that cross compilers link; None if they have none."""
    for command in compilers:
        path = Path(run([command, "-print-file-name=libc.so.6"]).strip())
        # gcc repeats the bare name of a file that it does not find.
        if path.is_absolute() and is_file(path):
            match = _GLIBC.search(path.read_bytes())
            if match:
                return match[1].decode()
    return None


def _other_interpreters(
    arch: str, named_root: str, environ: Mapping[str, str], home: Path
) -> Iterator[tuple[str, str]]:
    """Yield the CPythons for another arch, each with its version: "3.11".

    They are those of the named root and, after these, those that uv installed for that arch.
    """
    seen = set()
    for folder in _BIN_FOLDERS if named_root else ():
        for name in list_names(Path(named_root, folder)):
            match = _EXECUTABLE.fullmatch(name)
            path = Path(named_root, folder, name)
            if match and match[1] not in seen and arch in native.machines_of_binary(path):
                seen.add(match[1])
                yield match[1], str(path)
    for version, path in uv_interpreters_for(arch, environ, home).items():
        if version not in seen:
            yield version, str(path)
