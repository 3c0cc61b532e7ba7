"""Run a machine's compilers and tools for their versions, tell compilers apart, and list installed system packages."""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path

from torchmill.core.errors import HostError, parse_option
from torchmill.core.lenient_paths import find_paths, is_file, real_path
from torchmill.core.process import CommandError, NoAnswerError, ask, program_output
from torchmill.core.silence import answer_limit
from torchmill.core.stat_cache import StatCache
from torchmill.host.disk_usage import list_names
from torchmill.host.distribution import os_release
from torchmill.host.host import Compiler

RunProgram = Callable[[Sequence[str]], str]  # what a program prints; "" where it does not run

LINKERS = ("ld.bfd", "ld.gold", "ld.lld", "ld.mold")  # that gcc and clang start for -fuse-ld
TOOLS = (
    *(
        "git",
        "cmake",
        "ninja",
        "ccache",
        "sccache",
        "nvcc",
        "patchelf",
        "nvidia-smi",
        "pyenv",
        "xcode-select",
    ),
    *LINKERS,
    *("docker", "podman"),
)
_ASKED = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache"})
_SEARCH = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH")  # change where a compiler looks
_OF_RPM = ("rpm", "--query", "--all", "--queryformat", "installed %{NAME} %{VERSION}\n")
_LISTING: Mapping[str, tuple[str, ...]] = {
    "apt": ("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n"),
    "dnf": _OF_RPM,
    "microdnf": _OF_RPM,
    "yum": _OF_RPM,
    "zypper": _OF_RPM,
    "pacman": ("pacman", "--query"),
    "apk": ("apk", "info", "--verbose"),
    "brew": ("brew", "list", "--versions"),
}
_OF_APK = re.compile(r"(?P<name>.+)-(?P<version>\d[^-]*-r\d+)")
_CONDA = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-[^-]+")
_NAME = re.compile(r"(?:(?:gcc\d+-)?g\+\+|clang\+\+)(?:-\d+)?")  # Amazon Linux: "gcc14-g++"
_CLANG = re.compile(r"(?P<apple>Apple )?(?:clang|LLVM) version (?P<version>\d+(?:\.\d+)+)")
CPP = "CXX", ("c++", "cl")  # the variable that names the compiler of C++, and its usual names
C = "CC", ("cc", "cl")
Digest = Callable[[Path], str | None]  # of a file's content; None where it cannot be read
_BEHIND = ("cc1", "cc1plus", "clang")
_LIBRARY = re.compile(r"=> (/\S*/lib(?:clang|LLVM)\S*)")


class ProgramRunner:
    """What runs programs with some variables, in English.

    With a memory, compilers are asked each question once for as long as the compiler stays the same file. A program
    that did not answer is not asked again.
    """

    def __init__(self, environ: Mapping[str, str], stat_cache: StatCache | None = None) -> None:
        self.unanswered: dict[str, str] = {}  # name of a program -> "did not answer within 20 s"
        self._path = environ.get("PATH")
        self._variables = {**environ, "LC_ALL": "C"}
        self._searched = " ".join(environ.get(name, "") for name in _SEARCH)
        self._stat_cache = stat_cache
        self._silent: set[str] = set()  # paths of programs

    def __call__(self, argv: Sequence[str]) -> str:
        """Return what a program prints; "" where it does not run, fails or does not answer."""
        # The calling process's PATH, not that of `env`, is where a bare name would be looked for.
        program = shutil.which(argv[0], path=self._path)
        if program is None or program in self._silent:
            return ""
        command = [program, *argv[1:]]
        if self._stat_cache is None or starts_another(Path(program)):
            return self._ask(command)
        question = f"{shlex.join(command)} {self._searched}"
        return self._stat_cache.program_output(
            question, [real_path(program)], lambda: self._ask(command)
        )

    def _ask(self, command: Sequence[str]) -> str:
        name = Path(command[0]).name
        try:
            return ask(command, self._variables)
        except NoAnswerError:
            self._silent.add(command[0])
            self.unanswered[name] = f"did not answer within {answer_limit(name):g} s"
            return ""
        except (CommandError, HostError):
            return ""


