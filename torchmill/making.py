"""What each stage of a wheel does, and what is written down of it."""

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchmill import kit, removal, sharing, stages, verify
from torchmill.buildline import Line
from torchmill.compiling import timeline
from torchmill.deliver.provenance import builder, origins
from torchmill.environments import Install
from torchmill.errors import VerifyError
from torchmill.guard.timeline import Account
from torchmill.housekeeping import foresight
from torchmill.ledger import Entry
from torchmill.pack import headers, metadata, nvidia, repair, stage, wheel
from torchmill.pack.bundling import Bundled
from torchmill.process import capture
from torchmill.verify import devicecode, siblings
from torchmill.workshop import Job, base_wheel

MEMBERS = 10 * 2**30  # bytes of compressed members that are kept
LOADER = Path("/etc/ld.so.cache")  # by which libraries of the system are found


def located(job: Job, stage: str, sha256: str) -> Path | None:
    """Return where a file lies that a stage made; None where it is gone, or was changed."""
    packed = [job.wheel, *job.outputs.packed.glob("*.whl")]
    places = job.outputs.raw.glob("*.whl") if stage == "compile" else packed
    return next((path for path in places if job.recall.digest(path) == sha256), None)


def compiled(job: Job, install: Install, line: Line) -> tuple[Path, Entry]:
    """Build the raw wheel, and tell of it."""
    parts = stages.parts(job, "compile", {})  # as they are now: what changes meanwhile is seen next time
    built = sharing.compiled(job, install, line)
    parts |= stages.installed(job)
    said = {
        "builder": builder.of(os.environ),
        "requirements": _installed(job),
        "edges": built.edges,
        "cpu_seconds": round(built.cpu, 1),
        "jobs": job.plan.jobs,
        "slots": built.slots,
        "guard": _guarded(job, built.account),
        "cache": asdict(built.cache) if built.cache else None,
        "seconds": dict(built.seconds),
        "waited": built.waited,
    }
    return built.raw, Entry(parts, job.recall.digest(built.raw) or "", built.read, said)


def packed(job: Job, raw: Path, entries: Mapping[str, Entry]) -> tuple[Path, Entry]:
    """Stage, repair and pack what was compiled, and tell of it."""
    start = time.monotonic()
    parts = stages.parts(job, "pack", entries)
    staged, repaired, name = _stage(job, raw)
    members = job.layout.cache / "members"
    for old in job.outputs.packed.glob("*.whl"):  # with another platform tag, where that is computed
        old.unlink()
    made = wheel.pack(staged.root, job.outputs.packed / name, rest=staged.rest, members=members)
    removal.trim(members, MEMBERS)
    said = {
        "size": made.size,
        "bundled": [asdict(one) for one in repaired.bundled],
        "origins": origins.of(one.source for one in repaired.bundled),
        "could_be": repaired.could_be,
        "notes": list(repaired.notes),
        "packing": {"codec": made.codec, "kept": made.kept},
        "seconds": {"pack": round(time.monotonic() - start, 1)},
    }
    return made.path, Entry(parts, made.sha256, _from_system(job, repaired.bundled), said)


def verified(job: Job, wheel: Path, entries: Mapping[str, Entry]) -> Entry:
    """Try the wheel in a clean environment, and tell of it; raises VerifyError where it fails."""
    start = time.monotonic()
    parts = stages.parts(job, "verify", entries)
    extra: list[Path | str] = [one for one in job.plan.requirements if one.startswith("numpy")]
    if job.plan.torch:
        own = base_wheel(job) if job.options.torch is None else None
        extra.append(own or job.plan.requirements[-1])
    with job.log.open("a", encoding="utf-8") as log:
        report = verify.verify(
            wheel,
            job.plan,
            job.package,
            python=job.interpreter,
            scratch=job.outputs.verify,
            extra=extra,
            log=log,
            targets=devicecode.asked(job.facts, job.plan),
        )
    others = siblings.of(job.layout.dist / wheel.name)
    said = {
        "unlike": siblings.differences(wheel, others),
        "checks": {name: asdict(check) for name, check in report.checks.items()},
        "device_code": dict(report.device_code),
        "seconds": {"verify": round(time.monotonic() - start, 1)},
        **_disk(job),
    }
    return Entry(parts, entries["pack"].made, {}, said)


