"""Make a Linux wheel carry what it needs: outside libraries come along, run paths stay inside.

The same is delocate's work on macOS, which is not done here yet; on Windows libraries lie beside their
users and need nothing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

from torchwright.errors import HostError, VerifyError
from torchwright.pack import elf, inplace, patchelf, policy, runpath
from torchwright.pack.edit import Edit
from torchwright.pack.elf import Elf
from torchwright.pack.policy import DRIVER, INTERPRETER, Needs, Target
from torchwright.pack.search import Search, system
from torchwright.pack.stage import StagedWheel


@dataclass(frozen=True, slots=True)
class Bundled:
    """A library that came along, and where from."""

    name: str  # in the wheel: "libfoo-0a1b2c3d.so.1"
    path: str  # in the wheel, from its root
    source: Path
    sha256: str  # of the source, before any edit


@dataclass(frozen=True, slots=True)
class Repaired:
    """What repair did, for the manifest and the log."""

    bundled: tuple[Bundled, ...] = ()
    edited: tuple[str, ...] = ()  # paths from the wheel's root
    could_be: str | None = None  # the oldest platform tag that would hold
    notes: tuple[str, ...] = ()


@dataclass
class _Graft:
    """The work in progress on one wheel."""

    staged: StagedWheel
    target: Target
    search: Search
    provided: frozenset[str]
    folder: Path  # where libraries that come along go
    files: dict[Path, Elf]
    own: frozenset[str]  # names of the libraries the wheel had from the start
    replaced: dict[Path, dict[str, str]] = field(default_factory=dict)  # user -> needed name -> new name
    bundled: dict[Path, Bundled] = field(default_factory=dict)  # by resolved source
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def inside(self, path: Path) -> str:
        return path.relative_to(self.staged.root).as_posix()


def repair(
    staged: StagedWheel,
    platform_tag: str,
    *,
    folders: Iterable[Path] = (),
    provided: frozenset[str] = frozenset(),
) -> Repaired:
    """Bundle every library that `platform_tag` does not promise, and set the run paths.

    `folders` are searched for libraries before the system's own. `provided` names the libraries of the
    package that this one imports first (see `libraries_of`): those are neither bundled nor looked for.
    Raise VerifyError where a library is nowhere, or something needed is newer than the tag.
    """
    if platform_tag.startswith("win"):
        return Repaired(notes=("Windows: libraries lie beside their users, nothing to repair",))
    if platform_tag.startswith("macosx"):
        return Repaired(notes=("macOS: libraries from outside the wheel are not bundled yet",))
    graft = _start(staged, policy.target(platform_tag), system(folders), provided)
    _bundle(graft)
    edited = [graft.inside(path) for path in _edit(graft)]
    could_be = _judge(graft)
    return Repaired(
        tuple(sorted(graft.bundled.values(), key=lambda each: each.name)),
        tuple(sorted(edited)),
        could_be,
        tuple(graft.notes),
    )


def libraries_of(wheel: Path) -> frozenset[str]:
    """Return the names of the shared libraries in a wheel, which a dependent package finds loaded."""
    with ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist()]
    return frozenset(name for name in names if re.search(r"\.so(\.\d+)*$", name))


def hashed(name: str, sha256: str) -> str:
    """Return the name under which a library comes along; no other library can have it."""
    stem, dot, version = name.partition(".so")
    return f"{stem}-{sha256[:8]}{dot}{version}"


def _start(staged: StagedWheel, target: Target, search: Search, provided: frozenset[str]) -> _Graft:
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
    return _Graft(staged, target, search, provided, folder, files, own)


def _bundle(graft: _Graft) -> None:
    """Bring along what the files need, then what those libraries need in turn, until nothing is missing."""
    waiting = [(path, path) for path in graft.files]  # where the file lies now, and where it came from
    while waiting:
        path, origin = waiting.pop(0)
        for needed in _outside(graft, path):
            source = _find(graft, needed, path, origin)
            if source is not None:
                waiting.extend(_take(graft, path, needed, source))
    if graft.missing:
        raise VerifyError(
            "; ".join(graft.missing) + ": install what provides them, or name the folder they lie in"
        )


def _outside(graft: _Graft, path: Path) -> Iterator[str]:
    """Yield the needed names that neither the wheel, nor the package under it, nor every system has."""
    for needed in graft.files[path].needed:
        name = Path(needed).name
        if INTERPRETER.fullmatch(name):
            graft.notes.append(
                f"{graft.inside(path)} needed {needed}: removed, the interpreter is already there"
            )
        elif name in graft.own or name in graft.provided or graft.target.on_system(name):
            if needed != name:  # the linker wrote down a path of the build
                graft.replaced.setdefault(path, {})[needed] = name
        else:
            yield needed


def _find(graft: _Graft, needed: str, path: Path, origin: Path) -> Path | None:
    facts = graft.files[path]
    source = graft.search.find(needed, origin, facts.rpath, facts.machine)
    if source is None:
        graft.missing.append(f"{needed}, which {graft.inside(path)} needs, is nowhere")
    return source


def _take(graft: _Graft, user: Path, needed: str, source: Path) -> Iterator[tuple[Path, Path]]:
    """Copy `source` into the wheel unless it is there, and have `user` need it by its new name."""
    real = source.resolve()
    if real not in graft.bundled:
        with real.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        name = hashed(Path(needed).name, sha256)
        copy = graft.folder / name
        facts = elf.read(real)
        if facts is not None and not copy.exists():
            _copy(real, copy)
            graft.files[copy] = facts
            yield copy, real
        graft.bundled[real] = Bundled(name, graft.inside(copy), real, sha256)
    graft.replaced.setdefault(user, {})[needed] = graft.bundled[real].name


def _copy(source: Path, copy: Path) -> None:
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755)
    except OSError as error:
        raise HostError(f"{copy}: cannot be written ({error.strerror}): free some space") from error


def _edit(graft: _Graft) -> Iterator[Path]:
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


def _wanted(graft: _Graft, path: Path, facts: Elf, inside: frozenset[str], bundled: set[str]) -> Edit:
    replaced = graft.replaced.get(path, {})
    dropped = tuple(name for name in facts.needed if INTERPRETER.fullmatch(Path(name).name))
    came_along = path.name in bundled and path.parent == graft.folder
    looks_inside = came_along or any(replaced.get(name, name) in inside for name in facts.needed)
    folders = {file.parent for file in graft.files}
    libraries = [each for each in (graft.staged.libraries, graft.folder) if each in folders]
    rpath = runpath.wanted(path, facts.rpath, looks_inside, graft.staged.root, libraries)
    return Edit(
        replaced=tuple(sorted(replaced.items())),
        dropped=dropped,
        soname=path.name if came_along else None,
        rpath=None if rpath == facts.rpath else rpath,
    )


def _judge(graft: _Graft) -> str:
    """Return the oldest platform that would hold; raise VerifyError where the target's own does not."""
    watched = graft.target.policy.blacklist
    needs = []
    for path in graft.files:
        facts = elf.read(path)
        if facts is None:
            continue
        libraries = _from_system(graft, facts.needed)
        symbols = elf.imports(path) if libraries & set(watched) else frozenset()
        versions = {name: facts.versions[name] for name in libraries & set(facts.versions)}
        needs.append(Needs(graft.inside(path), libraries, versions, symbols))
    found = policy.problems(graft.target, needs)
    if found:
        raise VerifyError(f"{'; '.join(found)}: build on an older system, or with a newer platform tag")
    return policy.lowest(graft.target, needs)


def _from_system(graft: _Graft, needed: Iterable[str]) -> frozenset[str]:
    return frozenset(
        name
        for name in needed
        if graft.target.on_system(name) and name not in graft.own and not DRIVER.fullmatch(name)
    )
