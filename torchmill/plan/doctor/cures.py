"""The cures of some findings together: commands to run, and options to build with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchmill.plan.doctor.cure_command import read_commands
from torchmill.plan.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Cures:
    """The commands, variables and options that make builds possible."""

    commands: Mapping[str, Finding]  # command -> the finding that it cures, in the order to run
    variables: Mapping[str, str]  # with which sessions are started
    options: tuple[str, ...]  # of sessions, after "--"
    incurable: tuple[Finding, ...]  # failures whose cure is no command, or not commands alone


def find_cures(findings: Iterable[Finding]) -> Cures:
    """Return the cures of failures, and of those warnings whose cures change no build.

    A cure that starts a session with other variables or options is taken from a failure alone: a
    warning is no reason to build otherwise than the user has asked. Cures that install or fetch
    something are taken from both.
    """
    commands: dict[str, Finding] = {}
    ranks: dict[str, int] = {}  # command -> its place in the order to run
    variables: dict[str, str] = {}
    options: dict[tuple[str, ...], None] = {}  # an ordered set: findings may share a cure
    incurable: list[Finding] = []
    for finding in findings:
        is_failure = finding.verdict == "failure"
        if not is_failure and finding.verdict != "warning":
            continue
        parts = read_commands(finding.cure)  # None for a part that cannot be run as it is
        if is_failure and None in parts:
            incurable.append(finding)
        for command in parts:
            if command is None:
                continue
            if not command.starts_session:
                commands.setdefault(command.text, finding)
                ranks[command.text] = command.rank
            elif is_failure:
                variables |= command.variables
                options[command.session_options] = None
    if any(command.startswith("invoke deps ") for command in commands):
        # `invoke deps` with a tag installs the packages for this build. Without one it is for the
        # selected release, which may be another.
        commands.pop("invoke deps", None)
    ordered = {
        command: commands[command] for command in sorted(commands, key=lambda text: ranks[text])
    }
    words: list[str] = []
    for session_options in options:
        words.extend(session_options)
    return Cures(ordered, variables, tuple(words), tuple(incurable))
