"""`invoke plan`: everything a session will do and what it will cost, without doing any of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchmill.commands.command import TaskCommand
from torchmill.config import cell_lookup, selection
from torchmill.config.cost_model import MeasuredRun
from torchmill.config.model import Facts, Host, Options, Plan, Release
from torchmill.core.paths import Layout
from torchmill.fetch.source import fetcher
from torchmill.host.machine import load_host, measure_host
from torchmill.plan import estimate, render
from torchmill.plan.build_plan import compute_plan, usable_memory
from torchmill.plan.options import options_of_task

if TYPE_CHECKING:
    from torchmill.commands.cross_build import CrossPreview


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """A plan, the machine it is for, and the builds that this machine has made."""

    facts: Facts
    plan: Plan
    host: Host
    memory: int  # bytes that the build may use
    runs: tuple[MeasuredRun, ...]
    container: CrossPreview | None = None  # in which this machine would carry it out, being another

    def as_text(self) -> str:
        """Return the plan and its cost for a person to read."""
        cost = estimate.estimate_as_text(self.facts, self.plan, self.memory, self.runs)
        inside = f"\n{self.container.as_text()}" if self.container else ""
        return f"{render.plan_as_text(self.plan, self.host)}\n{cost}{inside}"

    def as_json(self) -> str:
        """Return the plan and its cost as a JSON document."""
        data = render.plan_as_data(self.plan) | estimate.estimate_as_data(self.facts, self.plan, self.runs)
        inside = {"container": self.container.as_data()} if self.container else {}
        return json.dumps(data | inside, indent=2)

    def choice(self) -> str:
        """Return a sentence on the release that stands for the cell where none is selected."""
        return f"no release is selected: {self.plan.release.tag} is the newest that supports it"

    def as_script(self) -> str:
        """Return a bash script that carries the plan out with nothing of the suite installed."""
        return render.plan_as_script(self.plan, self.facts, self.host)


def preview_plan(  # noqa: PLR0917 - what a plan follows from
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options,
) -> PlanPreview:
    """Return the plan of the cell of that name on a host.

    Without a layout the host is another machine, and what was fetched and built here does not count.
    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible,
    ConfigError for options that contradict it.
    """
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release)
    fetched = fetcher.load_source(layout, cell.build.package, cell.release.tag) if layout else None
    runs = estimate.read_own_runs(facts, layout.dist) if layout else ()
    computed = compute_plan(facts, cell, host, options, fetched)
    container = None
    if layout is not None and cell.build.arch != host.arch:
        from torchmill.commands.cross_build import preview_cross_build

        container = preview_cross_build(facts, cell, host, options)
    return PlanPreview(facts, computed, host, usable_memory(host, options), runs, container)


def show_plan(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    identifier: str,
    tag: str = "",
    host: str = "",
    json: bool = False,
    sh: bool = False,
    set_: list[str] | None = None,
    label: str | None = None,
    arch_list: str | None = None,
    jobs: str | None = None,
    memory: str | None = None,
    torch: str | None = None,
    toolkit: str | None = None,
    plat: str | None = None,
) -> str:
    """Print everything that a session would do."""
    described = load_host(Path(host)) if host else measure_host(layout.root)
    release = selection.selected_release(facts, layout, tag)
    values = {"label": label, "arch_list": arch_list, "jobs": jobs, "memory": memory, "torch": torch}
    options = options_of_task("plan", set_ or (), **values, toolkit=toolkit, plat=plat)
    preview = preview_plan(facts, None if host else layout, described, identifier, release, options)
    if release is None:
        print(preview.choice(), file=sys.stderr)  # noqa: T201 - beside what is printed
    return preview.as_json() if json else preview.as_script() if sh else preview.as_text()


PLAN = TaskCommand(
    show_plan,
    {
        "identifier": "such as wheel-3.10-cpu",
        "tag": "the release; default: the selected one, else the newest that supports the cell",
        "host": "a TOML file that describes another machine",
        "json": "print JSON",
        "sh": "print a shell script that builds the wheel with no suite installed",
        "set_": "NAME=VALUE, a variable for the build; may be repeated",
        "label": "local version: official, git or none",
        "arch_list": "compute capabilities, such as '8.0;8.6+PTX'",
        "jobs": "processors that the build may keep busy",
        "memory": "memory the build may use, such as '12 GiB'",
        "torch": "a wheel to build against, or PyPI",
        "toolkit": "a newer CUDA of the same major version to build with, such as 11.8",
        "plat": "the wheel's platform: auto, linux, or a tag such as manylinux_2_28",
    },
    repeated=("set_",),
    argument="identifier",
    required=True,
)
