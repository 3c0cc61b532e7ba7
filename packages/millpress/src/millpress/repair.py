"""Repair a wheel: bundle the libraries that its platform tag does not promise, and set run paths.

To bundle a library is to copy it into the wheel; `bundling` does that, and its `Graft` is the state
of it for one wheel. The run path of a library or program lists the folders in which the loader
looks for the libraries that the file needs; here it leads to the bundled ones.

On macOS delocate does the work (see `macos`). On Windows libraries lie beside the files that need
them, so nothing is to be done.
"""

import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from millpress import bundling, elf, elf_edit, file_names, macos, metadata
from millpress.bundling import (
    BundledLibrary,
    Graft,
    LibrarySearch,
    PlainLinuxTarget,
    PlatformTarget,
)
from millpress.elf import ElfInfo
from millpress.elf_edit import ElfEdit
from millpress.errors import OptionError, RepairError, first_problems
from millpress.staging import StagedWheel, stage_wheel
from millpress.wheel_writer import PackedWheel, pack_wheel


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What repair changed."""

    bundled: tuple[BundledLibrary, ...] = ()
    lowest_tag: str | None = None  # the oldest platform tag that holds; None if tags are not judged
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairedWheel:
    """A wheel that was repaired, and what was changed in it."""

    packed: PackedWheel
    result: RepairResult


def repair_wheel(
    wheel: Path, folder: Path, platform_tag: str = "auto", *, folders: Iterable[Path] = ()
) -> RepairedWheel:
    """Write a repaired copy of a wheel into `folder`.

    `platform_tag` is one like "manylinux_2_28_x86_64", "linux_x86_64" (for systems like this one)
    or "macosx_11_0_arm64". With "auto" the copy gets the oldest tag that holds. Libraries are
    searched for in `folders` before the system's own. The copy appears whole or not at all; a file
    of its name is replaced.

    Raises InputError if the file is not a sound wheel, RepairError if a library is missing or newer
    than the tag allows, OptionError for an invalid tag, ToolError if a program is missing, OSError.

        wheel = Path("raw/spam-1.0-cp312-cp312-linux_x86_64.whl")
        repaired = millpress.repair_wheel(wheel, Path("dist"))
        print(repaired.packed.path, [library.name for library in repaired.result.bundled])
    """
    folder.mkdir(parents=True, exist_ok=True)
    target_tag = platform_tag
    if platform_tag == "auto":
        # The wheel is repaired for the newest tag that this machine allows. That shows the oldest
        # tag whose promises the files keep, and WHEEL and the file's name get that one.
        target_tag = _newest_tag(wheel)
    # beside the copy: the folder for temporary files may be small, or in memory
    with tempfile.TemporaryDirectory(prefix=".millpress-", dir=folder) as scratch:
        staged = stage_wheel(wheel, Path(scratch), edited=())
        result = repair_staged(staged, target_tag, folders=folders)
        tag = target_tag
        if platform_tag == "auto" and result.lowest_tag is not None:  # the oldest that holds
            tag = result.lowest_tag
        name = metadata.set_platform_tag(staged, tag)
        packed = pack_wheel(staged.root, folder / name, unstaged=staged.unstaged)
    return RepairedWheel(packed, result)


def _newest_tag(wheel: Path) -> str:
    """Return the newest platform tag that a wheel which was built on this machine can have.

    That is the tag of this machine's glibc. Wheels for other systems than Linux have the right tag
    already, which is returned. Raises OptionError if this machine or the wheel has another C
    library.
    """
    raw_tag = file_names.platform_part(wheel.name)
    if not raw_tag.startswith(("linux_", "manylinux", "musllinux")):
        return raw_tag
    library, version = platform.libc_ver()
    # a musl wheel that is repaired on another machine must not get a tag of glibc
    if library != "glibc" or raw_tag.startswith("musllinux"):
        raise OptionError(
            "the oldest tag that holds is found with glibc only: name a platform tag, such as "
            f"musllinux_1_2_{platform.machine()}",
            code="invalid-platform-tag",
        )
    return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"


def repair_staged(
    staged: StagedWheel,
    platform_tag: str,
    *,
    folders: Iterable[Path] = (),
    provided: frozenset[str] = frozenset(),
    installed_nvidia: Mapping[str, str] | None = None,
) -> RepairResult:
    """Bundle each library that `platform_tag` does not promise, and set run paths.

    `folders` are searched for libraries before the system's own. These libraries are not bundled:

    - for the plain linux tag, which is for systems like this one: those that this system's loader
      finds by default;
    - those in packages of NVIDIA that the wheel requires: run paths lead there;
    - `provided`: the names of the libraries of the base package, which this package imports first;
    - `installed_nvidia`: libraries of NVIDIA that the base package requires, with their folders in
      site-packages (see `bundling.installed_nvidia_folders`).

    Raises RepairError if a library is missing, for another machine, or newer than the tag allows,
    OptionError for an invalid tag, InputError for a damaged file, and ToolError if a program is
    missing.
    """
    if platform_tag.startswith("win"):
        note = "Windows: libraries are beside the files that use them, nothing to repair"
        return RepairResult(notes=(note,))
    if platform_tag.startswith("macosx"):
        return RepairResult(macos.repair_for_macos(staged, platform_tag, provided))
    search = bundling.system_search(folders)
    target: PlatformTarget | PlainLinuxTarget
    if platform_tag.startswith(bundling.PLAIN_LINUX_PREFIX):
        target = PlainLinuxTarget(platform_tag.removeprefix(bundling.PLAIN_LINUX_PREFIX), search)
    else:
        target = bundling.platform_target(platform_tag)
    graft = _start_graft(staged, target, search, provided, installed_nvidia or {})
    bundling.bundle_libraries(graft)
    bundled_names = {library.name for library in graft.bundled.values()}
    for path, info in graft.files.items():
        edit = _file_edit(graft, path, info, bundled_names)
        if edit != ElfEdit():
            elf_edit.edit_file(edit, path)
    lowest_tag = None
    if isinstance(target, PlatformTarget):
        lowest_tag = _oldest_kept_tag(graft, target)
    bundled = sorted(graft.bundled.values(), key=lambda library: library.name)
    return RepairResult(tuple(bundled), lowest_tag, tuple(graft.notes))


def _start_graft(
    staged: StagedWheel,
    target: PlatformTarget | PlainLinuxTarget,
    search: LibrarySearch,
    provided: frozenset[str],
    installed_nvidia: Mapping[str, str],
) -> Graft:
    """Return the state of bundling before the first library is bundled.

    Raises RepairError for a file of another machine.
    """
    # Installers move the contents of .data (scripts, headers) elsewhere: no fixed path leads from
    # there to the package's libraries.
    data_folders = tuple(f"{folder}/" for folder in staged.root.glob("*.data"))
    files = {}
    for path, info in elf.dynamic_files(staged.root).items():
        if str(path).startswith(data_folders):
            continue
        if not info.runs_on(target.arch):
            raise RepairError(
                f"{path.relative_to(staged.root)} is built for {info.machine}, "
                f"not for {target.arch}: clear the build tree and build again",
                code="wrong-machine",
            )
        files[path] = info
    folder = staged.libraries
    if provided:
        # a dependent package must not put its libraries where its base package looks for its own
        folder = staged.root / f"{staged.package}.libs"
    return Graft(
        staged=staged,
        target=target,
        search=search,
        provided=provided,
        required_nvidia=bundling.required_nvidia_folders(metadata.wheel_requirements(staged)),
        installed_nvidia=installed_nvidia,
        folder=folder,
        files=files,
        raw_libraries=frozenset(path.name for path in files),
    )


def _file_edit(graft: Graft, path: Path, info: ElfInfo, bundled_names: set[str]) -> ElfEdit:
    """Return the edit by which a file finds its libraries; an empty one if it finds them already.

    `info` is the dynamic section of the file `path` before the edit. `bundled_names` are the names
    that all bundled libraries have in the wheel.
    """
    new_names = graft.replaced.get(path, {})  # of libraries that the file needs, by the old names
    # libpython is the interpreter that imports the file: a second copy must not be loaded
    dropped = [name for name in info.needed if bundling.is_interpreter_library(name)]
    is_bundled = path.name in bundled_names and path.parent == graft.folder
    soname = None
    if is_bundled and info.soname != path.name:
        soname = path.name
    needed = [new_names.get(name, name) for name in info.needed]
    wheel_libraries = graft.raw_libraries | bundled_names
    # Bundled libraries get a run path in any case: some open others by name.
    needs_wheel = is_bundled or not wheel_libraries.isdisjoint(needed)
    run_path = _new_run_path(graft, path, info.rpath, needed, needs_wheel=needs_wheel)
    return ElfEdit(
        replaced=tuple(sorted(new_names.items())),
        dropped=tuple(dropped),
        soname=soname,
        rpath=None if run_path == info.rpath else run_path,
    )


def _new_run_path(
    graft: Graft, path: Path, old_run_path: tuple[str, ...], needed: list[str], *, needs_wheel: bool
) -> tuple[str, ...]:
    """Return the run path that leads the file `path` to the libraries that it needs.

    These may be in the wheel (`needs_wheel`), in packages of NVIDIA that the wheel requires, or in
    packages of NVIDIA that its base package requires. `needed` are the names of the libraries as
    the edited file has them. A file that has no run path, and needs no library from any of these
    places, gets none.
    """
    required_folders = _nvidia_folders(graft.required_nvidia, needed)
    installed_folders = _nvidia_folders(graft.installed_nvidia, needed)
    used_folders = {file.parent for file in graft.files}
    library_folders = [
        folder for folder in (graft.staged.libraries, graft.folder) if folder in used_folders
    ]
    # All folders of packages that this wheel requires, not only those that are needed: a library of
    # one package opens libraries of others by name. Of packages that only the base package
    # requires, the needed folders.
    nvidia_folders = installed_folders | set(graft.required_nvidia.values())
    library_folders += [graft.staged.root / folder for folder in sorted(nvidia_folders)]
    return elf_edit.run_path(
        path,
        old_run_path,
        uses_wheel=bool(needs_wheel or required_folders or installed_folders),
        root=graft.staged.root,
        libraries=library_folders,
    )


def _nvidia_folders(folders: Mapping[str, str], needed: Iterable[str]) -> set[str]:
    """Return those of NVIDIA's folders, relative to site-packages, that hold needed libraries.

    `folders` are by the name of a library, or by a pattern of its name (see `Graft`).
    """
    used_folders = {bundling.nvidia_folder(folders, name) for name in needed}
    return {folder for folder in used_folders if folder is not None}


def _oldest_kept_tag(graft: Graft, target: PlatformTarget) -> str:
    """Return the oldest platform tag whose promises the repaired files keep.

    Raises RepairError if they do not keep those of the target's own tag.
    """
    # read anew: files were edited, and here also those count that installers move elsewhere
    files = elf.dynamic_files(graft.staged.root)
    needs = list(bundling.system_needs(graft.staged.root, files, target, graft.raw_libraries))
    oldest = bundling.oldest_target(target, needs)
    problems = bundling.policy_problems(target, needs)
    if problems:
        meets = f"the files as compiled meet {oldest.tag}: " if oldest else ""
        raise RepairError(
            f"{first_problems(problems)}: {meets}build on a system as old as {target.tag}, "
            "with its own libstdc++, or with `--plat auto`, which takes the tag that holds",
            code="newer-than-tag",
        )
    if oldest is not None and oldest.version < target.version:
        return oldest.tag
    return target.tag
