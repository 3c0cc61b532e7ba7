"""Which steps of a cell need not be done again: their inputs, earlier records, differences."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torchmill.build import machine_inputs
from torchmill.build.context import BuildContext
from torchmill.config.model import SPEED_ONLY_SWITCHES, Artifact
from torchmill.core import files
from torchmill.core.stat_cache import StatCache, digest_code, digest_data
from torchmill.host import environments
from torchmill.wheel import dist_files
from torchmill.wheel.pack import zip_writer

STAGES = ("compile", "pack", "verify")
INSTALLED = "installed packages"
WHOLE = "the plan"


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage: all that could change its result, and the result."""

    parts: Mapping[str, str]  # name -> digest
    made: str  # sha256 of the file it made
    read: Mapping[str, str] = field(default_factory=dict)  # files of the machine that were read -> sha256
    said: Mapping[str, Any] = field(default_factory=dict)  # what the manifest tells of it


def find_differences(entry: StageRecord | None, parts: Mapping[str, str], recall: StatCache) -> Iterator[str]:
    """Yield what a stage would find changed; nothing means that it would make the same again."""
    if entry is None:
        yield "not done yet"
        return
    optional = {INSTALLED} - parts.keys()  # an environment that is new will hold the same again
    names = [*parts, *sorted(entry.parts.keys() - parts.keys() - optional)]
    found = [name for name in names if entry.parts.get(name) != parts.get(name)]
    yield from [name for name in found if name != WHOLE] or found  # what is whole only says it once more
    yield from machine_inputs.find_changed_inputs(entry.read, recall)


def parse_records(found: object) -> dict[str, StageRecord]:
    """Return the entries in what was read from a ledger or a manifest; none where it is something else."""
    stages = found.get("stages") if isinstance(found, dict) else None
    entries: dict[str, StageRecord] = {}
    for name in STAGES:
        try:
            entries[name] = _entry(stages[name])  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            break  # what follows was made of it
    return entries


def records_as_data(entries: Mapping[str, StageRecord]) -> dict[str, Any]:
    """Return entries as a manifest holds them, which tells in its own words what they say."""
    return {name: asdict(replace(entry, said={})) for name, entry in entries.items()}


