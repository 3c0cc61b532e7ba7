"""Read build logs in any encoding, and find the first real error, not ninja's report of it."""

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, FileIO, TextIOWrapper
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Literal, NamedTuple, Self

from torchmill.core.errors import ConfigError
from torchmill.core.ninja import parse_edge, strip_colours
from torchmill.core.package_data import read_table_beside
from torchmill.core.silence import until_silent
from torchmill.core.urls import hide_password
from torchmill.plan.line_patterns import literals_of, may_match

_HEAD_CHARACTERS = 3000  # of a line that are looked at, link commands are far longer
_TAIL_CHARACTERS = 1000  # and of its end
_HEAD_STEPS = _TAIL_STEPS = (
    20_000_000  # of a log's beginning and of its end that are looked at, about 20 MB each
)
_STEPS_OF_LINE = 150  # a line takes as long as so many characters, and its own
_BLOCK_BYTES = 1 << 20
_LONG_LINE = 300  # characters, from which on a pattern is looked for only if its literals are there
_MOST_PREFIXES = 20  # of a line
_KEPT_BYTES = 16 << 20  # of lines from the beginning of a run, and at least as many from its end
_LINE_BYTES = 120  # of a line beside its text
_HEAD_BYTES = 4096  # bytes that tell the encoding
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_BYTES_PER_CONTROL = 20  # a text has fewer control characters than one in so many bytes
_MOST_MESSAGE_LINES = 60  # lines of one message of CMake
LOG_WORDS = read_table_beside(__file__, "log_words.toml")
_PREFIX = re.compile("|".join(LOG_WORDS["prefixes"]))
_PATTERNS = {
    kind: [(literals_of(pattern), re.compile(r"\s*" + pattern)) for pattern in LOG_WORDS[kind]]
    for kind in ("compiler", "linker", "driver", "cmake", "other")
}
_PREFIXED = frozenset("\ufeff ┃#:[0123456789ADFJMNOS")
_HARMLESS = re.compile("|".join(LOG_WORDS["harmless"]))
_SAID = re.compile(r"(?:rror|fatal)(?: \w+)? *: |undefined |relocation ")  # which no command holds
_WARNING = re.compile(LOG_WORDS["warning"])
_CMAKE_MESSAGE = re.compile(r"(?P<indent> *)CMake (?P<kind>Error|(?:Deprecation )?Warning)\b")
Kind = Literal["compiler", "linker", "cmake", "python", "other"]
_LONGEST_MESSAGE = 400  # characters of a message
_FAILED = re.compile(r"\s*FAILED: (?:\[code=\d+\] )?(?P<target>\S*)")
_ENDS = re.compile(r"\s*(?:FAILED|ninja): ")
_STOPPED = re.compile(r"\s*ninja: (?:build stopped|error: rebuilding)")
_FRAME = re.compile(r'(?P<indent>[\s|]*)  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_WRAPPERS = ("CalledProcessError", "SystemExit", "subprocess-exited-with-error")


class LogLine(NamedTuple):
    """A line that may tell something: its number in the log, counted from 1, and its text."""

    number: int
    text: str


class SkippedLines(str):
    """An empty line that stands for those in the middle of a log that is too long to be read."""

    __slots__ = ("line_count",)
    line_count: int

    def __new__(cls, count: int) -> Self:
        """Return it for so many lines."""
        line = super().__new__(cls, "\n")
        line.line_count = count
        return line


def read_log(name: str) -> Iterator[str]:
    """Yield the lines of the log called `name`; `-` stands for standard input.

    Of a very long line the middle is left out. So are the lines in the middle of a very long log, for which
    SkippedLines stands.

    Raises ConfigError where it is missing, a directory, empty or not text, SilentError for a pipe of that name
    into which nobody writes.
    """
    if not name:
        raise ConfigError(
            "no log given: name a build's log, or - for standard input", code="no-log"
        )
    if name != "-" and Path(name).is_dir():
        raise ConfigError(
            f"{hide_password(name)} is a directory: name the log file in it", code="log-unreadable"
        )
    lines = _read_lines(name)
    # nobody may ever write into a pipe that has a name, and opening it waits for that
    yield from until_silent(lines, name) if name != "-" and Path(name).is_fifo() else lines


def _read_lines(name: str) -> Iterator[str]:
    try:
        with BufferedReader(
            FileIO(0 if name == "-" else name, closefd=name != "-"), _BLOCK_BYTES
        ) as raw:
            encoding = _encoding(raw.peek(_HEAD_BYTES)[:_HEAD_BYTES], name)
            with TextIOWrapper(raw, encoding, "replace") as text:
                yield from _read_head(text)
                skipped, end = _read_end(text)
                if skipped:
                    yield SkippedLines(skipped)
                yield from end
    except OSError as error:
        raise ConfigError(
            f"cannot read {hide_password(name)} ({error.strerror}): name a build's log, or - for standard input",
            code="log-unreadable",
        ) from error


def _read_head(text: TextIOWrapper) -> Iterator[str]:
    """Yield the first lines, of which long ones lack their middle, until _HEAD_STEPS are spent."""
    steps = 0
    while steps < _HEAD_STEPS and (line := text.readline(_HEAD_CHARACTERS)):
        end = ""
        while (
            not line.endswith("\n")
            and not end.endswith("\n")
            and (more := text.readline(_BLOCK_BYTES))
        ):
            end = (end + more)[-max(_TAIL_CHARACTERS, len(more)) :]
        line += end if len(end) <= _TAIL_CHARACTERS else f" … {end[-_TAIL_CHARACTERS:]}"
        steps += _STEPS_OF_LINE + len(line)
        yield line


def _read_end(text: TextIOWrapper) -> tuple[int, list[str]]:
    """Return how many lines are skipped, and the last ones, for which _TAIL_STEPS are spent."""
    blocks: deque[str] = deque()
    skipped = 0
    while block := text.read(_BLOCK_BYTES):
        blocks.append(block)
        if len(blocks) > 1 + _TAIL_STEPS // _BLOCK_BYTES:
            skipped += blocks.popleft().count("\n")
    rest = "".join(blocks)
    lines: list[str] = []
    steps, end = 0, len(rest)
    while end and steps < _TAIL_STEPS:
        begin = rest.rfind("\n", 0, end - 1) + 1
        lines.append(_cut_line(rest[begin:end]))
        steps += _STEPS_OF_LINE + len(lines[-1])
        end = begin
    return skipped + rest.count("\n", 0, end), lines[::-1]


def _cut_line(line: str) -> str:
    if len(line) <= _HEAD_CHARACTERS + _TAIL_CHARACTERS:
        return line
    return f"{line[:_HEAD_CHARACTERS]} … {line[-_TAIL_CHARACTERS:]}"


def _encoding(head: bytes, name: str) -> str:
    if not head:
        raise ConfigError(
            f"{hide_password(name)} is empty: name the file that has the build's output",
            code="log-empty",
        )
    if head[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return "utf-16"
    if head[1::2].count(0) > len(head) // 4 and not head[::2].count(0):
        return "utf-16-le"
    if sum(byte in _CONTROL for byte in head) > len(head) // _BYTES_PER_CONTROL:
        raise ConfigError(
            f"{hide_password(name)} is not a text file: unpack it and name the log",
            code="log-not-text",
        )
    return "utf-8"


def telling_lines(lines: Iterable[str]) -> Iterator[LogLine]:
    """Yield the lines that may tell of a failure, without colours and prefixes.

    A message of CMake becomes one line. Of progress lines that follow one another the first is kept:
    it ends what was said before.
    """
    edge_before = False
    for line in _messages(_without_harmless(lines)):
        edge = line.text.lstrip().startswith("[") and parse_edge(line.text) is not None
        if not (edge and edge_before):
            yield line
        edge_before = edge


def _without_harmless(lines: Iterable[str]) -> Iterator[LogLine]:
    failed = False
    number = 0
    for raw in lines:
        number += raw.line_count if isinstance(raw, SkippedLines) else 1
        text = _strip_prefixes(strip_colours(_cut_line(raw)).rstrip())
        words = text.lstrip()
        warns = ("arning" in words or "note" in words or "remark" in words) and _WARNING.match(
            words
        )
        if not (failed and not _SAID.search(words)) and not _HARMLESS.match(words) and not warns:
            yield LogLine(number, text)
        failed = words.startswith("FAILED: ")  # ninja shows the command below


def _strip_prefixes(text: str) -> str:
    for _ in range(_MOST_PREFIXES):
        hint = text and (
            text[0] in _PREFIXED or ">" in text[:14] or "\t" in text[:80] or " | " in text[:40]
        )
        if not hint or (prefix := _PREFIX.match(text)) is None:
            break
        text = text[prefix.end() :]
    return text


def _messages(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines, CMake's errors as one each; its warnings are left out."""
    head: LogLine | None = None
    body: list[str] = []
    for line in lines:
        if head is not None:
            if (not line.text or _indent(line.text) > _indent(head.text)) and len(
                body
            ) < _MOST_MESSAGE_LINES:
                body.append(line.text)
                continue
            yield from _join_message(head, body)
            head = None
        if "CMake " in line.text and _CMAKE_MESSAGE.match(line.text):
            head, body = line, []
        else:
            yield line
    if head is not None:
        yield from _join_message(head, body)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _join_message(head: LogLine, body: list[str]) -> Iterator[LogLine]:
    match = _CMAKE_MESSAGE.match(head.text)
    if match and match["kind"] == "Error":
        yield LogLine(head.number, match["indent"] + " ".join(" ".join([head.text, *body]).split()))


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


@dataclass(frozen=True, slots=True)
class LogReading:
    """What was read of the last run of a log."""

    lines: list[LogLine]  # that may tell something
    skipped: str = ""  # which lines were not read, as a sentence; "" if all were


def last_run(log: Iterable[str]) -> LogReading:
    """Return the telling lines of the last run of a log to which resumed builds were appended.

    Of a run with very many, the middle is left out.
    """
    run: list[LogLine] = []
    skipped: list[str] = []
    next_run = size = 0  # where the lines begin that follow a stop; bytes of the lines, about
    for line in telling_lines(_noting_skipped(log, skipped)):
        if next_run and _FAILED.match(line.text):
            del run[:next_run]
            next_run, size = 0, sum(map(_size, run))
        run.append(line)
        if _STOPPED.match(line.text):
            next_run = len(run)
        size += _size(line)
        if (
            size > 3 * _KEPT_BYTES
        ):  # first errors stand at the beginning, what follows of them at the end
            first, last = _beginning(run), len(run) - _beginning(reversed(run))
            del run[first:last]
            next_run = max(min(next_run, first), next_run - (last - first))
            size = sum(map(_size, run))
    return LogReading(run, "".join(skipped))


def _noting_skipped(log: Iterable[str], skipped: list[str]) -> Iterator[str]:
    """Yield the lines of a log, and add a sentence to `skipped` where some are left out."""
    number = 1
    for line in log:
        if isinstance(line, SkippedLines):
            skipped.append(
                f"the log is too long: lines {number} to {number + line.line_count - 1} were not read"
            )
            number += line.line_count - 1
        number += 1
        yield line


def _size(line: LogLine) -> int:
    return sys.getsizeof(line.text) + _LINE_BYTES


def _beginning(lines: Iterable[LogLine]) -> int:
    """Return how many of the first lines have KEPT_BYTES."""
    return sum(1 for _ in takewhile(_KEPT_BYTES.__gt__, accumulate(map(_size, lines))))


def first_failure(run: Sequence[LogLine]) -> BuildFailure | None:
    """Return the root failure that the lines of a run name; None where they name none."""
    return _failed_step(run) or _cause(run) or _first("other", "other", run)


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
    first: list[LogLine] = []
    for block in _blocks(lines):
        if failure := _cause(block[1:]):
            return failure
        first = first or block
    if not first:
        return None
    texts = [line.text for line in first[1:] if line.text]
    message = texts[-1].strip() if texts else "failed without a message"
    return BuildFailure(
        "other", shorten_message(message), target_of_line(first, 0), number=first[0].number
    )


def _blocks(lines: Iterable[LogLine]) -> Iterator[list[LogLine]]:
    """Yield the lines that ninja marks FAILED, each with those that follow until something else begins."""
    block: list[LogLine] = []
    for line in lines:
        begins = _FAILED.match(line.text)
        if block and (begins or _ENDS.match(line.text) or parse_edge(line.text)):
            yield block
            block = []
        if block or begins:
            block.append(line)
    if block:
        yield block


def _cause(lines: Sequence[LogLine]) -> BuildFailure | None:
    return (
        _first("compiler", "compiler", lines)
        or _first("linker", "linker", lines)
        or _first("compiler", "driver", lines)
        or _first("cmake", "cmake", lines)
        or _python(lines)
    )


def _first(kind: Kind, patterns: str, lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the first line that the first fitting one of some patterns matches."""
    for literals, pattern in _PATTERNS[patterns] if lines else ():
        for line in lines:
            if len(line.text) > _LONG_LINE and not may_match(literals, line.text.lower()):
                continue
            if match := pattern.match(line.text):
                groups = match.groupdict()
                place = int(at) if (at := groups.get("line")) else None
                return BuildFailure(
                    kind, shorten_message(match["message"]), groups.get("file"), place, line.number
                )
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


def shorten_message(message: str) -> str:
    """Return a tool's message without its margin, cut where it is very long."""
    message = message.strip()
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
