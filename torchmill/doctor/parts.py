"""The parts of the CUDA toolkit that a build takes: those that are lacking, and what completes it."""

from collections.abc import Iterator, Sequence

from torchmill.doctor import provided
from torchmill.doctor.finding import Finding, Question
from torchmill.host.parts import called
from torchmill.model import Facts, Host, Part

NEEDED = "all that torch's build uses"


def check(question: Question) -> Iterator[Finding]:
    """Yield a finding where the toolkit of the build lacks parts."""
    cuda, host = question.plan.toolkit or "", question.host
    lacks = lacking(question.facts, host, cuda)
    if not lacks:
        return
    cure = provided.completion(question, cuda, lacks)
    found = f"no {called(lacks)} in {host.toolkits[cuda]}"
    if any(not part.without for part in lacks):
        yield Finding("parts of CUDA", found, NEEDED, "failure", cure)
    else:
        because = "; ".join(part.without for part in lacks)
        yield Finding("parts of CUDA", found, NEEDED, "warning", cure, because)


def lacking(facts: Facts, host: Host, version: str) -> Sequence[Part]:
    """Return the parts that a host's toolkit of some version is known to lack."""
    names = host.lacking.get(version, "").split(", ")
    return [part for part in facts.toolkit_parts if part.name in names]
