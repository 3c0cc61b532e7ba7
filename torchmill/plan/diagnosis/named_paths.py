"""Collect the paths that a log names, by which it can be told whether this machine wrote it."""

import posixpath
import re
from collections import deque
from typing import NamedTuple

from torchmill.plan.line_patterns import cut_text
from torchmill.plan.log_lines import LogLine

# Where a machine is named: its folders stand in the first commands and in the traceback at the end.
_HEAD_LINES = 3000
_TAIL_LINES = 1000
_MOST_PATHS = 500
# An absolute path of Linux or macOS, alone or after -I or -L. Paths of Windows are not collected:
# to look at \\server\share would ask a server that the log names.
_PATH = re.compile(r"(?:(?<![\w./~+@\\-])|(?<=-[IL]))(?P<path>(?:/[\w.+@%=~-]+){2,})")


class NamedPath(NamedTuple):
    """A path that a log names, and the number of the first line that does, counted from 1."""

    path: str
    line: int


class PathCollector:
    """Collects the absolute paths of the lines that it is shown."""

    def __init__(self) -> None:
        self._paths: dict[str, int] = {}
        self._line_count = 0
        self._tail: deque[LogLine] = deque(maxlen=_TAIL_LINES)

    def see(self, line: LogLine) -> None:
        """Look at a line of the log; those in the middle of a long one are passed over."""
        if "/" not in line.text:
            return
        self._line_count += 1
        if self._line_count > _HEAD_LINES:
            self._tail.append(line)
        else:
            self._search(line)

    def paths(self) -> tuple[NamedPath, ...]:
        """Return the paths of all lines so far, without "." and "..", in their order."""
        while self._tail:
            self._search(self._tail.popleft())
        return tuple(NamedPath(path, line) for path, line in self._paths.items())

    def _search(self, line: LogLine) -> None:
        """Keep the paths of a line, as long as there are not too many."""
        if len(self._paths) >= _MOST_PATHS:
            return
        for match in _PATH.finditer(cut_text(line.text)):
            self._paths.setdefault(posixpath.normpath(match["path"]), line.number)
