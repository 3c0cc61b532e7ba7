"""`invoke plan`: the work and the cost of a session, without doing any of it."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchmill.cell.context import has_finished_tree
from torchmill.cell.environment import describe_unread
from torchmill.cell.patches import read_patches
from torchmill.commands import outlook
from torchmill.commands.command import CommandOutput
from torchmill.commands.described_host import load_described_host
from torchmill.config import selection
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.release_lookup import selecting_tag
from torchmill.core.console import fold_text
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.products import product_cell
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.verification import load_examined_source
from torchmill.host.host import Host
from torchmill.host.measurement import read_or_measure_host, with_named_compiler
from torchmill.host.own_runs import read_own_runs
from torchmill.host.processor import resolve_processor
from torchmill.plan import estimate_report, published, render, script
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.cell_lookup import uncontained_arch
from torchmill.plan.crossing import building_host
from torchmill.plan.cuda_libraries import used_cudnn
from torchmill.plan.doctor.judgement import Judgement
from torchmill.plan.job_count import usable_memory
from torchmill.plan.options import format_options
from torchmill.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class PreviewedPlan:
    """A plan that is only shown, and the values that it was computed from."""

    facts: Facts
    layout: Layout
    cell: Cell
    host: Host
    described: bool  # the host comes from a file: sources and builds here do not count
    user_options: Options  # as the user gave them
    options: Options  # completed by this machine: its processor, and its GPUs if none are named
    source: Source | None
    plan: Plan
    product: str  # that is made of the wheel, such as "conda"; "" for the wheel itself
    product_file: str  # the path of the product in dist/; "" if it is no file
    native_arch: str  # the architecture that is built without a container

    @property
    def own_runs(self) -> Sequence[MeasuredRun]:
        """Return the measured builds of this machine; none for a described host."""
        if self.described:
            return ()
        return read_own_runs(self.facts, self.layout.dist)

    @property
    def is_further_python(self) -> bool:
        """Tell whether a tree of the same variant was compiled here for any Python.

        Then a build for another Python compiles only a part again.
        """
        return not self.described and has_finished_tree(
            self.layout, self.facts, self.cell, self.native_arch
        )


def show_plan(
    facts: Facts,
    layout: Layout,
    identifier: str,
    *,
    tag: str = "",
    host: str = "",
    collect_env: str = "",
    json: bool = False,
    sh: bool = False,
    all_: bool = False,
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Return the work and the cost of a session, with `all_` in every detail.

    `host` is a host file, `collect_env` a file with the output of a collect_env: the plan is for
    the machine that it describes.

    With `sh`, the text is a script that builds the wheel without torchmill. Remarks on the plan go
    to standard error. Raises ConfigError for `sh` together with `json`, ImpossibleBuildError for
    the script of a crossed build.
    """
    if sh and json:
        raise ConfigError(
            "invoke plan: --sh prints a script, --json data: give one", code="contradictory-options"
        )
    described = load_described_host(host, collect_env)
    preview = _preview(facts, layout, identifier, tag, described, options)
    for remark in _remarks(preview, tag):
        # Standard output has nothing but the plan: it may be a script, or JSON.
        print(as_plain_text(remark), file=sys.stderr)  # noqa: T201
    if sh:
        script.refuse_crossed(preview.plan)
        patches = read_patches(preview.plan, facts.patches)
        return CommandOutput(script.plan_as_script(preview.plan, facts, preview.host, patches))
    judgements = outlook.judge_plan(facts, preview.cell, preview.host, preview.plan, preview.source)
    container: tuple[str, dict[str, Any]] | None = None
    if described is None and preview.cell.build.arch != preview.native_arch:
        from torchmill.commands.cross_build import preview_cross_build

        container = preview_cross_build(
            facts, preview.cell, preview.host, preview.options, whole=all_
        )
        # A plan is computed for a native build, whose name has no architecture. The name of a
        # session in a container has one: "wheel-3.10-cpu-aarch64".
        identifier = preview.cell.build.identifier(preview.native_arch)
        preview = replace(preview, plan=replace(preview.plan, identifier=identifier))
    lines = [_plan_in_detail(preview) if all_ else _summarize_plan(preview)]
    if preview.product:
        file = preview.product_file
        action = f"makes dist/{file} of the wheel" if file else "tries the wheel"
        lines.append(f"then       {preview.product}: {action}")
    lines += [fold_text(str(judgement)) for judgement in judgements]
    if container:
        # With `all_` there are commands in it, which stay whole.
        lines.append(container[0] if all_ else fold_text(container[0]))
    data = _plan_as_data(preview, judgements, container[1] if container else None)
    return CommandOutput("\n".join(lines), data)


