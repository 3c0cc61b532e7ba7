"""`invoke jobs`: the limits of memory and processors, and how many compilers may run.

Several limits apply at a time: of the machine, of cgroups, of the shell's `ulimit`, and of the
options. The tightest of them *binds*. Under the memory guard, more compilers are started than may
run: each waits until there is memory for it.
"""

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

_MOST_VARIANTS = 4  # that a row names one by one


@dataclass(frozen=True, slots=True)
class CompileDemand:
    """Builds whose largest compiles need the same memory."""

    builds: str  # "torch 1.13.1 cpu"
    largest: CostRange  # bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a build, and the builds that they are compared with."""

    memory: Sequence[LimitReading]  # of all processes together, --memory among them
    process_memory: Sequence[LimitReading]  # of each process
    processors: Sequence[CpuQuota]
    requested_processors: int | None  # --jobs, which overrides the limits
    demands: Sequence[CompileDemand]
    system: str  # "linux", "macos", "windows"

    @property
    def binding_memory(self) -> LimitReading:
        """Return the limit that binds the memory of all compilers together."""
        return min(self.memory, key=limits.tightness)

    @property
    def binding_processors(self) -> CpuQuota:
        """Return the limit that binds the processors that are kept busy."""
        if self.requested_processors:
            return CpuQuota("--jobs", self.requested_processors)
        return min(self.processors, key=limits.tightness)

    @property
    def slots(self) -> int:
        """Return how many compilers may be started under the guard, most of them waiting."""
        return guarded_slots(self.binding_processors.count, self.binding_memory.available)

    def unguarded(self, demand: CompileDemand) -> JobCount:
        """Return how many compilers run at a time without a guard."""
        # Without --jobs, which `count_jobs` gets apart to name it in its reason.
        cores = min(self.processors, key=limits.tightness).count
        return count_jobs(
            cores,
            memory=self.binding_memory.available,
            per_job=int(demand.largest.high),
            requested=self.requested_processors,
        )

    def as_data(self) -> dict[str, Any]:
        """Return the budget as JSON-ready data; memory is in bytes."""
        memory = [{**asdict(limit), "available": limit.available} for limit in self.memory]
        process_memory = [
            {"source": limit.source, "limit": limit.limit} for limit in self.process_memory
        ]
        builds = [
            {**asdict(demand), "unguarded": asdict(self.unguarded(demand))}
            for demand in self.demands
        ]
        room = self.binding_memory
        processors = self.binding_processors
        return {
            "memory": memory,
            "memory_of_one_process": process_memory,
            "processors": [asdict(quota) for quota in self.processors],
            "allowed": {
                "memory": {"bytes": room.available, "source": room.source},
                "processors": {"count": processors.count, "source": processors.source},
                "slots": self.slots,
            },
            "builds": builds,
            "warnings": list(_warnings(self)),
        }

    def as_text(self) -> str:
        """Return tables: the limits of each kind, the numbers that follow, and the builds."""
        memory = format_bytes(self.binding_memory.available)
        consequences = [
            ("processors kept busy", str(self.binding_processors.count)),
            ("memory for all compilers together", memory),
            ("compilers that may be started, most of them waiting", str(self.slots)),
        ]
        builds = [
            (demand.builds, demand.largest.in_bytes, self.unguarded(demand).reason)
            for demand in self.demands
        ]
        memory_heads = ("memory", "limit", "used", "of which cache", "available", "")
        tables = [
            console.format_table(memory_heads, self._memory_rows()),
            console.format_table(("processors", "number", ""), self._processor_rows()),
        ]
        if self.system != "windows":  # which has no guard
            tables.append(console.format_table(("with the memory guard", ""), consequences))
        build_heads = ("build", "largest compiles", "at a time without the guard")
        tables.append(console.format_table(build_heads, builds))
        warnings = [f"warning: {warning}" for warning in _warnings(self)]
        return "\n\n".join([*tables, *warnings])

    def _memory_rows(self) -> list[list[str]]:
        """Return a row for each limit of memory; the last column marks the one that binds."""
        rows = []
        binding = self.binding_memory
        for limit in self.memory:
            cache = format_bytes(limit.reclaimable) if limit.reclaimable else ""
            row = [
                limit.source,
                format_bytes(limit.limit),
                format_bytes(limit.used),
                cache,
                format_bytes(limit.available),
                "binds" if limit is binding else "",  # two limits may have the same name
            ]
            rows.append(row)
        for limit in self.process_memory:
            row = [f"{limit.source}, each process", format_bytes(limit.limit), "", "", "", ""]
            rows.append(row)
        return rows

    def _processor_rows(self) -> list[Sequence[str]]:
        """Return a row for each limit of processors; the last column marks the one that binds."""
        quotas = list(self.processors)
        binding = self.binding_processors
        if self.requested_processors:
            quotas.append(binding)
        rows: list[Sequence[str]] = []
        for quota in quotas:
            rows.append((quota.source, f"{quota.cores:g}", "binds" if quota is binding else ""))
        return rows


