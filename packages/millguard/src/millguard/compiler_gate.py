"""Compile the gate, and place it before the compilers of a build."""

import hashlib
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from millguard.atomic_files import replacing, write_program, write_script
from millguard.processes import ProgramError, run_program

SOURCE = Path(__file__).with_name("gate.c")
LAUNCHERS = tuple(
    f"CMAKE_{one}_{what}_LAUNCHER"
    for one in ("C", "CXX", "CUDA")
    for what in ("COMPILER", "LINKER")
)
# What a build that knows no launcher looks for: "c++", "gcc-12", "x86_64-linux-gnu-g++".
_COMPILER = re.compile(
    r"(\w+-\w+-(\w+-)?(gnu\w*-)?)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+)(-\d+(\.\d+)*)?"
)
_CACHES = {"ccache", "sccache"}
# What nvcc compiles has a temporary name, so a cache before its host compiler would keep it for nothing.
_NVCC = Path(__file__).with_name("nvcc.sh")
# Asked for the preprocessed source, nvcc gives that of the first capability: two files that differ for
# another are one to ccache. What it read it tells for all, so ccache may go by that and nothing else.
_CACHED_NVCC = Path(__file__).with_name("nvcc_cached.sh")


def gate_program(cache: Path, compiler: Sequence[str]) -> Path | None:
    """Return the gate, compiled once for each version of its source; None where `cache` can hold none."""
    maker = [platform.machine(), sys.platform, *compiler, SOURCE.read_text(encoding="utf-8")]
    target = cache / "gates" / hashlib.sha256("\0".join(maker).encode()).hexdigest()[:16]
    try:
        return target if _runs(target) else _compile(target, compiler)
    except OSError:
        return None


def place_gate(compiled: Path | None, target: Path, compiler: Sequence[str] = ("cc",)) -> Path:
    """Put the gate at `target`, and return that: a tree of CMake's keeps the path of its launcher.

    Without a compiled one it is compiled there. Raise OSError where that fails, the place cannot be written,
    or nothing there may be run.
    """
    if compiled is None:
        return _compile(target, compiler)
    write_program(target, compiled.read_bytes())
    if not _runs(target):
        raise OSError(f"{target} cannot be run")
    return target


def _compile(target: Path, compiler: Sequence[str]) -> Path:
    """Compile the gate; raise OSError where that fails, or what it makes does not run here."""
    with replacing(target) as fresh:
        try:
            run_program([*compiler, "-x", "c", "-std=gnu11", "-O2", "-o", str(fresh), str(SOURCE)])
        except ProgramError as error:
            raise OSError(
                f"the program that starts the compilers cannot be compiled: {error}"
            ) from error
        if not _runs(fresh):  # made for another machine, or kept where nothing may run
            raise OSError(f"{target} cannot be run")
        return fresh.replace(target)


