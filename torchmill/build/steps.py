"""The steps of one wheel (compile, pack, verify), what each records, and the wheel's manifest."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from torchmill.build import disk_space, prepare, up_to_date
from torchmill.build.compile import CompileResult, compile_wheel, timeline_file
from torchmill.build.context import BuildContext, base_wheel
from torchmill.build.progress_line import ProgressLine
from torchmill.build.tree import BuildTree
from torchmill.build.up_to_date import StageRecord
from torchmill.config.model import Options
from torchmill.core import files, locks
from torchmill.core.errors import BusyError, VerifyError
from torchmill.core.process import capture
from torchmill.host import environments
from torchmill.host.environments import Install
from torchmill.plan import base_requirement
from torchmill.toolchain.guard.timeline import BuildAccount
from torchmill.wheel import builder
from torchmill.wheel.pack import bundling, licences, metadata, repair, staging, wheel_writer
from torchmill.wheel.pack.bundling import BundledLibrary
from torchmill.wheel.verify import device_code, static_checks, verification

TREES_KEPT = 2  # trees of one family: whoever tries a switch, and goes back, finds both


def compile_in_tree(job: BuildContext, install: Install, line: ProgressLine) -> CompileResult:
    """Build the raw wheel of a cell, whose own folder is held, in its tree.

    Where other interpreters' cells share the tree it is waited for, and given back once the wheel is made.
    `install` puts requirements into the session's environment. Raises SuiteError.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "requirements"):
        own_kit = () if job.shares_tree else job.plan.kit
        wanted = [*find_links_variables(job), *own_kit, *job.plan.requirements]
        environments.provide_environment(job.venv, job.interpreter, job.environment_key, install, *wanted)
        user = environments.tree_user(job.venv, job.python, job.environment_key, job.tree.env)
    asked = time.monotonic()
    with _taken(job, line):
        waited = round(time.monotonic() - asked, 1)
        began = time.time()
        with _timed(seconds, "prepare"):
            if job.shares_tree and not job.tree.key_file.exists():
                empty_old_trees(job, line.note)
            prepare.prepare_tree(job, user, install, line.note)
        with _timed(seconds, "compile"):
            try:
                made = compile_wheel(job, line)
            finally:  # whoever goes on where this one stopped must know, too
                read = prepare.record_external_inputs(job, user, began)
            prepare.refuse_foreign_objects(job, user)
    return replace(made, seconds=seconds, waited=waited, read=read)


def find_links_variables(job: BuildContext) -> list[str]:
    """Return what leads pip to our own wheels, where it is not PyPI's that is built against."""
    ours = job.plan.torch is not None and job.options.torch != base_requirement.PYPI
    return ["--find-links", str(job.layout.dist)] if ours else []


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


@contextlib.contextmanager
def _taken(job: BuildContext, line: ProgressLine) -> Iterator[None]:
    """Hold the tree; a tree of the cell's own is in its folder, which is held already."""
    if not job.shares_tree:
        yield
        return
    with locks.wait_for_lock(job.tree.folder, job.plan.identifier, line.note):
        yield


def empty_old_trees(job: BuildContext, note: Callable[[str], None]) -> None:
    """Empty the trees of the cell's family that were unused longest, unless somebody is at work.

    What is another user's stays. Whoever packs needs the kit of a tree that he has given back.
    """
    own = job.tree.folder
    alike = own.parent.glob(f"{job.family}-{'?' * 8}")
    others = [one for one in alike if one != own and BuildTree(one).source.is_dir()]
    cells = [
        one for one in own.parent.glob(f"*/{locks.LOCK_FILE}") if one.parent not in {own, job.outputs.folder}
    ]
    for folder in sorted(others, key=locks.last_taken, reverse=True)[TREES_KEPT - 1 :]:
        with contextlib.suppress(BusyError, OSError):
            with files.hold_locks(cells):
                away = files.move_out_of_sight(files.list_contents(folder))
            note(f"removed {folder}, the tree that was unused longest")
            files.delete_paths(away)


MEMBERS = 10 * 2**30  # bytes of compressed members that are kept
LOADER = Path("/etc/ld.so.cache")  # by which libraries of the system are found


def locate_product(job: BuildContext, stage: str, sha256: str) -> Path | None:
    """Return where a file lies that a stage made; None where it is gone, or was changed."""
    packed = [job.wheel, *job.outputs.packed.glob("*.whl")]
    places = job.outputs.raw.glob("*.whl") if stage == "compile" else packed
    return next((path for path in places if job.recall.digest(path) == sha256), None)


