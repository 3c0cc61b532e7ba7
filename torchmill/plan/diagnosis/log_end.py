"""What the end of a log says: that something went well, or that a tool failed that nobody knows here."""

import re
from collections import deque
from collections.abc import Iterable, Sequence

from torchmill.core.ninja import parse_edge
from torchmill.plan.line_patterns import bounded_pattern, cut_text, literals_of, may_match
from torchmill.plan.log_lines import LOG_WORDS, LogLine

# Lines at the end of a log in which tools say how they ended.
_LINES = 300
_SUCCESS = [(literals_of(pattern), bounded_pattern(pattern)) for pattern in LOG_WORDS["success"]]
_FAILED = [(literals_of(pattern), bounded_pattern(pattern)) for pattern in LOG_WORDS["failed"]]


class LogEnd:
    """Watches the lines of a log, and judges the last ones."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=_LINES)
        self.failed_at = 0  # the last line in which some tool reports a failure; 0: none
        self.succeeded_at = 0  # the last line that shows success; 0: none
        self.unfinished_at = 0  # the last line of ninja's progress, if steps are left; 0: none are

    def see(self, line: LogLine) -> None:
        """Look at a line of the log."""
        if line.text:
            self._lines.append(line)

    def judge(self) -> None:
        """Find the last lines that show success and failure."""
        for line in self._lines:
            text = cut_text(line.text)
            lowered = text.lower()
            if _matches(_FAILED, text, lowered):
                self.failed_at = line.number
                continue
            edge = parse_edge(text) if text.lstrip().startswith("[") else None
            if edge is not None and edge.done < edge.total:
                self.unfinished_at = line.number
            elif edge is not None or _matches(_SUCCESS, text, lowered):
                self.succeeded_at = line.number

    @property
    def is_open(self) -> bool:
        """Tell whether nothing at the end of a log shows that all went well.

        Some tool reports a failure, ninja has steps left, or the log has no text at all.
        """
        return not self._lines or max(self.failed_at, self.unfinished_at) > self.succeeded_at

    def success_after(self, line_number: int) -> int:
        """Return the number of a line that shows success after a failure on a line; 0 for none.

        It counts only if no tool reports a failure behind it.
        """
        is_last = self.succeeded_at > max(self.failed_at, line_number)
        return self.succeeded_at if is_last else 0


def _matches(
    patterns: Iterable[tuple[Sequence[str], re.Pattern[str]]], text: str, lowered: str
) -> bool:
    """Tell whether a text matches one of some patterns."""
    return any(
        may_match(literals, lowered) and pattern.search(text) for literals, pattern in patterns
    )
