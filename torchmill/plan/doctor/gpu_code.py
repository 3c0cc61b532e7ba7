"""Check the GPUs of a machine against the code that a wheel will have."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchmill.config.arch_list import (
    ArchTarget,
    format_arch_list,
    parse_arch_list,
    target_key,
)
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability, known_capabilities
from torchmill.config.served_gpus import ptx_runs, serving_kind
from torchmill.config.toolkit import Toolkit
from torchmill.plan.arch_choice import library_gap, shortest_arch_list
from torchmill.plan.arch_toolkits import describe_first_builds
from torchmill.plan.doctor import other_toolkits
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.drivers import driver_compiles_ptx
from torchmill.plan.local_gpus import refuses_capability

_SUBJECT = "GPU"


def check_gpus(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding on each GPU of this machine: whether the wheel will have code for it.

    GPUs alike have one together. There is none for a build without CUDA.
    """
    if context.toolkit is None:
        return
    for gpu in dict.fromkeys(context.host.gpus.devices):
        yield _gpu_finding(context, context.toolkit, gpu)


def _gpu_finding(context: CheckContext, toolkit: Toolkit, gpu: Gpu) -> Finding:
    """Return the finding on one GPU, by the arch list of the build."""
    facts = context.facts
    listed = context.plan.arch_list
    capability = gpu_capability(facts, gpu)
    needed = f"one of {listed}" if listed else "a capability that is listed"
    if capability is None or not listed:
        return Finding(_SUBJECT, gpu.name, needed, "unknown")
    finding = Finding(_SUBJECT, f"{gpu.name} ({capability.name})", needed, "ok")
    targets, problems = parse_arch_list(facts, listed, context.cell.release.torch_version)
    if not targets:
        # Only `--set TORCH_CUDA_ARCH_LIST=…` brings such a list: --arch-list is checked before.
        return replace(finding, verdict="unknown", because="; ".join(problems))
    kind = serving_kind(facts, targets, capability)
    if kind == "code":
        return finding
    # Without code for this GPU, the wheel still runs here if it has some for another.
    finding = replace(finding, runs_here=_serves_another(context, targets, capability))
    if kind == "PTX":
        return _served_by_ptx(context, toolkit, capability, finding)
    return _without_code(context, toolkit, capability, targets, finding)


def _serves_another(
    context: CheckContext, targets: Sequence[ArchTarget], unserved: Capability
) -> bool:
    """Tell whether a list serves a GPU of the host with another capability than the unserved one."""
    facts = context.facts
    return any(
        serving_kind(facts, targets, gpu)
        for gpu in known_capabilities(facts, context.host.gpus.devices)
        if gpu.name != unserved.name
    )


def _served_by_ptx(
    context: CheckContext, toolkit: Toolkit, gpu: Capability, finding: Finding
) -> Finding:
    """Return the finding on a GPU for which a list has only PTX.

    A driver compiles PTX if it is as new as the toolkit.
    """
    because = "the list has only PTX for this GPU"
    if not driver_compiles_ptx(toolkit, context.host):
        because += f", which a driver before {toolkit.driver_ptx} does not compile"
        cure = f"install driver {toolkit.driver_ptx} or newer"
        return replace(finding, verdict="warning", cure=cure, because=because)
    because += ": the driver compiles it when it is first used"
    gap = library_gap(toolkit, gpu)
    if not gap:
        return replace(finding, because=because, runs_here=True)
    finding = replace(finding, verdict="warning", because=f"{because}, but {gap}", runs_here=True)
    return _with_other_builds(context, toolkit, gpu, finding)


def _without_code(
    context: CheckContext,
    toolkit: Toolkit,
    gpu: Capability,
    targets: Sequence[ArchTarget],
    finding: Finding,
) -> Finding:
    """Return the finding on a GPU that a list does not serve, with a list that does."""
    facts = context.facts
    because = "the wheel builds, but holds no code for this GPU"
    finding = replace(finding, verdict="warning")
    if refuses_capability(facts, context.cell, toolkit, gpu):
        knows_gpu = gpu.name in toolkit.capabilities
        maker = context.cell.release if knows_gpu else f"CUDA {toolkit.version}"
        because += f", nor can {maker} make any"
        cure_list = _list_with_ptx(facts, targets, gpu)
        if gpu.tegra:
            because += "; a board runs no code for another capability"
        if gpu.tegra and cure_list:
            because += ", but its driver compiles PTX"
        cure = _list_cure(context, cure_list) if cure_list else ""
        finding = replace(finding, cure=cure, because=because)
        return _with_other_builds(context, toolkit, gpu, finding)
    if gpu.tegra:
        because += f", and a board runs no code for another capability: {gpu.name} is required"
    servable = [
        capability
        for capability in known_capabilities(facts, context.host.gpus.devices)
        if not refuses_capability(facts, context.cell, toolkit, capability)
    ]
    cure = _list_cure(context, shortest_arch_list(facts, servable))
    return replace(finding, cure=cure, because=because)


def _list_cure(context: CheckContext, targets: Sequence[ArchTarget]) -> str:
    """Return the command that builds with a list."""
    return f"{context.session} -- --arch-list '{format_arch_list(targets)}'"


def _list_with_ptx(
    facts: Facts, targets: Sequence[ArchTarget], gpu: Capability
) -> Sequence[ArchTarget]:
    """Return a list like `targets` whose PTX runs on a GPU; () if there is none.

    Drivers compile PTX for GPUs of the same capability and of newer ones, those of boards included.
    To a card, the list adds PTX of its newest entry. For a board it has nothing but PTX, because
    code for another capability never runs there:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    with_ptx = [
        ArchTarget(target.capability, ptx=True) for target in sorted(targets, key=target_key)
    ]
    if gpu.tegra:
        return [target for target in with_ptx if ptx_runs(facts, target, gpu)][-1:]
    newest = with_ptx[-1]
    return (*targets, newest) if ptx_runs(facts, newest, gpu) else ()


def _with_other_builds(
    context: CheckContext, toolkit: Toolkit, gpu: Capability, finding: Finding
) -> Finding:
    """Return the finding on a GPU, with cures by which other builds have code for it.

    The finding's own cure, if any, is a list with PTX. It goes first if the libraries of the
    toolkit have code for the GPU as well, and last if they have none.
    """
    because = finding.because
    gap = library_gap(toolkit, gpu)
    cures: list[str] = []
    if finding.cure and not gap:
        cures.append(finding.cure)
    tried = other_toolkits.tried_toolkit(context, gpu.name)
    cures.append(tried)
    # An extension goes with one release of torch: builds of other releases do not cure it.
    is_torch = context.cell.release.torch is None
    first = describe_first_builds(context.facts, gpu, toolkit) if is_torch else ""
    if first:
        because += f"; the first with code for {gpu.name} are {first}"
        cures.append(
            f"`invoke build --gpu {gpu.name}` chooses a release and a toolkit with code for it"
        )
    if not tried:
        cures.append(other_toolkits.untried_toolkit(context, "makes code for it", gpu.name))
    if finding.cure and gap:
        cures.append(f"`{finding.cure}`: the driver compiles PTX, but {gap}")
    cures = [cure for cure in cures if cure] or [""]
    return replace(finding, cure=cures[0], because=because, other_cures=tuple(cures[1:]))
