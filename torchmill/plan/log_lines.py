"""The lines of a build's log that may tell of a failure, without prefixes of other tools."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import NamedTuple

from torchmill.core.log_reader import SkippedLines, cut_line
from torchmill.core.ninja import parse_edge, strip_colours
from torchmill.core.package_data import read_table_beside
from torchmill.plan.translated_text import in_english

LOG_WORDS = read_table_beside(__file__, "log_words.toml")
_PREFIX = re.compile("|".join(LOG_WORDS["prefixes"]))
_MOST_PREFIXES = 20  # of a line
_SOURCE = re.compile(LOG_WORDS["source"])
_PREFIXED = frozenset("\ufeff ┃#:[0123456789ADFJMNOS")  # first characters of prefixes
_HARMLESS = re.compile("|".join(LOG_WORDS["harmless"]))
_WARNING = re.compile(LOG_WORDS["warning"])
# In no command; in the end what a shell says of it.
_MESSAGE = re.compile(r"(?:rror|fatal)(?: \w+)? *: |undefined |relocation |^[\w/]*\bsh: ")
_CMAKE_MESSAGE = re.compile(r"(?P<indent> *)CMake (?P<kind>Error|(?:Deprecation )?Warning)\b")
# Lines of one message of CMake. What is longer is hardly one message, but a log that is indented:
# the lines after these are judged like any others.
_MOST_MESSAGE_LINES = 60
# What ninja writes of a failed step, and when it stops.
FAILED_STEP = re.compile(r"\s*FAILED: (?:\[code=\d+\] )?(?P<target>\S*)")
_STOPPED = re.compile(r"\s*ninja: (?:build stopped|error: rebuilding)")
_SAMPLE_LINES = 400  # that tell how a log was wrapped, and the bar before its lines
_BAR = "| "  # BitBake's
_SHARE_OF_BARRED = 0.9  # of the lines
_FEWEST_BARRED = 3
_NARROWEST = 60  # characters of a terminal at whose width lines are wrapped
_WIDEST = 250
_FEWEST_BROKEN = 2  # words that are cut at the width
_BROKEN_WORD = re.compile(r"[\w./\\-]{2}")
_MOST_PIECES = 100  # of one line
_RUN_BYTES = 16 << 20  # kept at each end of a run whose middle is cut out
_LINE_BYTES = 120  # of a line in memory, beside its text


class LogLine(NamedTuple):
    """A line that may tell something: its number in the log, counted from 1, and its text.

    `source` is the service or the job that wrote it, if a log of several names it in each line.
    """

    number: int
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class LogReading:
    """The last run of a log, as far as it was read."""

    lines: list[LogLine]  # that may tell something
    skipped: str = ""  # which lines were not read, as a sentence; "" if all were
    begins_behind: int = 0  # the number of the line that ends the run before it; 0: there is none


def _show_nobody(_: LogLine) -> None:
    """Take a line, and do nothing with it."""


def telling_lines(
    lines: Iterable[str], observe: Callable[[LogLine], None] = _show_nobody
) -> Iterator[LogLine]:
    """Yield the lines that may tell of a failure, without colours and prefixes.

    A message of CMake becomes one line. Of progress lines that follow one another the first is
    yielded: it ends the messages before it.

    `observe` is called with every line, also those that are harmless and not yielded.
    """
    edge_before = False
    for line in _join_cmake_messages(_without_harmless(lines, observe)):
        edge = line.text.lstrip().startswith("[") and parse_edge(line.text) is not None
        if not (edge and edge_before):
            yield line
        edge_before = edge


def plain_lines(lines: Iterable[str]) -> Iterator[LogLine]:
    """Yield all lines with their numbers, without colours and the prefixes of other tools.

    Lines that were wrapped at the width of a terminal are joined. Words of tools in other languages
    become those of English. A SkippedLines among the lines is an empty line that stands for
    `line_count` lines.
    """
    numbered = _numbered_lines(lines)
    sample = list(islice(numbered, _SAMPLE_LINES))
    bar = _common_bar(sample)
    width = _wrapping_width([line.text.removeprefix(bar) for line in sample])
    pieces: list[str] = []
    number = 0
    for line in chain(sample, numbered):
        text = line.text.removeprefix(bar)
        number = number or line.number
        pieces.append(text)
        if width and len(text) == width and len(pieces) < _MOST_PIECES:
            continue
        yield _plain_line(number, "".join(pieces))
        pieces.clear()
        number = 0
    if pieces:
        yield _plain_line(number, "".join(pieces))


def _plain_line(number: int, text: str) -> LogLine:
    """Return a line without prefixes and in English, with the source that its prefix names."""
    if not text or not _may_have_prefix(text):
        return LogLine(number, in_english(text))
    source = _SOURCE.match(text)
    name = next(filter(None, source.groups()), "") if source else ""
    return LogLine(number, in_english(_strip_prefixes(text)), name)


def _numbered_lines(lines: Iterable[str]) -> Iterator[LogLine]:
    """Yield lines with their numbers, without colours."""
    number = 0
    for raw_line in lines:
        number += raw_line.line_count if isinstance(raw_line, SkippedLines) else 1
        yield LogLine(number, strip_colours(cut_line(raw_line)).rstrip())


def _common_bar(sample: Sequence[LogLine]) -> str:
    """Return "| " if nearly all lines begin with it, as in logs of BitBake; else "".

    In other logs only the lines of sources that GCC quotes begin with it.
    """
    texts = [line.text for line in sample if line.text]
    barred = sum(text.startswith(_BAR) for text in texts)
    return _BAR if barred >= _FEWEST_BARRED and barred >= _SHARE_OF_BARRED * len(texts) else ""


def _wrapping_width(texts: Sequence[str]) -> int:
    """Return the width at which a log was wrapped; 0 if it was not.

    That is the length of its longest lines, if several have exactly this one and go on in the
    middle of a word.
    """
    width = max((len(text) for text in texts), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return 0
    broken = 0
    for text, following in pairwise(texts):
        if len(text) == width and following and _BROKEN_WORD.match(text[-1] + following[0]):
            broken += 1
    return width if broken >= _FEWEST_BROKEN else 0


def _without_harmless(
    lines: Iterable[str], observe: Callable[[LogLine], None]
) -> Iterator[LogLine]:
    """Yield lines with their numbers, without commands, warnings and excerpts of sources.

    `observe` is called with every line.
    """
    behind_failed = False
    for line in plain_lines(lines):
        observe(line)
        words = line.text.lstrip()
        # Behind "FAILED: a.o", ninja shows the command, which may hold any word.
        is_command = behind_failed and not _MESSAGE.search(words)
        behind_failed = words.startswith("FAILED: ")
        if is_command or _is_warning(words) or _HARMLESS.match(words):
            continue
        yield line


def _is_warning(words: str) -> bool:
    """Tell whether a line of a compiler is a warning, a note or a remark."""
    # The pattern takes long, and few lines have one of the words.
    if "arning" not in words and "note" not in words and "remark" not in words:
        return False
    return _WARNING.match(words) is not None


def _strip_prefixes(text: str) -> str:
    """Return a line without the prefixes of runners, containers and other tools."""
    for _ in range(_MOST_PREFIXES):
        if not text or not _may_have_prefix(text):
            break
        prefix = _PREFIX.match(text)
        if prefix is None:
            break
        text = text[prefix.end() :]
    return text


def _may_have_prefix(text: str) -> bool:
    """Tell whether a line may begin with a prefix: far faster than the pattern.

    Prefixes that may begin with any character have a separator, such as " | ", near the beginning.
    """
    if text[0] in _PREFIXED:
        return True
    return ">" in text[:14] or "\t" in text[:80] or " | " in text[:40]


def _join_cmake_messages(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines, with each error of CMake as one; its warnings are left out."""
    message: list[LogLine] = []
    for line in lines:
        if message:
            belongs = not line.text or _indent(line.text) > _indent(message[0].text)
            if belongs and len(message) < _MOST_MESSAGE_LINES:
                message.append(line)
                continue
            yield from _join_message(message)
            message = []
        if "CMake " in line.text and _CMAKE_MESSAGE.match(line.text):
            message = [line]
        else:
            yield line
    if message:
        yield from _join_message(message)


