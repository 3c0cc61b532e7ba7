"""The steps of one wheel (compile, pack, verify), what each records, and the wheel's manifest."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from torchmill.build import disk_space, prepare
from torchmill.build.compile import CompileResult, compile_wheel, timeline_file
from torchmill.build.context import BuildContext, base_wheel
from torchmill.build.progress_line import ProgressLine
from torchmill.build.tree import BuildTree
from torchmill.build.up_to_date import StageLog, StageRecord, installed_inputs, records_as_data, stage_inputs
from torchmill.config.model import Artifact, Options
from torchmill.core import files, locks
from torchmill.core.errors import BusyError, VerifyError
from torchmill.core.process import capture
from torchmill.core.stat_cache import digest_data
from torchmill.host import environments
from torchmill.host.environments import Install
from torchmill.plan import base_requirement
from torchmill.toolchain.guard.timeline import BuildAccount
from torchmill.wheel import builder, dist_files
from torchmill.wheel.pack import bundling, licences, metadata, repair, staging, wheel_writer
from torchmill.wheel.pack.bundling import BundledLibrary
from torchmill.wheel.verify import device_code, static_checks, verification

TREES_KEPT = 2  # trees of one family: whoever tries a switch, and goes back, finds both


def compile_in_tree(context: BuildContext, install: Install, line: ProgressLine) -> CompileResult:
    """Build the raw wheel of a cell, whose own folder is held, in its tree.

    Where other interpreters' cells share the tree it is waited for, and given back once the wheel is made.
    `install` puts requirements into the session's environment. Raises SuiteError.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "requirements"):
        own_kit = () if context.shares_tree else context.plan.kit
        wanted = [*find_links_variables(context), *own_kit, *context.plan.requirements]
        environments.provide_environment(
            context.venv, context.interpreter, context.environment_key, install, *wanted
        )
        user = environments.tree_user(context.venv, context.python, context.environment_key, context.tree.env)
    asked = time.monotonic()
    with _taken(context, line):
        waited = round(time.monotonic() - asked, 1)
        began = time.time()
        with _timed(seconds, "prepare"):
            if context.shares_tree and not context.tree.key_file.exists():
                empty_old_trees(context, line.note)
            prepare.prepare_tree(context, user, install, line.note)
        with _timed(seconds, "compile"):
            try:
                made = compile_wheel(context, line)
            finally:  # whoever goes on where this one stopped must know, too
                read = prepare.record_external_inputs(context, user, began)
            prepare.refuse_foreign_objects(context, user)
    return replace(made, seconds=seconds, waited=waited, read=read)


def find_links_variables(context: BuildContext) -> list[str]:
    """Return what leads pip to our own wheels, where it is not PyPI's that is built against."""
    ours = context.plan.torch is not None and context.options.torch != base_requirement.PYPI
    return ["--find-links", str(context.layout.dist)] if ours else []


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


@contextlib.contextmanager
def _taken(context: BuildContext, line: ProgressLine) -> Iterator[None]:
    """Hold the tree; a tree of the cell's own is in its folder, which is held already."""
    if not context.shares_tree:
        yield
        return
    with locks.wait_for_lock(context.tree.folder, context.plan.identifier, line.note):
        yield


def empty_old_trees(context: BuildContext, note: Callable[[str], None]) -> None:
    """Empty the trees of the cell's family that were unused longest, unless somebody is at work.

    What is another user's stays. Whoever packs needs the kit of a tree that he has given back.
    """
    own = context.tree.folder
    alike = own.parent.glob(f"{context.family}-{'?' * 8}")
    others = [one for one in alike if one != own and BuildTree(one).source.is_dir()]
    cells = [
        one
        for one in own.parent.glob(f"*/{locks.LOCK_FILE}")
        if one.parent not in {own, context.outputs.folder}
    ]
    for folder in sorted(others, key=locks.last_taken, reverse=True)[TREES_KEPT - 1 :]:
        with contextlib.suppress(BusyError, OSError):
            with files.hold_locks(cells):
                away = files.move_out_of_sight(files.list_contents(folder))
            note(f"removed {folder}, the least recently used tree")
            files.delete_paths(away)


MEMBER_CACHE_BYTES = 10 * 2**30  # of compressed members
LOADER = Path("/etc/ld.so.cache")  # by which libraries of the system are found


