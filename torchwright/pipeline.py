"""The steps of one wheel, in order: tree, requirements, compile, repair, pack, verify, publish."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchwright import artifact, verify
from torchwright import tree as trees
from torchwright.buildline import Line
from torchwright.compiling import Compiled, compile_wheel, timeline
from torchwright.errors import BuildError, VerifyError
from torchwright.guard.timeline import Account
from torchwright.model import Artifact
from torchwright.pack import metadata, repair, stage, wheel
from torchwright.process import CommandError, capture
from torchwright.workshop import Job, base_wheel, environment, preflight

Install = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Built:
    """What compiling and packing left behind, for the manifest."""

    compiled: Compiled
    seconds: dict[str, float]
    repaired: repair.Repaired


def make(job: Job, install: Install, line: Line) -> Artifact:
    """Make the wheel of one cell, verified, in dist/.

    `install` puts requirements into the session's environment. Raises SuiteError.
    """
    known = artifact.find(job.wheel, job.key)
    if known is not None:
        line.note(f"{job.wheel.name} is there and nothing changed")
        return known
    preflight(job, line.note)
    with trees.locked(job.tree.folder, job.plan.identifier), trees.disk_full_told(job.tree.folder):
        return _make(job, install, line)


def _make(job: Job, install: Install, line: Line) -> Artifact:
    seconds: dict[str, float] = {}
    with _timed(seconds, "requirements"):
        if not trees.is_prepared(job.tree, _wanted(job)):
            # What another release, or another plan, left in the session's environment must not be found.
            capture([str(job.interpreter), "-m", "venv", "--clear", str(job.venv)])
        install(*_requirements(job))
    with _timed(seconds, "prepare"):
        prepare(job, line)
    with _timed(seconds, "compile"):
        compiled = compile_wheel(job, line)
    with _timed(seconds, "pack"):
        staged, repaired = stage_wheel(job, compiled.raw)
        packed = wheel.pack(staged.root, job.tree.folder / "packed" / job.plan.wheel)
    line.note(f"verifying {packed.path.name} in a clean environment")
    with _timed(seconds, "verify"):
        report = check(job, packed.path)
    record = _manifest(job, packed, report, Built(compiled, seconds, repaired))
    return artifact.publish(packed.path, job.wheel, record)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


def _requirements(job: Job) -> list[str]:
    """Return pip's arguments for the environment of the build."""
    where = ["--find-links", str(job.layout.dist)] if job.plan.torch else []
    return [*where, *job.plan.requirements]


def _wanted(job: Job) -> str:
    """Return what the tree must have been prepared for; CMake remembers where its tools were."""
    return f"{job.key} {job.venv}"


def prepare(job: Job, line: Line) -> None:
    """Make the tree of the cell ready: a fresh patched copy, unless it is there and nothing changed."""
    tree = job.tree
    if trees.is_prepared(tree, _wanted(job)):
        line.note(f"resuming in {tree.folder}")
        return
    line.note(f"copying the source to {tree.source}")
    trees.copy_source(tree, job.source)
    variables = environment(job, {})
    for command in job.plan.prepare:
        argv = [trees.resolve(word, job.places) for word in command.argv]
        try:
            capture(argv, cwd=tree.source, env=variables)
        except CommandError as error:
            raise BuildError(f"{job.plan.identifier}: {command.title} failed: {error}") from error
    tree.key_file.write_text(_wanted(job), encoding="utf-8")


def stage_wheel(job: Job, raw: Path) -> tuple[stage.StagedWheel, repair.Repaired]:
    """Unpack the raw wheel, carry its libraries along and correct what it says of itself."""
    shutil.rmtree(job.tree.stage, ignore_errors=True)
    job.tree.stage.mkdir()
    staged = stage.unpack(raw, job.tree.stage)
    version_file = f"{job.package.import_name}/version.py"
    if job.source.provider != "git" and job.source.commit and (staged.root / version_file).is_file():
        metadata.set_git_version(staged, version_file, job.source.commit)
    repaired = repair.repair(
        staged,
        job.plan.platform_tag,
        folders=[job.venv / "lib"],
        provided=_provided(job),
    )
    name = metadata.set_platform(staged, job.plan.platform_tag)
    if name != job.plan.wheel:
        raise VerifyError(
            f"{job.plan.identifier}: the build made {name}, the plan says {job.plan.wheel}: see {job.log}"
        )
    return staged, repaired


def _provided(job: Job) -> frozenset[str]:
    """Return the libraries that the base package has loaded before a dependent one is imported."""
    if job.base is None:
        return frozenset()
    found = job.venv.glob(f"lib/python*/site-packages/{job.base.import_name}/**/*.so*")
    return frozenset(path.name for path in found)


def check(job: Job, packed: Path) -> verify.Report:
    """Try the wheel in a clean environment; raises VerifyError with every check that failed."""
    extra: list[Path | str] = [one for one in job.plan.requirements if one.startswith("numpy")]
    if job.plan.torch:
        own = base_wheel(job) if job.options.torch is None else None
        extra.append(own or job.plan.requirements[-1])
    with job.log.open("a", encoding="utf-8") as log:
        return verify.verify(
            packed,
            job.plan,
            job.package,
            python=job.interpreter,
            scratch=job.tree.folder / "verify",
            extra=extra,
            log=log,
        )


def _manifest(job: Job, packed: wheel.Packed, report: verify.Report, built: Built) -> dict[str, Any]:
    """Return everything worth knowing of a wheel when its build is forgotten."""
    plan, source = job.plan, job.source
    return {
        "identifier": plan.identifier,
        "wheel": plan.wheel,
        "sha256": packed.sha256,
        "size": packed.size,
        "package": plan.build.package,
        "version": plan.version,
        "tag": plan.release.tag,
        "commit": source.commit,
        "commit_verified": source.verified,
        "source": source.origin,
        "submodules": dict(source.submodules),
        "torch": plan.torch,
        "switches": dict(plan.set),
        "patches": list(plan.patches),
        "requirements": _installed(job),
        "tools": dict(job.tools),
        "edges": built.compiled.edges,
        "seconds": built.seconds,
        "cpu_seconds": round(built.compiled.cpu, 1),
        "jobs": plan.jobs,
        "slots": built.compiled.slots,
        "guard": _guarded(job, built.compiled.account),
        "bundled": [asdict(one) for one in built.repaired.bundled],
        "could_be": built.repaired.could_be,
        "notes": list(built.repaired.notes),
        "checks": report.checks,
        "key": job.key,
    }


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
    """Return what the environment of the build holds, "name==version" each."""
    return capture([str(job.python), "-m", "pip", "list", "--format=freeze"]).split()
