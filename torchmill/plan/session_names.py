"""Names of sessions: those that nox is asked for, and what each makes of a wheel."""

import re
from collections.abc import Iterable

# First words of sessions that make something of a wheel.
MADE_FROM_WHEELS = ("conda", "libtorch", "check", "speed")
# "conda-3.10-cpu" is made of "wheel-3.10-cpu", and "conda-vision-3.10-cpu" of "vision-3.10-cpu".
_MADE_FROM_WHEEL = re.compile(rf"({'|'.join(MADE_FROM_WHEELS)})-(?=\D|(\d))")
_SESSION_OPTION = re.compile("-[A-Za-z]*[es]|--sessions?")


def asked_sessions(words: Iterable[str], environ_names: str = "") -> list[str]:
    """Return the names of sessions in the command line of nox: what follows -s, -rs, --session.

    `environ_names` is the value of NOXSESSION. What follows "--" are options of sessions.
    """
    lists = [environ_names]
    takes_names = False
    for word in words:
        if word == "--":
            break
        if word.startswith("-"):
            option, _, value = word.partition("=")
            takes_names = _SESSION_OPTION.fullmatch(option) is not None
            if takes_names:
                lists.append(value)
        elif takes_names:
            lists.append(word)
    names: list[str] = []
    for text in lists:
        names.extend(name.strip() for name in text.split(","))
    return [name for name in names if name]


def split_product(name: str) -> tuple[str, str]:
    """Return what a session makes of a wheel, and the session of the wheel.

    "conda-3.10-cpu" is ("conda", "wheel-3.10-cpu"), and "wheel-3.10-cpu" ("", "wheel-3.10-cpu").
    """
    match = _MADE_FROM_WHEEL.match(name)
    if match is None:
        return "", name
    product = match[1]
    wheel = name[match.end() :]
    names_python = match[2] is not None
    return product, f"wheel-{wheel}" if names_python else wheel