def compile_stage(context: BuildContext, stages: StageLog, install: Install, line: ProgressLine) -> Path:
    """Compile the raw wheel and record it; return its file."""
    parts = stage_inputs(context, "compile", {})  # read first: what changes meanwhile is seen next time
    built = compile_in_tree(context, install, line)
    parts |= installed_inputs(context)
    said = {
        "builder": builder.describe_builder(os.environ),
        "requirements": _installed(context),
        "edges": built.edges,
        "cpu_seconds": round(built.cpu, 1),
        "jobs": context.plan.jobs,
        "slots": built.slots,
        "guard": _guarded(context, built.account),
        "cache": asdict(built.cache) if built.cache else None,
        "seconds": dict(built.seconds),
        "waited": built.waited,
    }
    digest = context.recall.digest(built.raw) or ""
    stages.record("compile", StageRecord(parts, digest, built.read, said))
    return built.raw


def pack_stage(context: BuildContext, stages: StageLog, raw: Path) -> Path:
    """Stage, repair and pack the raw wheel, and record the packed one; return its file."""
    start = time.monotonic()
    parts = stage_inputs(context, "pack", stages.valid)
    staged, repaired, name = _stage(context, raw)
    members = context.layout.cache / "members"
    for old in context.outputs.packed.glob("*.whl"):  # with another platform tag, where that is computed
        old.unlink()
    made = wheel_writer.pack_wheel(
        staged.root, context.outputs.packed / name, unstaged=staged.unstaged, cache_folder=members
    )
    files.trim_folder(members, MEMBER_CACHE_BYTES)
    said = {
        "size": made.size,
        "bundled": [asdict(one) for one in repaired.bundled],
        "origins": licences.library_purls(one.source for one in repaired.bundled),
        "could_be": repaired.lowest_tag,
        "notes": list(repaired.notes),
        "packing": {"codec": made.codec, "kept": made.copied_bytes},
        "seconds": {"pack": round(time.monotonic() - start, 1)},
    }
    read = _from_system(context, repaired.bundled)
    stages.record("pack", StageRecord(parts, made.sha256, read, said))
    return made.path


def verify_stage(context: BuildContext, stages: StageLog, packed: Path, note: Callable[[str], None]) -> Path:
    """Try the packed wheel in a clean environment and record the checks; return where the wheel now lies.

    A wheel that lies in dist/ already is withdrawn first: every wheel there has passed every check.
    Raises VerifyError where a check fails.
    """
    published = context.layout.dist / packed.name
    if packed == published:
        packed = context.outputs.packed / packed.name
        dist_files.withdraw_wheel(published, packed)
    note(f"verifying {packed.name} in a clean environment")
    start = time.monotonic()
    parts = stage_inputs(context, "verify", stages.valid)
    extra: list[Path | str] = [one for one in context.plan.requirements if one.startswith("numpy")]
    if context.plan.torch:
        own = base_wheel(context) if context.options.torch is None else None
        extra.append(own or context.plan.requirements[-1])
    with context.log.open("a", encoding="utf-8") as log:
        report = verification.verify_wheel(
            packed,
            context.plan,
            context.package,
            python=context.interpreter,
            scratch=context.outputs.verify,
            extra=extra,
            log=log,
            targets=device_code.requested_targets(context.facts, context.plan),
        )
    differences = static_checks.sibling_differences(packed, static_checks.sibling_wheels(published))
    said = {
        "unlike": differences,
        "checks": {name: asdict(check) for name, check in report.checks.items()},
        "device_code": dict(report.device_code),
        "seconds": {"verify": round(time.monotonic() - start, 1)},
        **_disk(context),
    }
    stages.record("verify", StageRecord(parts, stages.valid["pack"].made, {}, said))
    for sentence in differences:
        note(sentence)
    if code := device_code.format_device_code(report.device_code):
        note(f"code for GPUs: {code}")
    return packed


def publish_stage(context: BuildContext, stages: StageLog, packed: Path) -> Artifact:
    """Put the verified wheel into dist/, with its manifest, its build statement and its SBOM."""
    wheel = context.layout.dist / packed.name
    manifest = compose_manifest(context, stages.valid, stages.earlier_manifest, wheel.name)
    documents = dist_files.compose_documents(manifest, packed)
    return dist_files.publish_wheel(packed, wheel, manifest, context.wheel, documents)


def _stage(context: BuildContext, raw: Path) -> tuple[staging.StagedWheel, repair.RepairResult, str]:
    """Unpack the raw wheel, carry its libraries along, correct what it says of itself, and name it."""
    shutil.rmtree(context.outputs.stage, ignore_errors=True)
    context.outputs.stage.mkdir()
    version_file = f"{context.package.import_name}/version.py"
    staged = staging.stage_wheel(raw, context.outputs.stage, {version_file})
    if not context.package.version_variables:
        staged = metadata.stamp_version(staged, context.plan.version, context.plan.torch)
    metadata.normalize_metadata(staged, context.plan.release.pythons)
    if context.source.provider != "git" and context.source.commit and (staged.root / version_file).is_file():
        metadata.set_git_version(staged, version_file, context.source.commit)
    repaired = repair.repair_wheel(
        staged,
        context.plan.platform_tag,
        folders=[context.venv / "lib", context.tree.kit / "lib", *_beside_toolkit(context)],
        provided=_provided(context),
        installed_nvidia=bundling.installed_nvidia_folders(_packages(context)) if context.base else {},
    )
    name = metadata.wheel_file_name(staged, context.plan.platform_tag)
    if name != context.plan.wheel:
        raise VerifyError(
            f"{context.plan.identifier}: the build made {name}, but the plan says {context.plan.wheel}: "
            f"see {context.log}",
            code="unexpected-wheel-name",
        )
    lowest = repaired.lowest_tag if context.plan.computed else None
    return staged, repaired, metadata.set_platform_tag(staged, lowest or context.plan.platform_tag)


