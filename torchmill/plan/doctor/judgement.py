"""What is known beforehand of a cell on a machine: one judgement, which the doctor, plans and builds all show."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.served_gpus import how_served, serving_target
from torchmill.config.toolkit import Toolkit
from torchmill.plan import estimate
from torchmill.plan.arch_choice import official_arch_list, shortest_arch_list
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor.cuda import check_cudnn_code
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.gpu_driver import check_driver
from torchmill.plan.doctor.other_toolkits import serves_as_well
from torchmill.plan.local_gpus import takes_no_code
from torchmill.plan.plan import Plan
from torchmill.plan.published import find_published
from torchmill.plan.trial import find_trial, nearest_tried

Severity = Literal["note", "warning", "would not run here", "impossible"]
_MARKS: dict[Severity, str] = {
    "note": "note",
    "warning": "warning",
    "would not run here": "does not run here",
    "impossible": "impossible",
}

_OFFICIAL_BUILDS = "https://pytorch.org/get-started/previous-versions/"
TRIED = "tried"  # the subject of who has built a cell before
_SAYS_ALL = {TRIED, "GPU code"}  # subjects of findings whose reason names what was found


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing to know of a build before it begins."""

    subject: str  # "GPU"
    text: str  # a clause, with what helps
    severity: Severity

    def __str__(self) -> str:
        """Return it as a line of text."""
        return f"{_MARKS[self.severity]}: {self.text}"

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)


def judge(context: CheckContext) -> tuple[Judgement, ...]:
    """Return what is to be known of the result of a build, the gravest first."""
    findings = [*check_trial(context)]
    if (
        context.host.arch == context.build.arch
    ):  # of the machines that others are for nothing is known
        findings += check_result(context)
    if (
        context.toolkit is not None
        and not context.package.after
        and not context.is_off("USE_CUDNN")
    ):
        findings += check_cudnn_code(context)
    judged = [
        Judgement(one.subject, _text(one), severity)
        for one in findings
        if (severity := _severity(one))
    ]
    order: tuple[Severity, ...] = ("impossible", "would not run here", "warning", "note")
    return tuple(sorted(dict.fromkeys(judged), key=lambda one: order.index(one.severity)))


def runs_here(judgements: Iterable[Judgement]) -> bool:
    """Tell whether nothing that is known keeps what is built from running on a machine's GPUs."""
    return all(one.severity != "would not run here" for one in judgements)


