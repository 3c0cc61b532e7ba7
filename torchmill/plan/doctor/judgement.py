"""Judge the result of a build before it begins: whether the wheel will run, and on which GPUs.

Plans and builds show judgements: the clauses of those findings that matter for the wheel. The
doctor shows the same findings in its table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.served_gpus import serving_kind, serving_target
from torchmill.config.toolkit import Toolkit
from torchmill.plan import estimate
from torchmill.plan.arch_choice import official_arch_list, shortest_arch_list
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.gpu_code import check_gpus
from torchmill.plan.doctor.gpu_driver import DRIVER, check_driver
from torchmill.plan.doctor.libraries import check_cudnn_code
from torchmill.plan.doctor.other_toolkits import serves_as_well
from torchmill.plan.doctor.target_libraries import check_target_libraries
from torchmill.plan.doctor.vulnerabilities import VULNERABILITIES, check_vulnerabilities
from torchmill.plan.local_gpus import refuses_capability
from torchmill.plan.plan import Plan
from torchmill.plan.published import find_published
from torchmill.plan.trial import find_trial, nearest_tried

Severity = Literal["note", "warning", "would not run here"]
# The gravest first. In a line of text, a mark speaks of the finished wheel: in the present tense.
_MARKS: dict[Severity, str] = {
    "would not run here": "does not run here",
    "warning": "warning",
    "note": "note",
}
_RANKS = {severity: rank for rank, severity in enumerate(_MARKS)}

_OFFICIAL_BUILDS = "https://pytorch.org/get-started/previous-versions/"
TRIED = "tried"  # the subject of the finding on who has built a cell before
_GPU_CODE = "GPU code"
_STATED_IN_REASON = {TRIED, _GPU_CODE, VULNERABILITIES}  # subjects whose reason repeats their state
# Cures that begin so are commands, which a clause has between backquotes.
_COMMANDS = ("nox ", "export ")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a user should know of a wheel before its build begins, as one clause."""

    subject: str  # "GPU"
    text: str  # a clause, with the cure
    severity: Severity

    def __str__(self) -> str:
        """Return the judgement as a line of text."""
        return f"{_MARKS[self.severity]}: {self.text}"

    def as_data(self) -> dict[str, Any]:
        """Return the judgement as JSON-ready data."""
        return asdict(self)


def judge(context: CheckContext) -> tuple[Judgement, ...]:
    """Return the judgements on the result of a build, the gravest first."""
    findings = list(check_trial(context))
    # A wheel for another arch runs on another machine, of which nothing is known.
    if context.host.arch == context.build.arch:
        findings += check_result(context)
    # cuDNN's code is compared with the arch list, whichever machine the wheel is for. Only torch
    # itself links cuDNN; packages that are built against it do not.
    is_torch = context.package.after is None
    if is_torch and context.toolkit is not None and not context.is_off("USE_CUDNN"):
        findings += check_cudnn_code(context)
    findings += check_target_libraries(context)
    findings += check_vulnerabilities(context)
    judgements: dict[Judgement, None] = {}  # an ordered set
    for finding in findings:
        severity = _severity(finding)
        if severity is not None:
            judgements[Judgement(finding.subject, _text(finding), severity)] = None
    return tuple(sorted(judgements, key=_rank))


def _rank(judgement: Judgement) -> int:
    """Return the place of a judgement among others: the gravest has 0."""
    return _RANKS[judgement.severity]


def runs_here(judgements: Iterable[Judgement]) -> bool:
    """Tell whether no judgement says that the wheel will not run on this machine's GPUs.

    A wheel for another arch has no such judgement: nobody expects it to run here.
    """
    return all(judgement.severity != "would not run here" for judgement in judgements)


