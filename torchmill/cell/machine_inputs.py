"""What the machine contributes to a build: compilers, libraries, variables, files outside the tree."""

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
from torchmill.host.compilers import C_COMPILER, compiler_command
from torchmill.host.host import Host
from torchmill.host.programs import LAUNCHERS, RunProgram, make_runner, starts_another
from torchmill.plan import host_compiler, shell_seal
from torchmill.plan.plan import Plan

# Stands for a digest that is unknown. It differs from every digest, so that the file counts as
# changed.
UNKNOWN = "?"
_NAMES = read_table_beside(__file__, "machine_inputs.toml")
_CUDA_LIBRARIES = ("cudnn", "nccl", "magma", "cufile")
_EDGE_WORD = re.compile(r"(?:[^ $|:\n]|\$.)+")  # in a line of build.ninja, where "$ " is a blank
# A "$" at the end of a line of build.ninja continues it; "$$" stands for a dollar sign.
# https://ninja-build.org/manual.html#_lexical_syntax
_CONTINUED = re.compile(r"(?<!\$)(?:\$\$)*\$\n\Z")
_KERNEL_FOLDERS = ("/proc/", "/dev/", "/sys/")
# Headers in these folders may be read by any compilation.
_HEADER_FOLDERS = ("/usr/include/", "/usr/local/include/")
_NANOSECONDS = 1e9
_PRINT_VERSION = "import sys; print(sys.version.replace(chr(10), ' '))"


def collect_machine_inputs(
    host: Host, plan: Plan, environ: Mapping[str, str], stat_cache: StatCache
) -> dict[str, str]:
    """Return everything of this machine that can change the result of a plan.

    The keys are human-readable names: "compiler", "library jpeg". The values are versions, or
    digests. Programs are compared by digests of their contents. The values of variables are digests
    too, because they may be secret and manifests are published. `environ` is the user's
    environment.
    """
    planned = host_compiler.planned_compilers(plan.variables)
    compiler = host.compilers.of_command(planned.get("CXX", ""))
    inputs = {"compiler": str(compiler or "")}
    inputs |= _compiler_digests({**environ, **planned}, stat_cache)
    home = host.toolkits.homes.get(plan.cuda.toolkit or "")
    if home is not None:
        inputs |= _toolkit_digests(Path(home), stat_cache)
        cuda_host_compiler = host.compilers.cuda
        if "CUDAHOSTCXX" in planned:  # `--set` may name another one than CXX
            cuda_host_compiler = host.compilers.of_command(planned["CUDAHOSTCXX"])
        inputs["host compiler of CUDA"] = str(cuda_host_compiler or "")
    # CUDA's libraries count only for a build with CUDA, and not if they lie in another toolkit, as
    # "cudnn@12.4" does.
    other_toolkits = []
    for toolkit in host.toolkits.homes:
        if toolkit != plan.cuda.toolkit:
            other_toolkits.append(f"@{toolkit}")
    for name, version in host.toolkits.libraries.items():
        is_cuda_library = name.startswith(_CUDA_LIBRARIES)
        is_looked_for = plan.cuda.toolkit and not name.endswith(tuple(other_toolkits))
        if not is_cuda_library or is_looked_for:
            inputs[f"library {name}"] = version
    # Libraries in the user's cache, which `invoke fetch` put there.
    for name, version in plan.cuda.libraries.items():
        inputs[f"library {name}, kept"] = version
    for name, value in read_user_variables(environ, plan, host.system).items():
        inputs[name] = hashlib.sha256(os.fsencode(value)).hexdigest()
    return inputs


def read_user_variables(environ: Mapping[str, str], plan: Plan, system: str) -> dict[str, str]:
    """Return the user's variables that get through to a build and can change what it makes.

    `system` is the machine's: "linux".
    """
    in_container = shell_seal.is_in_container(environ)
    patterns = shell_seal.compiler_patterns(system, in_container=in_container)
    variables = {}
    for name in sorted(environ):
        if name not in plan.variables and shell_seal.matches(name, patterns):
            variables[name] = environ[name]
    return variables