def make_runner(environ: Mapping[str, str], stat_cache: StatCache | None = None) -> ProgramRunner:
    """Return what runs programs with these variables."""
    return ProgramRunner(environ, stat_cache)


def starts_another(program: Path) -> bool:
    """Tell whether a program starts another, which may change while it does not."""
    if sys.platform == "darwin" and program.parent == Path(
        "/usr/bin"
    ):  # Xcode's, whichever is selected
        return True
    return real_path(program).stem in LAUNCHERS


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the tools that are on PATH, with their places."""
    found = {tool: shutil.which(tool, path=environ.get("PATH")) for tool in TOOLS}
    return {tool: where for tool, where in found.items() if where}


def tool_versions(places: Mapping[str, str], run: RunProgram, threads: Executor) -> dict[str, str]:
    """Return the versions of those tools that have one."""
    asked = [tool for tool in _ASKED if tool in places]
    said = threads.map(lambda tool: run([places[tool], "--version"]), asked)
    found = {tool: parse_tool_version(tool, text) for tool, text in zip(asked, said, strict=True)}
    return {tool: version for tool, version in found.items() if version}


def parse_tool_version(tool: str, said: str) -> str | None:
    """Return the version in what a tool says of itself."""
    if tool == "nvcc":  # its first lines hold years
        match = re.search(r"release (\d+\.\d+)", said)
        return match[1] if match else None
    match = _VERSION.search(said)
    return match[0] if match else None


def installed_packages(manager: str, environ: Mapping[str, str], run: RunProgram) -> dict[str, str]:
    """Return every installed package and its version."""
    if manager == "conda":
        records = find_paths(Path(environ.get("CONDA_PREFIX", ""), "conda-meta"), "*.json")
        matches = (_CONDA.fullmatch(path.stem) for path in records)
        return {match["name"]: match["version"] for match in matches if match}
    lines = run(_LISTING[manager]).splitlines()
    if manager == "apk":
        found = map(_OF_APK.fullmatch, lines)
        return {match["name"]: match["version"] for match in found if match}
    rows = [line.split() for line in lines]
    if manager in {"brew", "pacman"}:
        return {row[0]: row[-1] for row in rows if row}
    return {row[1]: row[2] for row in rows if row[:1] == ["installed"] and len(row) > 2}  # noqa: PLR2004


def system_version(root: Path, run: RunProgram) -> dict[str, str]:
    """Return the version of macOS, or what the Linux below `root` calls its release: {"codename": "trixie"}."""
    names = {"macos": run(["sw_vers", "-productVersion"]).strip()}
    names["codename"] = os_release(root).get("VERSION_CODENAME", "")
    return {name: version for name, version in names.items() if version}


def xcode_tools(places: Mapping[str, str], run: RunProgram) -> dict[str, str]:
    """Return where the command-line tools of Xcode are; nothing where they are not installed."""
    said = run([places["xcode-select"], "-p"]).strip() if "xcode-select" in places else ""
    return {"xcode": said} if said else {}


def is_translated(run: RunProgram) -> bool:
    """Tell whether this very process was made for Intel and runs on Apple silicon."""
    return run(["sysctl", "-n", "sysctl.proc_translated"]).strip() == "1"


def command_words(environ: Mapping[str, str], name: str) -> list[str]:
    """Return the words of the command that a variable names. Raises ConfigError for a quote that is left open."""
    said = environ.get(name) or ""
    return parse_option(
        f"{name}={said} is not a command such as `g++-12`", said, shlex.split, "invalid-command"
    )


def compiler_command(
    environ: Mapping[str, str], of: tuple[str, Sequence[str]] = CPP
) -> list[str] | None:
    """Return the command of the compiler that a build would use; None where that is not installed."""
    path, (variable, usual) = environ.get("PATH"), of
    if words := command_words(
        environ, variable
    ):  # a build fails on a wrong one, so we do not look past it
        return words if shutil.which(words[0], path=path) else None
    return next(([name] for name in usual if shutil.which(name, path=path)), None)


def identify_compiler(
    words: list[str] | None, environ: Mapping[str, str], run: RunProgram
) -> Compiler | None:
    """Return what the compiler of a command is; None where it does not say, or there is no command."""
    if not words:
        return None
    if Path(words[0]).stem.lower() == "cl":  # the prompt of Visual Studio has set its version
        version = environ.get("VCToolsVersion")
        return Compiler("msvc", version) if version else None
    said = run([*words, "--version"])
    if match := _CLANG.search(said):
        return Compiler("apple-clang" if match["apple"] else "clang", match["version"])
    if "Free Software Foundation" not in said:
        return None
    # gcc before 7 knows only the second flag, and later ones shorten its answer
    version = run([*words, "-dumpfullversion", "-dumpversion"]).strip()
    return Compiler("gcc", version) if version else None


def own_cxx_library(words: list[str] | None, run: RunProgram) -> dict[str, str]:
    """Return where the libstdc++ of a compiler's command is, by its name; nothing where it is the system's."""
    path = run([*words, "-print-file-name=libstdc++.so.6"]).strip() if words else ""
    outside = path.startswith("/") and not os.path.realpath(path).startswith(("/usr/lib", "/lib"))
    return {"libstdc++": os.path.realpath(path)} if outside else {}


def installed_compilers(
    environ: Mapping[str, str], root: Path, kept: Iterable[Path], run: RunProgram, threads: Executor
) -> dict[str, Compiler]:
    """Return every gcc and clang by its command, "g++-11"; those outside PATH by their place.

    `kept` are those in the user's cache.
    """
    folders = filter(None, environ.get("PATH", "").split(os.pathsep))
    names = (name for folder in folders for name in list_names(folder))
    on_path = (name for name in names if _NAME.fullmatch(name.removesuffix(".exe")))
    # Red Hat's systems keep the newer ones out of PATH
    beside = [
        find_paths(root, f"opt/rh/{kind}-*/root/usr/bin/g++")
        for kind in ("gcc-toolset", "devtoolset")
    ]
    commands = dict.fromkeys((*on_path, *map(str, chain(*beside, kept))))
    known = threads.map(lambda name: identify_compiler([name], environ, run), commands)
    return {name: one for name, one in zip(commands, known, strict=True) if one is not None}


def chosen_compilers(environ: Mapping[str, str]) -> set[str]:
    """Return the absolute paths of the compilers that a build in this environment uses."""
    commands = (environ.get(name) or default for name, default in (("CC", "cc"), ("CXX", "c++")))
    return find_programs(
        (word for one in commands for word in lenient_words(one)), environ.get("PATH")
    )


def lenient_words(command: str) -> list[str]:
    """Return the words of a command that may be a compiler: CXX may begin with a launcher, and have flags."""
    with contextlib.suppress(ValueError):
        return [word for word in shlex.split(command) if not word.startswith("-")]
    return [command]


def find_programs(names: Iterable[str], path: str | None) -> set[str]:
    """Return the absolute paths of those programs that exist."""
    paths = (shutil.which(name, path=path) for name in names)
    return {one for one in paths if one is not None and Path(one).is_absolute()}


def digest_compiler(compiler: str, digest: Digest) -> str:
    """Return a digest of a compiler and of every program and library behind it; paths do not count.

    `g++` starts `cc1plus`, `clang` is a small program before large libraries, and /usr/bin/c++ may be a script. Each
    can stay as it is while what compiles becomes another: so all that is behind it is read.
    """
    parts = (Path(compiler), *sorted(_programs_behind(compiler), key=lambda path: path.name))
    text = "".join(f"{part.name} {digest(part)}\n" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()


def _programs_behind(compiler: str) -> set[Path]:
    answers = (program_output(compiler, f"-print-prog-name={name}").strip() for name in _BEHIND)
    programs = {real_path(one) for one in answers if one.startswith("/") and is_file(Path(one))}
    clang = (
        [str(one) for one in programs if one.name.startswith("clang")]
        if shutil.which("ldd")
        else []
    )
    found = (one for program in clang for one in _LIBRARY.findall(program_output("ldd", program)))
    return programs | {real_path(one) for one in found}