def check_result(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on whether the wheel runs on this machine, whatever arch it is for."""
    yield from check_driver(context)
    yield from check_gpus(context)
    yield from _check_arch_list(context)


def check_trial(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on who has built a cell before.

    If nobody has, its cure is the build of the tried cell whose toolkit is nearest and serves this
    machine.
    """
    cell = _compiled_cell(context)
    trial = find_trial(context.facts, cell, context.host.runs)
    if trial.witness:
        yield Finding(TRIED, f"by {trial.witness}", "by anybody", "ok")
        return
    because = f"{trial.text}: it may stop after hours, or make a wheel that does not work"
    cure = ""
    tried = nearest_tried(context.facts, cell, lambda other: serves_as_well(context, other, cell))
    if tried is not None:
        cure = f"nox -s {tried.build.identifier(context.host.arch)}"
        because += _official_build(context, tried)
    elif nearest_tried(context.facts, cell, lambda _: True):
        because += "; no toolkit with which it was built serves this machine"
    yield Finding(TRIED, "by nobody", "by anybody", "warning", cure=cure, because=because)


def _official_build(context: CheckContext, cell: Cell) -> str:
    """Return a further clause on the official wheel of a cell; "" if it does not fit here."""
    wheel = find_published(context.facts, cell, context.host, context.plan.arch_list)
    if wheel is not None:
        return "" if wheel.verdict.is_ruled_out else f"; {wheel}"
    # Without this machine's own runs, which would go before upstream as the witness.
    trial = find_trial(context.facts, cell)
    is_torch = cell.release.torch is None  # the page lists the builds of torch
    if trial.witness != "upstream" or not is_torch:
        return ""
    return (
        f"; upstream built that too, and lists its wheels: {_OFFICIAL_BUILDS} "
        "(whether one fits here is not recorded)"
    )


def _compiled_cell(context: CheckContext) -> Cell:
    """Return the cell, with the toolkit and variant that `--toolkit` chooses to compile it."""
    toolkit = context.toolkit
    if toolkit is None or toolkit.version == context.build.cuda:
        return context.cell
    # Trials are looked up by the variant as well as by the toolkit.
    cell = cell_with_toolkit(context.cell, toolkit.version)
    return replace(cell, build=replace(cell.build, variant=toolkit.variant))


def _check_arch_list(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding if the arch list is longer than this machine needs, or made for it alone.

    If the GPUs of the machine cannot be told, the finding names the list. There is no finding if
    the capability of any GPU is unknown, because no list is known to be enough then.
    """
    toolkit = context.toolkit
    listed = context.plan.arch_list
    if toolkit is None or not listed:
        return
    if context.host.unknown_gpus_reason:
        because = (
            f"which GPUs are here cannot be told ({context.host.unknown_gpus_reason}): "
            f"it has code for {listed}"
        )
        yield Finding(_GPU_CODE, listed, "the GPUs here", "ok", because=because)
        return
    devices = context.host.gpus.devices
    capabilities = known_capabilities(context.facts, devices)  # one for each known device
    if not capabilities or len(capabilities) < len(devices):
        return
    targets = arch_list.parse_checked_arch_list(context.facts, listed)
    kinds = {serving_kind(context.facts, targets, capability) for capability in capabilities}
    if kinds != {"code"}:
        return  # `check_gpus` has a finding on the GPU without code
    shortest = _shortest_list(context, toolkit, targets, capabilities)
    needed = arch_list.format_arch_list(shortest)
    # "8.6;8.6+PTX" has code for one capability.
    listed_names = {target.name for target in targets}
    if len(listed_names) > len(shortest):
        because = _shorter_list_clause(context, toolkit, needed, capabilities)
        cure = f"{context.session} -- --arch-list '{needed}'"
        yield Finding(_GPU_CODE, listed, needed, "ok", cure=cure, because=because)
        return
    because = _narrow_list_clause(context, listed, capabilities)
    if because:
        yield Finding(_GPU_CODE, listed, needed, "ok", because=because)


def _shorter_list_clause(
    context: CheckContext, toolkit: Toolkit, needed: str, capabilities: Iterable[Capability]
) -> str:
    """Return a clause on a shorter list, `needed`, that is enough here, and the time that it saves."""
    clause = f"the GPUs here need code for {needed} alone"
    saving = _saving(context, _with_list(context.plan, needed), context.plan)
    if saving:
        clause += f", and building that takes {saving}"
    unmade: dict[str, None] = {}  # an ordered set
    for capability in capabilities:
        if refuses_capability(context.facts, context.cell, toolkit, capability):
            unmade[capability.name] = None
    if unmade:
        names = ", ".join(unmade)
        clause += f"; GPUs of capability {names} run that code: none can be made for them alone"
    return clause


def _shortest_list(
    context: CheckContext,
    toolkit: Toolkit,
    targets: Sequence[ArchTarget],
    capabilities: Iterable[Capability],
) -> Sequence[ArchTarget]:
    """Return the shortest list that serves GPUs of some capabilities and that can be compiled.

    Toolkit or release may refuse a capability. Then the entry of `targets`, the list of the build,
    whose code runs on its GPUs takes its place.
    """
    facts = context.facts
    makeable: list[Capability] = []
    for capability in capabilities:
        serving = serving_target(facts, targets, capability)
        if serving is None or not refuses_capability(facts, context.cell, toolkit, capability):
            makeable.append(capability)
            continue
        _, target = serving
        # A list may name a capability that is newer than the facts.
        substitute = facts.capability(target.capability)
        makeable.append(substitute or Capability(target.capability, "", ()))
    return shortest_arch_list(facts, makeable)


def _narrow_list_clause(
    context: CheckContext, listed: str, capabilities: Iterable[Capability]
) -> str:
    """Return a clause on a list that is shorter than the official one; "" if it is not.

    On a board, the clause says that its capability is required: users should not replace it by
    another one in the hope that it serves as well.
    """
    cell = cell_with_toolkit(context.cell, context.plan.cuda.toolkit)
    official = official_arch_list(context.facts, cell) or ""
    targets = arch_list.parse_checked_arch_list(context.facts, listed)
    listed_names = {target.capability for target in targets}
    for capability in capabilities:
        name = capability.name
        if capability.tegra and name in listed_names:
            return f"code for {name} is required here: a board runs no code for another capability"
    if len(arch_list.parse_checked_arch_list(context.facts, official)) <= len(targets):
        return ""
    devices = context.host.gpus.devices
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    clause = f"it has code for {names} ({listed}) alone"
    saving = _saving(context, context.plan, _with_list(context.plan, official))
    if saving:
        clause += f", and takes {saving}"
    return f"{clause}; `--arch-list official` makes it for {official}"


def _with_list(plan: Plan, listed: str) -> Plan:
    """Return a plan with another arch list, for an estimate of its time."""
    return replace(plan, variables={**plan.variables, "TORCH_CUDA_ARCH_LIST": listed})


def _saving(context: CheckContext, shorter_plan: Plan, longer_plan: Plan) -> str:
    """Return the time that a shorter list saves: "about 2.4 h instead of 8.0 h".

    "" if it saves nothing, or if the times are not known.
    """
    shorter = estimate.estimate_build(context.facts, shorter_plan)
    longer = estimate.estimate_build(context.facts, longer_plan)
    if shorter is None or longer is None:
        return ""
    if shorter.wall.likely >= longer.wall.likely:
        return ""
    shorter_text = estimate.format_estimate(shorter.wall.likely)
    longer_text = estimate.format_estimate(longer.wall.likely)
    return f"about {shorter_text} instead of {longer_text}"


def _severity(finding: Finding) -> Severity | None:
    """Return how grave a finding is for the result of a build; None if it need not be shown."""
    if not finding.runs_here:
        return "would not run here"
    # Whether a failure stops the build is for the doctor to say: see `examination.can_start`.
    if finding.verdict in {"failure", "warning"}:
        return "warning"
    # A driver that runs the wheel is not mentioned, and a machine without a driver can build, too.
    if finding.verdict == "ok" and finding.because and finding.subject != DRIVER:
        return "note"
    return None


def _text(finding: Finding) -> str:
    """Return a finding as a clause, with its cure."""
    text = finding.because or f"needed {finding.needed}"
    if finding.subject not in _STATED_IN_REASON:
        text = f"{finding.subject}, {finding.state}: {text}"
    if not finding.cure:
        return text
    cure = finding.cure
    if cure.startswith(_COMMANDS):
        cure = f"`{cure}`"
    return f"{text}; {cure}"
