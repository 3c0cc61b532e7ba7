"""Repair a staged wheel: bundle the libraries that its tag does not promise, with their licences; mend run paths.

On macOS delocate does this (see `macos`). On Windows libraries lie beside the files that need them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from millpress import bundling, elf, elf_edit, macos, metadata
from millpress.bundling import (
    BundledLibrary,
    Graft,
    LibrarySearch,
    PlainLinuxTarget,
    PlatformTarget,
)
from millpress.elf import ElfInfo
from millpress.elf_edit import ElfEdit
from millpress.errors import RepairError, first_problems
from millpress.staging import StagedWheel


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What repair changed, for the manifest and the log."""

    bundled: tuple[BundledLibrary, ...] = ()
    lowest_tag: str | None = (
        None  # the oldest platform tag that holds; None for tags that are not judged
    )
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

    The plain linux tag is for systems like this one: what this system's loader finds by default is not bundled. Nor are
    libraries of NVIDIA in packages that the wheel requires: run paths lead to them. `folders` are searched for
    libraries before the system's own. `provided` names the libraries of the package that this one imports first, and
    `installed_nvidia` libraries of NVIDIA and their folders in site-packages (see `bundling.installed_nvidia_folders`):
    neither are bundled. Raises RepairError where a library is nowhere, or a need is newer than the tag.
    """
    if platform_tag.startswith("win"):
        return RepairResult(
            notes=("Windows: libraries are beside the files that use them, nothing to repair",)
        )
    if platform_tag.startswith("macosx"):
        return RepairResult(macos.delocate_wheel(staged, platform_tag, provided))
    search = bundling.system_search(folders)
    arch = platform_tag.removeprefix(bundling.PLAIN_LINUX_PREFIX)
    target = (
        PlainLinuxTarget(arch, search)
        if arch != platform_tag
        else bundling.platform_target(platform_tag)
    )
    graft = _start_graft(staged, target, search, provided, installed_nvidia or {})
    bundling.bundle_libraries(graft)
    names = {library.name for library in graft.bundled.values()}
    for path, info in graft.files.items():
        edit = _needed_edit(graft, path, info, names)
        if edit != ElfEdit():
            elf_edit.edit_file(edit, path)
    lowest = None if isinstance(target, PlainLinuxTarget) else _judge_tag(graft, target)
    bundled = tuple(sorted(graft.bundled.values(), key=lambda library: library.name))
    return RepairResult(bundled, lowest, tuple(graft.notes))


def _start_graft(
    staged: StagedWheel,
    target: PlatformTarget | PlainLinuxTarget,
    search: LibrarySearch,
    provided: frozenset[str],
    installed_nvidia: Mapping[str, str],
) -> Graft:
    # what installers move elsewhere (scripts, headers) has no fixed path to the package's libraries
    moved = tuple(f"{folder}/" for folder in staged.root.glob("*.data"))
    binaries = elf.dynamic_files(staged.root)
    files = {path: info for path, info in binaries.items() if not str(path).startswith(moved)}
    for path, info in files.items():
        if not info.runs_on(target.arch):
            raise RepairError(
                f"{path.relative_to(staged.root)} is built for {info.machine}, not for {target.arch}: "
                "clear the build tree and build again",
                code="wrong-machine",
            )
    return Graft(
        staged=staged,
        target=target,
        search=search,
        provided=provided,
        required_nvidia=bundling.required_nvidia_folders(metadata.wheel_requirements(staged)),
        installed_nvidia=installed_nvidia,
        folder=staged.root / f"{staged.package}.libs" if provided else staged.libraries,
        files=files,
        own=frozenset(path.name for path in files),
    )


def _needed_edit(graft: Graft, path: Path, info: ElfInfo, bundled: set[str]) -> ElfEdit:
    replaced = graft.replaced.get(path, {})
    needed = [replaced.get(name, name) for name in info.needed]
    is_bundled = path.name in bundled and path.parent == graft.folder
    required, installed = (
        {folder for name in needed if (folder := bundling.nvidia_folder(folders, name))}
        for folders in (graft.required_nvidia, graft.installed_nvidia)
    )
    looks_inside = bool(
        is_bundled or required or installed or (graft.own | bundled).intersection(needed)
    )
    folders = {file.parent for file in graft.files}
    libraries = [each for each in (graft.staged.libraries, graft.folder) if each in folders]
    # what libraries of a required package open by name may be in any of the other packages
    nvidia = {*graft.required_nvidia.values(), *installed}
    libraries += [graft.staged.root / folder for folder in sorted(nvidia)]
    rpath = elf_edit.run_path(path, info.rpath, looks_inside, graft.staged.root, libraries)
    return ElfEdit(
        replaced=tuple(sorted(replaced.items())),
        dropped=tuple(
            name for name in info.needed if bundling.INTERPRETER_LIBRARY.fullmatch(Path(name).name)
        ),
        soname=path.name if is_bundled and info.soname != path.name else None,
        rpath=None if rpath == info.rpath else rpath,
    )


def _judge_tag(graft: Graft, target: PlatformTarget) -> str:
    """Return the oldest tag that holds. Raises RepairError where the target's own does not."""
    files = elf.dynamic_files(
        graft.staged.root
    )  # as edited, and those that installers move elsewhere
    needs = list(bundling.system_needs(graft.staged.root, files, target, graft.own))
    oldest = bundling.oldest_target(target, needs)
    if problems := bundling.policy_problems(target, needs):
        meets = f"the files as compiled meet {oldest.tag}: " if oldest else ""
        raise RepairError(
            f"{first_problems(problems)}: {meets}build on a system as old as {target.tag}, with its "
            "own libstdc++, or with `--plat auto`, which takes the tag that holds",
            code="newer-than-tag",
        )
    return oldest.tag if oldest is not None and oldest.version < target.version else target.tag
