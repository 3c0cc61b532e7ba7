"""torchmill as pip installs it: the whole suite lies in this folder, and works for the folder it is called in."""

import os
import shutil
import sys
from pathlib import Path

from filelock import FileLock

SUITE = Path(__file__).parent


def start(home: Path) -> None:
    """Let the suite work for a folder: what it makes lies there, and facts in its build_configs/ go before its own."""
    sys.path.insert(0, str(SUITE))
    os.environ.setdefault("TORCHMILL_HOME", str(home))
    os.environ.setdefault("NOX_ENVDIR", str(home / ".nox"))
    own = home / "build_configs"
    os.environ.setdefault("TORCHMILL_OWN_CONFIGS", str(own))
    if "TORCHMILL_CONFIGS" not in os.environ and any(path.suffix != ".md" for path in own.rglob("*.*")):
        os.environ["TORCHMILL_CONFIGS"] = str(_merge_facts(own, home / ".torchmill" / "build_configs"))


def _merge_facts(own: Path, merged: Path) -> Path:
    """Return a folder with the shipped facts and a project's own: a file of its own stands for the shipped one."""
    files = _files(SUITE / "build_configs") | _files(own)
    merged.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(merged.with_name("build_configs.lock")):  # several commands may begin at a time
        if {name: one[1:] for name, one in _files(merged).items()} != {name: one[1:] for name, one in files.items()}:
            shutil.rmtree(merged, ignore_errors=True)
            for name, (path, *_) in files.items():
                (merged / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, merged / name)
    return merged


def _files(top: Path) -> dict[Path, tuple[Path, int, int]]:
    """Return the files below a folder by their place in it: path, size (bytes) and time (nanoseconds)."""
    found = {path: path.stat() for path in top.rglob("*.*") if path.is_file()}
    return {path.relative_to(top): (path, one.st_size, one.st_mtime_ns) for path, one in found.items()}
