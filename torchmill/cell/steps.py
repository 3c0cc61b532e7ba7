"""The steps of one wheel (compile, pack, verify), what each records, and the wheel's manifest."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from millguard.limits import LimitMeter
from millpress import bundling, dependencies, licences, metadata, repair, staging, wheel_writer
from millpress.bundling import BundledLibrary

from torchmill.cell import added_files, disk_space, machine_inputs, prepare
from torchmill.cell.compile import compile_wheel
from torchmill.cell.context import BuildContext, BuildTree, base_wheel, imported_wheel
from torchmill.cell.progress_line import ProgressLine
from torchmill.cell.up_to_date import (
    StageLog,
    StageRecord,
    installed_inputs,
    records_as_data,
    stage_inputs,
)
from torchmill.core import formats, locks
from torchmill.core.deletion import delete_paths, move_out_of_sight, trim_folder
from torchmill.core.digests import hash_file
from torchmill.core.errors import BuildError, BusyError, VerifyError
from torchmill.core.locks import hold_locks, list_contents
from torchmill.core.process import capture
from torchmill.core.stat_cache import digest_data
from torchmill.core.units import name_few
from torchmill.host import environments
from torchmill.host.disk_usage import newest_change
from torchmill.host.environments import Install
from torchmill.plan import wheel_name
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cuda_libraries import used_cudnn
from torchmill.plan.plan import expected_values
from torchmill.wheel import dist_files, statement
from torchmill.wheel.verify import device_code, verification

TREES_KEPT = 2  # trees of one family: whoever tries a switch, and goes back, finds both
MEMBER_CACHE_BYTES = 10 * 2**30  # of compressed members
LOADER_CACHE = Path("/etc/ld.so.cache")  # by which libraries of the system are found
# These change how fast, not what, or are told apart.
_UNTOLD_OPTIONS = {"jobs", "memory", "guard", "network", "processor", "shard", "parts", "until"}


def compile_stage(
    context: BuildContext, stages: StageLog, install: Install, line: ProgressLine
) -> Path:
    """Compile the raw wheel in the cell's tree and record it; return its file.

    `install` puts requirements into the session's environment. A tree that other interpreters share is
    waited for, and given back once the wheel is made.
    """
    parts = stage_inputs(
        context, "compile", {}
    )  # read first: what changes meanwhile is seen next time
    python, seconds = environments.in_environment(context.venv), dict[str, float]()
    with _timed(seconds, "requirements"):
        _provide_requirements(context, install)
        user = environments.tree_user(
            context.venv, python, context.environment_key, context.tree.env
        )
    asked = time.monotonic()
    own = (
        contextlib.nullcontext()
    )  # a tree of the cell's own is in its folder, which is held already
    tree, who = context.tree.folder, context.plan.identifier
    with locks.wait_for_lock(tree, who, line.note) if context.shares_tree else own:
        waited = round(time.monotonic() - asked, 1)
        began = time.time()
        with _timed(seconds, "prepare"):
            if context.shares_tree and not context.tree.key_file.exists():
                empty_old_trees(context, line.note)
            prepare.prepare_tree(context, user, install, line.note)
            edits = prepare.find_edits(context)
            _refuse_edits_under_git_label(context, edits)
            added = (name for name in edits if not os.path.lexists(context.source.path / name))
            added_files.begin_build(context.tree, added)
        with _timed(seconds, "compile"):
            try:
                with prepare.trust_copies(context.tree):
                    raw, told = compile_wheel(context, line)
            finally:  # a run that goes on where this one stopped needs it, too
                read = prepare.record_external_inputs(context, user, began)
                prepare.record_generated_files(context, edits)
            prepare.refuse_foreign_objects(context, user)
    argv = [str(python), "-I", "-m", "pip", "list", "--format=freeze"]
    listed = capture(argv, env=environments.pip_variables(os.environ)).split()
    said = {
        "builder": statement.describe_builder(os.environ),
        "static": [
            {"source": str(path), "sha256": context.stat_cache.digest(path)}
            for path in machine_inputs.linked_archives(context.tree.source)
        ],
        "requirements": sorted({*listed, *environments.list_shared_tools(context.tree.kit)}),
        **told,
        "edits": edits,
        "jobs": context.plan.jobs,
        "seconds": seconds,
        "waited": waited,
    }
    parts |= installed_inputs(context)
    stages.record("compile", StageRecord(parts, context.stat_cache.digest(raw) or "", read, said))
    return raw


def _refuse_edits_under_git_label(context: BuildContext, edits: Iterable[str]) -> None:
    """Raise BuildError where the wheel's version would name a commit that the files in the tree are not of."""
    if edits and context.options.label == "git":
        raise BuildError(
            f"{context.plan.identifier}: {name_few(sorted(edits))} in {context.tree.source} has local edits, and "
            f"--label git would name the version after a commit without them: turn them into a patch "
            "(`--patch FILE`), or leave out --label git",
            code="edits-under-git-label",
        )


