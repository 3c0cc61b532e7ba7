"""Read build logs: any encoding, without prefixes of other tools or harmless lines."""

import re
from collections.abc import Iterable, Iterator
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple

from torchmill.core.errors import ConfigError
from torchmill.core.ninja import parse_edge, strip_colours

_LONGEST_LINE = 4000  # characters of a line that are looked at: link commands are far longer
_HEAD_BYTES = 4096  # bytes that tell the encoding
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_BYTES_PER_CONTROL = 20  # a text has fewer control characters than one in so many bytes
_MOST_MESSAGE_LINES = 60  # lines of one message of CMake


class LogLine(NamedTuple):
    """A line that may tell something: its number in the log, counted from 1, and its text."""

    number: int
    text: str


# What runners, containers and people's tools write before a line; several may stand one after another.
_PREFIX = re.compile(
    r"\ufeff"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? "  # GitHub Actions
    r"|[^\t\[]{1,80}\t[^\t]{1,80}\t"  # the same by `gh run view --log`: job and step
    r"|##\[\w+\]|::error[^:]*::"
    r"|#\d+ (?:\d+\.\d+ )?"  # docker buildx
    r"|\d+\.\d{1,3} (?=\S)"  # its recapitulation
    r"|[A-Za-z][\w.]*-\d+ +\| "  # docker compose
    r"|\[\d{4}-\d\d-\d\d[T ][^\]]{8,20}\] |\d\d:\d\d:\d\d(?:\.\d+)? |\[ *\d+(?:\.\d+)?s\] "  # Jenkins, obs
)
_PREFIXED = frozenset("\ufeff#:[0123456789")

# Lines that show source, commands or progress: they may hold the words of any failure.
_TOOL = (
    r"(?:ccache|sccache|gcc|g\+\+|cc|c\+\+|clang|clang\+\+|nvcc|cmake|cl|link|ar|ld|python[\d.]*)"
    r"(?:-\d+)?(?:\.exe)?\"? +(?!fatal|error)(?:[-/@\"]|\S+ +-)"
)
_HARMLESS = re.compile(
    r"-- |\d* *\| |copying |adding |creating |byte-compiling |hard linking |running |reading |writing "
    r"|In file included from |from \S+:\d+[,:]|inlined from |required from |(?:\S+: )?(?:In|At) .*[:,]$"
    r"|WARN(?:ING)?: |\S+:\d+: \w*DeprecationWarning: "
    rf"|\+ |cd \S+ && |: && |(?:\S*[/\\])?(?:[\w.-]+-)?{_TOOL}"
)
_WARNING = re.compile(r"(?!\S*\bld: )(?:(?!rror)[^'\"])*?\b(?:[Ww]arning|note|remark) ?[:#]")
_CMAKE = re.compile(r"(?P<indent> *)CMake (?P<kind>Error|(?:Deprecation )?Warning)\b")


def read_log(name: str) -> Iterator[str]:
    """Yield the lines of the log called `name`; `-` stands for standard input.

    Raises ConfigError where it is missing, a directory, empty or not text.
    """
    if not name:
        raise ConfigError("no log given: name a build's log, or - for standard input", code="no-log")
    if name != "-" and Path(name).is_dir():
        raise ConfigError(f"{name} is a directory: name the log file in it", code="log-unreadable")
    try:
        with BufferedReader(FileIO(0 if name == "-" else name, closefd=name != "-")) as raw:
            encoding = _encoding(raw.peek(_HEAD_BYTES)[:_HEAD_BYTES], name)
            with TextIOWrapper(raw, encoding, "replace") as text:
                yield from text
    except OSError as error:
        raise ConfigError(
            f"cannot read {name} ({error.strerror}): name a build's log, or - for standard input",
            code="log-unreadable",
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
    """Yield the lines that are not harmless by themselves."""
    failed = False
    for number, raw in enumerate(lines, 1):
        text = _strip_prefixes(strip_colours(raw[:_LONGEST_LINE]).rstrip())
        words = text.lstrip()
        if not failed and not _HARMLESS.match(words) and not _warns(words):
            yield LogLine(number, text)
        failed = words.startswith("FAILED: ")  # ninja shows the command below


def _strip_prefixes(text: str) -> str:
    while text and (text[0] in _PREFIXED or "\t" in text[:80] or " | " in text[:40]):
        match = _PREFIX.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return text


def _warns(words: str) -> bool:
    return ("arning" in words or "note" in words or "remark" in words) and bool(_WARNING.match(words))


def _messages(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines, CMake's errors as one each; its warnings are left out."""
    head: LogLine | None = None
    body: list[str] = []
    for line in lines:
        if head is not None:
            if _continues(line.text, head.text) and len(body) < _MOST_MESSAGE_LINES:
                body.append(line.text)
                continue
            yield from _join_message(head, body)
            head = None
        if "CMake " in line.text and _CMAKE.match(line.text):
            head, body = line, []
        else:
            yield line
    if head is not None:
        yield from _join_message(head, body)


def _continues(text: str, head: str) -> bool:
    return not text or _indent(text) > _indent(head)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _join_message(head: LogLine, body: list[str]) -> Iterator[LogLine]:
    match = _CMAKE.match(head.text)
    if match and match["kind"] == "Error":
        yield LogLine(head.number, match["indent"] + " ".join(" ".join([head.text, *body]).split()))
