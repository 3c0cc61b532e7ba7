"""Find the CUDA toolkits of a machine and their parts."""

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
from torchmill.host.environment_modules import module_toolkits
from torchmill.host.interpreters import conda_environments
from torchmill.host.native import native_arch
from torchmill.host.programs import RunProgram, parse_tool_version
from torchmill.host.provisioned import TOOLKIT, ProvisionedFolder, list_provisioned

# Folders in which compilers and CMake look: NVIDIA's, Debian's and conda's layouts.
_HEADERS = ("include", "include/cccl", "targets/*/include", "extras/CUPTI/include")
_LIBRARIES = ("lib64", "lib", "targets/*/lib", "extras/CUPTI/lib64", "lib/*-linux-gnu")
Place = tuple[str, Path]  # by which a folder was found, and the folder


@dataclass(frozen=True, slots=True)
class FoundToolkit:
    """One toolkit of a machine."""

    version: str  # "11.8"
    home: Path  # for CUDA_HOME
    found_by: str  # "CUDA_HOME", "brought from debian", "module cuda/11.8.0"


def find_toolkits(
    environ: Mapping[str, str], root: Path, home: Path, run: RunProgram
) -> dict[str, str]:
    """Return the toolkit to use of each version, "11.8" to the folder for CUDA_HOME.

    One that a variable names goes first, then one that was provisioned. `home` is the user's
    folder.
    """
    homes: dict[str, str] = {}
    for toolkit in complete_toolkits(environ, root, home, run):
        homes.setdefault(toolkit.version, str(toolkit.home))
    return homes


def complete_toolkits(
    environ: Mapping[str, str], root: Path, home: Path, run: RunProgram
) -> Iterator[FoundToolkit]:
    """Yield all toolkits that have a compiler and headers in one folder, each once."""
    for toolkit in toolkits_with_compiler(environ, root, home, run):
        if exists(toolkit.home / "include/cuda_runtime_api.h"):
            yield toolkit


def toolkits_with_compiler(
    environ: Mapping[str, str], root: Path, home: Path, run: RunProgram
) -> Iterator[FoundToolkit]:
    """Yield all folders that have a toolkit's compiler, each once, whatever else they lack."""
    compiler = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    provisioned = list_provisioned(user_cache_folder(environ, home), native_arch()).values()
    records = {folder.home: folder.record for folder in provisioned}
    seen: set[Path] = set()
    for origin, folder in _completed_first(_places(environ, root, home, provisioned), provisioned):
        # /usr/local/cuda is a link to one of the other folders.
        real = real_path(folder)
        nvcc = folder / "bin" / compiler
        if real in seen or not is_file(nvcc):
            continue
        seen.add(real)
        version = records[folder].version if folder in records else _recorded_version(folder)
        # A toolkit of a distribution has no such file.
        if not version:
            version = parse_tool_version("nvcc", run([str(nvcc), "--version"]))
        if version:
            yield FoundToolkit(version, folder, origin)


def _completed_first(
    places: Iterable[Place], provisioned: Iterable[ProvisionedFolder]
) -> Iterator[Place]:
    """Yield places, and before a toolkit that lacks parts the folder in which it was completed."""
    completed = {
        Path(folder.record.completes): folder for folder in provisioned if folder.record.completes
    }
    for origin, folder in places:
        completion = completed.get(real_path(folder))
        if completion is not None:
            yield completion.record.origin, completion.home
        yield origin, folder


def _places(
    environ: Mapping[str, str],
    root: Path,
    home: Path,
    provisioned: Collection[ProvisionedFolder],
) -> Iterator[Place]:
    """Yield the folders that toolkits may be in, those to prefer first."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield name, Path(environ[name])
    for folder in provisioned:
        if folder.record.kind == TOOLKIT:
            yield folder.record.origin, folder.home
    for path in _usual_folders(environ, root):
        yield "system", real_path(path)
    # Debian spreads its toolkit over /usr; its own folder is incomplete.
    if exists(root / "usr/lib/nvidia-cuda-toolkit"):
        yield "Debian", root / "usr"
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    if nvcc:
        yield "PATH", real_path(nvcc).parents[1]
    yield from _unloaded_places(environ, root, home)


def _unloaded_places(environ: Mapping[str, str], root: Path, home: Path) -> Iterator[Place]:
    """Yield toolkits that a user has to load or activate first."""
    for name, path in module_toolkits(environ):
        yield f"module {name}", path
    for path in conda_environments(environ, home, root):
        yield "conda", path
    for path in _hpc_sdk_folders(environ, root):
        yield "HPC SDK", path


def _usual_folders(environ: Mapping[str, str], root: Path) -> list[Path]:
    """Return the folders of NVIDIA's installers and of Arch Linux, the newest name first."""
    folders = [*reversed(find_paths(root / "usr/local", "cuda*")), root / "opt/cuda"]
    if sys.platform == "win32":
        programs = Path(environ.get("PROGRAMFILES", "C:/"))
        folders.extend(find_paths(programs / "NVIDIA GPU Computing Toolkit/CUDA", "v*"))
    return folders


def _hpc_sdk_folders(environ: Mapping[str, str], root: Path) -> list[Path]:
    """Return the toolkits in NVIDIA's HPC SDK, which has cuBLAS and the like apart from them."""
    folders: list[Path] = []
    if environ.get("NVHPC_ROOT"):
        folders.extend(reversed(find_paths(Path(environ["NVHPC_ROOT"], "cuda"), "[0-9]*")))
    folders.extend(reversed(find_paths(root / "opt/nvidia/hpc_sdk", "Linux_*/*/cuda/[0-9]*")))
    return folders


def _recorded_version(home: Path) -> str | None:
    """Return the version in a toolkit's folder: in version.json, and before 11.1 in version.txt."""
    try:
        text = str(parse_json(read_text(home / "version.json"))["cuda"]["version"])
    except (ValueError, LookupError, TypeError):
        text = read_text(home / "version.txt").removeprefix("CUDA Version ")
    match = re.match(r"\d+\.\d+", text)
    return match[0] if match else None


def lacking_toolkit_parts(
    home: Path, version: str, parts: Iterable[ToolkitPart]
) -> tuple[ToolkitPart, ...]:
    """Return the parts that a toolkit of some version should have, and lacks wholly or in part."""
    lacking: list[ToolkitPart] = []
    for part in parts:
        if not is_within(part.cuda, version):
            continue
        has_headers = _has_files(home, part.headers, _HEADERS)
        if not has_headers or not _has_files(home, part.libraries, _LIBRARIES):
            lacking.append(part)
    return tuple(lacking)


def _has_files(home: Path, names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Tell whether each of some files is in a folder of a toolkit that a pattern matches."""
    folders: list[Path] = []
    for pattern in patterns:
        folders.extend(find_paths(home, pattern))
    return all(any(exists(folder / name) for folder in folders) for name in names)


def format_part_names(parts: Iterable[ToolkitPart]) -> str:
    """Return the names of parts for a message: "cuBLAS, cuFFT"."""
    return ", ".join(dict.fromkeys(part.called for part in parts))


def is_spread_in_system(home: Path) -> bool:
    """Tell whether a toolkit lies among the files of a whole system, as Debian's packages do."""
    return home.name in {"usr", "local"}