def compile_stage(job: BuildContext, install: Install, line: ProgressLine) -> tuple[Path, StageRecord]:
    """Build the raw wheel, and tell of it."""
    parts = up_to_date.stage_inputs(
        job, "compile", {}
    )  # as they are now: what changes meanwhile is seen next time
    built = compile_in_tree(job, install, line)
    parts |= up_to_date.installed_inputs(job)
    said = {
        "builder": builder.describe_builder(os.environ),
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
    return built.raw, StageRecord(parts, job.recall.digest(built.raw) or "", built.read, said)


def pack_stage(job: BuildContext, raw: Path, entries: Mapping[str, StageRecord]) -> tuple[Path, StageRecord]:
    """Stage, repair and pack what was compiled, and tell of it."""
    start = time.monotonic()
    parts = up_to_date.stage_inputs(job, "pack", entries)
    staged, repaired, name = _stage(job, raw)
    members = job.layout.cache / "members"
    for old in job.outputs.packed.glob("*.whl"):  # with another platform tag, where that is computed
        old.unlink()
    made = wheel_writer.pack_wheel(
        staged.root, job.outputs.packed / name, unstaged=staged.unstaged, cache_folder=members
    )
    files.trim_folder(members, MEMBERS)
    said = {
        "size": made.size,
        "bundled": [asdict(one) for one in repaired.bundled],
        "origins": licences.library_purls(one.source for one in repaired.bundled),
        "could_be": repaired.lowest_tag,
        "notes": list(repaired.notes),
        "packing": {"codec": made.codec, "kept": made.copied_bytes},
        "seconds": {"pack": round(time.monotonic() - start, 1)},
    }
    return made.path, StageRecord(parts, made.sha256, _from_system(job, repaired.bundled), said)


def verify_stage(job: BuildContext, wheel: Path, entries: Mapping[str, StageRecord]) -> StageRecord:
    """Try the wheel in a clean environment, and tell of it; raises VerifyError where it fails."""
    start = time.monotonic()
    parts = up_to_date.stage_inputs(job, "verify", entries)
    extra: list[Path | str] = [one for one in job.plan.requirements if one.startswith("numpy")]
    if job.plan.torch:
        own = base_wheel(job) if job.options.torch is None else None
        extra.append(own or job.plan.requirements[-1])
    with job.log.open("a", encoding="utf-8") as log:
        report = verification.verify_wheel(
            wheel,
            job.plan,
            job.package,
            python=job.interpreter,
            scratch=job.outputs.verify,
            extra=extra,
            log=log,
            targets=device_code.requested_targets(job.facts, job.plan),
        )
    others = static_checks.sibling_wheels(job.layout.dist / wheel.name)
    said = {
        "unlike": static_checks.sibling_differences(wheel, others),
        "checks": {name: asdict(check) for name, check in report.checks.items()},
        "device_code": dict(report.device_code),
        "seconds": {"verify": round(time.monotonic() - start, 1)},
        **_disk(job),
    }
    return StageRecord(parts, entries["pack"].made, {}, said)


def _stage(job: BuildContext, raw: Path) -> tuple[staging.StagedWheel, repair.RepairResult, str]:
    """Unpack the raw wheel, carry its libraries along, correct what it says of itself, and name it."""
    shutil.rmtree(job.outputs.stage, ignore_errors=True)
    job.outputs.stage.mkdir()
    version_file = f"{job.package.import_name}/version.py"
    staged = staging.stage_wheel(raw, job.outputs.stage, {version_file})
    if not job.package.version_variables:
        staged = metadata.stamp_version(staged, job.plan.version, job.plan.torch)
    metadata.normalize_metadata(staged, job.plan.release.pythons)
    if job.source.provider != "git" and job.source.commit and (staged.root / version_file).is_file():
        metadata.set_git_version(staged, version_file, job.source.commit)
    repaired = repair.repair_wheel(
        staged,
        job.plan.platform_tag,
        folders=[job.venv / "lib", job.tree.kit / "lib", *_beside_toolkit(job)],
        provided=_provided(job),
        installed_nvidia=bundling.installed_nvidia_folders(_packages(job)) if job.base else {},
    )
    name = metadata.wheel_file_name(staged, job.plan.platform_tag)
    if name != job.plan.wheel:
        raise VerifyError(
            f"{job.plan.identifier}: the build made {name}, the plan says {job.plan.wheel}: see {job.log}"
        )
    lowest = repaired.lowest_tag if job.plan.computed else None
    return staged, repaired, metadata.set_platform_tag(staged, lowest or job.plan.platform_tag)


def _beside_toolkit(job: BuildContext) -> list[Path]:
    """Return the folders with the libraries of CUDA that the build was linked with."""
    homes = [
        job.placeholders[name]
        for name in ("cuda_home", "cudnn_home", "nccl_home", "magma_home")
        if job.placeholders.get(name)
    ]
    return [Path(home, folder) for home in homes for folder in ("lib64", "lib")]


def _provided(job: BuildContext) -> frozenset[str]:
    """Return the libraries that the base package has loaded before a dependent one is imported."""
    if job.base is None:
        return frozenset()
    own = _packages(job) / job.base.import_name
    return frozenset(path.name for kind in ("*.so*", "*.dylib") for path in own.rglob(kind))


def _packages(job: BuildContext) -> Path:
    """Return the folder of what is installed for the build; repair has work on Linux only."""
    return next(iter(job.venv.glob("lib/python*/site-packages")), job.venv)


def _from_system(job: BuildContext, bundled: Iterable[BundledLibrary]) -> dict[str, str]:
    """Return the libraries of the machine that came along, and what the loader finds them by."""
    own = (job.tree.folder, job.venv)
    found = {
        str(one.source): one.sha256
        for one in bundled
        if not any(one.source.is_relative_to(folder) for folder in own)
    }
    loader = job.recall.digest(LOADER) if found else None
    return found | ({str(LOADER): loader} if loader else {})


def _disk(job: BuildContext) -> dict[str, Any]:
    """Return what a build takes of the disk, where it is all there."""
    if not job.tree.source.exists():
        return {}
    folders = disk_space.BuildFolders(job.tree.folder, job.outputs.folder, job.venv)
    return {"disk": disk_space.written_bytes(folders)}


def _guarded(job: BuildContext, account: BuildAccount | None) -> dict[str, Any] | None:
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
        "timeline": os.path.relpath(timeline_file(job), job.layout.dist),
    }


