"""torchmill as pip installs it: the whole suite lies in this folder, and works for the folder it is called in."""

import os
import shutil
import sys
from pathlib import Path

SUITE = Path(__file__).parent


def start(home: Path) -> None:
    """Let the suite work for a folder: what it makes lies there, and facts in its build_configs/ go before its own."""
    sys.path.insert(0, str(SUITE))
    os.environ.setdefault("TORCHMILL_HOME", str(home))
    os.environ.setdefault("NOX_ENVDIR", str(home / ".nox"))
    own = home / "build_configs"
    if "TORCHMILL_CONFIGS" not in os.environ and any(path.suffix != ".md" for path in own.rglob("*.*")):
        os.environ["TORCHMILL_CONFIGS"] = str(_merge_facts(own, home / ".torchmill" / "build_configs"))


def _merge_facts(own: Path, merged: Path) -> Path:
    """Return a folder with the shipped facts and a project's own: a file of its own stands for the shipped one."""
    files = {path.relative_to(top): path for top in (SUITE / "build_configs", own) for path in top.rglob("*.*")}
    there = {path.relative_to(merged): path.stat() for path in merged.rglob("*.*")}
    wanted = {name: path.stat() for name, path in files.items() if path.is_file()}
    if {name: (one.st_size, one.st_mtime_ns) for name, one in there.items()} != {
        name: (one.st_size, one.st_mtime_ns) for name, one in wanted.items()
    }:
        fresh = merged.with_name(f"build_configs.{os.getpid()}")
        for name in wanted:
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(files[name], fresh / name)
        shutil.rmtree(merged, ignore_errors=True)
        fresh.replace(merged)
    return merged
