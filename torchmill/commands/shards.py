"""`invoke shards`: how long a build takes on several machines, and what that costs."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace

from torchmill.commands.command import CommandOutput
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.core import console
from torchmill.core.errors import ConfigError, require_count
from torchmill.core.paths import Layout
from torchmill.host.measurement import read_or_measure_host
from torchmill.host.processor import resolve_processor
from torchmill.plan import cell_lookup, estimate
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.estimate import SharedBuild, format_estimate
from torchmill.plan.options import format_options
from torchmill.toolchain.shards import MOST_SHARDS

_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_WIDTH = 30  # columns of the longest bar


def show_shards(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    cell: str,
    count: str = "",
    tag: str = "",
    host: str = "",
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Say how long a build takes on 1 to 64 machines, and what that costs."""
    asked = [require_count("--count", count, 1, MOST_SHARDS, "invalid-shard")] if count else _COUNTS
    machine = read_or_measure_host(host, layout.root, cell)
    found = cell_lookup.find_cell(
        facts, cell, machine.arch, selection.selected_release(facts, layout, tag)
    )
    if not host:
        processor = resolve_processor(
            facts, found.build.arch, machine, options.cpu, options.settings
        )
        options = replace(options, processor=processor)
    plan = compute_plan(facts, found, machine, options)
    whole = estimate.estimate_build(
        facts, plan, () if host else estimate.read_own_runs(facts, layout.dist)
    )
    if whole is None or facts.assumed is None:
        raise ConfigError(
            f"{cell}: nothing like it was ever measured: no time can be predicted",
            code="not-measured",
        )
    longest = estimate.longest_compile(facts, found.release)
    builds = list(
        estimate.forecast_shares(facts.assumed, whole, plan.jobs, longest, sorted({1, *asked}))
    )
    advised = estimate.advised_machines(builds)
    rows = [
        asdict(one) | {"wall": one.wall, "machine_seconds": one.machine_seconds} for one in builds
    ]
    about = {
        "cpu": asdict(whole.cpu),
        "jobs": plan.jobs,
        "longest": longest,
        "advised": advised.machines,
    }
    lines = [
        f"{cell} of {found.release}: {whole.cpu} of processor time, {plan.jobs} jobs at a time",
        "",
        _table(builds),
        "█ the shares  ░ the last build; queues, uploads and downloads come on top",
        *(
            [f"no share is shorter than the longest compile: {format_estimate(longest)}"]
            if longest
            else []
        ),
        *(
            ["single compiles of device code were never measured: the longest may take longer"]
            if plan.cuda.toolkit
            else []
        ),
        "",
        _advice(
            [cell, *([f"--tag={tag}"] if tag else []), *format_options(options)], builds[0], advised
        ),
    ]
    return CommandOutput("\n".join(lines), about | {"builds": rows})


def _table(builds: list[SharedBuild]) -> str:
    headers = ("machines", "the wheel after", "machine time", "")
    scale = _WIDTH / max(one.wall for one in builds)
    rows = [
        (
            str(one.machines),
            format_estimate(one.wall),
            f"{format_estimate(one.machine_seconds)} ({one.machine_seconds / builds[0].machine_seconds:.1f})",
            "█" * max(1, round(one.share * scale)) + "░" * round(one.finish * scale),
        )
        for one in builds
    ]
    return console.format_table(headers, rows)


def _advice(words: Sequence[str], one: SharedBuild, advised: SharedBuild) -> str:
    """Return on how many machines to build; `words` are the cell, and what was said of its build."""
    if advised.machines == 1:
        return f"one machine is cheaper: `invoke build {shlex.join(words)}`"
    count, cost = advised.machines, advised.machine_seconds / one.machine_seconds
    sooner = f"{one.wall / advised.wall:.1f} times as fast for {cost:.1f} times the machine time"
    return f"{count} machines: {sooner}; `invoke cluster {shlex.join(words)} --shards {count}`"