def gate_hooks(gate: Path, caching: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lead the compilers and linkers of CMake to the gate.

    `caching` is what puts a compiler cache in their place: behind ccache, only what must really be compiled
    comes to the gate.
    """
    variables = {name: str(gate) for name in LAUNCHERS if name not in caching}
    if "CCACHE_DIR" not in caching:
        return variables
    if " " not in str(gate):
        return variables | {"CCACHE_PREFIX": str(gate)}
    # ccache takes a blank for the end of a word: here, what hits comes to the gate too
    return variables | {name: f"{gate};{caching[name]}" for name in LAUNCHERS if name in caching}


def make_stand_ins(
    folder: Path, gate: Path, ccache: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Fill a folder with stand-ins for compilers, for builds that know no launcher.

    Return what changes in `environ`, the environment of the build. Each stand-in goes through the cache
    where there is a `ccache`, else through the gate. Raise OSError where the folder cannot be written.
    """
    first = ccache or str(gate)
    path = environ.get("PATH", "")
    folder.mkdir(parents=True, exist_ok=True)
    on_path = dict(_compilers(path, folder))
    for name, real in on_path.items():
        _stand_in(folder / name, first, real)
    for old in folder.iterdir():
        if old.is_file() and old.name not in on_path:
            old.unlink()
    changed = {"PATH": f"{folder}{os.pathsep}{path}" if path else str(folder)}
    for variable in ("CC", "CXX"):
        real = environ.get(variable, "")
        real, flags = (real, "") if _is_compiler(real) else real.strip().partition(" ")[::2]
        if _is_compiler(real):  # one by its whole path: other words are looked for on PATH
            # apart from the others, and by its own name: a build may look for "clang" in it
            own = _stand_in(folder / variable / Path(real).name, first, real)
            changed[variable] = f"{shlex.quote(own)} {flags}" if flags else own
    return changed


def make_nvcc_stand_in(
    folder: Path, gate: Path, ccache: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Make a stand-in for nvcc below a folder that stands on PATH, and return the variables that name it.

    It goes through the gate, and is not itself on PATH: beside nvcc, builds look for the toolkit. A `ccache`
    stands before it where the build asks nvcc what it read. Where `environ` names no nvcc, nothing changes.
    Raise OSError where the folder cannot be written.
    """
    real = _nvcc(environ)
    if real is None:
        return {}
    target = folder / "cuda" / "bin" / "nvcc"
    names = {
        "gate": shlex.quote(str(gate)),
        "ccache": shlex.quote(ccache or ""),
        "real": shlex.quote(real),
    }
    write_script(target, _CACHED_NVCC if ccache else _NVCC, names)
    return dict.fromkeys(("PYTORCH_NVCC", "CUDA_NVCC_EXECUTABLE"), str(target))


def surround_nvcc(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Put the rest of the toolkit around the stand-in for nvcc, and return the variable that names it.

    torch before 2.1, and later ones where they do not compile with ninja, take none but its bin/nvcc. Raise
    OSError where the folder cannot be written.
    """
    real = _nvcc(environ)
    if real is None:
        return {}
    home, own = Path(real).parents[1], folder / "cuda"
    _linked(own, [path for path in home.iterdir() if path.name != "bin"], "bin")
    _linked(
        own / "bin", [path for path in Path(real).parent.iterdir() if path.name != "nvcc"], "nvcc"
    )
    return {"CUDA_HOME": str(own)}


def _nvcc(environ: Mapping[str, str]) -> str | None:
    named = (environ.get("CUDACXX", ""), f"{environ.get('CUDA_HOME', '')}/bin/nvcc")
    return next(filter(_is_compiler, named), None)


def _linked(folder: Path, paths: Sequence[Path], but: str) -> None:
    """Fill a folder with links to these paths; all else in it goes, `but` the entry of one name."""
    wanted = {path.name: str(path) for path in paths}
    for old in folder.iterdir():
        if old.name != but and (not old.is_symlink() or os.readlink(old) != wanted.get(old.name)):  # noqa: PTH115
            old.unlink()
    for name, target in wanted.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)


def _runs(gate: Path) -> bool:
    """Tell whether a gate that was compiled runs here: a cache may be shared by unlike machines."""
    try:
        run_program([str(gate), "/bin/sh", "-c", ":"], env={})
    except ProgramError:
        return False
    return True


def _compilers(path: str, but: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each compiler on PATH, as a shell finds it; a cache is none."""
    seen = set()
    for folder in map(Path, filter(None, path.split(os.pathsep))):
        for name in _names_in(folder) if folder != but else ():
            if name not in seen and _COMPILER.fullmatch(name) and _is_compiler(str(folder / name)):
                seen.add(name)
                yield name, str(folder / name)


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - the names alone, and fast
    except OSError:
        return []


def _is_compiler(path: str) -> bool:
    one = Path(path)
    return (
        one.is_absolute()
        and os.path.isfile(one)  # noqa: PTH113 - False where it may not be looked at
        and os.access(one, os.X_OK)
        and one.resolve().name not in _CACHES
    )


def _stand_in(target: Path, first: str, real: str) -> str:
    script = f'#!/bin/sh\nexec {shlex.join([first, real])} "$@"\n'
    write_program(target, script.encode())
    return str(target)
