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

UNKNOWN = "?"  # the digest of a file that cannot be told, which is never unchanged
_NAMES = read_table_beside(__file__, "machine_inputs.toml")
_CUDA_LIBRARIES = ("cudnn", "nccl", "magma", "cufile")
_EDGE_WORD = re.compile(r"(?:[^ $|:\n]|\$.)+")  # of a line in build.ninja
_KERNEL_FOLDERS = ("/proc/", "/dev/", "/sys/")
_HEADER_FOLDERS = ("/usr/include/", "/usr/local/include/")
_NANOSECONDS = 1e9
_PRINT_VERSION = "import sys; print(sys.version.replace(chr(10), ' '))"


def collect_machine_inputs(
    host: Host, plan: Plan, environ: Mapping[str, str], stat_cache: StatCache
) -> dict[str, str]:
    """Return, by name, everything by which two builds of one plan can differ on two machines.

    Programs are named by digests of their contents, and so are the values of variables, which are
    nobody's business.
    """
    planned = host_compiler.compiler_variables(plan.variables)
    compiler = host.compilers.of_command(planned.get("CXX", ""))
    inputs = {"compiler": str(compiler or "")}
    inputs |= _compiler_digests({**environ, **planned}, stat_cache)
    home = host.toolkits.homes.get(plan.cuda.toolkit or "")
    if home is not None:
        for name in _NAMES["cuda"]:
            digest = stat_cache.digest(Path(home, "bin", name))
            if digest:
                inputs[Path(name).name] = digest
        cuda_host_compiler = compiler if "CUDAHOSTCXX" in planned else host.compilers.cuda
        inputs["host compiler of CUDA"] = str(cuda_host_compiler or "")
    # A build with CUDA looks for its libraries, but not in other toolkits.
    other_toolkits = tuple(
        f"@{version}" for version in host.toolkits.homes if version != plan.cuda.toolkit
    )
    for name, version in host.toolkits.libraries.items():
        is_cuda_library = name.startswith(_CUDA_LIBRARIES)
        is_looked_for = plan.cuda.toolkit and not name.endswith(other_toolkits)
        if not is_cuda_library or is_looked_for:
            inputs[f"library {name}"] = version
    for name, version in plan.cuda.libraries.items():
        inputs[f"library {name}, kept"] = version
    for name, value in read_user_variables(environ, plan, host.system).items():
        inputs[name] = hashlib.sha256(os.fsencode(value)).hexdigest()
    return inputs


def read_user_variables(environ: Mapping[str, str], plan: Plan, system: str) -> dict[str, str]:
    """Return the user's variables that get through to a build and can change what it makes."""
    in_container = shell_seal.is_in_container(environ)
    patterns = shell_seal.compiler_patterns(system, in_container=in_container)
    variables = {}
    for name in sorted(environ):
        if name not in plan.variables and shell_seal.matches(name, patterns):
            variables[name] = environ[name]
    return variables


def describe_interpreter(executable: Path, stat_cache: StatCache) -> dict[str, str]:
    """Return what tells one build of CPython from another: its version, and digests of its files."""
    real = real_path(executable)
    base = real.parents[1]
    libraries: list[Path] = []
    for pattern in ("libpython3*.so*", "libpython3*.dylib"):
        libraries += sorted((base / "lib").glob(pattern))
    headers = sorted(base.glob(f"include/{real.name}*/pyconfig.h"))
    argv = [str(executable), "-I", "-c", _PRINT_VERSION]
    programs = [real, *libraries]
    version = stat_cache.program_output(" ".join(argv), programs, lambda: ask(argv).strip())
    description = {"version": version}
    for path in (*programs, *headers):
        description[path.name] = stat_cache.digest(path) or ""
    return description


