"""What a machine that builds has: measured here, or described in a file for any other.

Only `native_arch` runs while the noxfile loads; everything heavy is imported where it is used.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchwright.errors import ConfigError, HostError
from torchwright.process import CommandError, capture

if TYPE_CHECKING:
    from torchwright.model import Compiler, Host
    from torchwright.tables import Table

TOOLS = ("cmake", "ninja", "git", "ccache", "sccache", "nvcc", "patchelf")
_SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_ARCHES = {
    ("linux", "x86_64"): "x86_64",
    ("linux", "aarch64"): "aarch64",
    ("linux", "arm64"): "aarch64",
    ("macos", "arm64"): "arm64",
    ("windows", "AMD64"): "amd64",
}


def native_system() -> str:
    """Return "linux", "macos" or "windows"; another system under its own name."""
    return _SYSTEMS.get(sys.platform, sys.platform)


def native_arch() -> str:
    """Return this machine's arch; one that we do not know is named so that it matches none."""
    system, machine = native_system(), platform.machine()
    return _ARCHES.get((system, machine), f"{system}_{machine}")


def measure(root: Path, environ: Mapping[str, str] = os.environ) -> Host:
    """Measure this machine; `root` is where builds will happen, for the room on its disk."""
    from torchwright import interpreters  # noqa: PLC0415
    from torchwright.guard import limits  # noqa: PLC0415
    from torchwright.model import Compiler, Host  # noqa: PLC0415

    path = environ.get("PATH")
    found = {tool: shutil.which(tool, path=path) for tool in TOOLS}
    found["c++"] = shlex.join(compiler(environ) or [])  # not only gcc: `gcc` is None for clang
    return Host(
        arch=native_arch(),
        system=native_system(),
        cores=limits.cores(environ=environ).count,
        memory=limits.memory(environ=environ).bytes,
        disk=_free(root),
        glibc=_glibc(),
        compiler=Compiler("gcc", version) if (version := gcc_version(environ)) else None,
        tools={tool: where for tool, where in found.items() if where},
        toolkits=toolkits(environ),
        interpreters=_texts(interpreters.installed(environ)),
        broken_interpreters=_texts(interpreters.broken(environ)),
    )


def load(path: Path) -> Host:
    """Read a host from a TOML file with the fields of model.Host; raise ConfigError with all mistakes."""
    from torchwright.model import Host  # noqa: PLC0415
    from torchwright.tables import read  # noqa: PLC0415

    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; describe a host there, or leave --host out")
    problems: list[str] = []
    table = read(path, problems)
    host = Host(
        arch=table.text("arch"),
        system=_system(table),
        cores=_cores(table),
        memory=table.size("memory"),
        disk=_optional_size(table, "disk"),
        glibc=table.optional("glibc"),
        compiler=_compiler(table),
        tools=table.mapping("tools"),
        toolkits=table.mapping("toolkits"),
        interpreters=table.mapping("interpreters"),
        broken_interpreters=table.mapping("broken_interpreters"),
    )
    table.done()
    if problems:
        raise ConfigError("\n".join(problems))
    return host


def compiler(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the command of the C++ compiler that a build would use; None where that is not installed."""
    path = environ.get("PATH")
    for name in ("CXX", "CC"):
        command = shlex.split(environ.get(name) or "")
        if command:  # a build fails on a wrong one, so we do not look past it
            return command if shutil.which(command[0], path=path) else None
    return next(([name] for name in ("c++", "cc") if shutil.which(name, path=path)), None)


def gcc_version(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the version of the gcc that a build would use; None where it is none, or not gcc."""
    command = compiler(environ)
    said = _said([*command, "--version"], environ) if command else ""
    if command is None or "Free Software Foundation" not in said:
        return None
    # gcc before 7 knows only the second flag, and later ones shorten its answer
    return _said([*command, "-dumpfullversion", "-dumpversion"], environ).strip() or None


def toolkits(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """Return the CUDA toolkits found, "11.8" to the folder for CUDA_HOME; one that is named goes first."""
    found: dict[str, str] = {}
    for home in _toolkit_homes(environ, root):
        nvcc = home / "bin" / ("nvcc.exe" if sys.platform == "win32" else "nvcc")
        if nvcc.is_file() and (home / "include/cuda_runtime_api.h").exists():
            version = _recorded_version(home) or _release(_said([str(nvcc), "--version"], environ))
            if version:
                found.setdefault(version, str(home))
    return found


def _toolkit_homes(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name])
    usual = [*sorted((root / "usr/local").glob("cuda*"), reverse=True), root / "opt/cuda"]
    if sys.platform == "win32":
        usual += (Path(environ.get("PROGRAMFILES", "C:/")) / "NVIDIA GPU Computing Toolkit/CUDA").glob("v*")
    yield from (home.resolve() for home in usual)
    # Debian spreads its toolkit over /usr; what lies in its own folder is not whole
    if (root / "usr/lib/nvidia-cuda-toolkit").is_dir():
        yield root / "usr"
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    if nvcc:
        yield Path(nvcc).resolve().parents[1]


def _recorded_version(home: Path) -> str | None:
    """Return the version that a toolkit wrote into its folder (version.txt before 11.1)."""
    try:
        text = json.loads((home / "version.json").read_text(encoding="utf-8"))["cuda"]["version"]
    except (OSError, ValueError, LookupError, TypeError):
        try:
            text = (home / "version.txt").read_text(encoding="utf-8").removeprefix("CUDA Version ")
        except OSError:
            return None
    match = re.match(r"\d+\.\d+", str(text))
    return match[0] if match else None


def _release(said: str) -> str | None:
    match = re.search(r"release (\d+\.\d+)", said)
    return match[1] if match else None


def _said(argv: list[str], environ: Mapping[str, str]) -> str:
    """Return what a program says of itself; nothing where it does not run."""
    try:
        return capture(argv, env={**environ, "LC_ALL": "C"})
    except (CommandError, HostError):
        return ""


def _glibc() -> str | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") if sys.platform == "linux" else None
    except (ValueError, OSError):  # musl
        return None
    return text.split()[-1] if text else None


def _free(root: Path) -> int:
    """Return the free bytes where `root` is, or will be."""
    existing = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _texts(paths: Mapping[str, Path]) -> dict[str, str]:
    return {version: str(path) for version, path in paths.items()}


def _system(table: Table) -> str:
    system = table.text("system")
    if system and system not in _SYSTEMS.values():
        table.problem(f"'system' is '{system}', expected one of {', '.join(_SYSTEMS.values())}")
    return system


def _compiler(table: Table) -> Compiler | None:
    """Take a compiler, written as "gcc 12.2.0"."""
    from torchwright.model import Compiler  # noqa: PLC0415

    text = table.optional("compiler")
    family, _, version = (text or "").partition(" ")
    if text and not version:
        table.problem(f"'compiler' is '{text}', expected a family and a version, such as 'gcc 12.2.0'")
    return Compiler(family, version) if version else None


def _cores(table: Table) -> int:
    value = table.take("cores", None)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if value is not None:
        table.problem(f"'cores' is {value!r}, expected a whole number from 1")
    return 1


def _optional_size(table: Table, key: str) -> int | None:
    if key in table.data:
        return table.size(key)
    table.asked.append(key)
    return None
