"""Read build logs in any encoding, and find the first real error, not ninja's report of it."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, FileIO, TextIOWrapper
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from torchmill.core.errors import ConfigError
from torchmill.core.files import read_table_beside
from torchmill.core.ninja import parse_edge, strip_colours
from torchmill.core.silence import until_silent

_LONGEST_LINE = 4000  # characters of a line that are looked at: link commands are far longer
_KEPT_BYTES = 16 << 20  # of lines from the beginning of a run, and at least as many from its end
_LINE_BYTES = 120  # of a line beside its text
_HEAD_BYTES = 4096  # bytes that tell the encoding
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_BYTES_PER_CONTROL = 20  # a text has fewer control characters than one in so many bytes
_MOST_MESSAGE_LINES = 60  # lines of one message of CMake
LOG_WORDS = read_table_beside(__file__, "log_words.toml")
_PREFIX = re.compile("|".join(LOG_WORDS["prefixes"]))
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


def read_log(name: str) -> Iterator[str]:
    """Yield the lines of the log called `name`; `-` stands for standard input.

    Raises ConfigError where it is missing, a directory, empty or not text, SilentError for a pipe of that name
    into which nobody writes.
    """
    if not name:
        raise ConfigError("no log given: name a build's log, or - for standard input", code="no-log")
    if name != "-" and Path(name).is_dir():
        raise ConfigError(f"{name} is a directory: name the log file in it", code="log-unreadable")
    lines = _read_lines(name)
    # nobody may ever write into a pipe that has a name, and opening it waits for that
    yield from until_silent(lines, name) if name != "-" and Path(name).is_fifo() else lines


def _read_lines(name: str) -> Iterator[str]:
    try:
        with BufferedReader(FileIO(0 if name == "-" else name, closefd=name != "-")) as raw:
            encoding = _encoding(raw.peek(_HEAD_BYTES)[:_HEAD_BYTES], name)
            with TextIOWrapper(raw, encoding, "replace") as text:
                while line := text.readline(_LONGEST_LINE):
                    yield line
                    while line and not line.endswith("\n"):  # the rest of a long line is not looked at
                        line = text.readline(_HEAD_BYTES)
    except OSError as error:
        raise ConfigError(
            f"cannot read {name} ({error.strerror}): name a build's log, or - for standard input", code="log-unreadable"
        ) from error


def _encoding(head: bytes, name: str) -> str:
    if not head:
        raise ConfigError(f"{name} is empty: name the file that has the build's output", code="log-empty")
    if head[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return "utf-16"
    if head[1::2].count(0) > len(head) // 4 and not head[::2].count(0):
        return "utf-16-le"
    if sum(byte in _CONTROL for byte in head) > len(head) // _BYTES_PER_CONTROL:
        raise ConfigError(f"{name} is not a text file: unpack it and name the log", code="log-not-text")
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
    for number, raw in enumerate(lines, 1):
        text = _strip_prefixes(strip_colours(raw[:_LONGEST_LINE]).rstrip())
        words = text.lstrip()
        warns = ("arning" in words or "note" in words or "remark" in words) and _WARNING.match(words)
        if not (failed and not _SAID.search(words)) and not _HARMLESS.match(words) and not warns:
            yield LogLine(number, text)
        failed = words.startswith("FAILED: ")  # ninja shows the command below


def _strip_prefixes(text: str) -> str:
    while (
        text
        and (text[0] in _PREFIXED or ">" in text[:14] or "\t" in text[:80] or " | " in text[:40])
        and (found := _PREFIX.match(text))
    ):
        text = text[found.end() :]
    return text


def _messages(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines, CMake's errors as one each; its warnings are left out."""
    head: LogLine | None = None
    body: list[str] = []
    for line in lines:
        if head is not None:
            if (not line.text or _indent(line.text) > _indent(head.text)) and len(body) < _MOST_MESSAGE_LINES:
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


def last_run(log: Iterable[str]) -> list[LogLine]:
    """Return the telling lines of the last run of a log to which resumed builds were appended.

    Of a run with very many, the middle is left out.
    """
    run: list[LogLine] = []
    next_run = size = 0  # where the lines begin that follow a stop; bytes of the lines, about
    for line in telling_lines(log):
        if next_run and _FAILED.match(line.text):
            del run[:next_run]
            next_run, size = 0, sum(map(_size, run))
        run.append(line)
        if _STOPPED.match(line.text):
            next_run = len(run)
        size += _size(line)
        if size > 3 * _KEPT_BYTES:  # first errors stand at the beginning, what follows of them at the end
            first, last = _beginning(run), len(run) - _beginning(reversed(run))
            del run[first:last]
            next_run = max(min(next_run, first), next_run - (last - first))
            size = sum(map(_size, run))
    return run


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
    blocks = list(_blocks(lines))
    for block in blocks:
        if found := _cause(block[1:]):
            return found
    for block in blocks:
        said = [line.text for line in block[1:] if line.text]
        message = said[-1].strip() if said else "failed without a message"
        return BuildFailure("other", shorten_message(message), target_of_line(block, 0), number=block[0].number)
    return None


def _blocks(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    for index, line in enumerate(lines):
        if _FAILED.match(line.text):
            yield [
                line,
                *takewhile(lambda line: not (_ENDS.match(line.text) or parse_edge(line.text)), lines[index + 1 :]),
            ]


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
    for pattern in LOG_WORDS[patterns]:
        search = re.compile(r"\s*" + pattern).match
        for line in lines:
            if match := search(line.text):
                groups = match.groupdict()
                place = int(at) if (at := groups.get("line")) else None
                return BuildFailure(kind, shorten_message(match["message"]), groups.get("file"), place, line.number)
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
                    last = BuildFailure("python", shorten_message(said), frame["file"], int(frame["line"]), number)
                frame = None
    return last


def shorten_message(message: str) -> str:
    """Return a tool's message without its margin, cut where it is very long."""
    message = message.strip()
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
