"""Find the first real error in a build's log, not ninja's report of it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from torchmill.core.ninja import parse_edge
from torchmill.plan.diagnosis.log_text import LogLine, telling_lines

Kind = Literal["compiler", "linker", "cmake", "python", "other"]
_LONGEST_MESSAGE = 400  # characters of a message


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """What went wrong, in the words of the tool that said it."""

    kind: Kind
    message: str
    file: str | None = None
    line: int | None = None
    number: int = field(default=0, compare=False)  # of the line in the log, counted from 1

    def __str__(self) -> str:
        """Return "file:line: message" as far as known."""
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"{place}: {self.message}" if place else self.message


# Each pattern has a group `message` and may have `file` and `line`. In a list, the first pattern that
# matches anything wins, and of its matches the first: later ones tend to follow from it.
_FILE = r"(?P<file>(?:[A-Za-z]:)?[^\s:(][^:(]*)"
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
    r"collect2: (?:fatal )?error: (?P<message>ld (?:returned|terminated) .+)",
]
_DRIVER = [
    r"(?P<message>\S*(?:cc1\w*|cc|[cg]\+\+|clang\S*|as)(?:-\d+)?: (?:fatal |internal compiler )?error: .+)",
    r"(?P<message>(?:nvcc|ptxas|nvlink|cicc|fatbinary)\b.*?(?:fatal|error)\s*: .+)",
]
_OTHER = [
    r"(?P<message>ninja: (?:error|fatal): (?!rebuilding).+)",
    r"(?P<message>fatal: (?!not a git repository).+)",  # git, which some builds call
    r"\S*make(?:\[\d+\])?: \*\*\* (?P<message>No rule to make target .+?)\.?(?:  Stop\.)?$",
    r"(?P<message>(?:\w+\.)*(?!Called)[A-Z]\w+(?:Error|Exception): .+)",  # whose traceback was cut off
    r"(?P<message>(?:\w+\.)*CalledProcessError: .+)",
    r"(?P<message>(?:error|ERROR): (?!subprocess-exited).+)",
    r"(?P<message>\S.*: (?:command )?not found)$",
    r"(?P<message>.*\b(?:Killed|Illegal instruction|Segmentation fault)\b.*)$",
    r"(?P<message>Process completed with exit code (?!0\b)\d+.*)",  # GitHub Actions
    r"(?P<message>\S*make(?:\[\d+\])?: \*\*\* .+)",
    r"(?P<message>ninja: build stopped: .+)",
]
_FAILED = re.compile(r"\s*FAILED: (?:\[code=\d+\] )?(?P<target>\S*)")
_STOPPED = re.compile(r"\s*ninja: (?:build stopped|error: rebuilding)")
_CMAKE = re.compile(
    r"CMake Error(?: (?:at|in) (?P<file>[^:]+?)(?::(?P<line>\d+))?(?: \(\w+\))?)?:(?P<message>.*)"
)
_FRAME = re.compile(r'(?P<indent>[\s|]*)  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_WRAPPERS = ("CalledProcessError", "SystemExit", "subprocess-exited-with-error")


def last_run(log: Iterable[str]) -> list[LogLine]:
    """Return the telling lines of the last run of a log to which resumed builds were appended."""
    lines = list(telling_lines(log))
    failures = [index for index, line in enumerate(lines) if _FAILED.match(line.text)]
    last = failures[-1] if failures else 0
    stops = (index for index, line in enumerate(lines[:last]) if _STOPPED.match(line.text))
    return lines[max(stops, default=-1) + 1 :]


def first_failure(run: Sequence[LogLine]) -> BuildFailure | None:
    """Return the root failure that the lines of a run name; None where they name none."""
    return _failed_step(run) or _cause(run) or _first("other", _OTHER, run)


def target_of_line(run: Sequence[LogLine], index: int) -> str | None:
    """Return what ninja was making when it said the line at `index`."""
    for line in reversed(run[: index + 1]):
        if match := _FAILED.match(line.text):
            return match["target"]
        if parse_edge(line.text):
            break
    return None


def _failed_step(lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the cause within the blocks that ninja marks FAILED."""
    blocks = list(_blocks(lines))
    for block in blocks:
        if found := _cause(block[1:]):
            return found
    for block in blocks:
        said = [line.text for line in block[1:] if line.text]
        message = said[-1].strip() if said else "failed without a word"
        file = target_of_line(block, 0)
        return BuildFailure("other", shorten_message(message), file, number=block[0].number)
    return None


def _blocks(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    for index, line in enumerate(lines):
        if _FAILED.match(line.text):
            rest = takewhile(lambda line: not _ends_block(line.text), lines[index + 1 :])
            yield [line, *rest]


def _ends_block(text: str) -> bool:
    return bool(_FAILED.match(text) or text.lstrip().startswith("ninja: ") or parse_edge(text))


def _cause(lines: Sequence[LogLine]) -> BuildFailure | None:
    return (
        _first("compiler", _COMPILER, lines)
        or _first("linker", _LINKER, lines)
        or _first("compiler", _DRIVER, lines)
        or _first("cmake", [_CMAKE.pattern], lines)
        or _python(lines)
    )


def _first(kind: Kind, patterns: Iterable[str], lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the first line that the first fitting pattern matches."""
    for pattern in patterns:
        search = re.compile(r"\s*" + pattern).match
        for line in lines:
            if match := search(line.text):
                groups = match.groupdict()
                place = groups.get("file"), _number(groups.get("line"))
                return BuildFailure(kind, shorten_message(match["message"]), *place, number=line.number)
    return None


def _python(lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the last exception that does not merely report another program's end."""
    last: BuildFailure | None = None
    frame: re.Match[str] | None = None
    for number, text in lines:
        if match := _FRAME.match(text):
            frame = match
        elif frame and text.startswith(frame["indent"]):
            said = text[len(frame["indent"]) :]
            if _RAISED.match(said):
                if not any(word in said.split(":")[0] for word in _WRAPPERS):
                    last = BuildFailure(
                        "python", shorten_message(said), frame["file"], int(frame["line"]), number
                    )
                frame = None
    return last


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def shorten_message(message: str) -> str:
    """Return a tool's message without its margin, cut where it is very long."""
    message = message.strip()
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
