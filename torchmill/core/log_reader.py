"""Read the log of a build, in any encoding and of any size.

However large a log is, reading it takes bounded time and memory: of very long lines the middle is
left out, and of a very long log the lines in its middle.
"""

from collections import deque
from collections.abc import Iterator
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import Self

from torchmill.core.errors import ConfigError
from torchmill.core.silence import watch_for_silence
from torchmill.core.urls import hide_password

_STANDARD_INPUT = "-"
# How many characters of a line's beginning and end are read. Commands that link are far longer.
_HEAD_CHARACTERS = 3000
_TAIL_CHARACTERS = 1000
# How much of a log's beginning and end is read, about 20 MB each, counted in steps so that any log
# takes the same time. Each character is a step. Each line costs _STEPS_OF_LINE more: to search a
# short line takes about as long as so many characters.
_HEAD_STEPS = 20_000_000
_TAIL_STEPS = 20_000_000
_STEPS_OF_LINE = 150
_BLOCK_BYTES = 1 << 20
_ENCODING_BYTES = 4096  # of the beginning, from which the encoding is guessed
_CONTROL_BYTES = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_BYTES_PER_CONTROL = 20  # with more than one control character in 20 bytes, a file is not text


class SkippedLines(str):
    """An empty line that stands for the lines in the middle of a log that are not read."""

    __slots__ = ("line_count",)
    line_count: int

    def __new__(cls, count: int) -> Self:
        """Return the empty line that stands for `count` lines."""
        line = super().__new__(cls, "\n")
        line.line_count = count
        return line


def read_log(name: str) -> Iterator[str]:
    """Yield the lines of the log called `name`, with their newlines; `-` is standard input.

    The middle of a very long line is left out. SkippedLines stands for the lines in the middle of
    a very long log.

    Raises ConfigError if the log is missing, a directory, empty or not text, SilentError for a
    named pipe into which nobody writes.
    """
    if not name:
        raise ConfigError(
            "no log given: name a build's log, or - for standard input", code="no-log"
        )
    if name == _STANDARD_INPUT:
        yield from _read_lines(name)
        return
    if Path(name).is_dir():
        raise ConfigError(
            f"{hide_password(name)} is a directory: name the log file in it", code="log-unreadable"
        )
    lines = _read_lines(name)
    if Path(name).is_fifo():
        # To open a named pipe waits for somebody who writes, maybe for ever.
        lines = watch_for_silence(lines, name)
    yield from lines


def _read_lines(name: str) -> Iterator[str]:
    """Yield the lines of a log, whose name `read_log` has checked, with the same omissions.

    Raises ConfigError if it cannot be read, is empty or not text.
    """
    try:
        if name == _STANDARD_INPUT:
            file = FileIO(0, closefd=False)  # whoever started the program may still read from it
        else:
            file = FileIO(name)
        with BufferedReader(file, _BLOCK_BYTES) as raw:
            encoding = _guess_encoding(raw.peek(_ENCODING_BYTES)[:_ENCODING_BYTES], name)
            with TextIOWrapper(raw, encoding, "replace") as text:
                yield from _read_head(text)
                skipped, end = _read_end(text)
                if skipped:
                    yield SkippedLines(skipped)
                yield from end
    except OSError as error:
        raise ConfigError(
            f"cannot read {hide_password(name)} ({error.strerror}): name a build's log, or - for "
            "standard input",
            code="log-unreadable",
        ) from error


def _read_head(text: TextIOWrapper) -> Iterator[str]:
    """Yield the first lines of a log, until _HEAD_STEPS are spent."""
    steps = 0
    while steps < _HEAD_STEPS:
        line = text.readline(_HEAD_CHARACTERS)
        if not line:
            return
        if not line.endswith("\n"):
            line += _read_line_end(text)
        steps += _STEPS_OF_LINE + len(line)
        yield line


def _read_line_end(text: TextIOWrapper) -> str:
    """Read a line, whose beginning has been read, to its end, and return the last characters.

    If characters between the two are left out, the result begins with " … ".
    """
    end = ""
    is_cut = False
    while not end.endswith("\n"):
        block = text.readline(_BLOCK_BYTES)
        if not block:
            break
        end += block
        if len(end) > _TAIL_CHARACTERS:
            end = end[-_TAIL_CHARACTERS:]
            is_cut = True
    return f" … {end}" if is_cut else end


def _read_end(text: TextIOWrapper) -> tuple[int, list[str]]:
    """Read a log to its end; return the number of lines that are skipped, and the lines after them.

    The lines that are returned are the last ones, until _TAIL_STEPS are spent.
    """
    blocks: deque[str] = deque()
    skipped = 0
    while block := text.read(_BLOCK_BYTES):
        blocks.append(block)
        if len(blocks) > 1 + _TAIL_STEPS // _BLOCK_BYTES:
            skipped += blocks.popleft().count("\n")
    rest = "".join(blocks)
    lines: list[str] = []
    steps = 0
    end = len(rest)
    while end and steps < _TAIL_STEPS:
        begin = rest.rfind("\n", 0, end - 1) + 1
        line = cut_line(rest[begin:end])
        lines.append(line)
        steps += _STEPS_OF_LINE + len(line)
        end = begin
    skipped += rest.count("\n", 0, end)
    return skipped, lines[::-1]


def cut_line(line: str) -> str:
    """Return a line; if it is very long, its beginning, " … " and its end."""
    if len(line) <= _HEAD_CHARACTERS + _TAIL_CHARACTERS:
        return line
    return f"{line[:_HEAD_CHARACTERS]} … {line[-_TAIL_CHARACTERS:]}"


def _guess_encoding(head: bytes, name: str) -> str:
    """Return the encoding of a log by its first bytes; raise ConfigError if it is not text."""
    if not head:
        raise ConfigError(
            f"{hide_password(name)} is empty: name the file that has the build's output",
            code="log-empty",
        )
    if head[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return "utf-16"
    # PowerShell may write UTF-16 without a mark: ASCII has a zero in each second byte then.
    if head[1::2].count(0) > len(head) // 4 and not head[::2].count(0):
        return "utf-16-le"
    controls = sum(byte in _CONTROL_BYTES for byte in head)
    if controls > len(head) // _BYTES_PER_CONTROL:
        raise ConfigError(
            f"{hide_password(name)} is not a text file: unpack it and name the log",
            code="log-not-text",
        )
    return "utf-8"