def _git_version(context: BuildContext, stages: StageLog) -> str | None:
    """Return what the version module says: a commit only if nobody changed its files."""
    version, commit = context.plan.source.git_version, context.source.commit
    edited = stages.valid["compile"].said.get("edits") or stages.earlier_manifest.get("edits")
    return wheel_name.mark_commit(commit, wheel_name.MODIFIED) if commit and edited else version


def _provide_requirements(context: BuildContext, install: Install) -> None:
    """Put what the build requires into the session's environment, which is made anew where it is broken."""
    own_tools = () if context.shares_tree else context.plan.tree.kit
    wanted = [*find_links(context), *own_tools, *context.plan.requirements]

    def install_all(*words: str) -> None:
        if lender := context.plan.wheel.torch_folder:
            for program in (one for one in words if one.startswith(("cmake", "ninja"))):
                install(program)  # it is of no use where it is lent
            environments.lend_packages(context.venv, lender)
        install(*words)

    environments.provide_environment(
        context.venv,
        context.interpreter,
        context.environment_key,
        context.layout.environments,
        install_all,
        *wanted,
    )


def find_links(context: BuildContext) -> list[str]:
    """Return pip's option that leads to our own wheels, where a package is not built against PyPI's."""
    ours = context.plan.wheel.torch is not None and context.options.torch is None
    return ["--find-links", str(context.layout.dist)] if ours else []


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


def empty_old_trees(context: BuildContext, note: Callable[[str], None]) -> None:
    """Empty the trees of the cell's family that were unused longest, unless somebody is at work.

    What is another user's stays. A run that packs needs the tools in a tree that it has given back.
    """
    own = context.tree.folder
    family = own.parent.glob(f"{context.plan.build.family(context.host.arch)}-{'?' * 8}")
    others = [folder for folder in family if folder != own and BuildTree(folder).source.is_dir()]
    cells = [
        one
        for one in own.parent.glob(f"*/{locks.LOCK_FILE}")
        if one.parent not in {own, context.outputs.folder}
    ]
    others.sort(key=lambda folder: newest_change([folder / locks.HOLDER_FILE]), reverse=True)
    for folder in others[TREES_KEPT - 1 :]:
        with contextlib.suppress(BusyError, OSError):
            with hold_locks(cells):
                away = move_out_of_sight(list_contents(folder))
            note(f"removed {folder}, the least recently used tree")
            delete_paths(away)


def pack_stage(context: BuildContext, stages: StageLog, raw: Path, install: Install) -> Path:
    """Stage, repair and pack the raw wheel, and record the packed one; return its file.

    Libraries that the wheel needs are looked for in the session's environment: one that has gone, or was
    spoiled, since the wheel was compiled is filled again by `install`.
    """
    from torchmill.wheel import sbom  # slow to load

    if not environments.is_as_filled(context.venv, context.environment_key):
        _provide_requirements(context, install)
    start = time.monotonic()
    parts = stage_inputs(context, "pack", stages.valid)
    staged, repaired, name = _stage(context, raw, _git_version(context, stages))
    contents = compose_manifest(context, stages, name)
    contents |= _add_licences(context, staged, repaired.bundled, contents.get("static", []))
    metadata.normalize_metadata(staged, context.plan.release.pythons)
    digests = {one["path"]: hash_file(staged.root / one["path"]) for one in contents["bundled"]}
    inner = staged.dist_info / sbom.INNER_PATH
    inner.parent.mkdir(exist_ok=True)
    inner.write_bytes(
        sbom.compose_inner_sbom(contents, (staged.dist_info / "METADATA").read_bytes(), digests)
    )
    members = context.layout.cache / "members"
    delete_paths(
        context.outputs.packed.glob("*.whl")
    )  # with another platform tag, where that is computed
    place = context.outputs.packed / name
    packed = wheel_writer.pack_wheel(
        staged.root,
        place,
        unstaged=staged.unstaged,
        cache_folder=members,
        threads=LimitMeter().cores().count,
    )
    trim_folder(members, MEMBER_CACHE_BYTES)
    said = {
        "size": packed.size,
        **{name: contents[name] for name in ("static", "bundled", "origins", "licences")},
        "could_be": repaired.lowest_tag,
        "notes": [*repaired.notes, *contents["notes"]],
        "packing": {"codec": packed.codec, "kept": packed.copied_bytes},
        "seconds": {"pack": round(time.monotonic() - start, 1)},
    }
    read = _system_libraries(context, repaired.bundled)
    stages.record("pack", StageRecord(parts, packed.sha256, read, said))
    return packed.path


