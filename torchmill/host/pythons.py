"""What is wrong with the CPythons of a machine, beyond their being there."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torchmill.host import binaries


def translated(places: Mapping[str, Path], arch: str) -> dict[str, Path]:
    """Return those that were made for another machine, which an emulator runs for them.

    What they build would be for that machine too.
    """
    known = {version: binaries.machines(path) for version, path in places.items()}
    return {
        version: places[version] for version, made_for in known.items() if made_for and arch not in made_for
    }


def shadowed(places: Mapping[str, Path], environ: Mapping[str, str], home: Path) -> dict[str, Path]:
    """Return pyenv's shims that come first on PATH and do not run, of versions that are installed.

    None is run: pyenv takes a sixth of a second to say so, and its files say it too.
    """
    base = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    selected = [base / "versions" / name for name in _selected(base, environ)]
    found = {}
    for version in places:
        first = shutil.which(f"python{version}", path=environ.get("PATH"))
        if first and Path(first).parent == base / "shims":
            runs = any((folder / "bin" / f"python{version}").exists() for folder in selected)
            if not runs:
                found[version] = Path(first)
    return found


def _selected(base: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the versions that pyenv's shims run."""
    if environ.get("PYENV_VERSION"):
        return environ["PYENV_VERSION"].split(":")
    try:
        return (base / "version").read_text(encoding="utf-8").split()
    except OSError:
        return []
