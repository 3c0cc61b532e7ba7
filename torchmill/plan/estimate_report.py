"""The cost of a build, and the risk that its link overflows, for people and as data.

The link of libtorch_cuda overflows if the library grows larger than its code can address: see
`link_overflow`.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torchmill.config.arch_list import format_arch_list
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.toolkit import Toolkit
from torchmill.core.units import format_bytes
from torchmill.host.host import Host
from torchmill.plan import link_overflow, published
from torchmill.plan.arch_choice import find_arch_problems, shortest_arch_list
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.drivers import driver_runs
from torchmill.plan.estimate import Estimate, estimate_build, format_estimate
from torchmill.plan.link_overflow import OverflowRisk
from torchmill.plan.plan import Plan
from torchmill.plan.published import GITHUB_LARGEST, PYPI_LARGEST
from torchmill.plan.settings import heavier_settings

# The largest files that can be published, in bytes, by the place that takes them.
_LARGEST_FILES = {
    "PyPI takes unless it grants more (100 MiB)": PYPI_LARGEST,
    "a release on GitHub takes (2 GiB)": GITHUB_LARGEST,
}
_IN_SHARED_TREE = " in the tree of the first Python"


def estimate_as_data(
    facts: Facts,
    plan: Plan,
    own_runs: Sequence[MeasuredRun] = (),
    gpus: Sequence[Capability] = (),
    *,
    is_further_python: bool = False,
) -> dict[str, Any]:
    """Return the estimate and the risk as JSON-ready data; None in place of what is not known.

    `gpus` are the compute capabilities that the remedies of the risk must keep. The other arguments
    are those of `estimate_build`.
    """
    estimate = estimate_build(facts, plan, own_runs, is_further_python=is_further_python)
    risk = _overflow_risk(facts, plan, gpus)
    return {
        "estimate": asdict(estimate) if estimate else None,
        "overflow": asdict(risk) if risk else None,
    }


def estimate_as_text(
    facts: Facts,
    plan: Plan,
    memory: int,
    own_runs: Sequence[MeasuredRun] = (),
    gpus: Sequence[Capability] = (),
    *,
    is_further_python: bool = False,
) -> str:
    """Return the estimate and the risk as lines for people; "" if neither is known.

    An empty line stands before each. `memory` are the bytes that the build may use. The other
    arguments are those of `estimate_as_data`.
    """
    lines: list[str] = []
    estimate = estimate_build(facts, plan, own_runs, is_further_python=is_further_python)
    if estimate:
        tree = _IN_SHARED_TREE if is_further_python else ""
        lines += ["", "estimate"]
        lines += [f"  {line}" for line in _estimate_lines(estimate, memory, tree)]
    risk = _overflow_risk(facts, plan, gpus)
    if risk is not None and risk.level != "none":
        lines += ["", f"warning: {risk.sentence}:"]
        lines.append('  "relocation truncated to fit" would end the build')
        lines += [f"  instead: {cure}" for cure in risk.cures]
    return "\n".join(lines)


def _estimate_lines(estimate: Estimate, memory: int, tree_clause: str) -> list[str]:
    """Return an estimate as lines; those with details are indented.

    `memory` are the bytes that the build may use. `tree_clause` follows the time.
    """
    cpu = format_estimate(estimate.cpu.likely)
    lines = [
        f"time: {estimate.wall}{tree_clause}",
        f"  with an empty compiler cache; {cpu} of processor time",
        f"memory: {estimate.memory.in_bytes} by all compiles together",
        f"  {estimate.compile.in_bytes} by each of the largest",
    ]
    if estimate.memory.high > memory:
        lines.append(
            f"  at worst more than the {format_bytes(memory)} there is: the guard then lets fewer "
            "run"
        )
    tree = estimate.tree.in_bytes
    lines.append(f"disk: {tree} for the tree, {estimate.wheel.in_bytes} for the wheel")
    for place, largest in _LARGEST_FILES.items():
        if estimate.wheel.high > largest:
            lines.append(f"  at worst a larger file than {place}")
    lines.append(f"judged by {estimate.confidence}: {estimate.basis}")
    return lines


def cost_rows(
    facts: Facts,
    plan: Plan,
    own_runs: Sequence[MeasuredRun] = (),
    *,
    is_further_python: bool = False,
) -> dict[str, str]:
    """Return the costs of a build by title: "time", "memory", "disk", and "risk" if its link has one.

    Without an estimate, "time" says so, and "memory" and "disk" are missing. The arguments are
    those of `estimate_build`.
    """
    rows = {"time": "unknown: nothing like it was ever measured"}
    estimate = estimate_build(facts, plan, own_runs, is_further_python=is_further_python)
    if estimate:
        tree = _IN_SHARED_TREE if is_further_python else ""
        boards = _boards_clause(plan, own_runs)
        rows = {
            "time": f"{estimate.wall}{tree}, judged by {estimate.confidence}{boards}",
            "memory": estimate.memory.in_bytes,
            "disk": f"{estimate.tree.in_bytes} for the tree",
        }
    risk = _overflow_risk(facts, plan)
    if risk is not None and risk.level != "none":
        rows["risk"] = risk.sentence
    return rows


def expected_duration(
    facts: Facts,
    plan: Plan,
    own_runs: Sequence[MeasuredRun] = (),
    *,
    is_further_python: bool = False,
) -> str:
    """Return a sentence on how long carrying out a plan takes; "" if nothing is known.

    The arguments are those of `estimate_build`.
    """
    estimate = estimate_build(facts, plan, own_runs, is_further_python=is_further_python)
    if estimate is None:
        return ""
    tree = _IN_SHARED_TREE if is_further_python else ""
    boards = _boards_clause(plan, own_runs)
    sentence = (
        f"expected to take {estimate.wall}{tree}, less with what the compiler cache has{boards}"
    )
    heavier = ", ".join(setting.name for setting in heavier_settings(plan.variables))
    if heavier:
        sentence += f", and more with {heavier}, which nobody measured"
    return sentence


def _boards_clause(plan: Plan, own_runs: Sequence[MeasuredRun]) -> str:
    """Return a clause on the machines for which an estimated time is too short, or ""."""
    if plan.build.arch != "aarch64" or plan.is_crossed:
        return ""
    # Builds for another architecture tell nothing of the time in an emulator.
    if any(run.arch == plan.build.arch for run in own_runs):
        return ""
    # The aarch64 machines on which builds were measured are servers and a laptop.
    return (
        "; much longer on a small board such as a Raspberry Pi, or in an emulator without cross "
        "compilers"
    )


def _overflow_risk(
    facts: Facts, plan: Plan, gpus: Sequence[Capability] = ()
) -> OverflowRisk | None:
    """Return the risk that the link of a plan overflows; None without CUDA, or if unknown."""
    cuda = plan.cuda.toolkit
    if cuda is None:
        return None
    return link_overflow.predict_overflow(facts, plan.release, cuda, plan.variables, gpus)


def saving_for_gpus(
    facts: Facts, cell: Cell, host: Host, options: Options = NO_OPTIONS
) -> list[str]:
    """Return a sentence on the time that a list for the host's GPUs alone would save.

    There is no sentence if the user gives an arch list, if the toolkit, the release or the driver
    do not serve the GPUs, or if nothing is known to be saved.
    """
    if options.arch_list or "TORCH_CUDA_ARCH_LIST" in options.settings:
        return []
    toolkit = facts.toolkit(cell.build.cuda)
    if options.toolkit:
        toolkit = find_toolkit(facts, "--toolkit", options.toolkit)
    if toolkit is None:
        return []
    gpus = _served_gpus(facts, cell, host, toolkit)
    if not gpus or not driver_runs(toolkit, host):
        return []
    targets = shortest_arch_list(facts, gpus)
    # `compute_plan` would raise an error for a list that the release refuses.
    if any(find_arch_problems(facts, targets, toolkit, cell.release)):
        return []
    shortest = format_arch_list(targets)
    short_plan = compute_plan(facts, cell, host, replace(options, arch_list=shortest))
    short_seconds = _likely_seconds(facts, short_plan)
    whole_seconds = _likely_seconds(facts, compute_plan(facts, cell, host, options))
    if short_seconds is None or whole_seconds is None or short_seconds >= whole_seconds:
        return []
    # A board runs no code for other capabilities, so the official list would not serve it.
    word = "required" if any(gpu.tegra for gpu in gpus) else "enough"
    sentence = (
        f"for the GPUs here `--arch-list '{shortest}'` is {word}: {short_plan.identifier} of "
        f"{cell.release} then takes about {format_estimate(short_seconds)} instead of "
        f"{format_estimate(whole_seconds)}"
    )
    return [sentence]


def _served_gpus(facts: Facts, cell: Cell, host: Host, toolkit: Toolkit) -> list[Capability]:
    """Return the capabilities of the GPUs that the wheel of a cell will run on.

    These are the host's, or those of a usual machine if the wheel is for another architecture or
    system. [] if a GPU is unknown, or if the toolkit makes no code for it.
    """
    target = published.target_host(facts, host, cell.build.arch)
    served: list[Capability] = []
    for gpu in target.gpus.devices:
        capability = gpu_capability(facts, gpu)
        if capability is None or capability.name not in toolkit.capabilities:
            return []
        served.append(capability)
    return served


def _likely_seconds(facts: Facts, plan: Plan) -> float | None:
    """Return the most likely duration of a build in seconds; None if nothing is known."""
    estimate = estimate_build(facts, plan)
    return estimate.wall.likely if estimate else None