def _stage(
    context: BuildContext, raw: Path, git_version: str | None
) -> tuple[staging.StagedWheel, repair.RepairResult, str]:
    """Unpack the raw wheel, bundle its libraries, correct its metadata, and name it."""
    shutil.rmtree(context.outputs.stage, ignore_errors=True)
    context.outputs.stage.mkdir()
    version_file = f"{context.package.import_name}/version.py"
    staged = staging.stage_wheel(raw, context.outputs.stage, {version_file})
    if not context.package.version_variables:
        staged = metadata.stamp_version(
            staged, context.plan.wheel.version, context.plan.wheel.torch_requirement
        )
    by_build = (
        context.source.provider == "git" and git_version == context.source.commit
    )  # the build asked git
    if git_version and not by_build and (staged.root / version_file).is_file():
        metadata.set_git_version(staged, version_file, git_version)
    homes = ("cuda_home", "cudnn_home", "nccl_home", "magma_home")
    linked = [
        Path(home, lib)
        for name in homes
        if (home := context.placeholders.get(name))
        for lib in ("lib64", "lib")
    ]
    # What is installed for the build; repair has work on Linux only.
    packages = context.plan.wheel.torch_folder or next(
        iter(context.venv.glob("lib/python*/site-packages")), context.venv
    )
    base = packages / context.base.import_name if context.base else None
    repaired = repair.repair_staged(
        staged,
        context.plan.wheel.platform_tag,
        folders=[context.venv / "lib", context.tree.kit / "lib", *linked],
        # The base package has these loaded before a dependent one is imported.
        provided=frozenset(
            path.name
            for kind in ("*.so*", "*.dylib")
            for path in (base.rglob(kind) if base else ())
        ),
        installed_nvidia=bundling.installed_nvidia_folders(packages) if base else {},
    )
    name = metadata.wheel_file_name(staged, context.plan.wheel.platform_tag)
    if name != context.plan.wheel.file_name:
        raise VerifyError(
            f"{context.plan.identifier}: the build made {name}, but the plan says {context.plan.wheel.file_name}: "
            f"see {context.log}",
            code="unexpected-wheel-name",
        )
    lowest = repaired.lowest_tag if context.plan.wheel.tag_is_upper_bound else None
    return (
        staged,
        repaired,
        metadata.set_platform_tag(staged, lowest or context.plan.wheel.platform_tag),
    )


def _add_licences(
    context: BuildContext,
    staged: staging.StagedWheel,
    bundled: Sequence[BundledLibrary],
    static: Any,
) -> dict[str, Any]:
    """Copy the licences of what a wheel holds of others into it; return what its manifest says of that."""
    of_file = {f"{statement.BUNDLED_KIND}:{one.path}": one.source for one in bundled}
    of_file |= {
        f"{statement.STATIC_KIND}:{Path(one['source']).name}": Path(one["source"]) for one in static
    }
    owners = licences.find_owners(of_file.values())
    holders = {reference: owners[path] for reference, path in of_file.items()}
    for path in context.source.submodules:
        holders[f"{statement.SUBMODULE_KIND}:{path}"] = licences.find_submodule(
            context.source.path, path
        )
    told, notes = licences.copy_licences(staged, holders)
    return {
        "static": static,
        "bundled": [asdict(one) | {"source": str(one.source)} for one in bundled],
        "origins": {
            str(path): owner.purl.to_string()
            for path, owner in owners.items()
            if owner and owner.purl
        },
        "licences": told,
        "notes": list(notes),
    }


def _system_libraries(context: BuildContext, bundled: Iterable[BundledLibrary]) -> dict[str, str]:
    """Return the bundled libraries of the machine, and what the loader finds them by, with digests."""
    own = (context.tree.folder, context.venv)
    read = {
        str(one.source): one.sha256
        for one in bundled
        if not any(one.source.is_relative_to(each) for each in own)
    }
    loader = context.stat_cache.digest(LOADER_CACHE) if read else None
    return read | ({str(LOADER_CACHE): loader} if loader else {})


