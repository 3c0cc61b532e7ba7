"""Build the gate, and put it in front of a build's compilers.

The gate is a small program that starts one compiler: it asks the guard first, and waits until there
is memory for it. CMake calls it by variables that name a *launcher* of compilers. For builds that
know no launcher there are *stand-ins*: scripts with the names of compilers, in a folder on PATH.
"""

import contextlib
import hashlib
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from millguard.atomic_files import fresh_path, write_program, write_script
from millguard.processes import ProgramError, run_program

SOURCE = Path(__file__).with_name("gate.c")
LAUNCHERS = tuple(
    f"CMAKE_{language}_{step}_LAUNCHER"
    for language in ("C", "CXX", "CUDA")
    for step in ("COMPILER", "LINKER")
)
# Names that builds without launchers look for: "c++", "gcc-12", "x86_64-linux-gnu-g++".
_COMPILER_NAME = re.compile(
    r"(\w+-\w+-(\w+-)?(gnu\w*-)?)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+)(-\d+(\.\d+)*)?"
)
_CACHES = {"ccache", "sccache"}
# nvcc hands its host compiler files with temporary names, so caching that compiler is useless.
_NVCC = Path(__file__).with_name("nvcc.sh")
# `nvcc -E` prints the source for the first capability only, so ccache would take two files for equal
# that differ for another one. nvcc's list of dependencies covers all capabilities, so ccache must
# compare those files instead.
_CACHED_NVCC = Path(__file__).with_name("nvcc_cached.sh")


def gate_program(cache: Path, compiler: Sequence[str]) -> Path | None:
    """Return a compiled gate; each source version, compiler and platform has its own.

    None if nothing can be compiled in `cache`, or nothing there may be run.
    """
    target = compiled_path(cache, compiler, SOURCE)
    try:
        return target if _runs(target) else _compile(target, compiler)
    except OSError:
        return None


def compiled_path(cache: Path, compiler: Sequence[str], source: Path, suffix: str = "") -> Path:
    """Return the place in a cache for what `compiler` makes of one of this package's sources.

    Each version of the source, compiler and platform has its own.
    """
    inputs = [platform.machine(), sys.platform, *compiler, source.read_text(encoding="utf-8")]
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    return cache / "gates" / f"{digest}{suffix}"


def compile_source(
    source: Path,
    target: Path,
    words: Sequence[str],
    *,
    purpose: str,
    works: Callable[[Path], bool],
) -> None:
    """Compile one of this package's sources in C, and put the product at `target` in one move.

    `words` are the compiler and its options, `purpose` is what the product is for, as in "program that
    starts the compilers". `works` tells whether it can be used here: it may be made for another
    machine, or lie on a disk that is mounted noexec. Raises ProgramError if the compiler fails, OSError
    if the product cannot be put there or used.
    """
    with fresh_path(target) as fresh:
        common = ["-x", "c", "-std=gnu11", "-O2", "-o", str(fresh), str(source)]
        compiler, *options = words
        try:
            run_program([compiler, *common, *options])
        except ProgramError as error:
            raise ProgramError(f"the {purpose} cannot be compiled: {error}") from error
        if not works(fresh):
            raise OSError(f"{target} cannot be run")
        fresh.replace(target)


def place_gate(compiled: Path | None, target: Path, compiler: Sequence[str] = ("cc",)) -> Path:
    """Put the gate at `target`, and return that: CMake remembers the path of its launcher.

    If `compiled` is None the gate is compiled there. Raises OSError if compiling fails, or `target`
    cannot be written or run.
    """
    if compiled is None:
        return _compile(target, compiler)
    write_program(target, compiled.read_bytes())
    if not _runs(target):
        raise OSError(f"{target} cannot be run")
    return target


