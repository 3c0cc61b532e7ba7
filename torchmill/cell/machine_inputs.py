"""What the machine contributes to a build: compilers, libraries, variables, and files outside the tree."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from torchmill.core import ninja
from torchmill.core.lenient_paths import is_file, real_path
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import ask
from torchmill.core.stat_cache import StatCache, stat_file, stat_folder
from torchmill.host.compilers import C, compiler_command
from torchmill.host.host import Host
from torchmill.host.programs import LAUNCHERS, RunProgram, make_runner, starts_another
from torchmill.plan import host_compiler, shell_seal
from torchmill.plan.plan import Plan

_NAMES = read_table_beside(__file__, "machine_inputs.toml")
_OF_CUDA = ("cudnn", "nccl", "magma", "cufile")
UNKNOWN = "?"  # stands for what could not be found out, and is never unchanged
_WORD = re.compile(r"(?:[^ $|:\n]|\$.)+")  # of a line in build.ninja
_SYSTEM = ("/proc/", "/dev/", "/sys/")
_HEADERS = ("/usr/include/", "/usr/local/include/")


def collect_machine_inputs(
    host: Host, plan: Plan, environ: Mapping[str, str], stat_cache: StatCache
) -> dict[str, str]:
    """Return what two builds of one plan differ by on two machines, by name; digests of contents."""
    named = host_compiler.compiler_variables(plan.variables)
    compiler = host.compilers.of_command(named.get("CXX", ""))
    inputs = {
        "compiler": str(compiler or ""),
        **_compiler_digests({**environ, **named}, stat_cache),
    }
    home = host.toolkits.homes.get(plan.cuda.toolkit or "")
    if home is not None:
        tools = {name: stat_cache.digest(Path(home, "bin", name)) for name in _NAMES["cuda"]}
        inputs |= {Path(name).name: digest for name, digest in tools.items() if digest}
        driven = compiler if "CUDAHOSTCXX" in named else host.compilers.cuda
        inputs["host compiler of CUDA"] = str(driven or "")
    # Of the libraries of CUDA those count that a build with CUDA looks for, in no other toolkit.
    others = tuple(f"@{version}" for version in host.toolkits.homes if version != plan.cuda.toolkit)
    for name, version in host.toolkits.libraries.items():
        if not name.startswith(_OF_CUDA) or (plan.cuda.toolkit and not name.endswith(others)):
            inputs[f"library {name}"] = version
    inputs |= {f"library {name}, kept": version for name, version in plan.cuda.libraries.items()}
    variables = read_user_variables(
        environ, plan, host.system
    ).items()  # digests: their values are nobody's business
    return inputs | {
        name: hashlib.sha256(os.fsencode(value)).hexdigest() for name, value in variables
    }


def read_user_variables(environ: Mapping[str, str], plan: Plan, system: str) -> dict[str, str]:
    """Return the user's variables that get through to a build on a system and can change what it makes."""
    patterns = shell_seal.compiler_patterns(
        system, in_container=shell_seal.is_in_container(environ)
    )
    return {
        name: environ[name]
        for name in sorted(environ)
        if name not in plan.variables and shell_seal.matches(name, patterns)
    }


def describe_interpreter(executable: Path, stat_cache: StatCache) -> dict[str, str]:
    """Return what tells one build of CPython from another: its version, and digests of its files."""
    real = real_path(executable)
    base = real.parents[1]
    kinds = ("libpython3*.so*", "libpython3*.dylib")
    libraries = [path for kind in kinds for path in sorted((base / "lib").glob(kind))]
    headers = sorted(base.glob(f"include/{real.name}*/pyconfig.h"))
    argv = [str(executable), "-I", "-c", "import sys; print(sys.version.replace(chr(10), ' '))"]
    programs = [real, *libraries]
    version = stat_cache.program_output(" ".join(argv), programs, lambda: ask(argv).strip())
    return {
        "version": version,
        **{path.name: stat_cache.digest(path) or "" for path in (*programs, *headers)},
    }


def _compiler_digests(environ: Mapping[str, str], stat_cache: StatCache) -> dict[str, str]:
    """Return the digests of the C and C++ compilers and of all that they bring along."""
    run = make_runner(environ, stat_cache)
    languages = {
        "C": compiler_command(environ, C),
        "C++": compiler_command(environ),
    }
    parts = (
        (f"{language}: {name}", stat_cache.digest(path))
        for language, words in languages.items()
        for name, path in _compiler_parts(words or [], environ, run)
    )
    return {name: digest for name, digest in parts if digest is not None}


