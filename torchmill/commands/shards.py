"""`invoke shards`: the time and the cost of a build on several machines.

Each machine compiles a share of the files. Then a last build on one machine takes the objects of
all shares, and makes the wheel.
"""

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
from torchmill.host.own_runs import read_own_runs
from torchmill.host.processor import resolve_processor
from torchmill.plan import cell_lookup, estimate, shares
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.estimate import format_estimate
from torchmill.plan.options import format_options
from torchmill.plan.shares import SharedBuild
from torchmill.toolchain.shards import MOST_SHARDS

_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # numbers of machines to compare
_BAR_COLUMNS = 30  # of the longest bar


def show_shards(
    facts: Facts,
    layout: Layout,
    cell: str,
    *,
    count: str = "",
    tag: str = "",
    host: str = "",
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Return the time and the cost of a build on 1 to 64 machines, or on `count`.

    Raises ConfigError if nothing like the build was ever measured.
    """
    counts: Sequence[int] = _COUNTS
    if count:
        counts = [require_count("--count", count, least=1, most=MOST_SHARDS, code="invalid-shard")]
    machine = read_or_measure_host(host, layout.root, cell)
    selected = selection.selected_release(facts, layout, tag)
    build_cell = cell_lookup.find_cell(facts, cell, machine.arch, selected)
    if not host:
        arch = build_cell.build.arch
        processor = resolve_processor(facts, arch, machine, options.cpu, options.settings)
        options = replace(options, processor=processor)
    plan = compute_plan(facts, build_cell, machine, options)
    own_runs = () if host else read_own_runs(facts, layout.dist)
    whole = estimate.estimate_build(facts, plan, own_runs)
    if whole is None or facts.costs.assumptions is None:
        raise ConfigError(
            f"{cell}: nothing like it was ever measured: no time can be predicted",
            code="not-measured",
        )
    longest = shares.longest_compile(facts, build_cell.release)
    # One machine is always among them: the others are compared with it.
    builds = list(
        shares.forecast_shares(
            facts.costs.assumptions, whole, plan.jobs, longest, sorted({1, *counts})
        )
    )
    advised = shares.advised_machines(builds)
    words = [cell]
    if tag:
        words.append(f"--tag={tag}")
    words += format_options(options)
    title = f"{cell} of {build_cell.release}"
    lines = [
        f"{title}: {whole.cpu} of processor time, {plan.jobs} jobs at a time",
        "",
        _format_builds(builds),
        "█ the shares  ░ the last build; queues, uploads and downloads come on top",
    ]
    if longest:
        lines.append(f"no share is shorter than the longest compile: {format_estimate(longest)}")
    if plan.cuda.toolkit:
        lines.append(
            "single compiles of device code were never measured: the longest may take longer"
        )
    lines += ["", _format_advice(words, builds[0], advised)]
    data = {
        "cpu": asdict(whole.cpu),
        "jobs": plan.jobs,
        "longest": longest,
        "advised": advised.machines,
        "builds": [_build_as_data(build) for build in builds],
    }
    return CommandOutput("\n".join(lines), data)


def _build_as_data(build: SharedBuild) -> dict[str, object]:
    """Return a build as JSON-ready data; times are in seconds."""
    return {**asdict(build), "wall": build.wall, "machine_seconds": build.machine_seconds}


def _format_builds(builds: Sequence[SharedBuild]) -> str:
    """Return a table with a row for each number of machines, the smallest first.

    A bar shows the time of the shares and of the last build.
    """
    alone = builds[0]
    columns_per_second = _BAR_COLUMNS / max(build.wall for build in builds)
    rows = []
    for build in builds:
        factor = build.machine_seconds / alone.machine_seconds
        shares = "█" * max(1, round(build.share * columns_per_second))
        last_build = "░" * round(build.finish * columns_per_second)
        rows.append(
            (
                str(build.machines),
                format_estimate(build.wall),
                f"{format_estimate(build.machine_seconds)} ({factor:.1f})",
                shares + last_build,
            )
        )
    return console.format_table(("machines", "the wheel after", "machine time", ""), rows)


def _format_advice(words: Sequence[str], alone: SharedBuild, advised: SharedBuild) -> str:
    """Return a sentence on how many machines to use; `words` are the cell and its options."""
    if advised.machines == 1:
        return f"one machine is cheaper: `invoke build {shlex.join(words)}`"
    speed = alone.wall / advised.wall
    cost = advised.machine_seconds / alone.machine_seconds
    command = f"invoke cluster {shlex.join(words)} --shards {advised.machines}"
    return (
        f"{advised.machines} machines: {speed:.1f} times as fast for {cost:.1f} times the "
        f"machine time; `{command}`"
    )
