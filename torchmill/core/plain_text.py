"""The door for all that people read: what others wrote steers nothing, and commands name the programs that are here."""

import os
import re
from collections.abc import Mapping

from torchmill.core.programs import name_programs

# C0 without tab and newline, C1, the bidirectional controls of https://www.unicode.org/reports/tr9/ (they show text in
# another order than it has), and characters of no width, which hide in names
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")  # what torchmill itself writes: it moves nothing
# https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
_COMMAND = re.compile(r"(?m)^(\s*)(::|##\[)(?=[A-Za-z])")


def as_plain_text(
    text: str, environ: Mapping[str, str] = os.environ, *, colours: bool = False
) -> str:
    """Return a text that steers no terminal and gives a workflow of GitHub no command.

    Tabs and newlines stay, and with `colours` the sequences that set a colour. A carriage return before a newline is
    dropped; whatever else steers becomes U+FFFD. Commands of torchmill name the programs that run them here.
    """
    text = name_programs(text.replace("\r\n", "\n"), environ)
    parts = _COLOUR.split(text) if colours else [text]
    text = "".join(
        part if number % 2 else _STEERING.sub("\ufffd", part) for number, part in enumerate(parts)
    )
    return _COMMAND.sub("\\1\ufffd\\2", text) if "GITHUB_ACTIONS" in environ else text
