"""The outlook on wheels before they are built, and the question whether to build them anyway."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchmill.commands.terminal import agree
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability
from torchmill.core.errors import ConfigError
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host
from torchmill.plan.build_options import Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.doctor.judgement import Judgement, judge, runs_here
from torchmill.plan.local_gpus import with_local_gpus
from torchmill.plan.plan import Plan

ELSEWHERE = "--elsewhere"
_ALTERNATIVE = (
    "`invoke build --gpu local` chooses a release and a toolkit for those of this machine"
)


def judged_host(facts: Facts, host: Host, gpus: Sequence[Capability]) -> Host:
    """Return the machine that wheels are for: this one, or one with `gpus` alone if it has others.

    Nothing is known of the driver of another machine.
    """
    local_names = set()
    for gpu in host.gpus.devices:
        capability = gpu_capability(facts, gpu)
        if capability:
            local_names.add(capability.name)
    if local_names.issuperset(capability.name for capability in gpus):
        return host
    distribution = host.platform.distribution
    if distribution:
        distribution = replace(distribution, l4t=None)
    devices = tuple(Gpu(capability.architecture, capability.name) for capability in gpus)
    return replace(
        host,
        platform=replace(host.platform, distribution=distribution),
        gpus=replace(
            host.gpus, devices=devices, driver=None, kernel_driver=None, compat_folders=()
        ),
    )


def judge_cell(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None
) -> list[Judgement]:
    """Return the judgements of one cell on a machine, with the options of its session."""
    plan = compute_plan(facts, cell, host, options, source)
    return judge_plan(facts, cell, host, plan, source)


def judge_plan(
    facts: Facts, cell: Cell, host: Host, plan: Plan, source: Source | None = None
) -> list[Judgement]:
    """Return the judgements of a cell that has a plan."""
    return list(judge(CheckContext(facts, cell, host, plan, source)))


def options_here(facts: Facts, cell: Cell, host: Host, options: Options, native: str) -> Options:
    """Return options as a session takes them on a machine: with its GPUs, if no list names others.

    `native` is the architecture that is built without a container: no GPU is visible in one.
    """
    if cell.build.arch != native:
        return options
    return with_local_gpus(facts, cell, host, options)


def format_outlook(judged: Mapping[str, Iterable[Judgement]]) -> str:
    """Return each judgement once, after the names of its cells unless it is about all of them.

    `judged` has the judgements by the name of a cell.
    """
    cells: dict[Judgement, list[str]] = {}
    for name, judgements in judged.items():
        for judgement in judgements:
            cells.setdefault(judgement, []).append(name)
    lines = []
    for judgement, names in cells.items():
        if len(names) == len(judged):
            lines.append(str(judgement))
        else:
            lines.append(f"{', '.join(names)}: {judgement}")
    return "\n".join(lines)


def agree_to_outlook(
    judged: Mapping[str, Iterable[Judgement]], *, elsewhere: bool, yes: bool
) -> bool:
    """Tell whether wheels are to be built although they would run on no GPU of this machine.

    They are if they are for another machine (`elsewhere`). To have agreed to everything (`yes`)
    does not say so. Raises ConfigError if nobody can be asked.
    """
    unfit = [name for name, judgements in judged.items() if not runs_here(judgements)]
    if not unfit or elsewhere:
        return True
    names = ", ".join(unfit)
    if yes or not sys.stdin.isatty():
        reason = "--yes does not answer that" if yes else "nobody can be asked here"
        raise ConfigError(
            f"{names}: what is built would run on none of these GPUs, and {reason}: add "
            f"{ELSEWHERE} if it is meant for another machine; {_ALTERNATIVE}",
            code="would-not-run-here",
        )
    question = f"{names} would run on none of these GPUs ({_ALTERNATIVE}). Build anyway?"
    return agree(question, yes=False, default=False)