def _stage(job: Job, raw: Path) -> tuple[stage.StagedWheel, repair.Repaired, str]:
    """Unpack the raw wheel, carry its libraries along, correct what it says of itself, and name it."""
    shutil.rmtree(job.outputs.stage, ignore_errors=True)
    job.outputs.stage.mkdir()
    version_file = f"{job.package.import_name}/version.py"
    staged = stage.lay(raw, job.outputs.stage, {version_file})
    if not job.package.version_variables:
        staged = metadata.stamp(staged, job.plan.version, job.plan.torch)
    headers.unify(staged, job.plan.release.pythons)
    if job.source.provider != "git" and job.source.commit and (staged.root / version_file).is_file():
        metadata.set_git_version(staged, version_file, job.source.commit)
    repaired = repair.repair(
        staged,
        job.plan.platform_tag,
        folders=[job.venv / "lib", job.tree.kit / "lib", *_beside_toolkit(job)],
        provided=_provided(job),
        beside=nvidia.beside(_packages(job)) if job.base else {},
    )
    name = metadata.file_name(staged, job.plan.platform_tag)
    if name != job.plan.wheel:
        raise VerifyError(
            f"{job.plan.identifier}: the build made {name}, the plan says {job.plan.wheel}: see {job.log}"
        )
    lowest = repaired.could_be if job.plan.computed else None
    return staged, repaired, metadata.set_platform(staged, lowest or job.plan.platform_tag)


def _beside_toolkit(job: Job) -> list[Path]:
    """Return the folders with the libraries of CUDA that the build was linked with."""
    homes = [
        job.places[name]
        for name in ("cuda_home", "cudnn_home", "nccl_home", "magma_home")
        if job.places.get(name)
    ]
    return [Path(home, folder) for home in homes for folder in ("lib64", "lib")]


def _provided(job: Job) -> frozenset[str]:
    """Return the libraries that the base package has loaded before a dependent one is imported."""
    if job.base is None:
        return frozenset()
    own = _packages(job) / job.base.import_name
    return frozenset(path.name for kind in ("*.so*", "*.dylib") for path in own.rglob(kind))


def _packages(job: Job) -> Path:
    """Return the folder of what is installed for the build; repair has work on Linux only."""
    return next(iter(job.venv.glob("lib/python*/site-packages")), job.venv)


def _from_system(job: Job, bundled: Iterable[Bundled]) -> dict[str, str]:
    """Return the libraries of the machine that came along, and what the loader finds them by."""
    own = (job.tree.folder, job.venv)
    found = {
        str(one.source): one.sha256
        for one in bundled
        if not any(one.source.is_relative_to(folder) for folder in own)
    }
    loader = job.recall.digest(LOADER) if found else None
    return found | ({str(LOADER): loader} if loader else {})


def _disk(job: Job) -> dict[str, Any]:
    """Return what a build takes of the disk, where it is all there."""
    if not job.tree.source.exists():
        return {}
    folders = foresight.Folders(job.tree.folder, job.outputs.folder, job.venv)
    return {"disk": foresight.written(folders)}


def _guarded(job: Job, account: Account | None) -> dict[str, Any] | None:
    """Return what the guard of a build saw and did; None where it had none."""
    if account is None:
        return None
    return {
        "peak": account.peak,
        "allowed": account.now.allowed,
        "cores": job.options.jobs or job.host.cores,
        "units": account.units,
        "pauses": account.counts.get("pause", 0),
        "reruns": account.counts.get("rerun", 0),
        "kills": account.counts.get("kill", 0),
        "short": round(account.now.short, 1),
        "timeline": os.path.relpath(timeline(job), job.layout.dist),
    }


def _installed(job: Job) -> list[str]:
    """Return what the build had, for its interpreter and for all, "name==version" each."""
    own = capture([str(job.python), "-m", "pip", "list", "--format=freeze"]).split()
    return sorted({*own, *kit.contents(job.tree.kit)})
