"""Carry along the libraries that a wheel needs and that are neither in it nor on every system."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchmill import digests
from torchmill.errors import HostError, VerifyError
from torchmill.pack import elf, nvidia
from torchmill.pack.elf import Elf
from torchmill.pack.plain import Plain
from torchmill.pack.policy import INTERPRETER, Target
from torchmill.pack.search import Search
from torchmill.pack.stage import StagedWheel

_HASHED = re.compile(r"-[0-9a-f]{8}\.so(\.\d+)*$")


@dataclass(frozen=True, slots=True)
class Bundled:
    """A library that came along, and where from."""

    name: str  # in the wheel: "libfoo-0a1b2c3d.so.1"
    path: str  # in the wheel, from its root
    source: Path
    sha256: str  # of the source, before any edit


@dataclass
class Graft:
    """The work in progress on one wheel."""

    staged: StagedWheel
    target: Target | Plain
    search: Search
    provided: frozenset[str]
    brought: Mapping[str, str]  # NVIDIA's libraries in packages that the wheel requires -> their folders
    beside: Mapping[str, str]  # the same, of what torch requires that it is built against
    folder: Path  # where libraries that come along go
    files: dict[Path, Elf]
    own: frozenset[str]  # names of the libraries the wheel had from the start
    replaced: dict[Path, dict[str, str]] = field(default_factory=dict)  # user -> needed name -> new name
    bundled: dict[Path, Bundled] = field(default_factory=dict)  # by resolved source
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def inside(self, path: Path) -> str:
        """Spell a path as it is in the wheel."""
        return path.relative_to(self.staged.root).as_posix()


def bundle(graft: Graft) -> None:
    """Bring along what the files need, then what those libraries need in turn, until nothing is missing.

    Raise VerifyError where a library is nowhere.
    """
    waiting = [(path, path) for path in graft.files]  # where the file lies now, and where it came from
    while waiting:
        path, origin = waiting.pop(0)
        for needed in _outside(graft, path):
            source = _find(graft, needed, path, origin)
            if source is not None:
                waiting.extend(_take(graft, path, needed, source))
    _give_second_name(graft)
    if graft.missing:
        raise VerifyError(
            "; ".join(graft.missing)
            + ": install what provides them, or write the folder that they lie in into "
            "what is linked with them (-- --set LDFLAGS=-Wl,-rpath,FOLDER)"
        )


def hashed(name: str, sha256: str) -> str:
    """Return the name under which a library comes along; no other library can have it."""
    stem, dot, version = name.partition(".so")
    return f"{stem}-{sha256[:8]}{dot}{version}"


def came_along(name: str) -> bool:
    """Tell by its name whether a library in a finished wheel was brought along."""
    return nvidia.keeps_name(name) or _HASHED.search(name) is not None


def _outside(graft: Graft, path: Path) -> Iterator[str]:
    """Yield the needed names that neither the wheel, nor the packages under it, nor every system has."""
    for needed in graft.files[path].needed:
        name = Path(needed).name
        if INTERPRETER.fullmatch(name):
            graft.notes.append(
                f"{graft.inside(path)} needed {needed}: removed, the interpreter is already there"
            )
        elif _is_elsewhere(graft, name):
            if needed != name:  # the linker wrote down a path of the build
                graft.replaced.setdefault(path, {})[needed] = name
        else:
            yield needed


def _is_elsewhere(graft: Graft, name: str) -> bool:
    own = name in graft.own or name in graft.provided or graft.target.on_system(name)
    return own or any(nvidia.folder(found, name) for found in (graft.brought, graft.beside))


def _find(graft: Graft, needed: str, path: Path, origin: Path) -> Path | None:
    facts = graft.files[path]
    source = graft.search.find(needed, origin, facts.rpath, facts.machine)
    if source is None:
        graft.missing.append(f"{needed}, which {graft.inside(path)} needs, is nowhere")
    return source


def _take(graft: Graft, user: Path, needed: str, source: Path) -> Iterator[tuple[Path, Path]]:
    """Bring `source` along, and what it opens by name, and have `user` need it by its new name."""
    if source.resolve() not in graft.bundled:
        for library in (source, *nvidia.opened_by(source)):
            name = Path(needed).name if library == source else library.name
            yield from _bring(graft, name, library.resolve())
    graft.replaced.setdefault(user, {})[needed] = graft.bundled[source.resolve()].name


def _bring(graft: Graft, called: str, real: Path) -> Iterator[tuple[Path, Path]]:
    """Copy a library into the wheel unless it is there."""
    if real in graft.bundled:
        return
    sha256 = digests.sha256(real)
    name = called if nvidia.keeps_name(called) else hashed(called, sha256)
    copy = graft.folder / name
    facts = elf.read(real)
    if facts is not None and not copy.exists():
        _copy(real, copy)
        graft.files[copy] = facts
        yield copy, real
    graft.bundled[real] = Bundled(name, graft.inside(copy), real, sha256)


def _give_second_name(graft: Graft) -> None:
    """Copy libnvrtc under the name by which cuDNN 8 opens it: a wheel holds no links."""
    names = {one.name: one for one in graft.bundled.values()}
    versioned = next((one for name, one in names.items() if nvidia.NVRTC.fullmatch(name)), None)
    if versioned is not None and nvidia.CUDNN_8 in names:
        copy = graft.folder / nvidia.NVRTC_FOR_CUDNN_8
        _copy(versioned.source, copy)
        graft.files[copy] = graft.files[graft.staged.root / versioned.path]
        graft.bundled[copy] = Bundled(copy.name, graft.inside(copy), versioned.source, versioned.sha256)


def _copy(source: Path, copy: Path) -> None:
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755)
    except OSError as error:
        raise HostError(f"{copy}: cannot be written ({error.strerror}): free some space") from error
