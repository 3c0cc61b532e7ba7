"""Cures: which of the doctor's fixes are commands, and with which variables and options a build starts after them."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchmill.plan.doctor.finding import Finding

_MANAGERS = frozenset({"sudo", "apt-get", "dnf", "yum", "brew", "conda", "xcode-select", "winget"})
_PROGRAMS = _MANAGERS | {"uv", "pip", "pyenv"}
_TASKS = ("deps", "fetch", "toolkit", "image")  # in the order in which they are run
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cures:
    """What makes builds possible, as far as commands do."""

    commands: Mapping[str, Finding]  # with what each is for, in the order to run them
    variables: Mapping[str, str]  # that sessions are started with
    options: tuple[str, ...]  # that sessions are given
    left: tuple[Finding, ...]  # failures that no command cures


def find_cures(findings: Iterable[Finding]) -> Cures:
    """Return the cures of failures, and those of warnings that bring something and change no build."""
    commands: dict[str, Finding] = {}
    variables: dict[str, str] = {}
    options: list[str] = []
    left: list[Finding] = []
    for one in findings:
        vital = one.verdict == "failure"
        parts = [_read(part) for part in one.cure.split(" && ")]
        if vital and None in parts:
            left.append(one)
        for before, words in [part for part in parts if part] if vital or one.verdict == "warning" else ():
            if words[0] != "nox":
                commands.setdefault(shlex.join(words), one)
            elif vital:
                variables |= before
                options += words[words.index("--") + 1 :] if "--" in words else []
    if any(command.startswith("invoke deps ") for command in commands):
        commands.pop("invoke deps", None)  # that of the selected release
    ordered = sorted(commands.items(), key=lambda item: _rank(item[0]))
    return Cures(dict(ordered), variables, tuple(dict.fromkeys(options)), tuple(left))


def _read(part: str) -> tuple[dict[str, str], list[str]] | None:
    """Return the variables and the words of a command; None for what is a sentence, or has to be filled in."""
    try:
        words = shlex.split(part)
    except ValueError:
        return None
    variables = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        variables[found[1]] = found[2]
        words.pop(0)
    named = words[:1] == ["nox"] or (words[:1] == ["invoke"] and words[1:2] != [] and words[1] in _TASKS)
    whole = not re.search(r"[…;`]|=FOLDER", part) and (named or bool(words and words[0] in _PROGRAMS))
    return (variables, words) if whole else None


def _rank(command: str) -> int:
    first, second, *_ = command.split()
    return _TASKS.index(second) if first == "invoke" else 0 if first in _MANAGERS else len(_TASKS)
