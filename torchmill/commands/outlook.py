"""The outlook on wheels before they are built, and the question whether to build them anyway.

The outlook is a list of judgements (plan/doctor/judgement.py): what is known of a wheel to come,
such as that it will run on no GPU of the machine that it is for.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchmill.commands.terminal import agree
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability
from torchmill.core.errors import ConfigError
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host, HostGpus
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


def target_machine(facts: Facts, host: Host, gpus: Sequence[Capability]) -> Host:
    """Return the machine that wheels for some GPUs are for.

    That is `host` if it has all of them (or if there are none), else a machine like it with these
    GPUs, of whose driver nothing is known.
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
        # L4T is the system of Jetson boards, whose only GPU is their own.
        distribution = replace(distribution, l4t=None)
    devices = tuple(Gpu(capability.architecture, capability.name) for capability in gpus)
    return replace(
        host,
        platform=replace(host.platform, distribution=distribution),
        gpus=HostGpus(devices=devices),
    )


def judge_cell(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None
) -> list[Judgement]:
    """Return the judgements of one cell on a machine; `options` are those of its session."""
    plan = compute_plan(facts, cell, host, options, source)
    return judge_plan(facts, cell, host, plan, source)


def judge_plan(
    facts: Facts, cell: Cell, host: Host, plan: Plan, source: Source | None = None
) -> list[Judgement]:
    """Return the judgements of a cell that has a plan."""
    return list(judge(CheckContext(facts, cell, host, plan, source)))


def options_here(facts: Facts, cell: Cell, host: Host, options: Options, native: str) -> Options:
    """Return options as a session completes them on a machine: with its GPUs as the --arch-list.

    A list that the user gave stays. `native` is the architecture that is built without a container;
    in a container, no GPU is visible.
    """
    if cell.build.arch != native:
        return options
    return with_local_gpus(facts, cell, host, options)


def format_outlook(judged: Mapping[str, Iterable[Judgement]]) -> str:
    """Return the judgements as lines, each judgement once.

    `judged` has the judgements of each cell by its name. A line begins with the names of its cells,
    unless it is about all of them.
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
    """Tell whether to build, after a question if wheels would run on no GPU of this machine.

    Nothing is asked if the wheels are for another machine (`elsewhere`). `yes` does not answer this
    question: ConfigError is raised then, and if nobody can be asked.
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
