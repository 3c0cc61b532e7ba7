"""What is known beforehand of the wheels that are asked for, and the question whether to build them all the same."""

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
_INSTEAD = "`invoke build --gpu local` chooses a release and a toolkit for those of this machine"


def judged_host(facts: Facts, host: Host, gpus: Sequence[Capability]) -> Host:
    """Return the machine that wheels are for: this one, or if other GPUs are named, one with those alone.

    Of the driver of another machine nothing is known.
    """
    here = {found.name for gpu in host.gpus.devices if (found := gpu_capability(facts, gpu))}
    if {one.name for one in gpus} <= here:
        return host
    named = tuple(Gpu(one.architecture, one.name) for one in gpus)
    board = replace(host.platform.distribution, l4t=None) if host.platform.distribution else None
    return replace(
        host,
        platform=replace(host.platform, distribution=board),
        gpus=replace(host.gpus, devices=named, driver=None, kernel_driver=None, compat_folders=()),
    )


def judge_cell(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None
) -> list[Judgement]:
    """Return what is known beforehand of one cell on a machine, with the options of its session."""
    return judge_plan(facts, cell, host, compute_plan(facts, cell, host, options, source), source)


def judge_plan(
    facts: Facts, cell: Cell, host: Host, plan: Plan, source: Source | None = None
) -> list[Judgement]:
    """Return what is known beforehand of a cell, of which there is a plan."""
    return [*judge(CheckContext(facts, cell, host, plan, source))]


def options_here(facts: Facts, cell: Cell, host: Host, options: Options, native: str) -> Options:
    """Return options as a session on a machine takes them: with its GPUs, if no list was asked for.

    `native` is the arch that is built without a container; in one, no GPU is seen.
    """
    return with_local_gpus(facts, cell, host, options) if cell.build.arch == native else options


def format_outlook(judged: Mapping[str, Iterable[Judgement]]) -> str:
    """Return each judgement of some cells once, with the cells that it is of unless it is of all."""
    cells: dict[Judgement, list[str]] = {}
    for name, judgements in judged.items():
        for one in judgements:
            cells.setdefault(one, []).append(name)
    lines = []
    for one, names in cells.items():
        lines.append(str(one) if len(names) == len(judged) else f"{', '.join(names)}: {one}")
    return "\n".join(lines)


def agree_to_outlook(
    judged: Mapping[str, Iterable[Judgement]], *, elsewhere: bool, yes: bool
) -> bool:
    """Tell whether wheels are wanted that would run on no GPU of this machine, or of those that are named.

    `elsewhere`: they are for another machine. That everything was agreed to (`yes`) does not say so. Raises ConfigError
    if nobody can be asked.
    """
    unfit = [name for name, judgements in judged.items() if not runs_here(judgements)]
    if not unfit or elsewhere:
        return True
    if yes or not sys.stdin.isatty():
        why = "--yes does not answer that" if yes else "nobody can be asked here"
        raise ConfigError(
            f"{', '.join(unfit)}: what is built would run on none of these GPUs, and {why}: add {ELSEWHERE} if it is "
            f"meant for another machine; {_INSTEAD}",
            code="would-not-run-here",
        )
    question = f"{', '.join(unfit)} would run on none of these GPUs ({_INSTEAD}). Build anyway?"
    return agree(question, yes=False, default=False)
