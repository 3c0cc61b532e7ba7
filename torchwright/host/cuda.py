"""The CUDA toolkits of a machine."""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchwright.host.programs import Run, version_in


def toolkits(environ: Mapping[str, str], root: Path, run: Run) -> dict[str, str]:
    """Return the CUDA toolkits found, "11.8" to the folder for CUDA_HOME; one that is named goes first."""
    found: dict[str, str] = {}
    for home in _homes(environ, root):
        nvcc = home / "bin" / ("nvcc.exe" if sys.platform == "win32" else "nvcc")
        if nvcc.is_file() and (home / "include/cuda_runtime_api.h").exists():
            version = _recorded(home) or version_in("nvcc", run([str(nvcc), "--version"]))
            if version:
                found.setdefault(version, str(home))
    return found


def _homes(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
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
