"""Make a wheel carry what it needs: outside libraries come along, run paths stay inside.

The same is delocate's work on macOS (see `macos`); on Windows libraries lie beside their users and need
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from torchmill.core.errors import BuildError, VerifyError
from torchmill.wheel.pack import bundling, elf, elf_edit, licences, macos, metadata, policy
from torchmill.wheel.pack.bundling import (
    BundledLibrary,
    Graft,
    LibrarySearch,
    PlainLinuxTarget,
    bundle_libraries,
    system_search,
)
from torchmill.wheel.pack.elf import ElfInfo
from torchmill.wheel.pack.elf_edit import ElfEdit
from torchmill.wheel.pack.policy import INTERPRETER_LIBRARY, PlatformTarget
from torchmill.wheel.pack.staging import ARCHIVE_ERRORS, StagedWheel

_MOST_LISTED = 3  # problems, of all that there are


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What repair did, for the manifest and the log."""

    bundled: tuple[BundledLibrary, ...] = ()
    edited: tuple[str, ...] = ()  # paths from the wheel's root
    lowest_tag: str | None = None  # the oldest platform tag that would hold; None: nothing is promised
    notes: tuple[str, ...] = ()


def repair_wheel(
    staged: StagedWheel,
    platform_tag: str,
    *,
    folders: Iterable[Path] = (),
    provided: frozenset[str] = frozenset(),
    installed_nvidia: Mapping[str, str] | None = None,
) -> RepairResult:
    """Bundle every library that `platform_tag` does not promise, and set the run paths.

    The plain linux tag promises nothing: the wheel is for systems like this one, and what this system's
    loader finds by itself is not bundled.
    What packages of NVIDIA's bring that the wheel requires is not bundled: run paths lead to it.
    `folders` are searched for libraries before the system's own. `provided` names the libraries of the
    package that this one imports first (see `libraries_of`): those are neither bundled nor looked for.
    Nor are those `beside` it, in folders of site-packages (see `nvidia.beside`).
    Raise VerifyError where a library is nowhere, or something needed is newer than the tag.
    """
    if platform_tag.startswith("win"):
        return RepairResult(notes=("Windows: libraries lie beside their users, nothing to repair",))
    if platform_tag.startswith("macosx"):
        delocated = macos.delocate_wheel(staged, platform_tag, provided)
        lacking = licences.copy_licences(
            staged, delocated.bundled, licences.owner_finder(one.source for one in delocated.bundled)
        )
        return RepairResult(delocated.bundled, delocated.edited, notes=lacking)
    search = system_search(folders)
    target = bundling.plain_linux_target(platform_tag, search) or policy.platform_target(platform_tag)
    graft = _start_graft(staged, target, search, provided, installed_nvidia or {})
    bundle_libraries(graft)
    edited = [graft.path_in_wheel(path) for path in _edit_files(graft)]
    could_be = None if isinstance(target, PlainLinuxTarget) else _judge_tag(graft, target)
    bundled = tuple(sorted(graft.bundled.values(), key=lambda each: each.name))
    lacking = licences.copy_licences(staged, bundled, licences.owner_finder(one.source for one in bundled))
    return RepairResult(bundled, tuple(sorted(edited)), could_be, (*graft.notes, *lacking))


def shared_library_names(wheel: Path) -> frozenset[str]:
    """Return the names of the shared libraries in a wheel, which a dependent package finds loaded.

    Raises BuildError where the file is no wheel.
    """
    try:
        with ZipFile(wheel) as archive:
            names = [Path(name).name for name in archive.namelist()]
    except ARCHIVE_ERRORS as error:
        raise BuildError(f"{wheel}: not a wheel ({error}): build or download it again") from None
    return frozenset(name for name in names if re.search(r"\.so(\.\d+)*$", name))


def _start_graft(
    staged: StagedWheel,
    target: PlatformTarget | PlainLinuxTarget,
    search: LibrarySearch,
    provided: frozenset[str],
    installed_nvidia: Mapping[str, str],
) -> Graft:
    found = elf.dynamic_files(staged.root)
    # what installers move elsewhere (scripts, headers) has no fixed way to the package's libraries
    files = {
        path: facts for path, facts in found.items() if ".data/" not in str(path.relative_to(staged.root))
    }
    for path, facts in files.items():
        if target.machine not in {None, facts.machine}:
            raise VerifyError(
                f"{path.relative_to(staged.root)} is made for {facts.machine}, not for {target.arch}: "
                "clear the build tree and build again"
            )
    own = frozenset(path.name for path in files)
    folder = staged.root / f"{staged.package}.libs" if provided else staged.libraries
    brought = bundling.required_nvidia_folders(metadata.wheel_requirements(staged))
    return Graft(staged, target, search, provided, brought, installed_nvidia, folder, files, own)


def _edit_files(graft: Graft) -> Iterator[Path]:
    """Apply to each file all its edits at once, and yield the files that had any."""
    names = {each.name for each in graft.bundled.values()}
    inside = graft.own | names
    for path, facts in graft.files.items():
        edit = _needed_edit(graft, path, facts, inside, names)
        if edit != ElfEdit():
            mode = path.stat().st_mode
            path.chmod(mode | 0o200)
            if not elf_edit.edit_in_place(edit, path):
                elf_edit.run_patchelf(edit, path)
            path.chmod(mode)
            yield path


def _needed_edit(
    graft: Graft, path: Path, facts: ElfInfo, inside: frozenset[str], bundled: set[str]
) -> ElfEdit:
    replaced = graft.replaced.get(path, {})
    dropped = tuple(name for name in facts.needed if INTERPRETER_LIBRARY.fullmatch(Path(name).name))
    came_along = path.name in bundled and path.parent == graft.folder
    found = [replaced.get(name, name) for name in facts.needed]
    beside = {folder for one in found if (folder := bundling.nvidia_folder(graft.installed_nvidia, one))}
    looks_inside = came_along or any(
        one in inside or bundling.nvidia_folder(graft.required_nvidia, one) for one in found
    )
    folders = {file.parent for file in graft.files}
    libraries = [each for each in (graft.staged.libraries, graft.folder) if each in folders]
    # what libraries of a required package open by name may be in any of the others
    libraries += [graft.staged.root / folder for folder in sorted({*graft.required_nvidia.values(), *beside})]
    rpath = elf_edit.run_path(path, facts.rpath, looks_inside or bool(beside), graft.staged.root, libraries)
    return ElfEdit(
        replaced=tuple(sorted(replaced.items())),
        dropped=dropped,
        soname=path.name if came_along and facts.soname != path.name else None,
        rpath=None if rpath == facts.rpath else rpath,
    )


def _judge_tag(graft: Graft, target: PlatformTarget) -> str:
    """Return the oldest platform that would hold; raise VerifyError where the target's own does not."""
    files = {path: facts for path in graft.files if (facts := elf.read_elf(path)) is not None}  # as edited
    needs = list(policy.system_needs(graft.staged.root, files, target, graft.own))
    if found := policy.policy_problems(target, needs):
        more = f"; and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        holds = policy.oldest_tag(target, needs)
        instead = f"what was compiled holds {holds}: " if holds else ""
        raise VerifyError(
            f"{'; '.join(found[:_MOST_LISTED])}{more}: {instead}build on a system as old as "
            f"{target.tag}, or with "
            "`--plat auto`, which takes the tag that holds"
        )
    return policy.lowest_tag(target, needs)
