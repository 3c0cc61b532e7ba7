"""What the machine contributes to a build: compilers, libraries, variables, and files outside the tree."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from torchmill.config.model import Host, Plan
from torchmill.core import ninja
from torchmill.core.process import capture
from torchmill.core.stat_cache import StatCache, stat_file, stat_folder
from torchmill.host import compilers
from torchmill.host.programs import LAUNCHERS, RunProgram, make_caching_runner, starts_another
from torchmill.plan import cuda_toolkit

# Variables that compilers, linkers, CMake and setuptools read. Two wheels may differ by any of them.
READ = (
    "CC", "CXX", "CPP", "CUDACXX", "CUDAHOSTCXX", "*FLAGS", "AR", "AS", "LD", "NM", "RANLIB", "STRIP",
    "OBJCOPY", "LDSHARED", "LDCXXSHARED", "CPATH", "INCLUDE", "LIB", "LIBPATH", "LIBRARY_PATH", "LD_RUN_PATH",
    "*_INCLUDE*", "*_LIB*", "*_ROOT", "*_ROOT_DIR", "*_HOME", "*_DIR", "*_PATH", "GCC_EXEC_PREFIX",
    "COLLECT_*", "CONDA_PREFIX", "PKG_CONFIG*", "SDKROOT", "MACOSX_DEPLOYMENT_TARGET", "SOURCE_DATE_EPOCH",
    "CMAKE_*", "USE_*", "BUILD_*", "NO_*", "TORCH_*", "PYTORCH_*", "CUDA*", "CUDNN*", "NCCL*", "MKL*",
    "MAGMA*", "NVCC*", "DISTUTILS_*", "SETUPTOOLS_*", "VC*",
)  # fmt: skip
# Those among them that only look like it.
OTHERS = (
    "AGENT_*", "ANDROID_*", "AWS_*", "BUILDKITE_*", "CCACHE_*", "CIRCLE_*", "CI_*", "CURL_*",
    "DBUS_*", "GITHUB_*", "GITLAB_*", "GNOME_*", "GPG_*", "GRPC_*", "GTK_*", "INFOPATH", "INVOKE_*", "JAVA_*",
    "JENKINS_*", "KUBERNETES_*", "LMOD_*", "MANPATH", "NODE_*", "NOX_*", "NO_COLOR", "NO_PROXY", "NVM_*",
    "PBS_*", "PYENV_*", "QT_*", "RUNNER_*", "SCCACHE_*", "SLURM_*", "SSH_*", "SSL_*", "TORCHMILL_*", "UV_*",
    "VSCODE_*", "XDG_*", "MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "*_COMPILER_LAUNCHER",
)  # fmt: skip
# What a driver starts, and what it links without being told.
_STARTED = ("cc1", "cc1plus", "as", "collect2", "ld")
_LINKED = ("libgcc.a", "libstdc++.so", "libstdc++.a", "libc.so", "libc.so.6", "crtbeginS.o")
_OF_CUDA = ("cudnn", "nccl", "magma")
_CUDA = ("nvcc", "cicc", "../nvvm/bin/cicc", "cudafe++", "ptxas", "fatbinary", "nvlink")


def collect_machine_inputs(
    host: Host, plan: Plan, environ: Mapping[str, str], recall: StatCache
) -> dict[str, str]:
    """Return what two builds of one plan differ by on two machines, by name; digests of contents."""
    named = cuda_toolkit.compiler_variables(plan.set)
    compiler = host.compilers.get(named.get("CXX", ""), host.compiler)
    found = {"compiler": str(compiler or ""), **_programs({**environ, **named}, recall)}
    home = host.toolkits.get(plan.toolkit or "")
    if home is not None:
        tools = {name: recall.digest(Path(home, "bin", name)) for name in _CUDA}
        found |= {Path(name).name: digest for name, digest in tools.items() if digest}
        driven = compiler if "CUDAHOSTCXX" in named else host.cuda_compiler
        found["host compiler of CUDA"] = str(driven or "")
    found |= {f"library {name}": version for name, version in _libraries(host, plan).items()}
    heard = read_user_variables(environ, plan).items()  # what it says is nobody's business
    return found | {name: hashlib.sha256(os.fsencode(value)).hexdigest() for name, value in heard}


def read_user_variables(environ: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the user's variables that get through to a build and can change what it makes."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if name not in plan.set and _any(name, READ) and not _any(name, OTHERS) and not _any(name, plan.unset)
    }


def describe_interpreter(executable: Path, recall: StatCache) -> dict[str, str]:
    """Return what tells one build of CPython from another: what it says of itself, and its files."""
    files = interpreter_files(executable)
    argv = [str(executable), "-I", "-c", "import sys; print(sys.version.replace(chr(10), ' '))"]
    programs = [path for path in files if path.suffix != ".h"]
    version = recall.program_output(" ".join(argv), programs, lambda: capture(argv).strip())
    return {"version": version, **{path.name: recall.digest(path) or "" for path in files}}


def interpreter_files(executable: Path) -> list[Path]:
    """Return the files that make an interpreter what it is: program, library, configuration."""
    real = executable.resolve()
    base = real.parents[1]
    libraries = sorted((base / "lib").glob("libpython3*.so*")) + sorted(
        (base / "lib").glob("libpython3*.dylib")
    )
    headers = sorted(base.glob(f"include/{real.name}*/pyconfig.h"))
    return [real, *libraries, *headers]


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _libraries(host: Host, plan: Plan) -> dict[str, str]:
    """Return the libraries that a build looks for: those of CUDA where it has that, in no other toolkit."""
    others = {f"@{version}" for version in host.toolkits if version != plan.toolkit}
    found = {
        name: version
        for name, version in host.libraries.items()
        if not name.startswith(_OF_CUDA) or (plan.toolkit and not name.endswith(tuple(others)))
    }
    return found | {f"{name}, kept": version for name, version in plan.libraries.items()}


def _programs(environ: Mapping[str, str], recall: StatCache) -> dict[str, str]:
    """Return the digests of the C and C++ compilers and of all that they bring along."""
    run = make_caching_runner(environ, recall)
    found: dict[str, str] = {}
    for language, words in (
        ("C", compilers.compiler_command(environ, compilers.C)),
        ("C++", compilers.compiler_command(environ)),
    ):
        for name, path in _parts(words or [], environ, run):
            digest = recall.digest(path)
            if digest is not None:
                found[f"{language}: {name}"] = digest
    return found


def _parts(words: list[str], environ: Mapping[str, str], run: RunProgram) -> Iterator[tuple[str, Path]]:
    """Yield the files of a compiler: its driver, what that starts, and what it links without being told."""
    while words and Path(words[0]).stem in LAUNCHERS:
        words = words[1:]
    place = shutil.which(words[0], path=environ.get("PATH")) if words else None
    if place is None:
        return
    if not starts_another(Path(place)):
        yield "driver", Path(place)
    said = run([*words, "-print-search-dirs"])  # gcc's and clang's
    started, linked = (_folders(said, kind) for kind in ("programs", "libraries"))
    for name in _STARTED:
        found = _first(started, name) or shutil.which(name, path=environ.get("PATH"))
        if found:
            yield name, Path(found)
    for name in _LINKED:
        if path := _first(linked, name):
            yield name, path


def _folders(said: str, kind: str) -> list[Path]:
    line = next((line for line in said.splitlines() if line.startswith(f"{kind}: ")), "")
    return [Path(folder) for folder in line.partition("=")[2].split(os.pathsep) if folder]


def _first(folders: Iterable[Path], name: str) -> Path | None:
    return next((path for path in (folder / name for folder in folders) if path.is_file()), None)


UNKNOWN = "?"  # stands for what could not be found out, and is never unchanged
_WORD = re.compile(r"(?:[^ $|:\n]|\$.)+")  # of a line in build.ninja
_SYSTEM = ("/proc/", "/dev/", "/sys/")
_HEADERS = ("/usr/include/", "/usr/local/include/")


def read_external_inputs(
    source: Path, own: Sequence[Path], recall: StatCache, began: float
) -> dict[str, str]:
    """Return the files that builds below `source` read, with the digests of their contents.

    Those below one of `own` (the tree, an environment) are not meant. What changed after the build began
    (seconds since 1970) may have been read before. Where nobody wrote down what was read, as with
    setuptools alone, all headers of the system stand for it.
    """
    logs = sorted(source.glob("build/**/.ninja_deps"))
    if not logs:
        looks = {folder: stat_folder(folder) for folder in _HEADERS}
        return {folder: UNKNOWN if seen.since > began * 1e9 else seen.text for folder, seen in looks.items()}
    try:
        found = {path for log in logs for path in _used(log)}
    except (OSError, ValueError) as error:
        return {str(error): UNKNOWN}
    roots = tuple(f"{each}{os.sep}" for one in own for each in {one.absolute(), one.resolve()})
    outside = sorted(path for path in found if not path.startswith((*roots, *_SYSTEM)))
    digests = ((path, _digest(path, recall, began)) for path in outside)
    return {path: digest for path, digest in digests if digest is not None}


def find_changed_inputs(known: Mapping[str, str], recall: StatCache) -> Iterator[str]:
    """Yield the files that are no longer what they were when they were read."""
    for path, digest in known.items():
        now = stat_folder(path).text if path.endswith("/") else recall.digest(path)
        if now != digest:
            yield path


def _digest(path: str, recall: StatCache, began: float) -> str | None:
    seen = stat_file(path)
    return UNKNOWN if seen and seen.since > began * 1e9 else recall.digest(path)


def _used(log: Path) -> Iterator[str]:
    """Yield every path that a build folder's logs and commands name, made absolute."""
    folder = str(log.parent)
    built = (
        needed for output, needed in ninja.read_dependencies(log).items() if (log.parent / output).exists()
    )
    for path in (*set(chain.from_iterable(built)), *_linked(log.with_name("build.ninja"))):
        yield os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 (thousands)


def _linked(commands: Path) -> Iterator[str]:
    """Yield the absolute paths that the edges of a build.ninja name."""
    with commands.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.startswith("build "):
                words = (word for word in _WORD.findall(line) if word[0] == "/")
                yield from (re.sub(r"\$(.)", r"\1", word) for word in words)