def read_external_inputs(
    source: Path, own_folders: Sequence[Path], stat_cache: StatCache, began: float
) -> dict[str, str]:
    """Return the files that builds below `source` read, with the digests of their contents.

    Files below `own_folders` (the tree, an environment) are left out. A file that changed after
    the build began (seconds since 1970) may have been read before: its digest is UNKNOWN. If no
    tool recorded what was read, as with setuptools alone, all headers of the system stand for it.
    """
    logs = sorted(source.glob("build/**/.ninja_deps"))
    began_ns = began * _NANOSECONDS
    if not logs:
        headers = {}
        for header_folder in _HEADER_FOLDERS:
            look = stat_folder(header_folder)
            headers[header_folder] = UNKNOWN if look.changed_ns > began_ns else look.text
        return headers
    try:
        files = _recorded_files(logs)
    except (OSError, ValueError) as error:
        return {str(error): UNKNOWN}
    left_out: list[str] = [*_KERNEL_FOLDERS]
    for folder in own_folders:
        left_out += [f"{folder.absolute()}{os.sep}", f"{folder.resolve()}{os.sep}"]
    digests = {}
    for path in sorted(files):
        if path.startswith(tuple(left_out)):
            continue
        status = stat_file(path)
        changed_meanwhile = status is not None and status.changed_ns > began_ns
        digest = UNKNOWN if changed_meanwhile else stat_cache.digest(path)
        if digest is not None:
            digests[path] = digest
    return digests


def find_changed_inputs(digests: Mapping[str, str], stat_cache: StatCache) -> Iterator[str]:
    """Yield the files that differ from what they were when they were read."""
    for path, digest in digests.items():
        is_folder = path.endswith("/")
        current = stat_folder(path).text if is_folder else stat_cache.digest(path)
        if current != digest:
            yield path


def linked_archives(source: Path) -> list[Path]:
    """Return the static libraries outside `source` that its builds link, one for each file name."""
    archives: set[str] = set()
    for manifest in source.glob("build/**/build.ninja"):
        archives.update(file for file in _edge_files(manifest) if file.endswith(".a"))
    by_name = {Path(file).name: Path(file) for file in sorted(archives)}
    outside = []
    for _, path in sorted(by_name.items()):
        if path.is_file() and not path.is_relative_to(source):
            outside.append(path)
    return outside


def outputs_with_inputs(log: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each existing output in a `.ninja_deps`, with the files that were read for it.

    Paths are absolute. Raises ValueError, OSError as `read_dependencies` does.
    """

    @cache  # a header is named once for each object that read it
    def absolute(path: str) -> str:
        return os.path.normpath(os.path.join(log.parent, path))  # noqa: PTH118 - thousands

    for output, files in ninja.read_dependencies(log).items():
        if os.path.exists(absolute(output)):  # noqa: PTH110 - thousands
            yield absolute(output), [absolute(path) for path in files]


def _compiler_digests(environ: Mapping[str, str], stat_cache: StatCache) -> dict[str, str]:
    """Return the digests of the C and C++ compilers and of the programs and libraries behind them."""
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
    """Yield the files of a compiler: its driver, the programs it starts, the libraries it adds."""
    while words and Path(words[0]).stem in LAUNCHERS:
        words = words[1:]
    driver = shutil.which(words[0], path=environ.get("PATH")) if words else None
    if driver is None:
        return
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
                on_path = shutil.which(name, path=environ.get("PATH"))
                path = Path(on_path) if on_path else None
            if path is not None:
                yield name, path


def _find_part(name: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        if is_file(folder / name):
            return folder / name
    return None


def _recorded_files(logs: Sequence[Path]) -> set[str]:
    """Return all files that ninja read or has on its edges, by its logs. Raises OSError, ValueError."""
    files: set[str] = set()
    for log in logs:
        for _, inputs in outputs_with_inputs(log):
            files.update(inputs)
        for file in _edge_files(log.with_name("build.ninja")):
            files.add(os.path.normpath(file))
    return files


def _edge_files(manifest: Path) -> set[str]:
    """Return the absolute paths on the edges of a build.ninja. Raises OSError."""
    files = set()
    with manifest.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if not line.startswith("build "):
                continue
            for word in _EDGE_WORD.findall(line):
                if word.startswith("/"):
                    files.add(re.sub(r"\$(.)", r"\1", word))  # "$ " is ninja's escaped blank
    return files
