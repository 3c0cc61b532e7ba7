"""The answer of a diagnosis, as text and as data."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from torchmill.core.paths import locate_page
from torchmill.plan.causes import DiagnosedCause, Diagnosis
from torchmill.plan.diagnosis.candidates import JudgedCandidate
from torchmill.plan.diagnosis.cure_order import first_command, write_cure
from torchmill.plan.diagnosis.log_facts import label_of, probe_of
from torchmill.plan.diagnosis.situation import Contradiction, Fact, evidence
from torchmill.plan.diagnosis.templates import facts_in, fill_facts
from torchmill.plan.diagnosis.this_machine import IDENTITY, WITNESS

_MOST_ALTERNATIVES = 2
_FEWEST_OPEN = 2  # candidates between which it is asked
_MOST_EVIDENCE = 6  # facts that an answer names
_ORIGINS = {
    "session": "the plan of the session",
    "collect_env": "the output of collect_env",
    "host": "the description of the machine",
    "machine": "this machine",
    "rules": "the facts",
}


def diagnosis_as_text(diagnosis: Diagnosis, log: str) -> str:
    """Return a diagnosis for people; `log` is the log's name."""
    match = diagnosis.match
    failure = diagnosis.failure
    lines: list[str] = []
    if failure is None and match is None:
        lines.append(_no_failure(diagnosis, log))
    else:
        lines.append(f"{log}:{diagnosis.line_number}: {diagnosis.headline}")
        lines.extend(diagnosis_advice(diagnosis))
        if match and failure and failure.number < match.line.number:
            lines.append(f"  before that, on line {failure.number}: {failure}")
    for contradiction in diagnosis.situation.contradictions:
        lines.append(f"  {contradiction_sentence(contradiction)}")
    if diagnosis.succeeds_at:
        lines.append(f"  {success_sentence(diagnosis)}")
    witness = witness_sentence(diagnosis)
    if witness:
        lines.append(f"  {witness}")
    if diagnosis.unread:
        lines.append(f"  {diagnosis.unread}")
    return "\n".join(lines)


def _no_failure(diagnosis: Diagnosis, log: str) -> str:
    """Return a sentence on a log in which no failure was seen."""
    if diagnosis.outcome == "sound":
        return f"{log} shows no failure"
    if diagnosis.unread:
        return f"{log} shows no failure in what was read"
    return (
        f"cannot tell whether {log} shows a failure: its end is missing, or it is of a tool or in a "
        "language that is not read; give the whole output, in English (`LC_ALL=C.UTF-8`)"
    )


def diagnosis_advice(diagnosis: Diagnosis) -> list[str]:
    """Return the cause, the facts that chose it, the fix, alternatives, and what is open, a line each.

    If no cause is known, one line says so.
    """
    match = diagnosis.match
    if match is None:
        page = locate_page("docs/how-to/diagnose-a-failed-build.md")
        return [f"  cause: the catalogue has no entry for this; {page} says how to add one"]
    lines = [f"  cause: {match.cause.cause} ({match.cause.name})"]
    facts = [fact_sentence(fact) for fact in deciding_facts(diagnosis, match)]
    if facts:
        lines.append(f"  facts: {'; '.join(facts)}")
    lines.append(f"  fix:   {match.cause.cure}")
    values = diagnosis.situation.values()
    for judged in alternatives(match):
        cure = write_cure(judged.candidate.cure, values)
        command = telling_command(judged)
        tell = f" (`{command}` shows it)" if command else ""
        lines.append(f"  or:    {fill_facts(judged.candidate.cause, values)}{tell}: {cure}")
    question = open_question(match)
    if question:
        lines.append(f"  {question}")
    return lines


def alternatives(match: DiagnosedCause) -> list[JudgedCandidate]:
    """Return at most two candidates that may be true as well, the likeliest first.

    Beside an answer those that need several further facts are left out, and those whose fact no
    command shows: nothing hints at them.
    """
    candidates = list(match.ranking.candidates)
    if match.ranking.answer is not None:
        candidates = [judged for judged in candidates[1:] if _is_near(judged)]
    return candidates[:_MOST_ALTERNATIVES]


def telling_command(judged: JudgedCandidate) -> str:
    """Return the command that shows whether a candidate is true; "" if none is known.

    Without one of its own, that is the command that shows the first fact that it lacks.
    """
    probes = [judged.candidate.tell, *(probe_of(name) for name in judged.unknown)]
    return next((probe for probe in probes if probe), "")


def _is_near(judged: JudgedCandidate) -> bool:
    """Tell whether at most one fact about a candidate is missing, and a command shows it."""
    if len(judged.unknown) > 1:
        return False
    return all(probe_of(name) for name in judged.unknown)


def open_question(match: DiagnosedCause) -> str:
    """Return a sentence that asks for the fact that would decide.

    "" if one cause is decided on, or if fewer than two are left to decide between.
    """
    ranking = match.ranking
    if ranking.answer is not None or len(ranking.candidates) < _FEWEST_OPEN:
        return ""
    missing = ranking.missing_fact
    probe = probe_of(missing)
    if probe:
        return f"the log does not say which of these it is: `{probe}` would"
    return "the log does not say which of these it is"


