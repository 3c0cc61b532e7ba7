"""Find the C++ compilers of a machine, tell them apart, and digest the programs behind them."""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from torchmill.core.errors import HostError, parse_option
from torchmill.core.lenient_paths import find_paths, is_file, real_path
from torchmill.core.process import CommandError, NoAnswerError, ask, program_output
from torchmill.host.disk_usage import list_names
from torchmill.host.host import Compiler
from torchmill.host.programs import RunProgram


class CompilerLookup(NamedTuple):
    """How a build finds the compiler of a language."""

    variable: str  # by which the user names a command
    usual_commands: tuple[str, ...]  # that a build tries in this order without the variable


CXX_COMPILER = CompilerLookup("CXX", ("c++", "cl"))
C_COMPILER = CompilerLookup("CC", ("cc", "cl"))
Digest = Callable[[Path], str | None]  # of a file's contents; None if it cannot be read
_NAME = re.compile(r"(?:(?:gcc\d+-)?g\+\+|clang\+\+)(?:-\d+)?")  # Amazon Linux: "gcc14-g++"
_CLANG = re.compile(r"(?P<apple>Apple )?(?:clang|LLVM) version (?P<version>\d+(?:\.\d+)+)")
# A toolset of Visual Studio. The compiler of toolset 14.29.30133 is 19.29.30133:
# https://learn.microsoft.com/en-us/cpp/overview/compiler-versions
_TOOLSET = re.compile(r"14\.(?P<rest>\d+(?:\.\d+)*)")
_PARTS = ("cc1", "cc1plus", "clang")  # programs that the commands of compilers start
# With a header of the C++ library, so that this is found as well.
_EMPTY_PROGRAM = "#include <vector>\nint main() { return 0; }\n"
# Variables that change where a compiler looks: no build sees them.
_SEARCHED = frozenset(
    {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_RUN_PATH", "CXXFLAGS"}
)
_LIBRARY = re.compile(r"=> (/\S*/lib(?:clang|LLVM)\S*)")  # in the output of ldd


def command_words(environ: Mapping[str, str], name: str) -> list[str]:
    """Return the words of the command that a variable names.

    Raises ConfigError for a quote that is never closed.
    """
    command = environ.get(name) or ""
    return parse_option(
        f"{name}={command} is not a command such as `g++-12`",
        command,
        shlex.split,
        "invalid-command",
    )


def compiler_command(
    environ: Mapping[str, str], lookup: CompilerLookup = CXX_COMPILER
) -> list[str] | None:
    """Return the command of the compiler that a build would use; None if it is not installed.

    Raises ConfigError as `command_words` does.
    """
    path = environ.get("PATH")
    words = command_words(environ, lookup.variable)
    if words:
        # The build uses this command, and fails with a wrong one: the usual ones do not matter.
        return words if shutil.which(words[0], path=path) else None
    for command in lookup.usual_commands:
        if shutil.which(command, path=path):
            return [command]
    return None


def identify_compiler(
    words: list[str] | None, environ: Mapping[str, str], run: RunProgram
) -> Compiler | None:
    """Return the compiler of a command; None if its answer is unknown, or there is no command.

    `run` returns the output of a program, "" if that fails.
    """
    if not words:
        return None
    if Path(words[0]).stem.lower() == "cl":
        # The prompt of Visual Studio has set the version of its toolset.
        toolset = _TOOLSET.fullmatch(environ.get("VCToolsVersion", ""))
        return Compiler("msvc", f"19.{toolset['rest']}") if toolset else None
    output = run([*words, "--version"])
    match = _CLANG.search(output)
    if match:
        return Compiler("apple-clang" if match["apple"] else "clang", match["version"])
    # Each gcc prints the owner of its copyright, whatever its command is called.
    if "Free Software Foundation" not in output:
        return None
    # gcc before 7 has only the second flag. Later ones may print "11" for it, and "11.4.0" for the
    # first one.
    version = run([*words, "-dumpfullversion", "-dumpversion"]).strip()
    return Compiler("gcc", version) if version else None


def compiler_fault(words: Sequence[str] | None, environ: Mapping[str, str]) -> str:
    """Return why a C++ compiler cannot make even an empty program; "" if it can.

    "" also if there is no compiler, and for Visual Studio's, which needs the variables of its
    prompt. The program is made as in a build, which does not see the variables that change where
    headers and libraries are looked for.
    """
    if not words or sys.platform == "win32" or not shutil.which(words[0], path=environ.get("PATH")):
        return ""
    variables = {
        name: value for name, value in environ.items() if name not in _SEARCHED and name != "LANG"
    }
    with tempfile.TemporaryDirectory(prefix="torchmill-") as name:
        source = Path(name, "empty.cpp")
        source.write_text(_EMPTY_PROGRAM, encoding="utf-8")
        command = [*words, str(source), "-o", str(source.with_suffix(""))]
        try:
            ask(command, {**variables, "LC_ALL": "C"})
        except NoAnswerError:
            return ""  # `HostPrograms.unanswered` says so of its first question
        except HostError as error:
            return str(error)
        except CommandError as error:
            return _first_error(error.output)
    return ""


def _first_error(output: str) -> str:
    """Return the first line of a compiler's output that reports an error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"error|cannot|not found|No such file", line):
            return line
    return lines[-1] if lines else "it ends without a message"


def own_cxx_library(words: list[str] | None, run: RunProgram) -> dict[str, str]:
    """Return {"libstdc++": path} of a compiler's own library; {} if it links the system's.

    {} also for no command, and for a compiler that does not tell, as clang with libc++.
    """
    if not words:
        return {}
    path = run([*words, "-print-file-name=libstdc++.so.6"]).strip()
    # gcc repeats the bare name of a file that it does not find.
    if not path.startswith("/"):
        return {}
    real = os.path.realpath(path)
    return {} if real.startswith(("/usr/lib", "/lib")) else {"libstdc++": real}


def installed_compilers(
    environ: Mapping[str, str],
    root: Path,
    cached: Iterable[Path],
    run: RunProgram,
    threads: Executor,
) -> dict[str, Compiler]:
    """Return each gcc and clang by its command, "g++-11"; by its path if it is not on PATH.

    `cached` are the compilers in the user's cache, and `root` is the folder of the system's files.
    Compilers are asked for their versions in `threads`.
    """
    commands: dict[str, None] = {}  # an ordered set
    for folder in environ.get("PATH", "").split(os.pathsep):
        for name in list_names(folder) if folder else ():
            if _NAME.fullmatch(name.removesuffix(".exe")):
                commands[name] = None
    # Red Hat's systems have newer compilers in folders that are not on PATH.
    for kind in ("gcc-toolset", "devtoolset"):
        for path in find_paths(root, f"opt/rh/{kind}-*/root/usr/bin/g++"):
            commands[str(path)] = None
    for path in cached:
        commands[str(path)] = None
    answers = threads.map(lambda name: identify_compiler([name], environ, run), commands)
    compilers = dict(zip(commands, answers, strict=True))
    return {command: compiler for command, compiler in compilers.items() if compiler is not None}


def chosen_compilers(environ: Mapping[str, str]) -> set[str]:
    """Return the absolute paths of the programs in CC and CXX, by default those of cc and c++.

    They are compilers, and the launchers before them, as in "ccache g++". A program that is not
    installed is left out.
    """
    names: list[str] = []
    for variable, default in (("CC", "cc"), ("CXX", "c++")):
        names.extend(lenient_words(environ.get(variable) or default))
    return find_programs(names, environ.get("PATH"))


def lenient_words(command: str) -> list[str]:
    """Return the words of a command without its flags: "ccache", "g++".

    A command with a quote that is never closed is returned as one word.
    """
    with contextlib.suppress(ValueError):  # a quote that is never closed
        return [word for word in shlex.split(command) if not word.startswith("-")]
    return [command]


def find_programs(names: Iterable[str], path: str | None) -> set[str]:
    """Return the absolute paths of those programs in `names` that are in a folder of `path`.

    None for `path` stands for the PATH of this process. A name that is a path is looked up as it is.
    """
    programs: set[str] = set()
    for name in names:
        program = shutil.which(name, path=path)
        if program is not None and Path(program).is_absolute():
            programs.add(program)
    return programs


def digest_compiler(compiler: str, digest: Digest) -> str:
    """Return a digest of a compiler and of every program and library behind it, without paths.

    The file of a compiler is not enough: `g++` starts `cc1plus`, `clang` loads large libraries, and
    /usr/bin/c++ may be a script. They can be replaced without a change of that file.
    """
    behind = sorted(_programs_behind(compiler), key=lambda path: path.name)
    lines = [f"{part.name} {digest(part)}\n" for part in (Path(compiler), *behind)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _programs_behind(compiler: str) -> set[Path]:
    """Return the programs that a compiler starts, and the libraries of clang."""
    programs: set[Path] = set()
    for part in _PARTS:
        # gcc repeats the bare name of a program that it does not find.
        path = program_output(compiler, f"-print-prog-name={part}").strip()
        if path.startswith("/") and is_file(Path(path)):
            programs.add(real_path(path))
    if not shutil.which("ldd"):
        return programs
    libraries: set[Path] = set()
    for program in programs:
        if program.name.startswith("clang"):
            paths = _LIBRARY.findall(program_output("ldd", str(program)))
            libraries.update(real_path(path) for path in paths)
    return programs | libraries