def describe_interpreter(executable: Path, stat_cache: StatCache) -> dict[str, str]:
    """Return the version of an interpreter, and the digests of its files by their names.

    They tell one build of CPython from another of the same version.
    """
    real = real_path(executable)
    base = real.parents[1]
    libraries: list[Path] = []
    # Other Pythons may be in the same folder.
    for pattern in (f"lib{real.name}*.so*", f"lib{real.name}*.dylib"):
        libraries += sorted((base / "lib").glob(pattern))
    headers = sorted(base.glob(f"include/{real.name}*/pyconfig.h"))
    argv = [str(executable), "-I", "-c", _PRINT_VERSION]
    programs = [real, *libraries]
    version = stat_cache.program_output(" ".join(argv), programs, lambda: ask(argv).strip())
    description = {"version": version}
    for path in (*programs, *headers):
        name = path.name
        if name in description:  # a second pyconfig.h, such as that of a debug build
            name = f"{path.parent.name}/{name}"
        description[name] = stat_cache.digest(path) or ""
    return description


def read_external_inputs(
    source: Path, own_folders: Sequence[Path], stat_cache: StatCache, began: float
) -> dict[str, str]:
    """Return the files that builds below `source` read, with the digests of their contents.

    Files below `own_folders` (the tree, an environment), and those that are gone, are left out.
    `began` is when the build began, in seconds since 1970. A file that changed later may have been
    read before that: its digest is UNKNOWN. If there is no record of ninja's, as with setuptools
    alone, the result has the folders of the system's headers instead, each with a "/" at its end.
    If a record cannot be read, the result has one entry, which always counts as changed.
    """
    logs = sorted(source.glob("build/**/.ninja_deps"))
    began_ns = began * _NANOSECONDS
    if not logs:
        headers = {}
        for header_folder in _HEADER_FOLDERS:
            appearance = stat_folder(header_folder)
            is_settled = appearance.changed_ns <= began_ns
            headers[header_folder] = appearance.text if is_settled else UNKNOWN
        return headers
    try:
        files = _recorded_files(logs)
    except (OSError, ValueError) as error:
        # A record that cannot be read proves nothing: the next run compares, and finds a change.
        return {str(error): UNKNOWN}
    left_out: list[str] = [*_KERNEL_FOLDERS]
    for folder in own_folders:
        left_out += [f"{folder.absolute()}{os.sep}", f"{folder.resolve()}{os.sep}"]
    digests = {}
    for path in sorted(files):
        if path.startswith(tuple(left_out)):
            continue
        status = stat_file(path)
        changed_during_build = status is not None and status.changed_ns > began_ns
        digest = UNKNOWN if changed_during_build else stat_cache.digest(path)
        if digest is not None:
            digests[path] = digest
    return digests


def find_changed_inputs(digests: Mapping[str, str], stat_cache: StatCache) -> Iterator[str]:
    """Yield the files and folders of `read_external_inputs` that are not the same any more."""
    for path, digest in digests.items():
        is_folder = path.endswith("/")
        current = stat_folder(path).text if is_folder else stat_cache.digest(path)
        if current != digest:
            yield path


def linked_archives(source: Path) -> list[Path]:
    """Return the static libraries outside `source` that its builds link, sorted by file name.

    The SBOM of the wheel lists them. Several builds may find a library by different paths, so of
    each file name there is one path. Raises OSError if a build.ninja cannot be read.
    """
    files: set[str] = set()
    for build_file in source.glob("build/**/build.ninja"):
        files |= _edge_files(build_file)
    archives: dict[str, Path] = {}
    for file in sorted(files):
        path = Path(file)
        if path.suffix == ".a" and path.is_file() and not path.is_relative_to(source):
            archives[path.name] = path
    return [archives[name] for name in sorted(archives)]


