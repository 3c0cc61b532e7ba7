"""Describe a unit by its compiler's command line; and the protocol between a gate and the guard.

A key reads `g++|torch/csrc/Module.cpp|-O2|…`, of a link `g++|link|lib/libtorch.so`.
"""

import contextlib
import os
import re
import socket
import struct
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

_WORDS = tomllib.loads(Path(__file__).with_name("compilers.toml").read_text("utf-8"))
_LANGUAGES, _ENDS = (
    {word: family for family, words in _WORDS[kind].items() for word in words}
    for kind in ("languages", "ends")
)
_TAKES_A_WORD, _COMPILES = set(_WORDS["takes_a_word"]), set(_WORDS["compiles"])
_LONGEST_LIST = 2**20  # characters

_NAME = re.compile(
    r"(?:\w+-\w+-(?:\w+-)?(?:gnu\w*-)?)?(.+?)(?:-\d+(?:\.\d+)*)?"
)  # "x86_64-linux-gnu-g++-12"
_LEVEL = re.compile(r"-O(?:[0-3sgz]?|fast)")
_DEBUG = re.compile(
    r"-g(?!0|encode)[\w-]*|-G|-lineinfo|--generate-line-info|--debug|--device-debug"
)
_MATTERS = re.compile(
    r"-m(?:avx|fma|f16c|amx|arch=|cpu=)\S*|-flto\S*|-fsanitize=\S+|-DCPU_CAPABILITY=\S+"
)
_DEVICE = re.compile(r"(?:compute|sm|lto)_\d+[af]?|(?<==)all(?:-major)?")
_THREADS = re.compile(r"(?:--threads|-t)=?(\d*)")
_PASSING = re.compile(
    r"(TryCompile)-\w+|(cmTC)_\w+|\b(lib|temp)\.(?:linux|macosx)[\w.-]*|\.cpython-[\w-]+"
)
_ALL_DEVICES = 16  # about as many as a toolkit knows
LONGEST_COMMAND_BYTES = 8 * 2**20  # bytes of a command: more than Linux lets one have
_LINE = 128  # bytes of a line, at most
_BLOCK = 2**18
_PEER = struct.Struct("3i")  # a process, its user and its group


@dataclass(frozen=True, slots=True)
class UnitDescription:
    """One compile or link."""

    family: str  # "c", "c++", "cuda", "link"
    key: str
    weight: float  # processors that it keeps busy
    source: str  # the path in the key: the source, or what a link makes


def describe_unit(cwd: str, argv: Sequence[str], roots: Sequence[str] = ()) -> UnitDescription:
    """Describe what a command compiles or links in the folder `cwd`.

    The key holds what changes the need: the compiler, the source below one of `roots`, how it is optimised
    and for which processors and devices. Where the build lies and which Python it is for do not count.
    """
    name = PurePosixPath(argv[0]).name if argv else "?"
    match = _NAME.fullmatch(name)
    compiler = match[1] if match else name
    words = list(_expanded(cwd, argv[1:]))
    operands, language, output = _read(words)
    sources = [one for one in operands if PurePosixPath(one).suffix in _ENDS]
    if not sources and not _COMPILES.isdisjoint(words):
        sources = operands[-1:]  # by another name, with -x
    if not sources:
        made = _below(cwd, output, roots)
        return UnitDescription("link", _key(compiler, "link", made), 1.0, made)
    family = _LANGUAGES.get(language) or _ENDS.get(PurePosixPath(sources[0]).suffix, "c++")
    source = _below(cwd, sources[0], roots)
    level = next(filter(_LEVEL.fullmatch, reversed(words)), "-O0")
    debug = "-g" if any(map(_DEBUG.fullmatch, words)) else ""
    matter = sorted(set(filter(_MATTERS.fullmatch, words)))
    devices = sorted(set(_DEVICE.findall(" ".join(words)))) if family == "cuda" else []
    key = _key(compiler, source, level + debug, *devices, *matter)
    return UnitDescription(
        family, key, _weight(words, devices) if family == "cuda" else 1.0, source
    )


def unit_title(key: str) -> str:
    """Return what people know a unit by: the path in its key, or a key of another shape as it is."""
    compiler, _, rest = key.partition("|")
    return rest.removeprefix("link|").partition("|")[0] or compiler


def _key(*parts: str) -> str:
    """Join the parts of a key, as text that can be stored: a path may hold any bytes."""
    return "|".join(parts).encode(errors="backslashreplace").decode()


