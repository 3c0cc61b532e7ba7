"""Names of nox's sessions: read them from its command line, and tell what each makes."""

import re
from collections.abc import Iterable

# First words of sessions that start from a finished wheel.
MADE_FROM_WHEELS = ("conda", "libtorch", "check", "speed")
# The second group has a digit if the Python follows, as in "conda-3.10-cpu"; else a package does,
# as in "conda-vision-3.10-cpu".
_MADE_FROM_WHEEL = re.compile(rf"({'|'.join(MADE_FROM_WHEELS)})-(?=\D|(\d))")
# -s, -e, and either as the last of joined options, as in "-rs".
_SESSION_OPTION = re.compile("-[A-Za-z]*[es]|--sessions?")


def asked_sessions(words: Iterable[str], environ_names: str = "") -> list[str]:
    """Return the names of the sessions that a command line of nox, `words`, asks for.

    `environ_names` is the value of NOXSESSION. Words after "--" are options of sessions.
    """
    lists = [environ_names]  # each has one name, or several with commas between them
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
    """Return the product that a session makes from a wheel, and the session that builds the wheel.

    The result for "conda-3.10-cpu" is ("conda", "wheel-3.10-cpu"), for "conda-vision-3.10-cpu"
    ("conda", "vision-3.10-cpu"). A session that builds a wheel, "wheel-3.10-cpu", makes no product
    from one: ("", "wheel-3.10-cpu").
    """
    match = _MADE_FROM_WHEEL.match(name)
    if match is None:
        return "", name
    product = match[1]
    wheel = name[match.end() :]
    if match[2] is not None:  # the word of torch's sessions, "wheel", is left out
        wheel = f"wheel-{wheel}"
    return product, wheel
