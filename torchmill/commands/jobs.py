"""`invoke jobs`: what limits memory and processors here, and how many compilers may run."""

import json as json_
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchmill.commands.command import TaskCommand
from torchmill.config import cell_lookup, selection
from torchmill.config.cost_model import CostRange
from torchmill.config.matrix import Cell, buildable_cells, newest_release
from torchmill.config.model import Facts, Options, Release
from torchmill.core import console
from torchmill.core.paths import Layout
from torchmill.core.units import format_bytes
from torchmill.host import limits
from torchmill.host.limits import CpuQuota, LimitReading
from torchmill.host.native import native_arch, native_system
from torchmill.plan.job_count import JobCount, count_jobs, guarded_slots, largest_compile
from torchmill.plan.options import options_of_task

FEW = 4  # variants are named one by one


@dataclass(frozen=True, slots=True)
class CompileDemand:
    """Builds whose largest compiles take alike."""

    builds: str  # "torch 1.13.1 cpu"
    largest: CostRange  # bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """What a build may use, limit by limit; what the user asked for is one of the limits."""

    memory: Sequence[LimitReading]
    of_one: Sequence[LimitReading]  # each process, rather than all together
    processors: Sequence[CpuQuota]
    asked: int | None  # processors, whatever the limits say
    demands: Sequence[CompileDemand]
    system: str  # "linux", "macos", "windows"

    @property
    def allowed(self) -> limits.MemoryBound:
        """Return the memory that all compilers together may have, and what says so."""
        return limits.tightest_memory(self.memory)

    @property
    def cores(self) -> limits.CoreBound:
        """Return the processors that are kept busy, and what says so."""
        return (
            limits.CoreBound(self.asked, "--jobs") if self.asked else limits.tightest_quota(self.processors)
        )

    def unguarded(self, demand: CompileDemand) -> JobCount:
        """Return how many compilers run at a time where no guard can be had."""
        here = limits.tightest_quota(self.processors).count
        return count_jobs(here, self.allowed.bytes, int(demand.largest.high), self.asked)

    def as_text(self) -> str:
        """Return a table of each kind of limit, and what follows."""
        return "\n\n".join(filter(None, (_memory(self), _processors(self), _follows(self), _builds(self))))

    def as_data(self) -> dict[str, Any]:
        """Return all of it as JSON-ready data."""
        return {
            "memory": [asdict(one) | {"available": one.available} for one in self.memory],
            "memory_of_one_process": [{"source": one.source, "limit": one.limit} for one in self.of_one],
            "processors": [asdict(one) for one in self.processors],
            "allowed": {
                "memory": asdict(self.allowed),
                "processors": asdict(self.cores),
                "slots": guarded_slots(self.cores.count, self.allowed.bytes),
            },
            "builds": [asdict(one) | {"unguarded": asdict(self.unguarded(one))} for one in self.demands],
            "warnings": list(_warnings(self)),
        }


def show_budget(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    build: str | None = None,
    tag: str = "",
    json: bool = False,
    jobs: str | None = None,
    memory: str | None = None,
) -> str:
    """Say what limits memory and processors here, and what follows for a build."""
    chosen = options_of_task("jobs", (), jobs=jobs, memory=memory)
    found = compute_budget(facts, build or "", selection.selected_release(facts, layout, tag), chosen)
    return json_.dumps(found.as_data(), indent=1) if json else found.as_text()


def compute_budget(facts: Facts, identifier: str, release: Release | None, options: Options) -> Budget:
    """Return what this machine allows the cell of that name, or where it is empty, the builds of a release.

    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible.
    """
    asked = cells_named_or_all(facts, identifier, native_arch(), release)
    return measure_budget(compile_demands(facts, asked), options)


def measure_budget(demands: Sequence[CompileDemand], options: Options) -> Budget:
    """Measure what this machine allows builds with these demands and options."""
    meter = limits.LimitMeter()
    cap = [LimitReading("--memory", options.memory)] if options.memory else []
    return Budget(
        [*meter.readings(), *cap],
        limits.process_memory_limits(),
        meter.quotas(),
        options.jobs,
        demands,
        native_system(),
    )