def _expanded(cwd: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the words, in place of the name of a response file those in it."""
    before = ""
    for word in words:
        name = word[1:] if word.startswith("@") else word if before in _WORDS["lists"] else None
        yield from [word] if name is None else _listed(Path(cwd, name))
        before = word


def _listed(file: Path) -> list[str]:
    try:
        if not file.is_file():  # what is no plain file may be a pipe, read once
            return []
        with file.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_LONGEST_LIST)
    except OSError:
        return []
    return [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", text)]


def _read(words: Sequence[str]) -> tuple[list[str], str, str]:
    """Return the operands, the language after -x and the output."""
    operands, language, output, before = [], "", "a.out", ""
    for word in words:
        if before in _WORDS["output"]:
            output = word
        elif before == "-x" or word.startswith("-x"):
            language = word.removeprefix("-x") or language
        elif before not in _TAKES_A_WORD and not word.startswith("-"):
            operands.append(word)
        before = word if before not in _TAKES_A_WORD else ""
    return operands, language, output


def _below(cwd: str, path: str, roots: Sequence[str]) -> str:
    """Return a path as seen from the innermost root, without what differs from build to build."""
    whole = os.path.normpath(os.path.join(cwd, path))  # noqa: PTH118 - a compiler's path, maybe of no file
    around = [start for root in roots if whole.startswith(start := root.rstrip("/") + "/")]
    shown = whole[max(map(len, around)) :] if around else "/".join(PurePosixPath(whole).parts[-3:])
    return _PASSING.sub(lambda match: match[match.lastindex] if match.lastindex else "", shown)


def _weight(words: Sequence[str], devices: Sequence[str]) -> float:
    """Return the threads that nvcc starts: at most one for each device; 0 stands for as many as it can."""
    threads = 1
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if match := _THREADS.fullmatch(word):
            count = match[1] or after
            threads = int(count[:9]) if count.isdecimal() else 1
    virtual = [one for one in devices if one.startswith("compute_")] or devices
    most = _ALL_DEVICES if any(one.startswith("all") for one in devices) else max(1, len(virtual))
    return float(min(threads or most, most))


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A compiler wants to start."""

    cwd: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """It runs, as the leader of a process group."""

    group: int


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """It ended; `peak` in bytes is its largest process's."""

    code: int
    peak: int
    killed: bool  # for want of memory, as far as the gate sees


@dataclass(frozen=True, slots=True)
class GateGone:
    """The gate has left, or speaks another language."""


GateMessage = StartRequest | UnitStarted | UnitEnded | GateGone


class GateClient:
    """The connection to one gate."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self._received = bytearray()
        connection.setblocking(False)

    def read_messages(self) -> Iterator[GateMessage]:
        """Read what has arrived, and yield its messages; nothing comes after GateGone."""
        try:
            block = self.socket.recv(_BLOCK)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            yield GateGone()
            return
        self._received += block
        try:
            while (message := self._next_message()) is not None:
                yield message
        except (ValueError, IndexError):
            yield GateGone()

    def send(self, word: str) -> None:
        """Send a word to the gate, unless it has left."""
        with contextlib.suppress(OSError):
            self.socket.send(word.encode() + b"\n")

    def has_started(self, process: int) -> bool:
        """Tell whether a process is the gate's child: in another namespace that number is somebody else's."""
        if sys.platform != "linux":
            return True
        peer = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            return bool(psutil.Process(process).ppid() == _PEER.unpack(peer)[0])
        return False

    def close(self) -> None:
        """End the connection: a gate that is still there goes on by itself."""
        self.socket.close()

    def _next_message(self) -> GateMessage | None:
        """Take one message off what was received; None where its end is still to come."""
        end = self._received.find(b"\n", 0, _LINE)
        if end < 0:
            if len(self._received) >= _LINE:
                raise ValueError("a line without an end")
            return None
        words = bytes(self._received[:end]).split()
        length = int(words[1]) if words[0] == b"ask" else 0
        if not 0 <= length <= LONGEST_COMMAND_BYTES:
            raise ValueError("a command of no length")
        if len(self._received) < end + 1 + length:
            return None
        rest = bytes(self._received[end + 1 : end + 1 + length])
        del self._received[: end + 1 + length]
        return _parse_message(words, rest)


def _parse_message(words: list[bytes], rest: bytes) -> GateMessage:
    match words:
        case [b"ask", _]:
            cwd, *argv = os.fsdecode(rest).split("\0")[:-1]
            if not argv:
                raise ValueError("a command without a program")
            return StartRequest(cwd, tuple(argv))
        case [b"pid", group] if (
            int(group) > 1
        ):  # 0 and 1 would mean the guard itself, and everybody
            return UnitStarted(int(group))
        case [b"end", code, peak, killed] if int(peak) < 2**63:  # what the history can hold
            return UnitEnded(int(code), max(0, int(peak)), killed == b"1")
    raise ValueError("no word of the protocol")


def listen(folder: Path) -> socket.socket:
    """Return a socket that gates of `folder` can reach, however long its path is.

    Raise OSError where the folder takes no socket.
    """
    serving = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.chdir(
            folder
        ):  # an address holds about a hundred characters: bind a short one
            serving.bind("s")
        serving.listen(1024)
        serving.setblocking(False)
    except OSError:
        serving.close()
        raise
    return serving
