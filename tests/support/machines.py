"""Made-up machines: programs that say one thing, files where a machine would have them."""

import shlex
import sys
from pathlib import Path

import pytest

made_up_programs = pytest.mark.skipif(
    sys.platform == "win32", reason="made-up programs are shell scripts"
)


def program(folder: Path, name: str, *said: str) -> Path:
    """Make a program that says the same whatever it is asked."""
    return script(folder, name, "".join(f"echo {shlex.quote(line)}\n" for line in said))


def script(folder: Path, name: str, text: str) -> Path:
    """Make a program of a few lines of shell."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def gcc(folder: Path, name: str, version: str) -> Path:
    """Make a gcc."""
    return script(
        folder,
        name,
        f'case "$*" in *--version) echo "g++ {version}"; echo "Copyright Free Software Foundation, Inc.";;'
        f" *) echo {version};; esac",
    )


def only(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which nothing but a folder is on PATH."""
    return {"PATH": str(folder)} | variables


def file(path: Path, text: str = "") -> Path:
    """Make a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
