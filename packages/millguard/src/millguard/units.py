"""Describe a unit, one compile or link, by its compiler's command line.

A key looks like `g++|torch/csrc/Module.cpp|-O2|…` for a compile, `g++|link|lib/libtorch.so` for a link.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_TABLE = tomllib.loads(Path(__file__).with_name("compilers.toml").read_text("utf-8"))
_FAMILY_OF_LANGUAGE = {
    word: family for family, words in _TABLE["languages"].items() for word in words
}
_FAMILY_OF_SUFFIX = {word: family for family, words in _TABLE["ends"].items() for word in words}
_TAKES_A_WORD = set(_TABLE["takes_a_word"])
_COMPILES = set(_TABLE["compiles"])
_LONGEST_RESPONSE_FILE = 2**20  # characters
_ALL_DEVICES = 16  # for nvcc's "all": about as many as a toolkit knows
_MOST_THREAD_DIGITS = 9
_KEY_PARTS = 3  # of a path, at its end, if it is below no root

# "x86_64-linux-gnu-g++-12"
_PROGRAM = re.compile(r"(?:\w+-\w+-(?:\w+-)?(?:gnu\w*-)?)?(.+?)(?:-\d+(?:\.\d+)*)?")
# rustc's "-C opt-level=3" is the word "opt-level=3"; cargo writes it so.
_OPTIMISATION = re.compile(r"-O(?:[0-3sgz]?|fast)|(?:-C)?opt-level=[0-3sz]")
_DEBUG = re.compile(
    r"(?:-C)?debuginfo=[12]|-g(?!0|encode)[\w-]*|-G|-lineinfo|--generate-line-info|--debug|--device-debug"
)
# Options that change the memory that a compile takes.
_COSTLY = re.compile(
    r"-m(?:avx|fma|f16c|amx|arch=|cpu=)\S*|-flto\S*|-fsanitize=\S+|-DCPU_CAPABILITY=\S+"
)
_DEVICE = re.compile(r"(?:compute|sm|lto)_\d+[af]?|(?<==)all(?:-major)?")
_THREADS = re.compile(r"(?:--threads|-t)=?(\d*)")
# Parts of paths that differ from build to build: CMake's trials, setuptools' folders, tags; the folders
# of rattler-build and conda-build (NAME_TIME), of pip (NAME_DIGEST, pip-req-build-RANDOM), of uv and of
# Python's tempfile.
_VARYING = re.compile(
    r"(TryCompile)-\w+|(cmTC)_\w+|\b(lib|temp)\.(?:linux|macosx)[\w.-]*|\.cpython-[\w-]+"
    r"|(?:(?<=/)|^)(?:([^/]+)_(?:\d{10}|\d{13}|[0-9a-f]{32})(?=/)"
    r"|(pip-[a-z-]+)-[a-z0-9_]{8}(?=/)|(tmp)[a-z0-9_]{8}(?=[/.])|(\.tmp)[A-Za-z0-9]{6}(?=/))"
)


@dataclass(frozen=True, slots=True)
class UnitDescription:
    """One compile or link."""

    family: str  # "c", "c++", "cuda", "fortran", "rust", "link"
    key: str
    weight: float  # processors that it keeps busy
    source: str  # the path in the key: the source, or the product of a link


class _Command(NamedTuple):
    """The inputs of a compiler's command, their language, and its output."""

    operands: list[str]
    language: str  # after -x; "" if it follows from names
    output: str