def cells_named_or_all(
    facts: Facts, identifier: str, native: str, release: Release | None
) -> tuple[Cell, ...]:
    """Return the cell of that name, or where it is empty, all that can be built of the release on a machine.

    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible.
    """
    if identifier:
        return (cell_lookup.find_cell(facts, identifier, native, release),)
    return buildable_cells(facts, release or newest_release(facts), native)


def compile_demands(facts: Facts, cells: Iterable[Cell]) -> tuple[CompileDemand, ...]:
    """Return what the largest compiles of builds take, those that take alike as one."""
    variants: dict[tuple[str, CostRange], dict[str, None]] = {}
    for cell in cells:
        need = largest_compile(facts, cell.build, cell.release.version)
        variants.setdefault((str(cell.release), need), {})[cell.build.variant] = None
    return tuple(CompileDemand(f"{release} {_named(of)}", need) for (release, need), of in variants.items())


def _named(variants: Iterable[str]) -> str:
    first, *more = variants
    return ", ".join((first, *more) if len(more) < FEW else (first, "…", more[-1]))


def _memory(budget: Budget) -> str:
    rows = [
        (
            one.source,
            format_bytes(one.limit),
            format_bytes(one.used),
            format_bytes(one.reclaimable) if one.reclaimable else "",
            format_bytes(one.available),
            "binds" if one.source == budget.allowed.source else "",
        )
        for one in budget.memory
    ]
    rows += [
        (f"{one.source}, each process", format_bytes(one.limit), "", "", "", "") for one in budget.of_one
    ]
    return console.format_table(("memory", "limit", "used", "of it cache", "can be had", ""), rows)


def _processors(budget: Budget) -> str:
    rows = [(one.source, f"{one.cores:g}", one.source) for one in budget.processors]
    rows += [("--jobs", str(budget.asked), "--jobs")] if budget.asked else []
    marked = [(*row, "binds" if source == budget.cores.source else "") for *row, source in rows]
    return console.format_table(("processors", "number", ""), marked)


def _follows(budget: Budget) -> str:
    count = budget.cores.count
    rows = [
        ("processors kept busy", str(count)),
        ("memory for all compilers together", format_bytes(budget.allowed.bytes)),
        (
            "compilers that may be started, most of them waiting",
            str(guarded_slots(count, budget.allowed.bytes)),
        ),
    ]
    return console.format_table(("under the guard", ""), rows)


def _builds(budget: Budget) -> str:
    rows = [
        (
            one.builds,
            f"{format_bytes(one.largest.low)} to {format_bytes(one.largest.high)}",
            budget.unguarded(one).reason,
        )
        for one in budget.demands
    ]
    table = console.format_table(("build", "largest compiles", "at a time where no guard can be had"), rows)
    return "\n".join((table, *(f"\nwarning: {one}" for one in _warnings(budget))))


def _warnings(budget: Budget) -> Iterator[str]:
    """Yield what a user should know before building."""
    if budget.system == "windows":
        yield "there is no guard on Windows: the number where none can be had holds"
    if not budget.demands:
        return
    hungriest = max(budget.demands, key=lambda one: one.largest.high)
    need = f"the largest compiles of {hungriest.builds} take up to {format_bytes(hungriest.largest.high)}"
    if hungriest.largest.high > budget.allowed.bytes:
        yield f"{need}, more than there is: such a one is built alone, and may fail even then"
    for one in budget.of_one:
        if hungriest.largest.high > one.limit:
            allows = f"{one.source} allows a process {format_bytes(one.limit)}"
            yield f"{need}, and {allows}: `{one.source} unlimited` lifts that"


JOBS = TaskCommand(
    show_budget,
    {
        "build": "such as wheel-3.10-cpu; without one, every build of the release",
        "tag": "the release; default: the selected one, else the newest",
        "json": "print JSON",
        "jobs": "as if this many processors were to be kept busy",
        "memory": "as if a build might use no more than this, such as '12 GiB'",
    },
    argument="build",
)
