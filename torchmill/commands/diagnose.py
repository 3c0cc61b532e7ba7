"""`invoke diagnose`: find the cause of a failed build in its log, and the fix."""

import time

from torchmill.commands.command import CommandOutput
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.core.log_reader import read_log
from torchmill.core.paths import Layout
from torchmill.core.urls import hide_password
from torchmill.plan import causes
from torchmill.plan.diagnosis import answer


def diagnose_log(facts: Facts, layout: Layout, log: str, tag: str = "") -> CommandOutput:
    """Return the cause of a failed build, and its fix.

    `log` is a path, or "-" for standard input. The release of `tag` rules out causes that it
    cannot have.
    """
    version = None
    if tag:
        release = selection.selected_release(facts, layout, tag)
        version = release.version if release else None
    diagnosis = causes.diagnose(
        facts.causes, read_log(log), version, time.process_time, rules=facts
    )
    shown_log = hide_password(log)
    return CommandOutput(
        answer.diagnosis_as_text(diagnosis, shown_log),
        answer.diagnosis_as_data(diagnosis, shown_log),
        exit_code=diagnosis.exit_code,
    )