def describe_unit(cwd: str, argv: Sequence[str], roots: Sequence[str] = ()) -> UnitDescription:
    """Describe what a command compiles or links in the folder `cwd`.

    The key holds everything that affects how much memory it takes: the compiler, the source below
    one of `roots`, its optimisation, and the processors and devices that code is made for. Neither
    the build's folder nor its Python version is part of it.
    """
    program = PurePosixPath(argv[0]).name if argv else "?"
    match = _PROGRAM.fullmatch(program)
    compiler = match[1] if match else program
    words = list(_expand_response_files(cwd, argv[1:]))
    command = _parse_command(words)
    sources = []
    for operand in command.operands:
        if PurePosixPath(operand).suffix in _FAMILY_OF_SUFFIX:
            sources.append(operand)
    if not sources and not _COMPILES.isdisjoint(words):
        sources = command.operands[-1:]  # without a known suffix; -x gives its language
    if not sources:
        product = _stable_path(cwd, command.output, roots)
        return UnitDescription("link", _join_key(compiler, "link", product), 1.0, product)
    family = _FAMILY_OF_LANGUAGE.get(command.language)
    if not family:
        family = _FAMILY_OF_SUFFIX.get(PurePosixPath(sources[0]).suffix, "c++")
    source = _stable_path(cwd, sources[0], roots)
    levels = [word for word in words if _OPTIMISATION.fullmatch(word)]
    optimisation = levels[-1] if levels else "-O0"
    if any(_DEBUG.fullmatch(word) for word in words):
        optimisation += "-g"
    costly = sorted({word for word in words if _COSTLY.fullmatch(word)})
    devices: list[str] = []
    weight = 1.0
    if family == "cuda":
        devices = sorted(set(_DEVICE.findall(" ".join(words))))
        weight = _count_threads(words, devices)
    key = _join_key(compiler, source, optimisation, *devices, *costly)
    return UnitDescription(family, key, weight, source)


def unit_title(key: str) -> str:
    """Return the name of a unit for people: the path in its key, or the key if it has none."""
    compiler, _, description = key.partition("|")
    return description.removeprefix("link|").partition("|")[0] or compiler


def _join_key(*parts: str) -> str:
    """Join the parts of a key to text that can be stored: a path may hold any bytes."""
    return "|".join(parts).encode(errors="backslashreplace").decode()


def _expand_response_files(cwd: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the words, with the contents of response files in place of their names."""
    previous = ""
    for word in words:
        if word.startswith("@"):
            yield from _read_response_file(Path(cwd, word[1:]))
        elif previous in _TABLE["lists"]:
            yield from _read_response_file(Path(cwd, word))
        else:
            yield word
        previous = word


def _read_response_file(file: Path) -> list[str]:
    try:
        if not file.is_file():  # a pipe can be read only once: leave it to the compiler
            return []
        with file.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_LONGEST_RESPONSE_FILE)
    except OSError:
        return []
    return [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", text)]


def _parse_command(words: Sequence[str]) -> _Command:
    operands = []
    language = ""
    output = "a.out"
    previous = ""
    for word in words:
        if previous in _TABLE["output"]:
            output = word
        elif previous == "-x" or word.startswith("-x"):
            language = word.removeprefix("-x") or language
        elif previous not in _TAKES_A_WORD and not word.startswith("-"):
            operands.append(word)
        # a word that is an option's value takes no word itself
        previous = "" if previous in _TAKES_A_WORD else word
    return _Command(operands, language, output)


def _stable_path(cwd: str, path: str, roots: Sequence[str]) -> str:
    """Return a path below the innermost root, without parts that differ from build to build."""
    whole = os.path.normpath(os.path.join(cwd, path))  # noqa: PTH118 - there may be no such file
    innermost = ""
    for root in roots:
        start = root.rstrip("/") + "/"
        if whole.startswith(start) and len(start) > len(innermost):
            innermost = start
    if innermost:
        path_in_key = whole[len(innermost) :]
    else:
        path_in_key = str(PurePosixPath(*PurePosixPath(whole).parts[-_KEY_PARTS:]))
    # A group that has matched is the part of the path that stays.
    return _VARYING.sub(
        lambda match: match[match.lastindex] if match.lastindex else "", path_in_key
    )


def _count_threads(words: Sequence[str], devices: Sequence[str]) -> float:
    """Return the number of threads that nvcc starts: at most one for each device.

    `--threads 0` means one for each. A device that is compiled from PTX (`compute_90`) and its
    binaries (`sm_90`) share a thread.
    """
    threads = 1
    for word, following in pairwise([*words, ""]):
        match = _THREADS.fullmatch(word)
        if match:
            count = match[1] or following
            # a number that is too long for anything must not take long to convert
            threads = int(count[:_MOST_THREAD_DIGITS]) if count.isdecimal() else 1
    if any(device.startswith("all") for device in devices):
        limit = _ALL_DEVICES
    else:
        virtual = [device for device in devices if device.startswith("compute_")]
        limit = max(1, len(virtual or devices))
    return float(min(threads or limit, limit))
