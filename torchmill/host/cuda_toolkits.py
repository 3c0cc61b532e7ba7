"""Find the CUDA toolkits of a machine, also those of environment modules, and their parts."""

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.config.toolkit import ToolkitPart
from torchmill.config.versions import is_within
from torchmill.core.lenient_paths import exists, find_paths, is_file, read_text, real_path
from torchmill.core.paths import user_cache_folder
from torchmill.core.strict_json import parse_json
from torchmill.host.disk_usage import list_children
from torchmill.host.interpreters import conda_environments
from torchmill.host.native import native_arch
from torchmill.host.programs import RunProgram, parse_tool_version
from torchmill.host.provisioned import TOOLKIT, ProvisionedFolder, list_provisioned

_NAMES = {"cuda", "cudatoolkit", "cuda-toolkit", "cuda_toolkit"}
_HOMES = (
    "CUDA_HOME",
    "CUDA_ROOT",
    "CUDA_PATH",
    "CUDADIR",
    "CUDA_DIR",
    "EBROOTCUDA",
)  # what modules set
_TCL = re.compile(r"^\s*(setenv|set|prepend-path)\s+(\S+)\s+(\S.*?)\s*$", re.MULTILINE)
_LUA = re.compile(
    r"^\s*(?:(setenv|prepend_path)\s*\(\s*[\"'](\w+)[\"']\s*,\s*(.+?)\s*\)|(?:local\s+)?(\w+)\s*=\s*(.+?))"
    r"\s*;?\s*(?:--.*)?$",
    re.MULTILINE,
)
_LUA_JOINED = re.compile(r"pathJoin\s*\((.*)\)")
Place = tuple[str, Path]  # what leads to a folder, and the folder
# Where compilers and CMake look for them: NVIDIA's, Debian's and conda's layouts.
_HEADERS = ("include", "include/cccl", "targets/*/include", "extras/CUPTI/include")
_LIBRARIES = ("lib64", "lib", "targets/*/lib", "extras/CUPTI/lib64", "lib/*-linux-gnu")


