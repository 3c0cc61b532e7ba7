"""A build whose compilers are stubs that replay what real ones took; see replay/stub.c."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from mixes import Work

STUB = Path(__file__).parent / "replay" / "stub.c"
NAMES = {".cu": "nvcc", ".cpp": "c++", ".c": "cc", ".cc": "c++"}


def stubs(folder: Path) -> Path:
    """Compile the stub under the names of the compilers that it stands for; return their folder."""
    made = folder / "bin"
    made.mkdir()
    first, *others = sorted(set(NAMES.values()))
    subprocess.run(["cc", "-O2", "-o", made / first, STUB], check=True)
    for name in others:
        shutil.copy(made / first, made / name)
    return made


def write(folder: Path, works: tuple[Work, ...], compilers: Path, gate: Path | None = None) -> Path:
    """Write sources and a build.ninja below `folder`, afresh; return the folder of the latter.

    The compilers are started by `gate`, if there is one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    build = folder / "build"
    build.mkdir(parents=True)
    launcher = f"{gate} " if gate else ""
    lines = ["rule compile", f"  command = {launcher}{compilers}/$compiler -O2 -c $in -o $out"]
    for index, work in enumerate(works):
        source = folder / "source" / work.source
        source.parent.mkdir(parents=True, exist_ok=True)
        curve = " ".join(f"{level:.2f}" for level in work.curve)
        source.write_text(f"{work.peak} {work.seconds:.4f} {curve}\n", encoding="ascii")
        lines += [f"build unit{index}.o: compile {source}", f"  compiler = {NAMES[source.suffix]}"]
    (build / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return build


def ninja(folder: Path) -> str:
    """Return a ninja that knows the jobserver (1.13); where there is none, install it below `folder`."""
    for found in (shutil.which("ninja"), str(Path(sysconfig.get_path("scripts"), "ninja"))):
        if found and Path(found).exists() and _version(found) >= (1, 13):
            return found
    home = folder / "ninja"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run(
        [home / "bin/python", "-m", "pip", "--quiet", "install", "ninja>=1.13"], check=True
    )
    return str(home / "bin/ninja")


def _version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return tuple(int(word) for word in said.strip().split(".")[:2])