def verify_stage(
    context: BuildContext, stages: StageLog, packed: Path, note: Callable[[str], None]
) -> Path:
    """Check the packed wheel in a clean environment and record the checks; return where the wheel now lies.

    A wheel that lies in dist/ already is withdrawn first: every wheel there has passed every check.
    Raises VerifyError where a check fails.
    """
    published = context.layout.dist / packed.name
    if packed == published:
        packed = context.outputs.packed / packed.name
        dist_files.withdraw_wheel(published, packed)
    note(f"verifying {packed.name} in a clean environment")
    start, plan = time.monotonic(), context.plan
    parts = stage_inputs(context, "verify", stages.valid)
    extra: list[Path | str] = [one for one in context.plan.requirements if one.startswith("numpy")]
    if context.plan.wheel.torch and not context.plan.wheel.torch_folder:
        own = base_wheel(context) if context.options.torch is None else None
        extra.append(own or context.plan.requirements[-1])
    imported = (
        imported_wheel(context, context.facts.packages[name]) for name in context.package.imports
    )
    extra += filter(None, imported)
    with context.log.open("a", encoding="utf-8") as log:
        checks, sizes = verification.verify_wheel(
            packed,
            plan.wheel,
            context.package,
            expected_values(
                replace(
                    plan, source=replace(plan.source, git_version=_git_version(context, stages))
                ),
                context.package,
            ),
            python=context.interpreter,
            scratch=context.outputs.verify,
            extra=extra,
            log=log,
            targets=device_code.requested_targets(context.facts, plan.wheel, plan.arch_list),
            empty=context.layout.environments,
        )
    differences = dependencies.sibling_differences(packed, dependencies.sibling_wheels(published))
    said: dict[str, Any] = {
        "unlike": differences,
        "checks": {name: asdict(check) for name, check in checks.items()},
        "device_code": dict(sizes),
        "seconds": {"verify": round(time.monotonic() - start, 1)},
    }
    if context.tree.source.exists():  # what a build takes of the disk, where it is all there
        said["disk"] = disk_space.written_bytes(context.folders)
    stages.record("verify", StageRecord(parts, stages.valid["pack"].made, {}, said))
    for sentence in differences:
        note(sentence)
    if code := device_code.format_device_code(sizes):
        note(f"code for GPUs: {code}")
    return packed


def publish_stage(context: BuildContext, stages: StageLog, packed: Path) -> Path:
    """Put the verified wheel into dist/, with its manifest, its build statement and its SBOM; return its file."""
    wheel = context.layout.dist / packed.name
    manifest = compose_manifest(context, stages, wheel.name)
    dist_files.publish_wheel(
        packed, wheel, manifest, context.wheel, dist_files.compose_documents(manifest, packed)
    )
    return wheel


def compose_manifest(context: BuildContext, stages: StageLog, wheel: str) -> dict[str, Any]:
    """Return the manifest of the file `wheel`, whose stages are done, or all that it will say of what is packed.

    A record that comes from an earlier manifest has no `said` of its own: that manifest holds it.
    """
    plan, source, records = context.plan, context.source, stages.valid
    manifest = (
        {} if all(record.said for record in records.values()) else dict(stages.earlier_manifest)
    )
    seconds = dict(manifest.get("seconds", {}))
    for record in records.values():
        seconds |= record.said.get("seconds", {})
        manifest |= record.said
    proven = source.commit is not None and source.commit == plan.release.commit
    return manifest | {
        formats.KEY: formats.MANIFEST,
        "identifier": plan.identifier,
        "wheel": wheel,
        "planned": plan.wheel.file_name,  # which has the newest platform tag that is possible
        **(
            {"sha256": records["pack"].made} if "pack" in records else {}
        ),  # else it is about to be packed
        "package": plan.build.package,
        "version": plan.wheel.version,
        "tag": plan.release.tag,
        "commit": source.commit,  # proven, else null
        "commit_verified": source.commit is not None and source.verified,
        "commit_declared": source.declared,
        "unproven": source.unproven,
        "contents": source.contents,
        "archive": source.archive,
        "git_version": _git_version(context, stages)
        if "compile" in records
        else plan.source.git_version,
        "source": source.origin,
        "repository": context.package.repository if proven else "",
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
        "lacks": [str(one) for one in plan.official.shortfalls],  # that the official wheel has
        "tools": dict(context.tools),
        "seconds": seconds,
        "key": digest_data([record.parts for record in records.values()]),
        "stages": records_as_data(records),
    }


def _chosen_options(options: Options) -> dict[str, Any]:
    """Return the options that a user chose and that can change the wheel; of files only their names."""
    told = (one.name for one in fields(options) if one.name not in _UNTOLD_OPTIONS)
    values = {name: getattr(options, name) for name in told}
    chosen = {name: value for name, value in values.items() if value != getattr(NO_OPTIONS, name)}
    named = {"torch": Path(options.torch or "").name, "patches": [*options.patches]}
    return chosen | {name: value for name, value in named.items() if name in chosen}
