"""`invoke plan`: everything a session will do and what it will cost, without doing any of it."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from json import dumps
from typing import Any

from torchmill.cell.context import describe_unread, has_finished_tree
from torchmill.commands import outlook
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.release_lookup import selecting_tag
from torchmill.core.errors import ConfigError
from torchmill.core.formats import stamp_output
from torchmill.core.paths import Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.products import product_cell
from torchmill.fetch.source.verification import load_examined_source
from torchmill.host.host import Host
from torchmill.host.measurement import read_or_measure_host, with_named_compiler
from torchmill.host.processor import resolve_processor
from torchmill.plan import estimate, published, render
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.cell_lookup import uncontained_arch
from torchmill.plan.cuda_libraries import used_cudnn
from torchmill.plan.job_count import usable_memory
from torchmill.plan.options import format_options
from torchmill.plan.plan import Plan


def show_plan(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    identifier: str,
    tag: str = "",
    host: str = "",
    json: bool = False,
    sh: bool = False,
    all_: bool = False,
    options: Options = NO_OPTIONS,
) -> str:
    """Print what a session would do and cost; with --all, every detail."""
    if sh and json:
        raise ConfigError(
            "invoke plan: --sh prints a script, --json data: give one", code="contradictory-options"
        )
    machine = read_or_measure_host(host, layout.root, identifier)
    release = selection.selected_release(facts, layout, tag)
    product, cell = product_cell(facts, identifier, machine.arch, release)
    if (
        facts.arches[cell.build.arch].system != machine.system
    ):  # of whose machines nothing is known here
        machine = replace(published.target_host(facts, machine, cell.build.arch), arch=machine.arch)
    if not host:
        machine = with_named_compiler(machine, options.settings, os.environ)
        processor = resolve_processor(
            facts, cell.build.arch, machine, options.cpu, options.settings
        )
        options = replace(options, processor=processor)
    native = uncontained_arch(facts, [identifier], machine.arch)
    asked, options = options, outlook.options_here(facts, cell, machine, options, native)
    # On another machine, what was fetched and built here does not count.
    cache = StatCache(layout.stat_cache)
    fetched = (
        None if host else load_examined_source(layout, cell.build.package, cell.release.tag, cache)
    )
    runs = () if host else estimate.read_own_runs(facts, layout.dist)
    plan = compute_plan(facts, cell, machine, options, fetched)
    for remark in _remarks(facts, layout, cell, plan, tag=tag, here=not host):
        print(as_plain_text(remark), file=sys.stderr)  # noqa: T201 - beside what is printed
    file = _product_file(facts, cell, plan, machine, product)
    gpus = known_capabilities(facts, machine.gpus.devices)
    judgements = outlook.judge_plan(facts, cell, machine, plan, fetched)
    if sh:
        return render.plan_as_script(plan, facts, machine)
    container: tuple[str, dict[str, Any]] | None = None
    if not host and cell.build.arch != native:
        from torchmill.commands.cross_build import preview_cross_build

        container = preview_cross_build(facts, cell, machine, options, all_)
        plan = replace(plan, identifier=cell.build.identifier(native))
    if json:
        data = render.plan_as_data(plan) | estimate.estimate_as_data(facts, plan, runs, gpus)
        data |= {"judgements": [one.as_data() for one in judgements]}
        data |= {"product": {"session": product, "file": file}} if product else {}
        return dumps(
            stamp_output(data | ({"container": container[1]} if container else {})), indent=2
        )
    then = f"then       {product}: " + (
        f"makes dist/{file} of the wheel" if file else "tries the wheel"
    )
    more = [
        *([then] if product else []),
        *map(str, judgements),
        *([container[0]] if container else []),
    ]
    if not all_:
        further = not host and has_finished_tree(layout, facts, cell, native)
        costs = estimate.cost_rows(facts, plan, runs, further=further)
        selected = selecting_tag(facts, cell.release)
        return "\n".join(
            [render.plan_summary(plan, machine, costs, selected, format_options(asked)), *more]
        )
    cost = estimate.estimate_as_text(facts, plan, usable_memory(machine, options), runs, gpus)
    return "\n".join([render.plan_as_text(plan, machine), cost, *more])


def _remarks(
    facts: Facts, layout: Layout, cell: Cell, plan: Plan, *, tag: str, here: bool
) -> Iterator[str]:
    """Yield which release a plan is of if the question did not name one, and what of the shell it does not read."""
    selected = selection.describe_selection(layout, tag)
    if not tag:
        tag_of_cell = selecting_tag(facts, cell.release)
        yield selected or f"no release is selected: {tag_of_cell} is the newest that supports it"
    if here and (unread := describe_unread(plan)):
        yield unread


def _product_file(facts: Facts, cell: Cell, plan: Plan, machine: Host, product: str) -> str:
    """Return what a session makes of a plan's wheel, as its path in dist/; "" where that is no file."""
    if product == "conda":
        from torchmill.deliver.conda.recipe import planned_package

        return planned_package(facts, cell, plan, used_cudnn(plan, machine))
    if product != "libtorch":
        return ""
    from torchmill.deliver.libtorch import archive_name

    package, system = facts.packages[cell.build.package], facts.arches[cell.build.arch].system
    abi = "cxx11-abi-" * (plan.variables.get("_GLIBCXX_USE_CXX11_ABI") != "0")
    return archive_name(package.import_name, plan.wheel.version, system, cell.build.arch, abi)