def outputs_with_inputs(log: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each output in the record `.ninja_deps` that still exists, with the files read for it.

    All paths are made absolute. Raises ValueError, OSError as `read_dependencies` does.
    """

    @cache  # a header is named once for each object that read it
    def absolute(path: str) -> str:
        return os.path.normpath(os.path.join(log.parent, path))  # noqa: PTH118 - thousands

    for output, files in ninja.read_dependencies(log).items():
        if os.path.exists(absolute(output)):  # noqa: PTH110 - thousands
            yield absolute(output), [absolute(path) for path in files]


def _toolkit_digests(home: Path, stat_cache: StatCache) -> dict[str, str]:
    """Return the digests of the programs of a CUDA toolkit, by the names of their files."""
    digests = {}
    for name in _NAMES["cuda"]:
        digest = stat_cache.digest(home / "bin" / name)
        if digest:
            digests[Path(name).name] = digest
    return digests


def _compiler_digests(environ: Mapping[str, str], stat_cache: StatCache) -> dict[str, str]:
    """Return the digests of the C and C++ compilers, and of the programs and libraries they use.

    Their names are such as "C++: cc1plus".
    """
    run = make_runner(environ, stat_cache)
    commands = {"C": compiler_command(environ, C_COMPILER), "C++": compiler_command(environ)}
    digests = {}
    for language, words in commands.items():
        for name, path in _compiler_parts(words or [], environ, run):
            digest = stat_cache.digest(path)
            if digest is not None:
                digests[f"{language}: {name}"] = digest
    return digests


def _compiler_parts(
    words: list[str], environ: Mapping[str, str], run: RunProgram
) -> Iterator[tuple[str, Path]]:
    """Yield the files of a compiler by name: its driver, the programs it starts, its libraries.

    `words` are its command, and `run` asks it for its folders.
    """
    while words and Path(words[0]).stem in LAUNCHERS:
        words = words[1:]
    driver = shutil.which(words[0], path=environ.get("PATH")) if words else None
    if driver is None:
        return
    # A wrapper, such as a compiler cache's, says nothing about the compiler that it starts.
    if not starts_another(Path(driver)):
        yield "driver", Path(driver)
    # gcc and clang print "programs: =FOLDER:FOLDER" and "libraries: =…"
    folders: dict[str, list[Path]] = {}
    for line in run([*words, "-print-search-dirs"]).splitlines():
        kind, _, listed = line.partition(": =")
        folders[kind] = [Path(folder) for folder in listed.split(os.pathsep) if folder]
    for kind, names in _NAMES["compiler"].items():
        for name in names:
            path = _find_part(name, folders.get(kind, []))
            if path is None and kind == "programs":
                # A driver looks on PATH for programs that it does not bring, such as `as`.
                on_path = shutil.which(name, path=environ.get("PATH"))
                path = Path(on_path) if on_path else None
            if path is not None:
                yield name, path


def _find_part(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the first file of a name in some folders; None if there is none."""
    for folder in folders:
        if is_file(folder / name):
            return folder / name
    return None


def _recorded_files(logs: Sequence[Path]) -> set[str]:
    """Return all files that ninja's records or the build.ninja beside them name.

    Raises OSError, ValueError.
    """
    files: set[str] = set()
    for log in logs:
        for _, inputs in outputs_with_inputs(log):
            files.update(inputs)
        for file in _edge_files(log.with_name("build.ninja")):
            files.add(os.path.normpath(file))
    return files


def _edge_files(build_file: Path) -> set[str]:
    """Return the absolute paths on the edges (commands) of a build.ninja. Raises OSError."""
    files = set()
    edge = ""  # the line, or as much as was read of one that is continued
    with build_file.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            edge += line.lstrip(" ") if edge else line
            if not edge.startswith("build "):
                edge = ""
                continue
            if _CONTINUED.search(edge):
                edge = edge.removesuffix("$\n")
                continue
            for word in _EDGE_WORD.findall(edge):
                if word.startswith("/"):
                    files.add(re.sub(r"\$(.)", r"\1", word))
            edge = ""
    return files
