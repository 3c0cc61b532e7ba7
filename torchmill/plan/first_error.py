"""Find the first real error in a build's log, and not ninja's report of it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torchmill.core.ninja import parse_edge
from torchmill.plan.line_patterns import literals_of, may_match
from torchmill.plan.log_lines import FAILED_STEP, LOG_WORDS, LogLine

Kind = Literal["compiler", "linker", "cmake", "python", "other"]
_LONG_LINE = 300  # characters; in longer lines a pattern is searched only if its literals are there
# By kind of tool: the patterns of its errors, each with literals of which a match has one.
_PATTERNS = {
    tool: [(literals_of(pattern), re.compile(r"\s*" + pattern)) for pattern in LOG_WORDS[tool]]
    for tool in ("compiler", "linker", "driver", "cmake", "other")
}
_LONGEST_MESSAGE = 400  # characters
_BLOCK_END = re.compile(r"\s*(?:FAILED|ninja): ")
_FRAME = re.compile(r'(?P<indent>[\s|]*)  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
# Exceptions that merely report the end of another program.
_WRAPPERS = ("CalledProcessError", "SystemExit", "subprocess-exited-with-error")


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """What went wrong, in the words of the tool that reported it."""

    kind: Kind
    message: str
    file: str | None = None
    line: int | None = None
    number: int = field(default=0, compare=False)  # of the line in the log, counted from 1

    def __str__(self) -> str:
        """Return "file:line: message" as far as known."""
        parts = [str(part) for part in (self.file, self.line) if part is not None]
        if not parts:
            return self.message
        return f"{':'.join(parts)}: {self.message}"


def first_failure(run: Sequence[LogLine]) -> BuildFailure | None:
    """Return the failure that the lines of a run name first; None if they name none.

    Steps that ninja marks FAILED are searched before all other lines: those may also show errors
    of checks that may fail.
    """
    return _failed_step(run) or _error_of_any_tool(run) or _first_match("other", "other", run)


def target_of_line(run: Sequence[LogLine], index: int) -> str | None:
    """Return the target that ninja was making when it wrote the line at `index`; None if unknown.

    Only steps that ninja marks FAILED name one.
    """
    for position in range(index, -1, -1):
        text = run[position].text
        match = FAILED_STEP.match(text)
        if match:
            return match["target"]
        if parse_edge(text):
            break
    return None


def _failed_step(lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the first error within the blocks of the steps that failed.

    If no block has an error of a known form, the last line of the first block is the message, and
    the step's target stands in place of a file. None if no step failed.
    """
    first_block: list[LogLine] = []
    for block in _failed_blocks(lines):
        failure = _error_of_any_tool(block[1:])
        if failure:
            return failure
        first_block = first_block or block
    if not first_block:
        return None
    message = "failed without a message"
    for line in first_block[1:]:
        if line.text:
            message = line.text.strip()
    return BuildFailure(
        "other",
        shorten_message(message),
        target_of_line(first_block, 0),
        number=first_block[0].number,
    )


def _failed_blocks(lines: Iterable[LogLine]) -> Iterator[list[LogLine]]:
    """Yield the lines that ninja marks FAILED, each with those that belong to it."""
    block: list[LogLine] = []
    for line in lines:
        begins = FAILED_STEP.match(line.text)
        if block and (begins or _BLOCK_END.match(line.text) or parse_edge(line.text)):
            yield block
            block = []
        if block or begins:
            block.append(line)
    if block:
        yield block


def _error_of_any_tool(lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the first error of the first kind of tool that has one.

    Compilers go before linkers, and errors with a place before those without: a driver repeats the
    error that a compiler reported. None if no tool has one.
    """
    return (
        _first_match("compiler", "compiler", lines)
        or _first_match("linker", "linker", lines)
        or _first_match("compiler", "driver", lines)
        or _first_match("cmake", "cmake", lines)
        or _last_exception(lines)
    )


def _first_match(kind: Kind, tool: str, lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the failure in the first line that a pattern of a tool matches.

    `tool` is a key of the patterns, and `kind` the failure's kind. A pattern that comes earlier in
    the list of the tool goes first, even if its line comes later in the log. None without a match.
    """
    for literals, pattern in _PATTERNS[tool]:
        for line in lines:
            if len(line.text) > _LONG_LINE and not may_match(literals, line.text.lower()):
                continue
            match = pattern.match(line.text)
            if match is None:
                continue
            groups = match.groupdict()
            line_in_file = groups.get("line")
            return BuildFailure(
                kind,
                shorten_message(match["message"]),
                groups.get("file"),
                int(line_in_file) if line_in_file else None,
                line.number,
            )
    return None


def _last_exception(lines: Sequence[LogLine]) -> BuildFailure | None:
    """Return the last exception of Python that does not merely report another program's end.

    None if there is none.
    """
    failure: BuildFailure | None = None
    frame: re.Match[str] | None = None
    for number, text, _ in lines:
        match = _FRAME.match(text)
        if match:
            frame = match
            continue
        if frame is None or not text.startswith(frame["indent"]):
            continue
        # The first line below the frames that is not indented: "ValueError: invalid".
        exception = text[len(frame["indent"]) :]
        if not _EXCEPTION.match(exception):
            continue
        name = exception.split(":")[0]
        if not any(wrapper in name for wrapper in _WRAPPERS):
            message = shorten_message(exception)
            failure = BuildFailure("python", message, frame["file"], int(frame["line"]), number)
        frame = None
    return failure


def shorten_message(message: str) -> str:
    """Return a tool's message without white space around it, cut if it is very long."""
    message = message.strip()
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[:_LONGEST_MESSAGE]}…"
