"""Find in a build's log what went wrong first: the compiler's error, not ninja's report of it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from torchwright.ninja import parse_edge, plain

Kind = Literal["disk", "memory", "compiler", "linker", "cmake", "python", "other"]
_LONGEST = 400  # characters of a message
_WIDEST = 4000  # characters of a line that are looked at: link commands are far longer


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in the words of the tool that said it."""

    kind: Kind
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """Return "file:line: message" as far as known."""
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"{place}: {self.message}" if place else self.message


# Each pattern has a group `message` and may have `file` and `line`. In a list, the first pattern that
# matches anything wins, and of its matches the first: later ones tend to follow from it.
_FILE = r"(?P<file>(?:[A-Za-z]:)?[^\s:(][^:(]*)"
_FULL = "No space left on device|Disk quota exceeded|not enough space on the disk"
_DISK = [rf"(?:{_FILE}: )?.*?(?P<message>{_FULL})"]
_MEMORY = [
    r".*?(?P<message>(?:virtual memory exhausted|out of memory allocating|C1060: compiler is out).*)",
    r".*?(?P<message>Killed signal terminated program \w+)",
    r".*?internal compiler error: (?P<message>Killed.*)",
    r".*?(?P<message>'\w+' died due to signal 9.*)",
    r".*?(?P<message>LLVM ERROR: out of memory|Cannot allocate memory|instance of 'std::bad_alloc')",
    r"(?:.*\b\d+ |\w*make\S*: \*\*\* \[.*\] )?(?P<message>Killed(?:: 9)?)(?: .*)?$",
    r"FAILED: \[(?P<message>code=137)\] ?(?P<file>\S+)",
]
_COMPILER = [
    rf"{_FILE}:(?P<line>\d+)(?::\d+)?: (?:fatal |internal compiler )?[Ee]rror: (?P<message>.+)",
    rf"{_FILE}\((?P<line>\d+)(?:,\d+)?\) ?: (?:catastrophic |fatal )?error(?: [\w#-]+)?: (?P<message>.+)",
]
_LINKER = [
    r"(?:\S*\bld\S*: )?(?P<file>[^\s:]+):(?:(?P<line>\d+)|\S*): (?P<message>undefined reference to .+)",
    r".*?(?P<message>(?:undefined reference to|multiple definition of|relocation truncated to fit) ?.+)",
    r".*?(?P<message>relocation \S+ against .+)",
    r"\S*\bld\S*: (?P<message>(?:cannot find|library not found for) .+)",
    r"(?P<file>\S.*?) : (?:fatal )?error (?P<message>LNK\d+: .+)",
    r'(?P<message>"\S+", referenced from:)',  # macOS, below "Undefined symbols for architecture arm64:"
    r"(?:\S*/)?(?:ld(?:\.\w+)?|mold|lld(?:-link)?): (?:error: )?(?!warning|.*\bin function )(?P<message>.+)",
    r"collect2: error: (?P<message>ld returned .+)",
]
_DRIVER = [
    r"(?P<message>\S*(?:cc1\w*|cc|[cg]\+\+|clang\S*|as)(?:-\d+)?: (?:fatal )?error: .+)",
    r"(?P<message>(?:nvcc|ptxas|nvlink|cicc|fatbinary)\b.*?(?:fatal|error)\s*: .+)",
]
_OTHER = [
    r"(?P<message>ninja: (?:error|fatal): (?!rebuilding).+)",
    r"(?P<message>fatal: (?!not a git repository).+)",  # git, which some builds call
    r"\S*make(?:\[\d+\])?: \*\*\* (?P<message>No rule to make target .+?)\.?(?:  Stop\.)?$",
    r"(?P<message>(?:\w+\.)*CalledProcessError: .+)",
    r"(?P<message>(?:error|ERROR): .+)",
]
_EXCERPT = re.compile(r"\s*\d+ \| ")  # gcc shows the source, which may hold any words
_FAILED = re.compile(r"FAILED: (?:\[code=\d+\] )?(?P<target>\S*)")
_STOPPED = re.compile(r"ninja: (?:build stopped|error: rebuilding)")
_CMAKE = re.compile(
    r"CMake Error(?: (?:at|in) (?P<file>[^:]+?)(?::(?P<line>\d+))?(?: \(\w+\))?)?:(?P<rest>.*)"
)
_FRAME = re.compile(r'(?P<indent>[\s|]*)  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_WRAPPERS = ("CalledProcessError", "SystemExit", "subprocess-exited-with-error")


def diagnose(lines: Iterable[str]) -> Failure | None:
    """Return the root cause that a build's output names; None where it names none."""
    run = _last_run([plain(line[:_WIDEST]).rstrip() for line in lines])
    return _machine(run) or _edges(run) or _cause(run) or _first("other", _OTHER, run)


def _last_run(lines: list[str]) -> list[str]:
    """Return the lines of the last run of a log to which resumed builds were appended."""
    stops = [number for number, line in enumerate(lines) if _STOPPED.match(line)]
    earlier = [stop for stop in stops if any(_FAILED.match(line) for line in lines[stop + 1 :])]
    return lines[earlier[-1] + 1 :] if earlier else lines


def _machine(lines: Sequence[str]) -> Failure | None:
    """Return what the machine lacked: whatever else failed, failed because of it."""
    said = [line for line in lines if not _EXCERPT.match(line)]
    return _first("disk", _DISK, said) or _first("memory", _MEMORY, said, _target)


def _edges(lines: Sequence[str]) -> Failure | None:
    """Return the cause within the blocks that ninja marks FAILED."""
    blocks = list(_blocks(lines))
    for block in blocks:
        if found := _cause(block[1:]):
            return found
    for block in blocks:
        said = [line for line in block[2:] if line]
        message = said[-1] if said else "failed without a word"
        return Failure("other", message, _FAILED.match(block[0])["target"])  # type: ignore[index]
    return None


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    for number, line in enumerate(lines):
        if _FAILED.match(line):
            rest = takewhile(lambda line: not _ends(line), lines[number + 1 :])
            yield [line, *rest]


def _ends(line: str) -> bool:
    return bool(_FAILED.match(line) or line.startswith("ninja: ") or parse_edge(line))


def _cause(lines: Sequence[str]) -> Failure | None:
    return (
        _first("compiler", _COMPILER, lines)
        or _first("linker", _LINKER, lines)
        or _first("compiler", _DRIVER, lines)
        or _cmake(lines)
        or _python(lines)
    )


def _nowhere(_lines: Sequence[str], _number: int) -> str | None:
    return None


def _target(lines: Sequence[str], number: int) -> str | None:
    """Return what ninja was making when it said line `number`."""
    for line in reversed(lines[:number]):
        if match := _FAILED.match(line):
            return match["target"]
        if parse_edge(line):
            break
    return None


def _first(
    kind: Kind,
    patterns: Iterable[str],
    lines: Sequence[str],
    place: Callable[[Sequence[str], int], str | None] = _nowhere,
) -> Failure | None:
    """Return the first line that the first fitting pattern matches; `place` knows a missing file."""
    for pattern in patterns:
        search = re.compile(r"\s*" + pattern).match
        for number, line in enumerate(lines):
            if match := search(line):
                groups = match.groupdict()
                file = groups.get("file") or place(lines, number)
                return Failure(kind, _short(match["message"]), file, _number(groups.get("line")))
    return None


def _cmake(lines: Sequence[str]) -> Failure | None:
    for number, line in enumerate(lines):
        if match := _CMAKE.match(line.lstrip()):
            body = takewhile(lambda line: not line or line.startswith("  "), lines[number + 1 :])
            words = " ".join([match["rest"], *body]).split()
            return Failure("cmake", _short(" ".join(words)), match["file"], _number(match["line"]))
    return None


def _python(lines: Sequence[str]) -> Failure | None:
    """Return the last exception that does not merely report another program's end."""
    last: Failure | None = None
    frame: re.Match[str] | None = None
    for line in lines:
        if match := _FRAME.match(line):
            frame = match
        elif frame and line.startswith(frame["indent"]):
            said = line[len(frame["indent"]) :]
            if _RAISED.match(said):
                if not any(word in said.split(":")[0] for word in _WRAPPERS):
                    last = Failure("python", _short(said), frame["file"], int(frame["line"]))
                frame = None
    return last


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _short(message: str) -> str:
    message = message.strip()
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
