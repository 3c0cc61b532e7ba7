"""The parts of the CUDA toolkit that a build takes: those that are lacking, and what completes it."""

from collections.abc import Iterator

from torchwright.doctor import provided
from torchwright.doctor.finding import Finding, Question
from torchwright.host.parts import called


def check(question: Question) -> Iterator[Finding]:
    """Yield a finding where the toolkit of the build lacks parts."""
    cuda, host = question.plan.toolkit or "", question.host
    names = host.lacking.get(cuda, "").split(", ")
    lacks = [part for part in question.facts.toolkit_parts if part.name in names]
    if not lacks:
        return
    cure = provided.completion(question, cuda, lacks)
    found, needed = f"no {called(lacks)} in {host.toolkits[cuda]}", "all that torch's build uses"
    if any(not part.without for part in lacks):
        yield Finding("parts of CUDA", found, needed, "failure", cure)
    else:
        because = "; ".join(part.without for part in lacks)
        yield Finding("parts of CUDA", found, needed, "warning", cure, because)
