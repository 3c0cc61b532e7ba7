"""One screen on a draft: what was written, what was tried with it, and what to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchmill.plan.package_draft.draft import PackageDraft
from torchmill.plan.package_draft.scenarios import Scenario
from torchmill.plan.package_draft.setup_run import CompiledFile

_SHOWN_LIBRARIES = 3
_MOST_LINES = 8  # of what to look at


@dataclass(frozen=True, slots=True)
class FirstCompile:
    """The outcome of compiling one file."""

    language: str  # "C++", "CUDA"
    file: CompiledFile | None = None  # None: it was not compiled, for `reason`
    reason: str = ""
    error: str = ""  # the first one of the compiler
    cause: str = ""  # that the catalogue of failures has for it

    def __str__(self) -> str:
        """Return it as a line."""
        if self.file is None:
            return f"{self.language}: not compiled: {self.reason}"
        if not self.file.error:
            return f"{self.language}: {self.file.source} compiles ({self.file.seconds:.0f} s)"
        cause = f"\n      {self.cause}" if self.cause else ""
        return f"{self.language}: {self.file.source} does not compile: {self.error}{cause}"


@dataclass(frozen=True, slots=True)
class DraftTrial:
    """What was tried with a draft."""

    cell: str = ""  # that has a plan: "spline-conv-3.11-cu130"; "" if none has
    release: str = ""  # of the torch that it is built against
    refusal: str = ""  # why there is no plan
    compiles: tuple[FirstCompile, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Everything that the summary is made of."""

    draft: PackageDraft
    file: str
    torch: str
    trial: DraftTrial
    source: str = ""  # a path or URL, if the source did not come from the index


def summarize(report: DraftReport) -> str:
    """Return one screen on a draft."""
    draft = report.draft
    trial = report.trial
    lines = [
        f"{draft.name} {draft.version}: imported as {draft.import_name}, {_libraries(draft)}",
        f"  known from    {draft.proof}",
        f"  without CUDA  {_way(draft.cpu, draft.cpu_failure)}",
        f"  with CUDA     {_way(draft.cuda, draft.cuda_failure)}",
    ]
    if draft.requirements:
        lines.append(f"  its build     installs {', '.join(draft.requirements)}")
    for edit in draft.edits:
        lines.append(f"  edited        {edit.reason}")
    if trial.cell:
        lines.append(f"  plan          {trial.cell}, against {report.torch}")
    else:
        lines.append(f"  plan          none: {trial.refusal}")
    lines += [f"  first compile {compiled}" for compiled in trial.compiles]
    doubts = list(_doubts(draft))
    if doubts:
        lines.append("look at:")
        lines += [f"  {doubt}" for doubt in doubts[:_MOST_LINES]]
        if len(doubts) > _MOST_LINES:
            lines.append(f"  {len(doubts) - _MOST_LINES} more in {report.file}")
    if trial.cell:
        words = f"invoke build {draft.name}"
        if draft.is_without_cuda:
            words += " --cuda cpu"
        if report.source:
            words += f" --from {report.source}"
        lines.append(f"next: `{words}`; nobody is known to have built it")
    return "\n".join(lines)


def _libraries(draft: PackageDraft) -> str:
    """Return how many files the libraries of a draft are made of, and the names of some of these."""
    if not draft.extensions:
        return "with libraries that are not known"
    count = sum(len(extension.sources) for extension in draft.extensions)
    names = ", ".join(extension.name for extension in draft.extensions[:_SHOWN_LIBRARIES])
    rest = len(draft.extensions) - _SHOWN_LIBRARIES
    remainder = f" and {rest} more" if rest > 0 else ""
    return f"{count} files for {names}{remainder}"


def _way(scenario: Scenario | None, failure: str) -> str:
    """Return how a build is reached, or why it is not."""
    if scenario is None:
        return f"no: {failure or 'unknown'}"
    words = [f"{name}={value}" for name, value in scenario.variables.items()]
    if scenario.constant:
        words.append(f"{scenario.constant} in setup.py")
    if scenario.nvcc_on_path:
        words.append("nvcc on PATH")
    if scenario.gpu:
        words.append("a GPU is assumed")
    return f"yes, with {', '.join(words)}" if words else "yes"


def _doubts(draft: PackageDraft) -> Iterator[str]:
    """Yield what to look at: first what the runs leave open, then what the files show."""
    yield from draft.doubts
    for finding in draft.findings:
        if finding.subject != "files":
            yield str(finding)
