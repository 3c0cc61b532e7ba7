"""What the doctor found, for people and for programs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from torchmill import console
from torchmill.doctor.finding import VERDICTS, Finding, Verdict


def as_text(findings: Sequence[Finding]) -> str:
    """Return the table, and below it what the verdicts mean and the commands that cure them."""
    rows = [(one.verdict, one.subject, one.found, one.needed) for one in findings]
    table = console.table(("verdict", "check", "found", "needed"), rows)
    return "\n".join([table, *_remarks(findings)])


def _remarks(findings: Iterable[Finding]) -> Iterator[str]:
    for one in findings:
        cure = one.cure if one.verdict in {"warning", "failure"} else ""
        if one.because or cure:
            yield f"\n{one.subject}: {one.because or f'{one.found} here, needed {one.needed}'}"
        if cure:
            yield f"    {cure}"


def as_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the findings as JSON-ready data."""
    return [asdict(one) for one in findings]


def summary(findings: Iterable[Finding]) -> str:
    """Return how many checks ended in which way: "14 ok, 1 warning"."""
    counts = Counter(one.verdict for one in findings)
    return ", ".join(f"{counts[one]} {_counted(one, counts[one])}" for one in VERDICTS if one in counts)


def _counted(verdict: Verdict, count: int) -> str:
    return f"{verdict}s" if verdict in {"warning", "failure"} and count > 1 else verdict
