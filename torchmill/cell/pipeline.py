"""The main job: one cell from its plan to the verified wheel in dist/."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from millpress import wheel_writer

from torchmill.cell import crossing, disk_space
from torchmill.cell.compile_stage import compile_stage
from torchmill.cell.context import BuildContext, hold_cell
from torchmill.cell.environment import describe_ignored_toolkit, describe_unread
from torchmill.cell.host_survey import survey_host
from torchmill.cell.pack_stage import pack_stage
from torchmill.cell.progress_line import ProgressLine
from torchmill.cell.source_switches import with_source_switches
from torchmill.cell.up_to_date import explain_rebuild, read_stage_log
from torchmill.cell.verify_stage import publish_stage, verify_stage
from torchmill.core.errors import HostError, SourceError, UnfinishedBuildError
from torchmill.core.system_errors import report_unwritable
from torchmill.host.disk_usage import list_children
from torchmill.host.environments import Install
from torchmill.host.measurement import measure_host, with_compiler_fault
from torchmill.plan.cell_lookup import fetch_command
from torchmill.plan.crossing import building_host
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.doctor.judgement import judge
from torchmill.toolchain import remote_cache


def build_wheel(context: BuildContext, install: Install, line: ProgressLine) -> Path:
    """Build the wheel of one cell, publish it, verified, in dist/, and return its file.

    A stage whose result is up to date is skipped. Each stage that was done may leave later ones up
    to date: if the raw wheel has the same bytes as before, it need not be packed again. `install`
    puts requirements into the session's environment, and `line` shows the progress. Raises
    TorchmillError; this is UnfinishedBuildError if the build ends early, as with `--shard`.
    """
    context = _with_measured_host(context)
    preflight(context, line.note)
    explain_rebuild(context, line.note)
    with hold_cell(context):
        # Read under the lock, because a run that held it until now may have done the work.
        stages = read_stage_log(context)
        if context.options.shard and stages.is_valid("compile"):
            raise UnfinishedBuildError(
                f"{context.plan.identifier} is compiled: no share is left", code="share-made"
            )
        packed = stages.find_product("pack")
        if packed is None:
            raw = stages.find_product("compile")
            if raw is None:
                raw = compile_stage(context, stages, install, line)
            packed = stages.find_product("pack") or pack_stage(context, stages, raw, install)
        if not stages.is_valid("verify"):
            packed = verify_stage(context, stages, packed, line.note)
        return publish_stage(context, stages, packed)


def preflight(context: BuildContext, note: Callable[[str], None]) -> None:
    """Refuse a build that cannot succeed on this machine; note what may go wrong otherwise.

    The folders of wheels and logs are made. Raises HostError that lists everything missing, or for
    one of these folders that cannot be written; ConfigError for a shared cache or a
    SOURCE_DATE_EPOCH that cannot be read; SourceError if the source has empty folders.
    """
    # Only for their errors: the first use of these settings is after hours of work.
    remote_cache.parse_remote(os.environ.get(remote_cache.VARIABLE, ""))
    wheel_writer.source_date_epoch(os.environ)
    # For the same reason a file is written into folders that are used at the end.
    for folder in (context.layout.dist, context.layout.logs):
        with report_unwritable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    _require_whole_source(context)
    _examine_machine(context, note)
    if context.plan.is_crossed:
        crossing.require_target_headers(context.interpreter, context.plan)
        crossing.prove_target_python(context.plan, context.host)


def _with_measured_host(context: BuildContext) -> BuildContext:
    """Return the context with a complete measurement of the machine, which preflight examines."""
    if context.host.complete:
        return context
    host = measure_host(context.layout.root, gpus=bool(context.cell.build.cuda))
    host = with_compiler_fault(host)
    return replace(context, host=building_host(context.facts, context.cell.build, host))


def _require_whole_source(context: BuildContext) -> None:
    """Raise SourceError if folders of submodules that the plan compiles are missing or empty."""
    empty = []
    for folder in context.plan.tree.required_folders:
        if not list_children(context.source.path / folder):
            empty.append(folder)
    if empty:
        raise SourceError(
            f"{context.plan.identifier}: {', '.join(empty)} in {context.source.path} "
            f"{'are' if len(empty) > 1 else 'is'} empty, and the plan compiles files that belong "
            "there: give a source with its submodules, as "
            f"`{fetch_command(context.facts, context.cell)}` fetches it",
            code="empty-folders",
        )


def _examine_machine(context: BuildContext, note: Callable[[str], None]) -> None:
    """Raise HostError for failures that the doctor finds; note its warnings and judgements."""
    plan = context.plan
    machine = survey_host(context.facts, context.host, os.environ)
    machine = disk_space.with_disk_space(
        machine, context.facts, context.layout, context.folders, context.source
    )
    ignored_toolkit = describe_ignored_toolkit(os.environ, machine, plan.cuda.toolkit)
    if ignored_toolkit:
        note(ignored_toolkit)
    wheels = tuple(path.name for path in context.layout.dist.glob("*.whl"))
    question = CheckContext(context.facts, context.cell, machine, plan, context.source, wheels)
    findings = examination.examine_build(with_source_switches(question))
    if not examination.can_start(findings):
        failures = [finding for finding in findings if finding.verdict == "failure"]
        lines = "\n".join(f"  {finding.sentence()}" for finding in failures)
        raise HostError(
            f"{plan.identifier} cannot be built on this machine yet:\n{lines}",
            code="host-not-ready",
        )
    unread = describe_unread(plan)
    if unread:
        note(unread)
    if plan.official.published:
        note(str(plan.official.published))
    judgements = judge(question)
    for judgement in judgements:
        note(str(judgement))
    judged = {judgement.subject for judgement in judgements}
    for finding in findings:
        if finding.verdict == "warning" and finding.subject not in judged:
            note(finding.sentence())
