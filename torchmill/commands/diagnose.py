"""`invoke diagnose`: say why a build failed, by its log, and what fixes it."""

from torchmill.commands.command import CommandOutput
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.core.log_reader import read_log
from torchmill.core.paths import Layout
from torchmill.core.urls import hide_password
from torchmill.plan import causes


def diagnose_log(facts: Facts, layout: Layout, log: str, tag: str = "") -> CommandOutput:
    """Say from its log why a build failed, and what fixes it."""
    release = selection.selected_release(facts, layout, tag) if tag else None
    diagnosis = causes.diagnose(facts.causes, read_log(log), release.version if release else None)
    shown = hide_password(log)
    text, data = (
        causes.diagnosis_as_text(diagnosis, shown),
        causes.diagnosis_as_data(diagnosis, shown),
    )
    return CommandOutput(text, data, exit_code=diagnosis.exit_code)
