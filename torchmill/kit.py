"""The kit of a shared tree: what every interpreter's build needs and none has a say in, CMake and ninja.

It comes from Python packages, but no Python is in it: found on PATH, it would be taken for the build's.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from torchmill.environments import Install


def provide(folder: Path, requirements: Sequence[str], install: Install) -> None:
    """Make the kit, unless it is there; it appears whole.

    `install` is pip's in any environment. Paths in the kit hold no matter which interpreter installed it.
    """
    if folder.is_dir():
        return
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "bin").mkdir(parents=True)
    if requirements:
        install("--ignore-installed", "--no-warn-script-location", "--prefix", str(fresh), *requirements)
    _without_python(fresh)
    fresh.rename(folder)


def contents(folder: Path) -> list[str]:
    """Return what the kit was made of, "name==version" each."""
    found = sorted(path.name.removesuffix(".dist-info") for path in folder.glob("**/*-packages/*.dist-info"))
    return [name.replace("-", "==", 1) for name in found]


def _without_python(kit: Path) -> None:
    """Put a link to the program that it starts in place of each Python script; drop what starts none."""
    for script in (kit / "bin").iterdir():
        if not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            program = next(kit.glob(f"**/data/bin/{script.name}"), None)
            script.unlink()
            if program is not None:
                script.symlink_to(Path("..") / program.relative_to(kit))