def check_result(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on what the wheel meets when it is run on this machine."""
    yield from check_driver(context)
    yield from _arch_list(context)


def check_trial(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on who has built a cell before."""
    cell = _compiled_cell(context)
    trial = find_trial(context.facts, cell, context.host.runs)
    if trial.witness:
        yield Finding(TRIED, f"by {trial.witness}", "by anybody", "ok")
    else:
        because = f"{trial.text}: it may stop after hours, or make a wheel that does not work"
        near = nearest_tried(
            context.facts, cell, lambda other: serves_as_well(context, other, cell)
        )
        cure = f"nox -s {near.build.identifier(context.host.arch)}" if near else ""
        if near is None and nearest_tried(context.facts, cell, lambda _: True):
            because += "; no toolkit with which it was built serves this machine"
        because += _official_build(context, near) if near else ""
        yield Finding(TRIED, "by nobody", "by anybody", "warning", cure, because)


def _official_build(context: CheckContext, cell: Cell) -> str:
    """Return the official wheel of a cell that is offered instead, as a further clause; "" if it does not fit here."""
    official = find_published(context.facts, cell, context.host, context.plan.arch_list)
    if official:
        return f"; {official}" if official.verdict.fit != "does not fit" else ""
    if find_trial(context.facts, cell).witness != "upstream" or cell.release.torch:
        return ""
    return (
        f"; upstream built that too, and lists its wheels: {_OFFICIAL_BUILDS} "
        "(whether one fits here is not recorded)"
    )


def _compiled_cell(context: CheckContext) -> Cell:
    """Return the cell as if the toolkit that compiles it were its variant's."""
    toolkit = context.toolkit
    if toolkit is None or toolkit.version == context.build.cuda:
        return context.cell
    cell = cell_with_toolkit(context.cell, toolkit.version)
    return replace(cell, build=replace(cell.build, variant=toolkit.variant))


def _arch_list(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on a list that has code for more GPUs than this machine has, or for these alone."""
    gpus = [gpu_capability(context.facts, gpu) for gpu in context.host.gpus]
    known = [gpu for gpu in gpus if gpu is not None]
    listed = context.plan.arch_list
    if context.toolkit is None or not listed:
        return
    if context.host.gpus_unknown:
        because = f"which GPUs are here cannot be told ({context.host.gpus_unknown}): it has code for {listed}"
        yield Finding("GPU code", listed, "the GPUs here", "ok", because=because)
    if not known or len(known) < len(gpus):
        return
    targets = arch_list.parse_targets(context.facts, listed)
    shortest = _shortest_list(context, context.toolkit, targets, known)
    if any(how_served(context.facts, targets, gpu) != "code" for gpu in known):
        return  # of which the finding on that GPU speaks
    names = arch_list.format_arch_list(shortest)
    if len({one.name for one in targets}) > len(shortest):
        short = replace(
            context.plan, variables={**context.plan.variables, "TORCH_CUDA_ARCH_LIST": names}
        )
        saving = _times(context, short, context.plan)
        because = f"the GPUs here need code for {names} alone{f', which takes {saving}' if saving else ''}"
        if unmade := [
            gpu.name
            for gpu in known
            if takes_no_code(context.facts, context.cell, context.toolkit, gpu)
        ]:
            because += (
                f"; none is made for {', '.join(dict.fromkeys(unmade))} itself, which runs this"
            )
        cure = f"{context.session} -- --arch-list '{names}'"
        yield Finding("GPU code", listed, names, "ok", cure, because)
    elif text := _for_these_alone(context, listed, known):
        yield Finding("GPU code", listed, names, "ok", because=text)


def _shortest_list(
    context: CheckContext,
    toolkit: Toolkit,
    targets: Sequence[ArchTarget],
    gpus: Iterable[Capability],
) -> Sequence[ArchTarget]:
    """Return the shortest list for some GPUs that toolkit and release make.

    Code for a GPU that they cannot name is that of the entry of `targets` which serves it.
    """
    facts, names = context.facts, []
    for gpu in gpus:
        served = serving_target(facts, targets, gpu)
        if takes_no_code(facts, context.cell, toolkit, gpu) and served:
            names.append(served[1].capability)
        else:
            names.append(gpu.name)
    known = [facts.capability(name) or Capability(name, "", ()) for name in dict.fromkeys(names)]
    return shortest_arch_list(facts, known)


def _for_these_alone(context: CheckContext, listed: str, gpus: Iterable[Capability]) -> str:
    """Return that a list is for the GPUs of the host alone, and what is for all official ones; "" if it is."""
    cell = cell_with_toolkit(context.cell, context.plan.cuda.toolkit)
    official = official_arch_list(context.facts, cell) or ""
    targets = arch_list.parse_targets(context.facts, official)
    board = next((gpu.name for gpu in gpus if gpu.tegra), "")
    if board and board in {
        one.capability for one in arch_list.parse_targets(context.facts, listed)
    }:
        return f"code for {board} is required here: a board runs no code for another capability"
    if len(targets) <= len(arch_list.parse_targets(context.facts, listed)):
        return ""
    whole = replace(
        context.plan, variables={**context.plan.variables, "TORCH_CUDA_ARCH_LIST": official}
    )
    saving = _times(context, context.plan, whole)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in context.host.gpus))
    text = f"it has code for {names} ({listed}) alone"
    return f"{text}{f', and takes {saving}' if saving else ''}; `--arch-list official` makes it for {official}"


def _times(context: CheckContext, short: Plan, whole: Plan) -> str:
    """Return "about 2.4 h instead of 8.0 h"; "" if the second is no longer, or nothing is known of them."""
    known = [estimate.estimate_build(context.facts, plan) for plan in (short, whole)]
    likely = [one.wall.likely for one in known if one]
    if len(likely) < len(known) or likely[0] >= likely[1]:
        return ""
    return f"about {estimate.format_estimate(likely[0])} instead of {estimate.format_estimate(likely[1])}"


def _severity(finding: Finding) -> Severity | None:
    if finding.verdict == "failure":
        return "warning" if finding.cure else "impossible"
    if not finding.runs_here:
        return "would not run here"
    if finding.verdict == "warning":
        return "warning"
    told = finding.verdict == "ok" and bool(finding.because) and finding.subject != "GPU driver"
    return "note" if told else None


def _text(finding: Finding) -> str:
    """Return a finding as a clause: what is meant, and what helps."""
    said = finding.because or f"needed {finding.needed}"
    named = said if finding.subject in _SAYS_ALL else f"{finding.subject}, {finding.found}: {said}"
    cure = f"`{finding.cure}`" if finding.cure.startswith("nox ") else finding.cure
    return "; ".join(filter(None, (named, cure)))