def read_records(file: Path) -> dict[str, StageRecord]:
    """Return the entries in a file; none where there is none, or it cannot be read."""
    try:
        return parse_records(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def write_records(file: Path, entries: Mapping[str, StageRecord]) -> None:
    """Write the entries of a cell; the file appears whole."""
    stages = {name: asdict(entry) for name, entry in entries.items()}
    files.write_atomically(file, json.dumps({"stages": stages}, default=str))


def _entry(found: Mapping[str, Any]) -> StageRecord:
    entry = StageRecord(dict(found["parts"]), str(found["made"]), dict(found["read"]), dict(found["said"]))
    if not entry.parts or not entry.made:
        raise ValueError("an entry that names nothing would be equal to nothing")
    return entry


_MOST_LISTED = 5  # changes named in a message
_PACKERS = ("auditwheel", "patchelf")  # what wheels are packed with, beside our own code


@dataclass(frozen=True, slots=True)
class StageState:
    """Where a cell stands: its recorded stages, those of them still valid, and why the next one is not."""

    recorded: Mapping[str, StageRecord]
    valid: Mapping[str, StageRecord]
    why: str = ""


class StageLog:
    """The stages of a cell during one run: those recorded earlier and still valid, and those done now."""

    def __init__(self, context: BuildContext) -> None:
        state = find_stage_state(context)
        self._context = context
        self._recorded = dict(state.recorded)
        self.valid = dict(state.valid)
        self.earlier_manifest = dist_files.read_manifest(context.wheel)

    def is_valid(self, stage: str) -> bool:
        """Tell whether a stage would make the same again; the stages before it must be valid, too."""
        if stage not in self.valid:
            entry = self._recorded.get(stage)
            follows = all(name in self.valid for name in _earlier(stage))
            if entry and follows and not find_changes(self._context, stage, entry, self.valid):
                self.valid[stage] = entry
        return stage in self.valid

    def find_product(self, stage: str) -> Path | None:
        """Return the file that a valid stage made; None where the stage has to be done (again)."""
        if not self.is_valid(stage):
            return None
        outputs = self._context.outputs
        packed = [self._context.wheel, *outputs.packed.glob("*.whl")]
        places = outputs.raw.glob("*.whl") if stage == "compile" else packed
        sha256 = self.valid[stage].made
        return next((path for path in places if self._context.recall.digest(path) == sha256), None)

    def record(self, stage: str, entry: StageRecord) -> None:
        """Write down a stage that was done; whether later ones are still valid is open again."""
        self.valid = {name: self.valid[name] for name in _earlier(stage)} | {stage: entry}
        self._recorded |= self.valid
        write_records(self._context.outputs.ledger, self._recorded)


def _earlier(stage: str) -> tuple[str, ...]:
    return STAGES[: STAGES.index(stage)]


def find_delivered_wheel(context: BuildContext) -> Artifact | None:
    """Return the verified wheel of a cell if it is in dist/ and up to date."""
    verified = _state(context, parse_records(dist_files.read_manifest(context.wheel))).valid.get("verify")
    current = verified is not None and context.recall.digest(context.wheel) == verified.made
    context.recall.save()
    return Artifact(context.wheel, dist_files.manifest_path(context.wheel)) if current else None


def explain_rebuild(context: BuildContext, note: Callable[[str], None]) -> None:
    """Note why a wheel that was built before is out of date."""
    state = find_stage_state(context)
    if state.recorded:
        note(f"{context.wheel.name} is out of date: {state.why or 'the wheel is missing or was edited'}")


def find_stage_state(context: BuildContext) -> StageState:
    """Return which recorded stages of a cell are valid, by its own ledger or by its wheel's manifest."""
    by_manifest = _state(context, parse_records(dist_files.read_manifest(context.wheel)))
    if len(by_manifest.valid) == len(STAGES):
        return by_manifest
    by_ledger = _state(context, read_records(context.outputs.ledger))
    return max(by_ledger, by_manifest, key=lambda state: len(state.valid))


def _state(context: BuildContext, recorded: Mapping[str, StageRecord]) -> StageState:
    valid: dict[str, StageRecord] = {}
    for stage in STAGES:
        entry = recorded.get(stage)
        changed = find_changes(context, stage, entry, valid)
        if entry is None or changed:
            why = f"{stage}: {', '.join(changed)} changed" if entry else f"{stage} was not done yet"
            return StageState(recorded, valid, why)
        valid[stage] = entry
    return StageState(recorded, valid)


def find_changes(
    context: BuildContext, stage: str, entry: StageRecord | None, before: Mapping[str, StageRecord]
) -> list[str]:
    """Return the first things that a stage would find changed; none where it would make the same again.

    `before` are the stages before it.
    """
    return list(
        islice(find_differences(entry, stage_inputs(context, stage, before), context.recall), _MOST_LISTED)
    )


def stage_inputs(context: BuildContext, stage: str, before: Mapping[str, StageRecord]) -> dict[str, str]:
    """Return what can change the result of a stage, by names for people; files that it reads come on top."""
    if stage == "compile":
        return _of_compiling(context)
    if stage == "pack":
        return _of_packing(context, before["compile"].made)
    return _of_verifying(context, before["pack"].made)


def _of_compiling(context: BuildContext) -> dict[str, str]:
    plan, source = context.plan, context.source
    return {
        **{f"switch {name}": digest_data(value) for name, value in _switches(context).items()},
        **{
            f"patch {name}": context.recall.digest(context.facts.patches / name) or ""
            for name in plan.patches
        },
        **{f"submodule {path}": commit for path, commit in source.submodules.items()},
        "source": digest_data([source.provider, source.origin, source.commit]),
        "requirements": digest_data([plan.requirements, plan.kit]),
        "commands": digest_data([plan.prepare, plan.compile]),
        **{f"interpreter: {name}": digest_data(said) for name, said in context.tools.items()},
        **{name: digest_data(said) for name, said in context.ground.items()},
        **installed_inputs(context),
        WHOLE: context.compile_key,
    }


def installed_inputs(context: BuildContext) -> dict[str, str]:
    """Return what the environment of the build holds, which somebody may have changed; {} where it is new."""
    found = environments.installed_distributions(context.venv, context.environment_key)
    return {} if found is None else {INSTALLED: digest_data(found)}


def _of_packing(context: BuildContext, raw: str) -> dict[str, str]:
    plan, source = context.plan, context.source
    return {
        "raw wheel": raw,
        "name": digest_data([plan.wheel, plan.platform_tag, plan.computed, context.package.import_name]),
        "commit": digest_data([source.provider, source.commit]),
        "Pythons": digest_data(plan.release.pythons),
        "base": context.environment_key if context.base else "none",
        "code that packs": digest_code(context.recall, "wheel/pack"),
        "tools that pack": digest_data([*map(_distribution, _PACKERS), str(zip_writer.best_codec())]),
        "SOURCE_DATE_EPOCH": digest_data(os.environ.get("SOURCE_DATE_EPOCH")),
    }


def _of_verifying(context: BuildContext, packed: str) -> dict[str, str]:
    plan, package = context.plan, context.package
    expected = [plan.version, plan.commit, plan.torch, plan.toolkit, dict(plan.libraries), _switches(context)]
    named = [plan.wheel, plan.computed]
    return {
        "packed wheel": packed,
        "expectations": digest_data([*expected, package.import_name, package.checks, package.smoke, *named]),
        "interpreter and requirements": context.environment_key,
        "code that verifies": digest_code(context.recall, "wheel/verify", "wheel/wheel_file.py"),
        "code that packs": digest_code(context.recall, "wheel/pack"),
    }


def _switches(context: BuildContext) -> dict[str, str]:
    return {name: value for name, value in context.plan.set.items() if name not in SPEED_ONLY_SWITCHES}


def _distribution(name: str) -> str:
    """Return "name-version.dist-info"; importlib.metadata, which knows it too, takes long to load."""
    found = (path.name for folder in sys.path for path in Path(folder).glob(f"{name}-*.dist-info"))
    return next(found, "")