def _indent(text: str) -> int:
    """Return the number of spaces at the beginning of a text."""
    return len(text) - len(text.lstrip(" "))


def _join_message(message: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yield a message of CMake as one line, unless it is a warning."""
    head = message[0]
    match = _CMAKE_MESSAGE.match(head.text)
    if match is None or match["kind"] != "Error":
        return
    words = " ".join(line.text for line in message).split()
    yield LogLine(head.number, match["indent"] + " ".join(words))


def last_run(log: Iterable[str], observe: Callable[[LogLine], None] = _show_nobody) -> LogReading:
    """Return the telling lines of the last run in a log to which resumed builds were appended.

    A run of ninja begins after the stop of another, if a step fails there again. Lines after the
    last stop belong to the run that stopped, if no step fails after them.

    Of a run with very many lines, the middle is left out: first errors stand at the beginning, and
    what follows from them at the end. `observe` is called with every line of the log.
    """
    run: list[LogLine] = []
    skipped: list[str] = []
    size = 0  # about the bytes of the run in memory
    next_run = 0  # the index of the first line after ninja's stop; 0: it did not stop
    begins_behind = 0
    for line in telling_lines(_note_skipped(log, skipped), observe):
        # Behind the stop come reports of the same run, until a step of another run fails.
        if next_run and FAILED_STEP.match(line.text):
            begins_behind = run[next_run - 1].number
            del run[:next_run]
            next_run = 0
            size = _size_of_lines(run)
        run.append(line)
        size += _size(line)
        if _STOPPED.match(line.text):
            next_run = len(run)
        if size > 3 * _RUN_BYTES:
            first = _lines_within_limit(run)
            last = len(run) - _lines_within_limit(reversed(run))
            del run[first:last]
            next_run = max(min(next_run, first), next_run - (last - first))
            size = _size_of_lines(run)
    return LogReading(run, "; ".join(skipped), begins_behind)


def ends_run(text: str) -> bool:
    """Tell whether a line says that ninja stops, so that another run may follow."""
    return "ninja: " in text and _STOPPED.match(text) is not None


def _note_skipped(log: Iterable[str], skipped: list[str]) -> Iterator[str]:
    """Yield the lines of a log, and append a sentence to `skipped` on lines that were not read."""
    number = 1
    for line in log:
        if isinstance(line, SkippedLines):
            last = number + line.line_count - 1
            skipped.append(f"the log is too long: lines {number} to {last} were not read")
            number = last
        number += 1
        yield line


def _size(line: LogLine) -> int:
    """Return the bytes of memory that a line takes."""
    return sys.getsizeof(line.text) + _LINE_BYTES


def _size_of_lines(lines: Iterable[LogLine]) -> int:
    """Return the bytes of memory that some lines take."""
    return sum(map(_size, lines))


def _lines_within_limit(lines: Iterable[LogLine]) -> int:
    """Return how many of the first lines have less than _RUN_BYTES."""
    count = 0
    size = 0
    for line in lines:
        size += _size(line)
        if size >= _RUN_BYTES:
            break
        count += 1
    return count