def gate_hooks(gate: Path, caching: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make CMake run compilers and linkers through the gate.

    `caching` has the variables that make a compiler cache the launcher. Then only the files that the
    cache lacks come to the gate.
    """
    hooks = {name: str(gate) for name in LAUNCHERS if name not in caching}
    # sccache's launcher calls stand-ins that go through the gate themselves.
    if "CCACHE_DIR" not in caching:
        return hooks
    if " " not in str(gate):
        hooks["CCACHE_PREFIX"] = str(gate)
        return hooks
    # ccache splits CCACHE_PREFIX at blanks, so the gate goes in front of ccache instead, and cache
    # hits come to it as well.
    for name in LAUNCHERS:
        if name in caching:
            hooks[name] = f"{gate};{caching[name]}"
    return hooks


def make_stand_ins(
    folder: Path, gate: Path, ccache: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Fill a folder with stand-ins for compilers, for builds that know no launcher.

    Other files in the folder are deleted: the stand-ins of compilers that are no longer on PATH.
    Returns the variables that change in `environ`, the environment of the build. Each stand-in goes
    through `ccache` if there is one, else through the gate. Raises OSError if the folder cannot be
    written.
    """
    prefix_program = ccache or str(gate)
    path = environ.get("PATH", "")
    folder.mkdir(parents=True, exist_ok=True)
    compilers = dict(_compilers_on_path(path, folder))
    for name, compiler in compilers.items():
        _write_stand_in(folder / name, prefix_program, compiler)
    for file in folder.iterdir():
        if file.is_file() and file.name not in compilers:
            file.unlink()  # its compiler is no longer on PATH
    changed = {"PATH": f"{folder}{os.pathsep}{path}" if path else str(folder)}
    for variable in ("CC", "CXX"):
        value = environ.get(variable, "")
        compiler, flags = _split_compiler(value)
        # Only absolute paths need this: names are found on PATH, where the stand-ins come first.
        if _is_uncached_program(compiler):
            # In a folder of its own and by its own name: a build may look for "clang" in it.
            target = folder / variable / Path(compiler).name
            stand_in = _write_stand_in(target, prefix_program, compiler)
            changed[variable] = f"{shlex.quote(stand_in)} {flags}" if flags else stand_in
    return changed


def make_nvcc_stand_in(
    folder: Path, gate: Path, ccache: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Make a stand-in for nvcc below a folder on PATH, and return the variables that name it.

    It goes through the gate, and is not itself on PATH, because builds look for the toolkit beside
    nvcc. With `ccache` it also goes through that, for compiles that ask nvcc for its dependencies.
    Nothing changes if `environ` names no nvcc. Raises OSError if the folder cannot be written.
    """
    nvcc = _find_nvcc(environ)
    if nvcc is None:
        return {}
    target = folder / "cuda" / "bin" / "nvcc"
    names = {
        "gate": shlex.quote(str(gate)),
        "ccache": shlex.quote(ccache or ""),
        "real": shlex.quote(nvcc),
    }
    write_script(target, _CACHED_NVCC if ccache else _NVCC, names)
    return dict.fromkeys(("PYTORCH_NVCC", "CUDA_NVCC_EXECUTABLE"), str(target))


def surround_nvcc(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Put the rest of the toolkit around the stand-in for nvcc; return the variable that names it.

    torch before 2.1, and later ones that do not compile with ninja, only accept the toolkit's own
    bin/nvcc. `make_nvcc_stand_in` must have made the stand-in. Nothing changes if `environ` names no
    nvcc. Raises OSError if the folder cannot be written.
    """
    nvcc = _find_nvcc(environ)
    if nvcc is None:
        return {}
    toolkit = Path(nvcc).parents[1]
    toolkit_copy = folder / "cuda"
    _link_all(toolkit_copy, [path for path in toolkit.iterdir() if path.name != "bin"], "bin")
    programs = [path for path in Path(nvcc).parent.iterdir() if path.name != "nvcc"]
    _link_all(toolkit_copy / "bin", programs, "nvcc")
    return {"CUDA_HOME": str(toolkit_copy)}


def _compile(target: Path, compiler: Sequence[str]) -> Path:
    """Compile the gate. Raises OSError if that fails, or its program does not run here.

    It is linked statically if that is possible, which saves a quarter of its time: without libraries
    to load, a program starts faster. Not every system has the C library for that.
    """
    purpose = "program that starts the compilers"
    # fakechroot changes paths by a library for LD_PRELOAD, which a static program does not load.
    if "FAKECHROOT" not in os.environ:
        with contextlib.suppress(ProgramError):
            static = [*compiler, "-static"]
            compile_source(SOURCE, target, static, purpose=purpose, works=_runs)
            return target
    compile_source(SOURCE, target, compiler, purpose=purpose, works=_runs)
    return target


def _runs(gate: Path) -> bool:
    """Tell whether a gate that was compiled runs here: unlike machines may share a cache."""
    try:
        # Empty, and not left out: within a guarded command it would be added again.
        run_program([str(gate), "/bin/sh", "-c", ":"], env={"MILLGUARD_GATE": ""})
    except ProgramError:
        return False
    return True


def _find_nvcc(environ: Mapping[str, str]) -> str | None:
    """Return the path of the nvcc that variables name, or None."""
    candidates = [environ.get("CUDACXX", "")]
    if environ.get("CUDA_HOME"):
        candidates.append(f"{environ['CUDA_HOME']}/bin/nvcc")
    for path in candidates:
        if _is_uncached_program(path):
            return path
    return None


def _link_all(folder: Path, paths: Sequence[Path], kept_name: str) -> None:
    """Fill a folder with links to some paths; everything else except `kept_name` is removed."""
    targets = {path.name: str(path) for path in paths}
    for entry in folder.iterdir():
        if entry.name == kept_name:
            continue
        is_right = entry.is_symlink() and str(entry.readlink()) == targets.get(entry.name)
        if not is_right:
            entry.unlink()
    for name, target in targets.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)


def _compilers_on_path(path: str, skipped_folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of each compiler on PATH, as a shell finds it.

    Compiler caches do not count. The folder with the stand-ins is skipped.
    """
    seen = set()
    for entry in path.split(os.pathsep):
        folder = Path(entry)
        if not entry or folder == skipped_folder:
            continue
        for name in _names_in(folder):
            if name in seen or not _COMPILER_NAME.fullmatch(name):
                continue
            if _is_uncached_program(str(folder / name)):
                seen.add(name)
                yield name, str(folder / name)


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - the names alone, and fast
    except OSError:
        return []


def _split_compiler(value: str) -> tuple[str, str]:
    """Return the program and the flags in a variable such as CC.

    A value that is a program as a whole has a blank in its path.
    """
    if _is_uncached_program(value):
        return value, ""
    compiler, _, flags = value.strip().partition(" ")
    return compiler, flags


def _is_uncached_program(text: str) -> bool:
    """Tell whether a text is the absolute path of an executable that is not a compiler cache."""
    path = Path(text)
    # os.path.isfile is False, and raises nothing, if the path may not be looked at
    if not path.is_absolute() or not os.path.isfile(path):  # noqa: PTH113
        return False
    return os.access(path, os.X_OK) and path.resolve().name not in _CACHES


def _write_stand_in(target: Path, prefix_program: str, compiler: str) -> str:
    script = f'#!/bin/sh\nexec {shlex.join([prefix_program, compiler])} "$@"\n'
    write_program(target, script.encode())
    return str(target)
