"""What the machine puts into every build on it: compilers, libraries, and the variables that they read."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from torchmill.cuda import hostcompiler
from torchmill.host import compilers, programs
from torchmill.model import Host, Plan
from torchmill.process import capture
from torchmill.recall import Recall

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


def ground(host: Host, plan: Plan, environ: Mapping[str, str], recall: Recall) -> dict[str, str]:
    """Return what two builds of one plan differ by on two machines, by name; digests of contents."""
    named = hostcompiler.named(plan.set)
    compiler = host.compilers.get(named.get("CXX", ""), host.compiler)
    found = {"compiler": str(compiler or ""), **_programs({**environ, **named}, recall)}
    home = host.toolkits.get(plan.toolkit or "")
    if home is not None:
        tools = {name: recall.digest(Path(home, "bin", name)) for name in _CUDA}
        found |= {Path(name).name: digest for name, digest in tools.items() if digest}
        driven = compiler if "CUDAHOSTCXX" in named else host.cuda_compiler
        found["host compiler of CUDA"] = str(driven or "")
    found |= {f"library {name}": version for name, version in _libraries(host, plan).items()}
    heard = read(environ, plan).items()  # what it says is nobody's business
    return found | {name: hashlib.sha256(os.fsencode(value)).hexdigest() for name, value in heard}


def read(environ: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the user's variables that get through to a build and can change what it makes."""
    return {
        name: environ[name]
        for name in sorted(environ)
        if name not in plan.set and _any(name, READ) and not _any(name, OTHERS) and not _any(name, plan.unset)
    }


def interpreter(executable: Path, recall: Recall) -> dict[str, str]:
    """Return what tells one build of CPython from another: what it says of itself, and its files."""
    files = belongings(executable)
    argv = [str(executable), "-I", "-c", "import sys; print(sys.version.replace(chr(10), ' '))"]
    programs = [path for path in files if path.suffix != ".h"]
    version = recall.said(" ".join(argv), programs, lambda: capture(argv).strip())
    return {"version": version, **{path.name: recall.digest(path) or "" for path in files}}


def belongings(executable: Path) -> list[Path]:
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


def _programs(environ: Mapping[str, str], recall: Recall) -> dict[str, str]:
    """Return the digests of the C and C++ compilers and of all that they bring along."""
    run = programs.remembered(environ, recall)
    found: dict[str, str] = {}
    for language, words in (
        ("C", compilers.command(environ, compilers.C)),
        ("C++", compilers.command(environ)),
    ):
        for name, path in _parts(words or [], environ, run):
            digest = recall.digest(path)
            if digest is not None:
                found[f"{language}: {name}"] = digest
    return found


def _parts(words: list[str], environ: Mapping[str, str], run: programs.Run) -> Iterator[tuple[str, Path]]:
    """Yield the files of a compiler: its driver, what that starts, and what it links without being told."""
    while words and Path(words[0]).stem in programs.LAUNCHERS:
        words = words[1:]
    place = shutil.which(words[0], path=environ.get("PATH")) if words else None
    if place is None:
        return
    if not programs.leads_elsewhere(Path(place)):
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
