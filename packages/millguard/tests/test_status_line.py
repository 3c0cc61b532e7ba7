"""The line at the bottom of a terminal."""

import io
import re

from millguard.status_line import StatusLine

# A control sequence, or a character of text.
TOKEN = re.compile(r"\x1b\[[\d;]*(?P<final>[A-Za-z])|\x1b(?P<escape>[78D])|(?P<text>.)", re.DOTALL)


def column_after(output: str, column: int) -> int:
    """Return the column of the cursor after an output, as terminals move it."""
    saved = 0
    for token in TOKEN.finditer(output):
        if token["escape"] == "7":
            saved = column
        elif token["escape"] == "8":
            column = saved
        elif token["final"] in {"H", "r"} or token["text"] in {"\n", "\r"}:
            column = 0
        elif token["text"]:
            column += 1
    return column


def test_a_line_that_the_command_began_goes_on_at_its_column() -> None:
    terminal = io.StringIO()
    line = StatusLine(terminal, lambda _: (24, 80), live=True)
    line.draw("1 compiling")
    assert "1 compiling" in terminal.getvalue()
    assert column_after(terminal.getvalue(), column=17) == 17
    line.close()
    assert column_after(terminal.getvalue(), column=17) == 17