def module_toolkits(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the modules of MODULEPATH that name a toolkit's folder, newest name first, and the folder."""
    for base in filter(None, environ.get("MODULEPATH", "").split(os.pathsep)):
        for folder in list_children(Path(base)):
            files = reversed(list_children(folder)) if folder.name.lower() in _NAMES else ()
            for file in files:
                name = f"{folder.name}/{file.name.removesuffix('.lua')}"
                home = None if file.name.startswith(".") else _module_home(file, name)
                if home is not None:
                    yield name, home


def _module_home(file: Path, name: str) -> Path | None:
    """Return the toolkit's folder by a variable that a module sets, or by the folder that it puts on PATH."""
    text = read_text(file)
    variables = _lua(text, name) if file.suffix == ".lua" else _tcl(text)
    home = next((variables[name] for name in _HOMES if name in variables), None)
    if home is None and variables.get("PATH", "").endswith("/bin"):
        home = variables["PATH"].removesuffix("/bin")
    return Path(home) if home and Path(home).is_absolute() else None


def _tcl(text: str) -> dict[str, str]:
    known: dict[str, str] = {}
    found: dict[str, str] = {}
    for command, name, value in _TCL.findall(text):
        filled = re.sub(
            r"\$\{?(\w+)\}?", lambda match: known.get(match[1], match[0]), value.strip('"{}')
        )
        if "$" not in filled and "[" not in filled:
            (known if command == "set" else found)[name] = filled
    return found


def _lua(text: str, module: str) -> dict[str, str]:
    name, _, version = module.partition("/")
    known = {"myModuleVersion()": version, "myModuleName()": name, "myModuleFullName()": module}
    found: dict[str, str] = {}
    for _, variable, value, local, expression in _LUA.findall(text):
        if (filled := _lua_value(value or expression, known)) is not None:
            (known if local else found)[local or variable] = filled
    return found


def _lua_value(expression: str, known: Mapping[str, str]) -> str | None:
    """Return the text that an expression of literals, variables, pathJoin and `..` stands for."""
    if match := _LUA_JOINED.fullmatch(expression):
        parts = [_lua_value(part.strip(), known) for part in match[1].split(",")]
        return None if None in parts else "/".join(part for part in parts if part)
    words = [part.strip() for part in expression.split("..")]
    quoted = [re.fullmatch(r"([\"'])(.*)\1", word) for word in words]
    texts = [
        match[2] if match else known.get(word) for word, match in zip(words, quoted, strict=True)
    ]
    return None if None in texts else "".join(filter(None, texts))


@dataclass(frozen=True, slots=True)
class FoundToolkit:
    """One toolkit."""

    version: str  # "11.8"
    home: Path  # for CUDA_HOME
    found_by: str  # what leads to it: "CUDA_HOME", "brought from debian", "module cuda/11.8.0"


def find_toolkits(
    environ: Mapping[str, str], root: Path, home: Path, run: RunProgram
) -> dict[str, str]:
    """Return the toolkit to use of each version, "11.8" to the folder for CUDA_HOME.

    One that is named goes first, then one that was brought. `home` is the user's folder.
    """
    used: dict[str, str] = {}
    for one in complete_toolkits(environ, root, home, run):
        used.setdefault(one.version, str(one.home))
    return used


def complete_toolkits(
    environ: Mapping[str, str], root: Path, home: Path, run: RunProgram
) -> Iterator[FoundToolkit]:
    """Yield all toolkits that have a compiler and headers in one folder, each once."""
    every = toolkits_with_compiler(environ, root, home, run)
    yield from (one for one in every if exists(one.home / "include/cuda_runtime_api.h"))


def toolkits_with_compiler(
    environ: Mapping[str, str], root: Path, home: Path, run: RunProgram
) -> Iterator[FoundToolkit]:
    """Yield all folders that have a toolkit's compiler, each once, whatever else they lack."""
    seen = set()
    provisioned = list_provisioned(user_cache_folder(environ, home), native_arch()).values()
    records = {one.home: one.record for one in provisioned}
    completed = {Path(one.record.completes): one for one in provisioned if one.record.completes}

    def places() -> Iterator[Place]:  # one that was completed before the one that it completes
        for origin, folder in _places(environ, root, home, provisioned):
            if (one := completed.get(real_path(folder))) is not None:
                yield one.record.origin, one.home
            yield origin, folder

    for origin, folder in places():
        real = real_path(folder)
        nvcc = folder / "bin" / ("nvcc.exe" if sys.platform == "win32" else "nvcc")
        if real in seen or not is_file(nvcc):
            continue
        seen.add(real)
        version = records[folder].version if folder in records else _recorded_version(folder)
        version = version or parse_tool_version("nvcc", run([str(nvcc), "--version"]))
        if version:
            yield FoundToolkit(version, folder, origin)


def _places(
    environ: Mapping[str, str], root: Path, home: Path, kept: Collection[ProvisionedFolder]
) -> Iterator[Place]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield name, Path(environ[name])
    for one in kept:
        if one.record.kind == TOOLKIT:
            yield one.record.origin, one.home
    usual = [*reversed(find_paths(root / "usr/local", "cuda*")), root / "opt/cuda"]
    if sys.platform == "win32":
        usual += find_paths(
            Path(environ.get("PROGRAMFILES", "C:/"), "NVIDIA GPU Computing Toolkit/CUDA"), "v*"
        )
    yield from (("system", real_path(folder)) for folder in usual)
    # Debian spreads its toolkit over /usr; what lies in its own folder is incomplete.
    if exists(root / "usr/lib/nvidia-cuda-toolkit"):
        yield "Debian", root / "usr"
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    if nvcc:
        yield "PATH", real_path(nvcc).parents[1]
    yield from ((f"module {name}", folder) for name, folder in module_toolkits(environ))
    yield from (("conda", folder) for folder in conda_environments(environ, home, root))
    # The toolkits inside NVIDIA's HPC SDK; its libraries of mathematics lie apart from them.
    sdk = find_paths(root / "opt/nvidia/hpc_sdk", "Linux_*/*/cuda/[0-9]*")
    named = (
        find_paths(Path(environ["NVHPC_ROOT"], "cuda"), "[0-9]*")
        if environ.get("NVHPC_ROOT")
        else []
    )
    for folder in (*reversed(named), *reversed(sdk)):
        yield "HPC SDK", folder


def _recorded_version(home: Path) -> str | None:
    """Return the version that a toolkit wrote into its folder (version.txt before 11.1)."""
    try:
        text = str(parse_json(read_text(home / "version.json"))["cuda"]["version"])
    except (ValueError, LookupError, TypeError):
        text = read_text(home / "version.txt").removeprefix("CUDA Version ")
    match = re.match(r"\d+\.\d+", text)
    return match[0] if match else None


def lacking_toolkit_parts(
    home: Path, version: str, parts: Iterable[ToolkitPart]
) -> tuple[ToolkitPart, ...]:
    """Return the parts that a toolkit of some version should have and lacks, or has without their headers."""

    def has(names: Iterable[str], places: Iterable[str]) -> bool:
        folders = [folder for place in places for folder in find_paths(home, place)]
        return all(any(exists(folder / name) for folder in folders) for name in names)

    return tuple(
        part
        for part in parts
        if is_within(part.cuda, version)
        and not (has(part.headers, _HEADERS) and has(part.libraries, _LIBRARIES))
    )


def format_part_names(parts: Iterable[ToolkitPart]) -> str:
    """Return the names of parts for a message: "cuBLAS, cuFFT"."""
    return ", ".join(dict.fromkeys(part.called for part in parts))


def is_spread_in_system(home: Path) -> bool:
    """Tell whether a toolkit lies among the files of a whole system, as that of Debian's packages."""
    return home.name in {"usr", "local"}
