"""Make text safe to print: `as_plain_text` treats all text that people read.

Text of others, such as the output of a program or the answer of a server, could otherwise control
the terminal, or give commands to a workflow of GitHub.
"""

import os
import re
from collections.abc import Mapping

from torchmill.core.programs import name_programs

# Control characters: C0 without tab and newline, C1, the bidirectional controls of
# https://www.unicode.org/reports/tr9/ (they show text in another order than it has), and characters
# without width, by which two names can differ and look the same.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029"
    "\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
# The sequences that torchmill itself writes. They set a colour, and cannot move the cursor.
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")
# https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
_WORKFLOW_COMMAND = re.compile(r"(?m)^(\s*)(::|##\[)(?=[A-Za-z])")
_REPLACEMENT = "\ufffd"


def as_plain_text(
    text: str, environ: Mapping[str, str] = os.environ, *, colours: bool = False
) -> str:
    """Return a text that cannot control a terminal, and gives no command to a workflow of GitHub.

    Tabs and newlines stay, and with `colours` the sequences that set a colour. A carriage return
    before a newline is dropped; other control characters become U+FFFD. Commands of torchmill name
    the programs that run them in this environment.
    """
    text = name_programs(text.replace("\r\n", "\n"), environ)
    if colours:
        parts = _COLOUR.split(text)
        # With a group in the pattern, every second part is a colour.
        for i in range(0, len(parts), 2):
            parts[i] = _CONTROL.sub(_REPLACEMENT, parts[i])
        text = "".join(parts)
    else:
        text = _CONTROL.sub(_REPLACEMENT, text)
    if "GITHUB_ACTIONS" in environ:
        text = _WORKFLOW_COMMAND.sub(rf"\1{_REPLACEMENT}\2", text)
    return text