def _beside_toolkit(context: BuildContext) -> list[Path]:
    """Return the folders with the libraries of CUDA that the build was linked with."""
    homes = [
        context.placeholders[name]
        for name in ("cuda_home", "cudnn_home", "nccl_home", "magma_home")
        if context.placeholders.get(name)
    ]
    return [Path(home, folder) for home in homes for folder in ("lib64", "lib")]


def _provided(context: BuildContext) -> frozenset[str]:
    """Return the libraries that the base package has loaded before a dependent one is imported."""
    if context.base is None:
        return frozenset()
    own = _packages(context) / context.base.import_name
    return frozenset(path.name for kind in ("*.so*", "*.dylib") for path in own.rglob(kind))


def _packages(context: BuildContext) -> Path:
    """Return the folder of what is installed for the build; repair has work on Linux only."""
    return next(iter(context.venv.glob("lib/python*/site-packages")), context.venv)


def _from_system(context: BuildContext, bundled: Iterable[BundledLibrary]) -> dict[str, str]:
    """Return the libraries of the machine that came along, and what the loader finds them by."""
    own = (context.tree.folder, context.venv)
    found = {
        str(one.source): one.sha256
        for one in bundled
        if not any(one.source.is_relative_to(folder) for folder in own)
    }
    loader = context.recall.digest(LOADER) if found else None
    return found | ({str(LOADER): loader} if loader else {})


def _disk(context: BuildContext) -> dict[str, Any]:
    """Return what a build takes of the disk, where it is all there."""
    if not context.tree.source.exists():
        return {}
    folders = disk_space.BuildFolders(context.tree.folder, context.outputs.folder, context.venv)
    return {"disk": disk_space.written_bytes(folders)}


def _guarded(context: BuildContext, account: BuildAccount | None) -> dict[str, Any] | None:
    """Return what the guard of a build saw and did; None where it had none."""
    if account is None:
        return None
    return {
        "peak": account.peak,
        "allowed": account.now.allowed,
        "cores": context.options.jobs or context.host.cores,
        "units": account.units,
        "pauses": account.counts.get("pause", 0),
        "reruns": account.counts.get("rerun", 0),
        "kills": account.counts.get("kill", 0),
        "short": round(account.now.short, 1),
        "timeline": os.path.relpath(timeline_file(context), context.layout.dist),
    }


def _installed(context: BuildContext) -> list[str]:
    """Return what the build had, for its interpreter and for all, "name==version" each."""
    own = capture([str(context.python), "-m", "pip", "list", "--format=freeze"]).split()
    return sorted({*own, *prepare.list_shared_tools(context.tree.kit)})


_IRRELEVANT = {"jobs", "memory", "guard"}  # options that change how fast, not what


def compose_manifest(
    context: BuildContext, entries: Mapping[str, StageRecord], before: Mapping[str, Any], wheel: str
) -> dict[str, Any]:
    """Return the manifest of the file `wheel`, whose stages are done.

    An entry that comes from the manifest `before` says nothing of itself: that manifest told it.
    """
    plan, source = context.plan, context.source
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
        "options": _asked_options(context.options),
        "submodules": dict(source.submodules),
        "torch": plan.torch,
        "toolkit": plan.toolkit,
        "toolkit_completed": context.host.completed.get(plan.toolkit or ""),
        "libraries": dict(plan.libraries),
        "switches": dict(plan.set),
        "patches": list(plan.patches),
        "tools": dict(context.tools),
        "seconds": seconds,
        "key": digest_data([entry.parts for entry in entries.values()]),
        "stages": records_as_data(entries),
    }


def _asked_options(options: Options) -> dict[str, Any]:
    """Return the options that a user gave and that can change the wheel; of a wheel only its name."""
    said = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in _IRRELEVANT}
    usual = Options()
    found = {name: value for name, value in said.items() if value != getattr(usual, name)}
    if "torch" in found:
        found["torch"] = Path(found["torch"]).name
    return found
