"""The CUDA toolkits of a machine."""

import json
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.host import modules
from torchmill.host.kept import TOOLKIT, Kept, kept
from torchmill.host.native import native_arch
from torchmill.host.programs import Run, version_in
from torchmill.layout import cache

_CONDAS = ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "micromamba")
Place = tuple[str, Path]  # who leads to a folder, and the folder


@dataclass(frozen=True, slots=True)
class Found:
    """One toolkit."""

    version: str  # "11.8"
    home: Path  # for CUDA_HOME
    by: str  # what leads to it: "CUDA_HOME", "brought from debian", "module cuda/11.8.0"


def toolkits(environ: Mapping[str, str], root: Path, home: Path, run: Run) -> dict[str, str]:
    """Return the toolkit to use of each version, "11.8" to the folder for CUDA_HOME.

    One that is named goes first, then one that was brought. `home` is the user's folder.
    """
    used: dict[str, str] = {}
    for one in found(environ, root, home, run):
        used.setdefault(one.version, str(one.home))
    return used


def found(environ: Mapping[str, str], root: Path, home: Path, run: Run) -> Iterator[Found]:
    """Yield all toolkits that have a compiler and headers in one folder, each once."""
    for one in begun(environ, root, home, run):
        if (one.home / "include/cuda_runtime_api.h").exists():
            yield one


def begun(environ: Mapping[str, str], root: Path, home: Path, run: Run) -> Iterator[Found]:
    """Yield all folders that have a toolkit's compiler, each once, whatever else they lack."""
    seen = set()
    mine = {one.home: one for one in kept(cache(environ, home), native_arch()).values()}
    for by, folder in _places(environ, root, home, mine.values()):
        real = folder.resolve()
        nvcc = folder / "bin" / ("nvcc.exe" if sys.platform == "win32" else "nvcc")
        if real in seen or not nvcc.is_file():
            continue
        seen.add(real)
        told = mine[folder].record.version if folder in mine else _recorded(folder)
        version = told or version_in("nvcc", run([str(nvcc), "--version"]))
        if version:
            yield Found(version, folder, by)


def _places(environ: Mapping[str, str], root: Path, home: Path, mine: Collection[Kept]) -> Iterator[Place]:
    """Yield where toolkits may lie, one that was completed before the one that it completes."""
    whole = {Path(one.record.completes): one for one in mine if one.record.completes}
    for by, folder in _own_places(environ, root, home, mine):
        if (one := whole.get(folder.resolve())) is not None:
            yield one.record.origin, one.home
        yield by, folder


def _own_places(
    environ: Mapping[str, str], root: Path, home: Path, mine: Collection[Kept]
) -> Iterator[Place]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield name, Path(environ[name])
    for one in mine:
        if one.record.kind == TOOLKIT:
            yield one.record.origin, one.home
    usual = [*sorted((root / "usr/local").glob("cuda*"), reverse=True), root / "opt/cuda"]
    if sys.platform == "win32":
        usual += (Path(environ.get("PROGRAMFILES", "C:/")) / "NVIDIA GPU Computing Toolkit/CUDA").glob("v*")
    yield from (("system", folder.resolve()) for folder in usual)
    # Debian spreads its toolkit over /usr; what lies in its own folder is not whole
    if (root / "usr/lib/nvidia-cuda-toolkit").is_dir():
        yield "Debian", root / "usr"
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    if nvcc:
        yield "PATH", Path(nvcc).resolve().parents[1]
    yield from ((f"module {name}", folder) for name, folder in modules.toolkits(environ))
    yield from (("conda", folder) for folder in _conda(environ, root, home))
    yield from (("HPC SDK", folder) for folder in _hpc(environ, root))


def _conda(environ: Mapping[str, str], root: Path, home: Path) -> Iterator[Path]:
    """Yield conda's environments: the active one, those that it has noted, those in its usual folders."""
    if environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"])
    try:
        noted = (home / ".conda/environments.txt").read_text(encoding="utf-8").split("\n")
    except OSError:
        noted = []
    yield from (Path(line.strip()) for line in noted if line.strip())
    bases = [home / name for name in _CONDAS] + [root / "opt/conda"]
    if environ.get("MAMBA_ROOT_PREFIX"):
        bases.insert(0, Path(environ["MAMBA_ROOT_PREFIX"]))
    for base in bases:
        yield base
        yield from sorted((base / "envs").glob("*"), reverse=True)


def _hpc(environ: Mapping[str, str], root: Path) -> Iterable[Path]:
    """Yield the toolkits inside NVIDIA's HPC SDK; its libraries of mathematics lie apart from them."""
    if environ.get("NVHPC_ROOT"):
        yield from sorted(Path(environ["NVHPC_ROOT"], "cuda").glob("[0-9]*"), reverse=True)
    yield from sorted((root / "opt/nvidia/hpc_sdk").glob("Linux_*/*/cuda/[0-9]*"), reverse=True)


def _recorded(home: Path) -> str | None:
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
