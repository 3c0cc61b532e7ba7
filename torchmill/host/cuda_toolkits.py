"""Find the CUDA toolkits of a machine and their parts."""

import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.config.toolkit import ToolkitPart
from torchmill.config.versions import is_within, numbers_key
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
Place = tuple[str, Path]  # how a folder was found, as in `FoundToolkit`, and the folder


@dataclass(frozen=True, slots=True)
class FoundToolkit:
    """One toolkit of a machine."""

    version: str  # "11.8"
    home: Path  # for CUDA_HOME
    found_by: str  # "CUDA_HOME", "brought from debian", "module cuda/11.8.0"


def find_toolkits(
    environ: Mapping[str, str], root: Path, user_home: Path, run: RunProgram
) -> dict[str, str]:
    """Return the toolkit to use of each version: "11.8" -> the folder for CUDA_HOME.

    A toolkit that a variable names goes first, then one in the user's cache (host/provisioned.py).
    If a toolkit was completed there with parts that it lacked, the completed copy goes before the
    original, even if a variable names that. `user_home` is the user's folder.
    """
    homes: dict[str, str] = {}
    for toolkit in usable_toolkits(environ, root, user_home, run):
        homes.setdefault(toolkit.version, str(toolkit.home))
    return homes


def usable_toolkits(
    environ: Mapping[str, str], root: Path, user_home: Path, run: RunProgram
) -> Iterator[FoundToolkit]:
    """Yield all toolkits that have a compiler and headers in one folder, each once."""
    for toolkit in toolkits_with_compiler(environ, root, user_home, run):
        if exists(toolkit.home / "include/cuda_runtime_api.h"):
            yield toolkit


def toolkits_with_compiler(
    environ: Mapping[str, str], root: Path, user_home: Path, run: RunProgram
) -> Iterator[FoundToolkit]:
    """Yield all folders that have a toolkit's compiler, each once, whatever else they lack.

    A folder is left out if neither its files nor its compiler tell the version of the toolkit.
    """
    compiler = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    cache = user_cache_folder(environ, user_home)
    provisioned = list_provisioned(cache, native_arch()).values()
    records = {folder.home: folder.record for folder in provisioned}
    places = _places(environ, root, user_home, provisioned)
    seen: set[Path] = set()
    for origin, folder in _completed_first(places, provisioned):
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
    """Yield places, and before the place of a completed toolkit, its completed copy."""
    # By paths without links, because a toolkit is often named by one: /usr/local/cuda.
    completions = {}
    for completion in provisioned:
        if completion.record.completes:
            completions[real_path(completion.record.completes)] = completion
    for origin, folder in places:
        completed = completions.get(real_path(folder))
        if completed is not None:
            yield completed.record.origin, completed.home
        yield origin, folder


def _places(
    environ: Mapping[str, str],
    root: Path,
    user_home: Path,
    provisioned: Collection[ProvisionedFolder],
) -> Iterator[Place]:
    """Yield the folders that toolkits may be in, the preferred ones first."""
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
    # With None for the path, `which` would search the PATH of this process.
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    if nvcc:
        yield "PATH", real_path(nvcc).parents[1]
    yield from _unloaded_places(environ, root, user_home)


def _unloaded_places(environ: Mapping[str, str], root: Path, user_home: Path) -> Iterator[Place]:
    """Yield toolkits that a user has to load or activate first."""
    for name, path in module_toolkits(environ):
        yield f"module {name}", path
    for path in conda_environments(environ, user_home, root):
        yield "conda", path
    for path in _hpc_sdk_folders(environ, root):
        yield "HPC SDK", path


def _usual_folders(environ: Mapping[str, str], root: Path) -> list[Path]:
    """Return the folders of NVIDIA's installers, the newest version first, and of Arch Linux."""
    folders = [*_newest_first(find_paths(root / "usr/local", "cuda*")), root / "opt/cuda"]
    if sys.platform == "win32":
        programs = Path(environ.get("PROGRAMFILES", "C:/"))
        installed = find_paths(programs / "NVIDIA GPU Computing Toolkit/CUDA", "v*")
        folders.extend(_newest_first(installed))
    return folders


def _hpc_sdk_folders(environ: Mapping[str, str], root: Path) -> list[Path]:
    """Return the toolkits in NVIDIA's HPC SDK, which keeps cuBLAS and the like in other folders."""
    folders: list[Path] = []
    if environ.get("NVHPC_ROOT"):
        folders.extend(_newest_first(find_paths(Path(environ["NVHPC_ROOT"], "cuda"), "[0-9]*")))
    # The newest SDK goes first, and of each SDK the newest toolkit.
    folders.extend(_newest_first(find_paths(root / "opt/nvidia/hpc_sdk", "Linux_*/*/cuda/[0-9]*")))
    return folders


def _newest_first(folders: Iterable[Path]) -> list[Path]:
    """Return folders by the versions in their paths; as text, 9.2 would come before 12.4."""
    return sorted(folders, key=lambda folder: numbers_key(str(folder)), reverse=True)


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
    """Return the parts whose files a toolkit of a version should have, and does not have all."""
    incomplete: list[ToolkitPart] = []
    for part in parts:
        if not is_within(part.cuda, version):
            continue
        has_headers = _has_files(home, part.headers, _HEADERS)
        if not has_headers or not _has_files(home, part.libraries, _LIBRARIES):
            incomplete.append(part)
    return tuple(incomplete)


def _has_files(home: Path, names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Tell whether a toolkit has each of some files, in any of the folders that patterns match."""
    folders: list[Path] = []
    for pattern in patterns:
        folders.extend(find_paths(home, pattern))
    for name in names:
        if not any(exists(folder / name) for folder in folders):
            return False
    return True


def format_part_names(parts: Iterable[ToolkitPart]) -> str:
    """Return the names of parts for a message: "cuBLAS, cuFFT"."""
    return ", ".join(dict.fromkeys(part.called for part in parts))


def is_spread_in_system(home: Path) -> bool:
    """Tell whether a toolkit lies among the files of a whole system, as Debian's packages do.

    That is told by the last part of the path alone: "usr" or "local".
    """
    return home.name in {"usr", "local"}