def _compiler_parts(
    words: list[str], environ: Mapping[str, str], run: RunProgram
) -> Iterator[tuple[str, Path]]:
    """Yield the files of a compiler: its driver, what that starts, and what it links without being told."""
    while words and Path(words[0]).stem in LAUNCHERS:
        words = words[1:]
    driver = shutil.which(words[0], path=environ.get("PATH")) if words else None
    if driver is None:
        return
    if not starts_another(Path(driver)):
        yield "driver", Path(driver)
    folders = {}  # by "programs" and "libraries", as gcc and clang print them
    for line in run([*words, "-print-search-dirs"]).splitlines():
        kind, _, listed = line.partition(": =")
        folders[kind] = [Path(folder) for folder in listed.split(os.pathsep) if folder]
    for kind, names in _NAMES["compiler"].items():
        for name in names:
            files = (path for folder in folders.get(kind, ()) if is_file(path := folder / name))
            usual = shutil.which(name, path=environ.get("PATH")) if kind == "programs" else None
            if file := next(map(str, files), usual):
                yield name, Path(file)


def read_external_inputs(
    source: Path, own: Sequence[Path], stat_cache: StatCache, began: float
) -> dict[str, str]:
    """Return the files that builds below `source` read, with the digests of their contents.

    Those below one of `own` (the tree, an environment) are not meant. What changed after the build began
    (seconds since 1970) may have been read before. Where nobody wrote down what was read, as with
    setuptools alone, all headers of the system stand for it.
    """
    logs = sorted(source.glob("build/**/.ninja_deps"))
    if not logs:
        stats = {folder: stat_folder(folder) for folder in _HEADERS}
        return {
            name: UNKNOWN if stat.since > began * 1e9 else stat.text for name, stat in stats.items()
        }
    try:
        named = {file for log in logs for _, files in outputs_with_inputs(log) for file in files}
        named |= {
            os.path.normpath(file)
            for log in logs
            for file in _edge_files(log.with_name("build.ninja"))
        }
    except (OSError, ValueError) as error:
        return {str(error): UNKNOWN}
    roots = tuple(f"{each}{os.sep}" for one in own for each in {one.absolute(), one.resolve()})
    read = {}
    for path in sorted(path for path in named if not path.startswith((*roots, *_SYSTEM))):
        status = stat_file(path)
        digest = UNKNOWN if status and status.since > began * 1e9 else stat_cache.digest(path)
        if digest is not None:
            read[path] = digest
    return read


def find_changed_inputs(digests: Mapping[str, str], stat_cache: StatCache) -> Iterator[str]:
    """Yield the files that are no longer what they were when they were read."""
    for path, digest in digests.items():
        now = stat_folder(path).text if path.endswith("/") else stat_cache.digest(path)
        if now != digest:
            yield path


def linked_archives(source: Path) -> list[Path]:
    """Return the static libraries from elsewhere that edges of builds below `source` name, of a name only one."""
    named = {
        file
        for each in source.glob("build/**/build.ninja")
        for file in _edge_files(each)
        if file.endswith(".a")
    }
    paths = {Path(file).name: Path(file) for file in sorted(named)}
    return [
        path
        for _, path in sorted(paths.items())
        if path.is_file() and not path.is_relative_to(source)
    ]


def outputs_with_inputs(log: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each existing output that a `.ninja_deps` names, and what was read for it, as absolute paths.

    Raises ValueError, OSError as `read_dependencies` does.
    """

    @cache
    def absolute(path: str) -> str:  # a header is named once for each object that read it
        return os.path.normpath(os.path.join(log.parent, path))  # noqa: PTH118 (thousands)

    for output, files in ninja.read_dependencies(log).items():
        if os.path.exists(absolute(output)):  # noqa: PTH110 (thousands)
            yield absolute(output), [absolute(path) for path in files]


def _edge_files(edges: Path) -> set[str]:
    """Return the absolute paths on the edges of a build.ninja."""
    with edges.open(encoding="utf-8", errors="surrogateescape") as lines:
        words = (
            word for line in lines if line.startswith("build ") for word in _WORD.findall(line)
        )
        return {re.sub(r"\$(.)", r"\1", word) for word in words if word[0] == "/"}
