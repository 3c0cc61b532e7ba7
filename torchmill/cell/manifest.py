"""The manifest of a wheel: everything that is known about how it was made.

It is JSON beside the wheel in dist/. The statement and the SBOM of the wheel are derived from it.

A manifest contains the reports of the stages (compile, pack, verify), as entries of its own. A
later run may know from the manifest alone that a stage is still valid. Its record of that stage
then has no report, and the entries of that earlier manifest go on to count.
"""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torchmill.cell.context import BuildContext
from torchmill.cell.up_to_date import StageLog, records_as_data
from torchmill.core import formats
from torchmill.core.stat_cache import digest_data
from torchmill.plan import wheel_name
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cuda_libraries import used_cudnn

# Most of these options change how fast a build is, and not its wheel. "network" and "processor" are
# in the manifest under other keys.
_OPTIONS_LEFT_OUT = {"jobs", "memory", "guard", "network", "processor", "shard", "parts", "until"}


def compose_manifest(context: BuildContext, stages: StageLog, wheel: str) -> dict[str, Any]:
    """Return the manifest of a wheel; `wheel` is its file name.

    It has the reports of the stages that are done. So it can be composed before the wheel is
    packed, for the SBOM inside the wheel.
    """
    plan = context.plan
    source = context.source
    records = stages.valid
    is_official_commit = source.commit is not None and source.commit == plan.release.proof.commit
    manifest = _stage_reports(stages) | {
        formats.KEY: formats.MANIFEST,
        "identifier": plan.identifier,
        "wheel": wheel,
        "planned": plan.wheel.file_name,  # with the newest platform tag that is possible
        "package": plan.build.package,
        "version": plan.wheel.version,
        "tag": plan.release.tag,
        "commit": source.commit,  # null if it is not proven
        "commit_verified": source.commit is not None and source.verified,
        "commit_declared": source.declared,
        "unproven": source.unproven,
        "contents": source.contents,
        "archive": source.archive,
        "git_version": plan.source.git_version,
        "source": source.origin,
        "repository": context.package.source.repository if is_official_commit else "",
        "options": _chosen_options(context.options),
        "submodules": dict(source.submodules),
        "torch": plan.wheel.torch,
        "toolkit": plan.cuda.toolkit,
        "toolkit_completed": context.host.toolkits.completed.get(plan.cuda.toolkit or ""),
        "processor": asdict(plan.wheel.processor) if plan.wheel.processor else None,
        "libraries": dict(plan.cuda.libraries),
        "cudnn": used_cudnn(plan, context.host),
        "switches": dict(plan.variables),
        "patches": list(plan.tree.patches),
        # Parts of the official wheel that this one does not have.
        "lacks": [str(shortfall) for shortfall in plan.official.shortfalls],
        "vulnerabilities": [found.as_data() for found in plan.vulnerabilities],
        "tools": dict(context.interpreter_identity),
        "key": digest_data([record.inputs for record in records.values()]),
        "stages": records_as_data(records),
    }
    if "compile" in records:
        manifest["git_version"] = recorded_git_version(context, stages)
    if "pack" in records:
        manifest["sha256"] = records["pack"].product
    return manifest


def recorded_git_version(context: BuildContext, stages: StageLog) -> str | None:
    """Return the commit that the wheel's version module names, with a mark if files were edited.

    If nobody edited files in the tree, this is the plan's commit, which has a mark for patches;
    None if the plan has none. The stage "compile" of `stages` must be valid.
    """
    commit = context.source.commit
    edits = stages.valid["compile"].report.get("edits") or stages.earlier_manifest.get("edits")
    if commit and edits:
        return wheel_name.mark_commit(commit, wheel_name.MODIFIED)
    return context.plan.source.git_version


def _stage_reports(stages: StageLog) -> dict[str, Any]:
    """Return the reports of all valid stages together; "seconds" has an entry for each step.

    If a stage has no report, because it was done before, the result begins as the earlier manifest.
    `compose_manifest` replaces its other entries, and reports of later stages replace theirs.
    """
    records = stages.valid.values()
    reports: dict[str, Any] = {}
    if not all(record.report for record in records):
        reports = dict(stages.earlier_manifest)
    seconds = dict(reports.get("seconds", {}))
    for record in records:
        seconds.update(record.report.get("seconds", {}))
        reports.update(record.report)
    reports["seconds"] = seconds
    return reports


def _chosen_options(options: Options) -> dict[str, Any]:
    """Return the user's options that can change the wheel.

    Files are named without their folders, which are not the same on another machine.
    """
    chosen: dict[str, Any] = {}
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in _OPTIONS_LEFT_OUT or value == getattr(NO_OPTIONS, option.name):
            continue
        chosen[option.name] = value
    if "torch" in chosen:
        chosen["torch"] = Path(options.torch or "").name
    if "patches" in chosen:
        chosen["patches"] = list(options.patches)  # the names, which are the keys of a mapping
    return chosen
