"""MAGMA that a user has: a folder into which it was installed, or an archive of one, here or at a URL."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urldefrag, urlsplit

from torchmill.digests import sha256
from torchmill.errors import ConfigError, SourceError
from torchmill.host import libraries
from torchmill.model import Piece, ToolkitSource
from torchmill.source.mirror import shown
from torchmill.source.request import Progress
from torchmill.source.unpack import SUFFIXES, unpack
from torchmill.toolkit.choosing import begins
from torchmill.toolkit.pieces import fetched
from torchmill.toolkit.wanted import MAGMA, Lacking, Offer, Wanted

PROVIDER = "given"
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")
_TELLS = PurePosixPath("include", "magma_types.h")


@dataclass(frozen=True, slots=True)
class Given:
    """The provider for one place: a folder, an archive, or an archive's URL with `#sha256=`."""

    place: str

    def offer(
        self,
        wanted: Wanted,
        sources: Sequence[ToolkitSource],  # noqa: ARG002 (as all providers)
        cache: Path,
        progress: Progress,
    ) -> Offer | Lacking:
        """Return what lies there; an archive is downloaded first, because its headers say what it is.

        Raises ConfigError for a place that can hold none, NetworkError, SourceError.
        """
        here, piece = self._brought(cache, progress)
        text = _header(here)
        if text is None:
            return Lacking(PROVIDER, f"{shown(self.place)} has no {_TELLS}: it is no MAGMA")
        version = libraries.told(MAGMA, text)
        if not begins(version, wanted.version):
            return Lacking(PROVIDER, f"{shown(self.place)} is {MAGMA} {version}", (version,))
        exact = replace(wanted, version=version)
        return GivenOffer(exact, here, replace(piece, version=version), progress)

    def _brought(self, cache: Path, progress: Progress) -> tuple[Path, Piece]:
        """Return the folder or archive on this machine, and what a record says of it."""
        parts = urlsplit(self.place)
        if parts.scheme in {"http", "https"}:
            return self._downloaded(cache, progress)
        path = Path(unquote(parts.path) if parts.scheme == "file" else self.place).expanduser().resolve()
        if path.is_dir():
            return path, Piece(PROVIDER, MAGMA, "", path.name, str(path), "", _size(path))
        if path.is_file() and path.name.endswith(SUFFIXES):
            size = path.stat().st_size
            return path, Piece(PROVIDER, MAGMA, "", path.name, str(path), sha256(path), size)
        raise ConfigError(
            f"--from {self.place}: there is no folder, and no archive ({', '.join(SUFFIXES)}), of that name"
        )

    def _downloaded(self, cache: Path, progress: Progress) -> tuple[Path, Piece]:
        url, fragment = urldefrag(self.place)
        digest = _DIGEST.fullmatch(fragment)
        file = Path(unquote(urlsplit(url).path)).name
        if digest is None or not file.endswith(SUFFIXES):
            raise ConfigError(
                f"--from {shown(self.place)}: write an archive's URL with its digest, as in "
                "URL/magma-cuda126-2.6.1-1.tar.bz2#sha256=…, or download it and name the file"
            )
        piece = Piece(PROVIDER, MAGMA, "", file, url, digest[1], 0)
        bar = progress.task(f"{MAGMA} from {shown(url)}")
        try:
            return fetched(piece, cache, bar), piece
        finally:
            bar.close()


@dataclass(frozen=True, slots=True)
class GivenOffer:
    """MAGMA in a folder or an archive."""

    wanted: Wanted
    here: Path
    piece: Piece
    progress: Progress
    provider: str = PROVIDER

    @property
    def full(self) -> str:
        """Return the version."""
        return self.wanted.version

    @property
    def pieces(self) -> Sequence[Piece]:
        """Return the one place that it is from."""
        return (self.piece,)

    def fill(self, folder: Path) -> None:
        """Copy the headers and the library. Raises SourceError for what is not compiled, HostError."""
        bar = self.progress.task(f"{self.wanted} in {self.here}")
        beside = folder.with_name("given")
        shutil.rmtree(beside, ignore_errors=True)
        try:
            if self.here.is_file():
                unpack(self.here, beside, bar)
            _copy(beside if self.here.is_file() else self.here, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            bar.close()


def is_place(text: str) -> bool:
    """Tell whether what stands after `--from` is a place, and not a provider's name."""
    return os.sep in text or "/" in text or text.startswith((".", "~")) or text.endswith(SUFFIXES)


def at(place: str, asked: Sequence[str]) -> Given:
    """Return the provider for a place. Raises ConfigError where anything but one MAGMA is asked for."""
    if len(asked) != 1 or not asked[0].startswith(MAGMA):
        raise ConfigError(
            f"--from {shown(place)}: only MAGMA is taken from a folder or an archive, and alone: give "
            "--library magma-cu118 with it, or name a provider"
        )
    return Given(place)


def _header(here: Path) -> str | None:
    """Return the header that tells the version, of a folder or an archive; None where there is none."""
    if here.is_dir():
        file = here / _TELLS
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
    try:
        content = _zipped(here) if here.suffix == ".zip" else _tarred(here)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise SourceError(f"{here} cannot be read ({error}): it is broken, get it again") from None
    return None if content is None else content.decode(errors="replace")


def _tarred(archive: Path) -> bytes | None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if PurePosixPath(member.name).parts[-2:] == _TELLS.parts and (file := tar.extractfile(member)):
                return file.read()
    return None


def _zipped(archive: Path) -> bytes | None:
    with zipfile.ZipFile(archive) as packed:
        names = [name for name in packed.namelist() if PurePosixPath(name).parts[-2:] == _TELLS.parts]
        return packed.read(names[0]) if names else None


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in _libraries(folder) if not file.is_symlink())


def _libraries(root: Path) -> list[Path]:
    """Return the static library, else the shared one with its names."""
    folders = [root / name for name in ("lib", "lib64")]
    static = [folder / "libmagma.a" for folder in folders if (folder / "libmagma.a").is_file()]
    return static[:1] or [file for folder in folders for file in sorted(folder.glob("libmagma.so*"))]


def _copy(root: Path, folder: Path) -> None:
    found = _libraries(root)
    if not found:
        raise SourceError(
            f"{root} holds headers of MAGMA, and no lib/libmagma.a or .so: install what was compiled into a "
            "folder, and name that"
        )
    (folder / "lib").mkdir()
    for file in found:
        shutil.copy2(file, folder / "lib" / file.name, follow_symlinks=False)
    (folder / "include").mkdir()
    for file in sorted((root / "include").glob("*.h")):
        shutil.copy2(file, folder / "include" / file.name)