def show_budget(
    facts: Facts,
    layout: Layout,
    *,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Return the limits of memory and processors, and what they allow a build.

    Without `build`, those of the selected or newest release are shown. `host` is a file that
    describes another machine.
    """
    described_host = load_host(Path(host)) if host else None
    arch = described_host.arch if described_host else native_arch()
    release = selection.selected_release(facts, layout, tag)
    if build:
        cells: Iterable[Cell] = [cell_lookup.find_cell(facts, build, arch, release)]
    else:
        cells = buildable_cells(facts, release or newest_release(facts), arch)
    budget = measure_budget(compile_demands(facts, cells), options, described_host)
    return CommandOutput(budget.as_text(), budget.as_data())


def measure_budget(
    demands: Sequence[CompileDemand], options: Options, host: Host | None = None
) -> Budget:
    """Return the budget of this machine, or of `host`, for builds with some demands."""
    requested_memory = []
    if options.memory:
        requested_memory.append(LimitReading("--memory", options.memory))
    if host:
        # Of a described machine only the hardware is known, not the limits of a shell or a cgroup.
        return Budget(
            memory=[LimitReading("the machine's memory", host.resources.memory), *requested_memory],
            process_memory=(),
            processors=[CpuQuota("its processors", host.resources.cores)],
            requested_processors=options.jobs,
            demands=demands,
            system=host.system,
        )
    meter = limits.LimitMeter()
    return Budget(
        memory=[*meter.readings(), *requested_memory],
        process_memory=limits.process_memory_limits(),
        processors=meter.quotas(),
        requested_processors=options.jobs,
        demands=demands,
        system=native_system(),
    )


def compile_demands(facts: Facts, cells: Iterable[Cell]) -> tuple[CompileDemand, ...]:
    """Return the memory that the largest compiles of cells need.

    Builds of a release with equal needs share one demand.
    """
    # The inner dictionaries are sets that keep their order.
    variants: dict[tuple[str, CostRange], dict[str, None]] = {}
    for cell in cells:
        largest = largest_compile(facts, cell.build, cell.release.version)
        variants.setdefault((str(cell.release), largest), {})[cell.build.variant] = None
    demands = []
    for (release, largest), names in variants.items():
        listed = list(names)
        if len(listed) > _MOST_VARIANTS:
            listed = [listed[0], "…", listed[-1]]
        demands.append(CompileDemand(f"{release} {', '.join(listed)}", largest))
    return tuple(demands)


def _warnings(budget: Budget) -> Iterator[str]:
    """Yield the warnings: no guard on Windows, and limits that the largest compile exceeds."""
    if budget.system == "windows":
        yield "there is no guard on Windows: the number without it applies"
    if not budget.demands:
        return
    # By the upper bounds: a compile that exceeds a limit may end the build.
    largest_demand = max(budget.demands, key=lambda demand: demand.largest.high)
    need = largest_demand.largest.high
    sentence = f"the largest compiles of {largest_demand.builds} take up to {format_bytes(need)}"
    if need > budget.binding_memory.available:
        yield (
            f"{sentence}, more than there is: such a file is compiled alone, and may fail even then"
        )
    for limit in budget.process_memory:
        if need > limit.limit:
            yield (
                f"{sentence}, and {limit.source} allows a process {format_bytes(limit.limit)}: "
                f"`{limit.source} unlimited` lifts that, unless root has set the limit"
            )
