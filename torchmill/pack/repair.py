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

from torchmill.errors import BuildError, VerifyError
from torchmill.pack import (
    elf,
    inplace,
    judging,
    licences,
    macos,
    metadata,
    nvidia,
    patchelf,
    plain,
    policy,
    runpath,
)
from torchmill.pack.bundling import Bundled, Graft, bundle
from torchmill.pack.edit import Edit
from torchmill.pack.elf import Elf
from torchmill.pack.plain import Plain
from torchmill.pack.policy import INTERPRETER, Target
from torchmill.pack.search import Search, system
from torchmill.pack.stage import BROKEN, StagedWheel

_TOLD = 3  # problems, of all that there are


@dataclass(frozen=True, slots=True)
class Repaired:
    """What repair did, for the manifest and the log."""

    bundled: tuple[Bundled, ...] = ()
    edited: tuple[str, ...] = ()  # paths from the wheel's root
    could_be: str | None = None  # the oldest platform tag that would hold; None: nothing is promised
    notes: tuple[str, ...] = ()


def repair(
    staged: StagedWheel,
    platform_tag: str,
    *,
    folders: Iterable[Path] = (),
    provided: frozenset[str] = frozenset(),
    beside: Mapping[str, str] | None = None,
) -> Repaired:
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
        return Repaired(notes=("Windows: libraries lie beside their users, nothing to repair",))
    if platform_tag.startswith("macosx"):
        delocated = macos.repair(staged, platform_tag, provided)
        lacking = licences.carry(
            staged, delocated.bundled, licences.owners(one.source for one in delocated.bundled)
        )
        return Repaired(delocated.bundled, delocated.edited, notes=lacking)
    search = system(folders)
    target = plain.target(platform_tag, search) or policy.target(platform_tag)
    graft = _start(staged, target, search, provided, beside or {})
    bundle(graft)
    edited = [graft.inside(path) for path in _edit(graft)]
    could_be = None if isinstance(target, Plain) else _judge(graft, target)
    bundled = tuple(sorted(graft.bundled.values(), key=lambda each: each.name))
    lacking = licences.carry(staged, bundled, licences.owners(one.source for one in bundled))
    return Repaired(bundled, tuple(sorted(edited)), could_be, (*graft.notes, *lacking))


def libraries_of(wheel: Path) -> frozenset[str]:
    """Return the names of the shared libraries in a wheel, which a dependent package finds loaded.

    Raises BuildError where the file is no wheel.
    """
    try:
        with ZipFile(wheel) as archive:
            names = [Path(name).name for name in archive.namelist()]
    except BROKEN as error:
        raise BuildError(f"{wheel}: not a wheel ({error}): build or download it again") from None
    return frozenset(name for name in names if re.search(r"\.so(\.\d+)*$", name))


def _start(
    staged: StagedWheel,
    target: Target | Plain,
    search: Search,
    provided: frozenset[str],
    beside: Mapping[str, str],
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
    brought = nvidia.brought(metadata.requirements(staged))
    return Graft(staged, target, search, provided, brought, beside, folder, files, own)


def _edit(graft: Graft) -> Iterator[Path]:
    """Apply to each file all its edits at once, and yield the files that had any."""
    names = {each.name for each in graft.bundled.values()}
    inside = graft.own | names
    for path, facts in graft.files.items():
        edit = _wanted(graft, path, facts, inside, names)
        if edit != Edit():
            mode = path.stat().st_mode
            path.chmod(mode | 0o200)
            if not inplace.apply(edit, path):
                patchelf.apply(edit, path)
            path.chmod(mode)
            yield path


def _wanted(graft: Graft, path: Path, facts: Elf, inside: frozenset[str], bundled: set[str]) -> Edit:
    replaced = graft.replaced.get(path, {})
    dropped = tuple(name for name in facts.needed if INTERPRETER.fullmatch(Path(name).name))
    came_along = path.name in bundled and path.parent == graft.folder
    found = [replaced.get(name, name) for name in facts.needed]
    beside = {folder for one in found if (folder := nvidia.folder(graft.beside, one))}
    looks_inside = came_along or any(one in inside or nvidia.folder(graft.brought, one) for one in found)
    folders = {file.parent for file in graft.files}
    libraries = [each for each in (graft.staged.libraries, graft.folder) if each in folders]
    # what libraries of a required package open by name may be in any of the others
    libraries += [graft.staged.root / folder for folder in sorted({*graft.brought.values(), *beside})]
    rpath = runpath.wanted(path, facts.rpath, looks_inside or bool(beside), graft.staged.root, libraries)
    return Edit(
        replaced=tuple(sorted(replaced.items())),
        dropped=dropped,
        soname=path.name if came_along and facts.soname != path.name else None,
        rpath=None if rpath == facts.rpath else rpath,
    )


def _judge(graft: Graft, target: Target) -> str:
    """Return the oldest platform that would hold; raise VerifyError where the target's own does not."""
    files = {path: facts for path in graft.files if (facts := elf.read(path)) is not None}  # as edited
    needs = list(judging.needs(graft.staged.root, files, target, graft.own))
    if found := policy.problems(target, needs):
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        holds = policy.oldest(target, needs)
        instead = f"what was compiled holds {holds}: " if holds else ""
        raise VerifyError(
            f"{'; '.join(found[:_TOLD])}{more}: {instead}build on a system as old as {target.tag}, or with "
            "`--plat auto`, which takes the tag that holds"
        )
    return policy.lowest(target, needs)
