"""The second stage of a cell: bundle the raw wheel's libraries, correct its metadata, and pack it.

The raw wheel is the one that the build made. It is unpacked into a folder (staged), repaired there,
and packed from there.
"""

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from millguard.limits import LimitMeter
from millpress import bundling, debug_info, licences, metadata, repair, wheel_writer
from millpress.bundling import BundledLibrary
from millpress.debug_info import StrippedFiles
from millpress.repair import RepairResult
from millpress.staging import StagedWheel, stage_wheel

from torchmill.cell import crossing
from torchmill.cell.context import BuildContext
from torchmill.cell.manifest import compose_manifest, recorded_git_version
from torchmill.cell.session_environment import provide_requirements
from torchmill.cell.up_to_date import StageLog, StageRecord, stage_inputs
from torchmill.core.deletion import delete_paths, trim_folder
from torchmill.core.digests import hash_file
from torchmill.core.errors import BuildError, VerifyError
from torchmill.core.units import first_problems
from torchmill.host import environments
from torchmill.host.environments import Install
from torchmill.plan.debug_info import asks_for_debug_info
from torchmill.wheel import dist_files, statement

# Bytes of compressed members of wheels that stay on the disk: a later pack copies those that are
# unchanged.
MEMBER_CACHE_BYTES = 10 * 2**30
LOADER_CACHE = Path("/etc/ld.so.cache")  # the loader finds the system's libraries by it
# Placeholders of the plan whose values are folders of toolkits.
_TOOLKIT_HOMES = ("cuda_home", "cudnn_home", "nccl_home", "magma_home")


class RepairedWheel(NamedTuple):
    """A staged wheel that is ready to be packed."""

    staged: StagedWheel
    result: RepairResult
    file_name: str  # with the final platform tag
    stripped: StrippedFiles


def pack_stage(context: BuildContext, stages: StageLog, raw: Path, install: Install) -> Path:
    """Stage, repair and pack the raw wheel, record the packed one, and return its file.

    `stages` is the record of the cell's stages. Libraries that the wheel needs are looked for in
    the session's environment. If that was removed or damaged since the wheel was compiled,
    `install` puts the requirements into it again. Raises TorchmillError.
    """
    # slow to load, and not needed if the wheel is up to date
    from torchmill.wheel import debug_archive, sbom

    if not environments.is_unchanged(context.venv, context.environment_key):
        provide_requirements(context, install)
    start = time.monotonic()
    inputs = stage_inputs(context, "pack", stages.valid)
    staged, repaired, name, stripped = _repair(context, raw, recorded_git_version(context, stages))
    manifest = compose_manifest(context, stages, name)
    parts = _describe_parts(context, staged, repaired.bundled, manifest.get("static", []))
    metadata.normalize_metadata(staged, context.plan.release.pythons)
    digests = {}  # of the bundled libraries as they are in the wheel, after their repair
    for library in repaired.bundled:
        digests[library.path] = hash_file(staged.root / library.path)
    inner_sbom = staged.dist_info / sbom.INNER_PATH
    inner_sbom.parent.mkdir(exist_ok=True)
    core_metadata = (staged.dist_info / "METADATA").read_bytes()
    inner_sbom.write_bytes(sbom.compose_inner_sbom(manifest | parts, core_metadata, digests))
    # If its platform tag was computed, an earlier wheel may have another name.
    delete_paths(context.outputs.packed.glob("*.whl*"))
    members = context.layout.cache / "members"
    packed = wheel_writer.pack_wheel(
        staged.root,
        context.outputs.packed / name,
        unstaged=staged.unstaged,
        cache_folder=members,
        threads=LimitMeter().cores().count,
    )
    trim_folder(members, MEMBER_CACHE_BYTES)
    report = {
        "size": packed.size,
        **parts,
        "could_be": repaired.lowest_tag,
        "notes": [*repaired.notes, *parts["notes"], *stripped.problems],
        "packing": {"codec": packed.codec, "kept": packed.copied_bytes},
        "seconds": {"pack": round(time.monotonic() - start, 1)},
    }
    if context.options.debug_info:
        report["debug_info"] = debug_archive.write_archive(
            dist_files.document_path(packed.path, dist_files.DEBUG_SUFFIX),
            stripped,
            wheel=name,
            sha256=packed.sha256,
            level=context.options.debug_info,
            root=staged.root,
        )
    delete_paths([context.outputs.debug])
    files = _system_libraries(context, repaired.bundled)
    stages.record("pack", StageRecord(inputs, packed.sha256, files, report))
    return packed.path


