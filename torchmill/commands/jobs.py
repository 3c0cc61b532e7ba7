"""`invoke jobs`: what limits memory and processors here, and how many compilers may run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millguard import limits
from millguard.limits import CpuQuota, LimitReading

from torchmill.commands.command import CommandOutput
from torchmill.config import selection
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import newest_release
from torchmill.core import console
from torchmill.core.paths import Layout
from torchmill.core.units import format_bytes
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.host.native import native_arch, native_system
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cell import Cell
from torchmill.plan.job_count import JobCount, count_jobs, guarded_slots, largest_compile
from torchmill.plan.matrix import buildable_cells

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
    def allowed(self) -> LimitReading:
        """Return what limits the memory of all compilers together."""
        return min(self.memory, key=limits.tightness)

    @property
    def cores(self) -> CpuQuota:
        """Return what limits the processors that are kept busy."""
        return (
            CpuQuota("--jobs", self.asked)
            if self.asked
            else min(self.processors, key=limits.tightness)
        )

    def unguarded(self, demand: CompileDemand) -> JobCount:
        """Return how many compilers run at a time without a guard."""
        cores = min(self.processors, key=limits.tightness).count
        return count_jobs(cores, self.allowed.available, int(demand.largest.high), self.asked)

    @property
    def slots(self) -> int:
        """Return how many compilers may be started under the guard, most of them waiting."""
        return guarded_slots(self.cores.count, self.allowed.available)

    def as_data(self) -> dict[str, Any]:
        """Return all of it as JSON-ready data."""
        memory, processors = self.allowed, self.cores
        allowed = {
            "memory": {"bytes": memory.available, "source": memory.source},
            "processors": {"count": processors.count, "source": processors.source},
            "slots": self.slots,
        }
        return {
            "memory": [asdict(one) | {"available": one.available} for one in self.memory],
            "memory_of_one_process": [
                {"source": one.source, "limit": one.limit} for one in self.of_one
            ],
            "processors": [asdict(one) for one in self.processors],
            "allowed": allowed,
            "builds": [
                asdict(one) | {"unguarded": asdict(self.unguarded(one))} for one in self.demands
            ],
            "warnings": list(_warnings(self)),
        }

    def as_text(self) -> str:
        """Return a table of each kind of limit, and what follows."""
        memory = [
            (
                one.source,
                *map(format_bytes, (one.limit, one.used)),
                format_bytes(one.reclaimable) if one.reclaimable else "",
                format_bytes(one.available),
                "binds" if one.source == self.allowed.source else "",
            )
            for one in self.memory
        ]
        memory += [
            (f"{one.source}, each process", format_bytes(one.limit), *[""] * 4)
            for one in self.of_one
        ]
        processors = [(one.source, f"{one.cores:g}") for one in self.processors]
        processors += [("--jobs", str(self.asked))] if self.asked else []
        follows = [
            ("processors kept busy", str(self.cores.count)),
            ("memory for all compilers together", format_bytes(self.allowed.available)),
            ("compilers that may be started, most of them waiting", str(self.slots)),
        ]
        builds = [
            (one.builds, one.largest.in_bytes, self.unguarded(one).reason) for one in self.demands
        ]
        tables = (
            (("memory", "limit", "used", "of it cache", "available", ""), memory),
            (
                ("processors", "number", ""),
                [(*row, "binds" if row[0] == self.cores.source else "") for row in processors],
            ),
            (("with the memory guard", ""), follows),
            (("build", "largest compiles", "at a time without the guard"), builds),
        )
        texts = [console.format_table(headers, rows) for headers, rows in tables]
        return "\n\n".join([*texts, *(f"warning: {one}" for one in _warnings(self))])


def show_budget(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Say what limits memory and processors, and what a build makes of it."""
    machine, release = (
        load_host(Path(host)) if host else None,
        selection.selected_release(facts, layout, tag),
    )
    native, of = machine.arch if machine else native_arch(), release or newest_release(facts)
    named = (
        [cell_lookup.find_cell(facts, build, native, release)]
        if build
        else buildable_cells(facts, of, native)
    )
    budget = measure_budget(compile_demands(facts, named), options, machine)
    return CommandOutput(budget.as_text(), budget.as_data())


def measure_budget(
    demands: Sequence[CompileDemand], options: Options, host: Host | None = None
) -> Budget:
    """Measure what this machine allows builds with these demands and options, or return what another one would."""
    cap = [LimitReading("--memory", options.memory)] if options.memory else []
    if host:
        memory, processors = (
            LimitReading("the machine's memory", host.resources.memory),
            CpuQuota("its processors", host.resources.cores),
        )
        return Budget([memory, *cap], (), [processors], options.jobs, demands, host.system)
    meter = limits.LimitMeter()
    readings, each = [*meter.readings(), *cap], limits.process_memory_limits()
    return Budget(readings, each, meter.quotas(), options.jobs, demands, native_system())


def compile_demands(facts: Facts, cells: Iterable[Cell]) -> tuple[CompileDemand, ...]:
    """Return what the largest compiles of builds take, those that take alike as one."""
    variants: dict[tuple[str, CostRange], dict[str, None]] = {}
    for cell in cells:
        need = largest_compile(facts, cell.build, cell.release.version)
        variants.setdefault((str(cell.release), need), {})[cell.build.variant] = None
    demands = []
    for (release, need), names in variants.items():
        first, *more = names
        listed = ", ".join((first, *more) if len(more) < FEW else (first, "…", more[-1]))
        demands.append(CompileDemand(f"{release} {listed}", need))
    return tuple(demands)


def _warnings(budget: Budget) -> Iterator[str]:
    if budget.system == "windows":
        yield "there is no guard on Windows: the number without it applies"
    if not budget.demands:
        return
    hungriest = max(budget.demands, key=lambda one: one.largest.high)
    need = f"the largest compiles of {hungriest.builds} take up to {format_bytes(hungriest.largest.high)}"
    if hungriest.largest.high > budget.allowed.available:
        yield f"{need}, more than there is: such a file is compiled alone, and may fail even then"
    for one in budget.of_one:
        if hungriest.largest.high > one.limit:
            allows = f"{one.source} allows a process {format_bytes(one.limit)}"
            yield f"{need}, and {allows}: `{one.source} unlimited` lifts that"
