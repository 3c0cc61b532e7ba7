"""Answer `invoke plan`: a plan and what it is expected to cost, before anything is done."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchmill import lookup, render, script, source
from torchmill.estimate import own, report
from torchmill.layout import Layout
from torchmill.model import Facts, Host, Options, Plan, Release, Run
from torchmill.plan import compute, usable_memory

if TYPE_CHECKING:
    from torchmill.foreign.shown import Shown


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, the machine it is for, and the builds that this machine has made."""

    facts: Facts
    plan: Plan
    host: Host
    memory: int  # bytes that the build may use
    runs: tuple[Run, ...]
    container: "Shown | None" = None  # in which this machine would carry it out, being another

    def as_text(self) -> str:
        """Return the plan and its cost for a person to read."""
        cost = report.as_text(self.facts, self.plan, self.memory, self.runs)
        inside = f"\n{self.container.as_text()}" if self.container else ""
        return f"{render.as_text(self.plan, self.host)}\n{cost}{inside}"

    def as_json(self) -> str:
        """Return the plan and its cost as a JSON document."""
        data = render.as_data(self.plan) | report.as_data(self.facts, self.plan, self.runs)
        inside = {"container": self.container.as_data()} if self.container else {}
        return json.dumps(data | inside, indent=2)

    def choice(self) -> str:
        """Return a sentence on the release that stands for the cell where none is selected."""
        return f"no release is selected: {self.plan.release.tag} is the newest that supports it"

    def as_script(self) -> str:
        """Return a bash script that carries the plan out with nothing of the suite installed."""
        return script.as_script(self.plan, self.facts, self.host)


def of(  # noqa: PLR0917 - what a plan follows from
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options,
) -> Preview:
    """Return the plan of the cell of that name on a host.

    Without a layout the host is another machine, and what was fetched and built here does not count.
    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible,
    ConfigError for options that contradict it.
    """
    cell = lookup.find(facts, identifier, host.arch, release)
    fetched = source.load(layout, cell.build.package, cell.release.tag) if layout else None
    runs = own.runs(facts, layout.dist) if layout else ()
    computed = compute(facts, cell, host, options, fetched)
    container = None
    if layout is not None and cell.build.arch != host.arch:
        from torchmill.foreign import shown  # noqa: PLC0415 (asks an engine, and few plans need one)

        container = shown.of(facts, cell, host, options)
    return Preview(facts, computed, host, usable_memory(host, options), runs, container)