def _preview(  # noqa: PLR0917
    facts: Facts,
    layout: Layout,
    identifier: str,
    tag: str,
    described: Host | None,
    user_options: Options,
) -> PreviewedPlan:
    """Return the plan of a cell on this machine, or on a described one."""
    host = described or read_or_measure_host("", layout.root, identifier)
    selected = selection.selected_release(facts, layout, tag)
    product, cell = product_cell(facts, identifier, host.arch, selected)
    arch = cell.build.arch
    if facts.arches[arch].system != host.system:
        # A build for another system, such as Windows, runs there: assume a usual machine of it.
        host = replace(published.target_host(facts, host, arch), arch=host.arch)
    options = user_options
    host = building_host(facts, cell.build, host)
    if described is None:
        host = with_named_compiler(host, options.settings, os.environ)
        processor = resolve_processor(facts, arch, host, options.cpu, options.settings)
        options = replace(options, processor=processor)
    native_arch = uncontained_arch(facts, [identifier], host.arch)
    if host.crosses:
        native_arch = host.crosses  # it needs no container
    options = outlook.options_here(facts, cell, host, options, native_arch)
    source = None
    if described is None:
        cache = StatCache(layout.stat_cache)
        source = load_examined_source(layout, cell.build.package, cell.release.tag, cache)
    plan = compute_plan(facts, cell, host, options, source)
    return PreviewedPlan(
        facts=facts,
        layout=layout,
        cell=cell,
        host=host,
        described=described is not None,
        user_options=user_options,
        options=options,
        source=source,
        plan=plan,
        product=product,
        product_file=_product_file(facts, cell, plan, host, product),
        native_arch=native_arch,
    )


def _product_file(facts: Facts, cell: Cell, plan: Plan, host: Host, product: str) -> str:
    """Return the path in dist/ of the product of a plan's wheel; "" if that is no file."""
    if product == "conda":
        from torchmill.deliver.conda.recipe import planned_package

        return planned_package(facts, cell, plan, used_cudnn(plan, host))
    if product != "libtorch":
        return ""
    from torchmill.deliver.libtorch import archive_name

    build = cell.build
    new_abi = plan.variables.get("_GLIBCXX_USE_CXX11_ABI") != "0"
    return archive_name(
        facts.packages[build.package].import_name,
        plan.wheel.version,
        facts.arches[build.arch].system,
        build.arch,
        "cxx11-abi-" if new_abi else "",
    )


def _remarks(preview: PreviewedPlan, tag: str) -> Iterator[str]:
    """Yield which release is planned, and which environment variables the build ignores.

    `tag` is the option --tag. If it names the release, nothing is yielded about that.
    """
    if not tag:
        tag_of_cell = selecting_tag(preview.facts, preview.cell.release)
        selected = selection.describe_selection(preview.layout, tag)
        identifier = preview.plan.identifier
        yield (
            selected
            or f"no release is selected: {tag_of_cell} is the newest that supports {identifier}"
        )
    unread = "" if preview.described else describe_unread(preview.plan)
    if unread:
        yield unread


def _plan_as_data(
    preview: PreviewedPlan, judgements: Sequence[Judgement], container: dict[str, Any] | None
) -> dict[str, Any]:
    """Return a plan, its costs and judgements as JSON-ready data; `container` if it needs one."""
    gpus = known_capabilities(preview.facts, preview.host.gpus.devices)
    data = render.plan_as_data(preview.plan)
    data |= estimate_report.estimate_as_data(
        preview.facts,
        preview.plan,
        preview.own_runs,
        gpus,
        is_further_python=preview.is_further_python,
    )
    data["judgements"] = [judgement.as_data() for judgement in judgements]
    if preview.product:
        data["product"] = {"session": preview.product, "file": preview.product_file}
    if container:
        data["container"] = container
    return data


def _summarize_plan(preview: PreviewedPlan) -> str:
    """Return a plan in a few lines."""
    costs = estimate_report.cost_rows(
        preview.facts,
        preview.plan,
        preview.own_runs,
        is_further_python=preview.is_further_python,
    )
    tag = selecting_tag(preview.facts, preview.cell.release)
    words = format_options(preview.user_options)
    return render.plan_summary(
        preview.facts, preview.plan, preview.host, costs, tag=tag, options=words
    )


def _plan_in_detail(preview: PreviewedPlan) -> str:
    """Return every detail of a plan, and its cost."""
    cost = estimate_report.estimate_as_text(
        preview.facts,
        preview.plan,
        usable_memory(preview.host, preview.options),
        preview.own_runs,
        known_capabilities(preview.facts, preview.host.gpus.devices),
        is_further_python=preview.is_further_python,
    )
    return f"{render.plan_as_text(preview.plan, preview.host)}\n{cost}"
