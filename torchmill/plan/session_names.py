"""Names of sessions: which nox is asked for, and what each makes of a wheel."""

import re
from collections.abc import Iterable
from itertools import takewhile

MADE_FROM_WHEELS = (
    "conda",
    "libtorch",
    "check",
    "speed",
)  # the words of sessions that make something of a wheel
_MADE_FROM_WHEEL = re.compile(rf"({'|'.join(MADE_FROM_WHEELS)})-(?=\D|(\d))")


def asked_sessions(words: Iterable[str], environ_names: str = "") -> list[str]:
    """Return the names of the sessions that nox is told to run: what follows -s, or -rs, and what NOXSESSION says."""
    names, named = [environ_names], False
    for word in takewhile(lambda each: each != "--", words):
        flag, _, value = word.partition("=")
        if word.startswith("-"):
            named = re.fullmatch("-[A-Za-z]*[es]|--sessions?", flag) is not None
        if named:
            names.append(value if word.startswith("-") else word)
    return [name.strip() for word in names for name in word.split(",") if name.strip()]


def split_product(name: str) -> tuple[str, str]:
    """Return what a session makes of a wheel, "" for the wheel itself, and the wheel's: "conda", "wheel-3.10-cpu"."""
    match = _MADE_FROM_WHEEL.match(name)
    return (match[1], ("wheel-" if match[2] else "") + name[match.end() :]) if match else ("", name)