def _installed(job: BuildContext) -> list[str]:
    """Return what the build had, for its interpreter and for all, "name==version" each."""
    own = capture([str(job.python), "-m", "pip", "list", "--format=freeze"]).split()
    return sorted({*own, *prepare.list_shared_tools(job.tree.kit)})


_IRRELEVANT = {"jobs", "memory", "guard"}  # options that change how fast, not what


def compose_manifest(
    job: BuildContext, entries: Mapping[str, StageRecord], before: Mapping[str, Any], wheel: str
) -> dict[str, Any]:
    """Return the manifest of the file `wheel`, whose stages are done.

    An entry that comes from the manifest `before` says nothing of itself: that manifest told it.
    """
    plan, source = job.plan, job.source
    told = {} if all(entry.said for entry in entries.values()) else dict(before)
    seconds = dict(told.get("seconds", {}))
    for entry in entries.values():
        seconds |= entry.said.get("seconds", {})
        told |= entry.said
    return told | {
        "identifier": plan.identifier,
        "wheel": wheel,
        "planned": plan.wheel,  # which has the newest platform tag that there can be
        "sha256": entries["pack"].made,
        "package": plan.build.package,
        "version": plan.version,
        "tag": plan.release.tag,
        "commit": source.commit,
        "commit_verified": source.verified,
        "source": source.origin,
        "options": _asked_options(job.options),
        "submodules": dict(source.submodules),
        "torch": plan.torch,
        "toolkit": plan.toolkit,
        "toolkit_completed": job.host.completed.get(plan.toolkit or ""),
        "libraries": dict(plan.libraries),
        "switches": dict(plan.set),
        "patches": list(plan.patches),
        "tools": dict(job.tools),
        "seconds": seconds,
        "key": up_to_date.digest_data([entry.parts for entry in entries.values()]),
        "stages": up_to_date.records_as_data(entries),
    }


def _asked_options(options: Options) -> dict[str, Any]:
    """Return the options that a user gave and that can change the wheel; of a wheel only its name."""
    said = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _IRRELEVANT}
    usual = Options()
    found = {name: value for name, value in said.items() if value != getattr(usual, name)}
    if "torch" in found:
        found["torch"] = Path(found["torch"]).name
    return found
