"""The part of a report on why a build failed: the diagnosis of its log."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchmill.plan.causes import DiagnosedCause, Diagnosis
from torchmill.plan.diagnosis import answer
from torchmill.plan.diagnosis.cure_order import first_command, write_cure
from torchmill.plan.diagnosis.log_facts import label_of
from torchmill.plan.diagnosis.situation import Fact
from torchmill.plan.diagnosis.templates import fill_facts

DiagnoseFile = Callable[[str], Diagnosis]


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact that chose the cause."""

    label: str  # "nvcc of CUDA"
    value: str  # "11.3"
    place: str  # "line 12", "this machine"
    text: str  # that line of the log; "" if it is not from the log


@dataclass(frozen=True, slots=True)
class Alternative:
    """A reason that may be true as well."""

    cause: str
    tell: str  # the command that shows whether it is this one; "" if there is none
    cure: str


@dataclass(frozen=True, slots=True)
class FailureSection:
    """Why a build failed, as a page shows it."""

    log: str  # path of the log
    line: int  # of the log, counted from 1
    headline: str  # the failure, in the words of the tool that reported it
    cause: str = ""  # "" if the catalogue has none
    name: str = ""  # of the cause in the catalogue
    command: str = ""  # the first command of the cure
    cure: str = ""
    facts: tuple[FactRow, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    question: str = ""  # which fact would decide; "" if the cause is decided on
    notes: tuple[str, ...] = ()  # contradictions, whose facts these are, what was not read


def diagnose_session(log: Path, diagnose_file: DiagnoseFile) -> FailureSection | None:
    """Return why a session failed; None if its log is gone, or shows no failure.

    `diagnose_file` returns the diagnosis of the log with a name.
    """
    if not log.is_file() or not log.stat().st_size:
        return None
    diagnosis = diagnose_file(str(log))
    if diagnosis.outcome != "found":
        return None
    return describe_failure(diagnosis, str(log))


def describe_failure(diagnosis: Diagnosis, log: str) -> FailureSection:
    """Return the section on a log that shows a failure."""
    notes = [
        answer.contradiction_sentence(contradiction)
        for contradiction in diagnosis.situation.contradictions
    ]
    notes += [
        answer.success_sentence(diagnosis),
        answer.witness_sentence(diagnosis),
        diagnosis.unread,
    ]
    match = diagnosis.match
    if match is None:
        return FailureSection(
            log, diagnosis.line_number, diagnosis.headline, notes=tuple(filter(None, notes))
        )
    return FailureSection(
        log,
        diagnosis.line_number,
        diagnosis.headline,
        match.cause.cause,
        match.cause.name,
        first_command(match.cause.cure),
        match.cause.cure,
        tuple(_fact_row(fact) for fact in answer.deciding_facts(diagnosis, match)),
        _alternatives(diagnosis, match),
        answer.open_question(match),
        tuple(filter(None, notes)),
    )


def _fact_row(fact: Fact) -> FactRow:
    """Return a fact as a row of a table."""
    return FactRow(label_of(fact.name), fact.value, answer.place_of(fact), fact.text)


def _alternatives(diagnosis: Diagnosis, match: DiagnosedCause) -> tuple[Alternative, ...]:
    """Return the reasons that may be true as well, filled in."""
    values = diagnosis.situation.values()
    return tuple(
        Alternative(
            fill_facts(judged.candidate.cause, values),
            answer.telling_command(judged),
            write_cure(judged.candidate.cure, values),
        )
        for judged in answer.alternatives(match)
    )