def deciding_facts(diagnosis: Diagnosis, match: DiagnosedCause) -> list[Fact]:
    """Return the observed facts by which the answer was chosen or that were filled into it.

    These are six at most. Without an answer they are those that were filled into the cause.
    """
    facts_by_name = diagnosis.situation.facts
    names: list[str] = []
    answer = match.ranking.answer
    if answer is not None:
        names += answer.candidate.when
        names += facts_in(answer.candidate.cause)
        names += facts_in(answer.candidate.cure)
    else:
        names += facts_in(match.entry.cause)
        names += facts_in(match.entry.cure)
    facts = [facts_by_name[name] for name in dict.fromkeys(names) if name in facts_by_name]
    # What kind of machine it is orders the parts of a cure, and decides on no cause alone.
    observed = [fact for fact in evidence(facts) if fact.origin != "rules"]
    telling = [fact for fact in observed if fact.name != "system"]
    return (telling or observed)[:_MOST_EVIDENCE]


def fact_sentence(fact: Fact) -> str:
    """Return a fact and where it was read: "line 12: nvcc of CUDA 11.3"."""
    return f"{place_of(fact)}: {label_of(fact.name)} {fact.value}"


def place_of(fact: Fact) -> str:
    """Return where a fact was read: "line 12", "this machine"."""
    return f"line {fact.line}" if fact.line else _ORIGINS[fact.origin]


def contradiction_sentence(contradiction: Contradiction) -> str:
    """Return which of two facts that exclude each other counts, and why."""
    counted = contradiction.counted
    ignored = contradiction.ignored
    label = label_of(counted.name)
    sentence = (
        f"{_ORIGINS[ignored.origin]} says {label} {ignored.value}, and line {counted.line} of the "
        f"log {counted.value}: the log counts"
    )
    if ignored.origin == "machine" and ignored.name in IDENTITY:
        return f"{sentence}, and nothing of this machine is used"
    return f"{sentence}, because it shows what the build used"


def success_sentence(diagnosis: Diagnosis) -> str:
    """Return that the log shows success after the failure; "" if it does not."""
    if not diagnosis.succeeds_at:
        return ""
    return (
        f"line {diagnosis.succeeds_at} shows success after that: "
        "if it is of the same build, this failure is mended already"
    )


def witness_sentence(diagnosis: Diagnosis) -> str:
    """Return by which path the log was told to be from this machine.

    "" if nothing that this machine says is a part of the answer.
    """
    situation = diagnosis.situation
    witness = situation.facts.get(WITNESS)
    facts = deciding_facts(diagnosis, diagnosis.match) if diagnosis.match else []
    facts += [contradiction.ignored for contradiction in situation.contradictions]
    if witness is None or all(fact.origin != "machine" for fact in facts):
        return ""
    return (
        f"line {witness.line} names {witness.value}, which is here, so this machine is taken for "
        "that of the log, as it is now; `--host FILE` describes another one"
    )


def diagnosis_as_data(diagnosis: Diagnosis, log: str) -> dict[str, Any]:
    """Return a diagnosis as JSON-ready data; null stands for the unknown."""
    match = diagnosis.match
    cause: dict[str, Any] | None = None
    candidates: list[dict[str, Any]] = []
    probes: list[str] = []
    if match:
        answer = match.ranking.answer
        cause = {
            "name": match.cause.name,
            "candidate": answer.candidate.name if answer else None,
            "cause": match.cause.cause,
            "cure": match.cause.cure,
            "command": first_command(match.cause.cure) or None,
            "source": match.cause.source,
            "line": match.line.number,
            "text": match.line.text,
            "making": match.target,
            "facts": [fact.name for fact in deciding_facts(diagnosis, match)],
        }
        candidates = list(_candidates_as_data(diagnosis, match))
        probes = list(_probes(match))
    return {
        "log": log,
        "outcome": diagnosis.outcome,
        "failure": asdict(diagnosis.failure) if diagnosis.failure else None,
        "cause": cause,
        "causes": candidates,
        "facts": [_fact_as_data(fact) for fact in diagnosis.situation.facts.values()],
        "contradictions": [
            contradiction_sentence(contradiction)
            for contradiction in diagnosis.situation.contradictions
        ],
        "probes": probes,
        "unread": diagnosis.unread or None,
        "succeeds_at": diagnosis.succeeds_at or None,
    }


def _candidates_as_data(diagnosis: Diagnosis, match: DiagnosedCause) -> Iterator[dict[str, Any]]:
    """Yield the candidates of a cause that are not refuted, the best first."""
    values = diagnosis.situation.values()
    for judged in match.ranking.candidates:
        candidate = judged.candidate
        yield {
            "name": candidate.name,
            "verdict": judged.verdict,
            "cause": fill_facts(candidate.cause, values),
            "cure": write_cure(candidate.cure, values),
            "tell": candidate.tell or None,
            "unknown": list(judged.unknown),
        }


def _probes(match: DiagnosedCause) -> Iterator[str]:
    """Yield the commands that would tell the candidates apart, each once."""
    ranking = match.ranking
    commands = [judged.candidate.tell for judged in ranking.candidates]
    for judged in ranking.candidates:
        commands += [probe_of(name) for name in judged.unknown]
    yield from dict.fromkeys(command for command in commands if command)


def _fact_as_data(fact: Fact) -> dict[str, Any]:
    """Return a fact as JSON-ready data."""
    return {
        "name": fact.name,
        "value": fact.value,
        "origin": fact.origin,
        "line": fact.line or None,
        "text": fact.text or None,
        "basis": [basis.name for basis in fact.basis],
    }
