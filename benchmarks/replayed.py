"""Builds whose compilers are stubs: each replays the time and memory that a real compile took (replay/stub.c)."""

import argparse
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from mixes import Unit

STUB = Path(__file__).parent / "replay" / "stub.c"
# The guard knows a compiler by its program's name, so a stub has that of the compiler it stands for.
COMPILERS = {".cu": "nvcc", ".cpp": "c++", ".c": "cc", ".cc": "c++"}


def compile_stubs(folder: Path) -> Path:
    """Compile the stub under the name of each compiler; return the folder of the stubs."""
    stubs = folder / "bin"
    stubs.mkdir()
    first, *others = sorted(set(COMPILERS.values()))
    subprocess.run(["cc", "-O2", "-o", stubs / first, STUB], check=True)
    for name in others:
        shutil.copy(stubs / first, stubs / name)
    return stubs


def write_build(
    folder: Path, units: tuple[Unit, ...], compilers: Path, gate: Path | None = None
) -> Path:
    """Write sources and a build.ninja below an emptied folder; return the folder of build.ninja.

    A source is a line for the stub: its peak in bytes, its seconds, and its memory over time as fractions of the
    peak. With a `gate` each compiler is started through the guard's gate, where it waits until it is admitted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    build = folder / "build"
    build.mkdir(parents=True)
    launcher = f"{gate} " if gate else ""
    lines = ["rule compile", f"  command = {launcher}{compilers}/$compiler -O2 -c $in -o $out"]
    for index, unit in enumerate(units):
        source = folder / "source" / unit.source
        source.parent.mkdir(parents=True, exist_ok=True)
        curve = " ".join(f"{level:.2f}" for level in unit.curve)
        source.write_text(f"{unit.peak} {unit.seconds:.4f} {curve}\n", encoding="ascii")
        lines.append(f"build unit{index}.o: compile {source}")
        lines.append(f"  compiler = {COMPILERS[source.suffix]}")
    (build / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return build


def add_ninja_option(parser: argparse.ArgumentParser) -> None:
    """Let the user name a ninja; `find_ninja` looks for one otherwise."""
    parser.add_argument(
        "--ninja",
        help="1.13 or newer; default: the one on PATH or in this environment, else a temporary one",
    )


def find_ninja(options: argparse.Namespace, folder: Path) -> str:
    """Return a ninja that can be client of a jobserver (1.13); install one below `folder` if none is found."""
    if options.ninja:
        return str(options.ninja)
    for program in (shutil.which("ninja"), str(Path(sysconfig.get_path("scripts"), "ninja"))):
        if program and Path(program).exists() and _version(program) >= (1, 13):
            return program
    environment = folder / "ninja"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = ["-m", "pip", "--quiet", "install", "ninja>=1.13"]
    subprocess.run([environment / "bin/python", *install], check=True)
    return str(environment / "bin/ninja")


def _version(program: str) -> tuple[int, ...]:
    """Return major and minor version of a ninja."""
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return tuple(int(word) for word in version.stdout.strip().split(".")[:2])
