"""`invoke diagnose`: find the cause of a failed build in its log, and the fix."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from torchmill.commands.command import CommandOutput
from torchmill.commands.described_host import load_described_host
from torchmill.commands.log_machine import read_machine_facts
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError
from torchmill.core.log_reader import read_log
from torchmill.core.paths import Layout
from torchmill.core.urls import hide_password
from torchmill.plan import causes
from torchmill.plan.causes import Diagnosis, ReadMachine
from torchmill.plan.diagnosis import answer
from torchmill.plan.diagnosis.host_facts import host_facts
from torchmill.plan.diagnosis.situation import Fact


def diagnose_log(
    facts: Facts,
    layout: Layout,
    log: str | None,
    *,
    tag: str = "",
    host: str = "",
    collect_env: str = "",
) -> CommandOutput:
    """Return the cause of a failed build, and its fix.

    `log` is a path, or "-" for standard input; None is the log of the newest session that failed.
    The release of `tag` rules out causes that it cannot have. `host` is a host file, `collect_env`
    a file with the output of a collect_env: both say on which machine the build failed. Without
    them this machine is asked, if the log names paths that are here.
    """
    version = None
    if tag:
        release = selection.selected_release(facts, layout, tag)
        version = release.version if release else None
    machine_facts: list[Fact] = []
    described = load_described_host(host, collect_env)
    read_machine: ReadMachine | None = read_machine_facts
    if described is not None:
        machine_facts = list(host_facts(described, "collect_env" if collect_env else "host"))
        read_machine = None
    diagnose_file = partial(
        _diagnose, facts, version=version, machine_facts=machine_facts, read_machine=read_machine
    )
    if log is None:
        log, diagnosis = _newest_failure(layout, diagnose_file)
    else:
        diagnosis = diagnose_file(log)
    shown_log = hide_password(log)
    return CommandOutput(
        answer.diagnosis_as_text(diagnosis, shown_log),
        answer.diagnosis_as_data(diagnosis, shown_log),
        exit_code=diagnosis.exit_code,
    )


def log_diagnoser(facts: Facts) -> Callable[[str], Diagnosis]:
    """Return a function that diagnoses the log of a name, with what this machine says about it."""
    return partial(
        _diagnose, facts, version=None, machine_facts=(), read_machine=read_machine_facts
    )


def _diagnose(
    facts: Facts,
    log: str,
    *,
    version: str | None,
    machine_facts: Sequence[Fact],
    read_machine: ReadMachine | None,
) -> Diagnosis:
    """Return the diagnosis of a log."""
    return causes.diagnose(
        facts.causes,
        read_log(log),
        version,
        time.process_time,
        rules=facts,
        machine_facts=machine_facts,
        read_machine=read_machine,
    )


def _newest_failure(
    layout: Layout, diagnose_file: Callable[[str], Diagnosis]
) -> tuple[str, Diagnosis]:
    """Return the newest log of a session that shows a failure, and its diagnosis.

    Raises ConfigError if there is none.
    """
    for path in _newest_logs(layout):
        diagnosis = diagnose_file(str(path))
        if diagnosis.failure is not None or diagnosis.match is not None:
            return str(path), diagnosis
    raise ConfigError(
        f"no log in {layout.logs} shows a failure: name a build's log, or - for standard input",
        code="no-log",
    )


def _newest_logs(layout: Layout) -> Iterator[Path]:
    """Yield the logs of sessions that are not empty, the newest first."""
    logs = [path for path in layout.logs.glob("*.log") if path.is_file() and path.stat().st_size]
    yield from sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True)