def _repair(context: BuildContext, raw: Path, git_version: str | None) -> RepairedWheel:
    """Unpack the raw wheel, bundle its libraries, correct its metadata, and name it.

    Raises VerifyError if its name is not the planned one.
    """
    wheel = context.plan.wheel
    shutil.rmtree(context.outputs.stage, ignore_errors=True)
    context.outputs.stage.mkdir()
    version_file = f"{context.package.import_name}/version.py"
    staged = stage_wheel(raw, context.outputs.stage, {version_file})
    # Before repair, so that the libraries that it copies from this machine stay as they are.
    stripped = _strip(context, staged)
    if not context.package.setup.version_variables:
        staged = metadata.stamp_version(staged, wheel.version, wheel.torch_requirement)
    # A build in a clone asks git for the commit, and names the same one. In any other source it
    # leaves "Unknown" in the file.
    names_commit = context.source.provider == "git" and git_version == context.source.commit
    if git_version and not names_commit and (staged.root / version_file).is_file():
        metadata.set_git_version(staged, version_file, git_version)
    packages = context.torch_packages(context.venv)
    base = packages / context.base.import_name if context.base else None
    repaired = repair.repair_staged(
        staged,
        wheel.platform_tag,
        folders=_library_folders(context),
        provided=_provided_libraries(base),
        installed_nvidia=bundling.installed_nvidia_folders(packages) if base else {},
    )
    stripped = debug_info.settle_build_ids(stripped)
    name = metadata.wheel_file_name(staged, wheel.platform_tag)
    if name != wheel.file_name:
        raise VerifyError(
            f"{context.plan.identifier}: the build made {name}, but the plan says {wheel.file_name}: "
            f"see {context.log}",
            code="unexpected-wheel-name",
        )
    platform_tag = wheel.platform_tag
    if wheel.tag_is_upper_bound and repaired.lowest_tag:
        platform_tag = repaired.lowest_tag
    file_name = metadata.set_platform_tag(staged, platform_tag)
    return RepairedWheel(staged, repaired, file_name, stripped)


def _strip(context: BuildContext, staged: StagedWheel) -> StrippedFiles:
    """Remove debug information from the staged wheel, and keep it if `--debug-info` asks for it.

    It is removed from every wheel, so that a wheel is the same with that option and without: some
    Pythons have -g in their own flags. Only a wheel whose user has set -g is left alone. Raises
    BuildError if the debug information of a library cannot be separated, or if there is none.
    """
    if asks_for_debug_info(context.options.settings):
        return StrippedFiles()
    debug_folder = None
    if context.options.debug_info:
        debug_folder = context.outputs.debug
        shutil.rmtree(debug_folder, ignore_errors=True)
        debug_folder.mkdir()
    stripped = debug_info.strip_files(staged.root, debug_folder)
    if debug_folder is None:
        return stripped
    if stripped.problems:
        raise BuildError(
            f"{context.plan.identifier}: the debug information of a library cannot be separated: "
            f"{first_problems(stripped.problems)}; or build without --debug-info",
            code="debug-info-not-separated",
        )
    if not stripped.separated:
        raise BuildError(
            f"{context.plan.identifier}: no library has debug information, so its build takes no "
            f"flags from {' or '.join(context.package.setup.debug_variables) or 'CFLAGS'}: build without "
            "--debug-info",
            code="debug-info-missing",
        )
    return stripped


def _library_folders(context: BuildContext) -> list[Path]:
    """Return the folders of libraries that the wheel may have been linked with, in their order."""
    folders = [context.venv / "lib", context.tree.kit / "lib"]
    for placeholder in _TOOLKIT_HOMES:
        home = context.placeholders.get(placeholder)
        if home:
            folders += [Path(home, "lib64"), Path(home, "lib")]
    if context.plan.is_crossed:
        # The libraries of the target's compilers, which this machine's loader does not know.
        folders.append(Path(crossing.crossing_of(context.plan, context.host).system, "lib"))
    return folders


def _provided_libraries(base: Path | None) -> frozenset[str]:
    """Return the names of the libraries in `base`, the folder of the base package.

    They stay out of a dependent wheel, because the base package has loaded them before the
    dependent one is imported.
    """
    if base is None:
        return frozenset()
    names: set[str] = set()
    for pattern in ("*.so*", "*.dylib"):
        names.update(path.name for path in base.rglob(pattern))
    return frozenset(names)


def _describe_parts(
    context: BuildContext,
    staged: StagedWheel,
    bundled: Sequence[BundledLibrary],
    static: Sequence[dict[str, str]],
) -> dict[str, Any]:
    """Return the manifest's entries about code of other projects in the wheel.

    This is code of bundled libraries, of `static` ones (each with its path as "source"), and of
    submodules. Its licences are copied into the wheel.
    """
    files: dict[str, Path] = {}  # reference of a library in the SBOM -> its file on this machine
    for library in bundled:
        files[f"{statement.BUNDLED_KIND}:{library.path}"] = library.source
    for archive in static:
        path = Path(archive["source"])
        files[f"{statement.STATIC_KIND}:{path.name}"] = path
    owners = licences.find_owners(files.values())  # the packages that installed the files
    holders = {reference: owners[path] for reference, path in files.items()}
    for submodule in context.source.submodules:
        holder = licences.find_submodule(context.source.path, submodule)
        holders[f"{statement.SUBMODULE_KIND}:{submodule}"] = holder
    copied, notes = licences.copy_licences(staged, holders)
    origins = {}
    for path, owner in owners.items():
        if owner and owner.purl:
            origins[str(path)] = owner.purl.to_string()
    return {
        "static": static,
        "bundled": [asdict(library) | {"source": str(library.source)} for library in bundled],
        "origins": origins,
        "licences": copied,
        "notes": list(notes),
    }


def _system_libraries(context: BuildContext, bundled: Iterable[BundledLibrary]) -> dict[str, str]:
    """Return the digests of the machine's own libraries that were bundled, by path.

    If there is one, the digest of the loader's cache is among them, because the cache decides which
    libraries are found.
    """
    digests = {}
    for library in bundled:
        in_tree = library.source.is_relative_to(context.tree.folder)
        in_environment = library.source.is_relative_to(context.venv)
        if not in_tree and not in_environment:
            digests[str(library.source)] = library.sha256
    if digests:
        loader_digest = context.stat_cache.digest(LOADER_CACHE)
        if loader_digest:
            digests[str(LOADER_CACHE)] = loader_digest
    return digests
