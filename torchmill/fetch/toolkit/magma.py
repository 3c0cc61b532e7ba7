"""MAGMA from a folder or an archive, and what code its library holds."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urlsplit

from torchmill.config.facts_model import ProviderPackage, ToolkitSource
from torchmill.core.errors import ConfigError, SourceError
from torchmill.core.files import hash_file, real_path
from torchmill.core.urls import hide_password
from torchmill.fetch.source.archive import SUFFIXES, open_tar, refuse_damage, require_digest, unpack_archive
from torchmill.fetch.toolkit.request import (
    MAGMA,
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    Unserved,
    version_begins,
)
from torchmill.fetch.toolkit.store import fetch_piece
from torchmill.host import libraries, provisioned
from torchmill.host.provisioned import ProvisionedFolder

if TYPE_CHECKING:
    from torchmill.core.console import ProgressDisplay

PROVIDER = "given"
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")
_VERSION_HEADER = PurePosixPath("include", "magma_types.h")


@dataclass(frozen=True, slots=True)
class UserMagma:
    """The provider for one place: a folder, or an archive or its URL, with the digest given or `#sha256=`."""

    place: str
    sha256: str = ""

    def offer(
        self,
        request: ToolkitRequest,
        sources: Sequence[ToolkitSource],  # noqa: ARG002 (as all providers)
        cache: Path,
        progress: ProgressDisplay,
    ) -> ProviderOffer | ProviderRefusal:
        """Return what is in the place; an archive is downloaded first, to read its headers.

        Raises ConfigError for a place that can hold none, NetworkError, SourceError.
        """
        here, piece = self._brought(cache, progress)
        proved = bool(self.sha256 or urldefrag(self.place)[1])
        text = _header(here, proved=proved)
        if text is None:
            return ProviderRefusal(PROVIDER, f"{hide_password(self.place)} has no {_VERSION_HEADER}: it is not MAGMA")
        version = libraries.parse_header_version(MAGMA, text)
        if not version_begins(version, request.version):
            return ProviderRefusal(PROVIDER, f"{hide_password(self.place)} is {MAGMA} {version}", (version,))
        exact, piece = replace(request, version=version), replace(piece, version=version)
        return ProviderOffer(exact, PROVIDER, version, (piece,), partial(_fill, exact, here, progress, proved))

    def _brought(self, cache: Path, progress: ProgressDisplay) -> tuple[Path, ProviderPackage]:
        """Return the local folder or archive, and its entry in the record."""
        parts = urlsplit(self.place)
        if parts.scheme in {"http", "https"}:
            return self._downloaded(cache, progress)
        path = real_path(Path(unquote(parts.path) if parts.scheme == "file" else self.place).expanduser())
        if path.is_dir():
            size = sum(file.stat().st_size for file in _libraries(path) if not file.is_symlink())
            return path, ProviderPackage(PROVIDER, MAGMA, "", path.name, str(path), "", size)
        if path.is_file() and path.name.endswith(SUFFIXES):
            require_digest(path, self.sha256)
            size = path.stat().st_size
            return path, ProviderPackage(PROVIDER, MAGMA, "", path.name, str(path), hash_file(path), size)
        raise ConfigError(
            f"--from {self.place}: no folder and no archive ({', '.join(SUFFIXES)}) has that name",
            code="no-such-origin",
        )

    def _downloaded(self, cache: Path, progress: ProgressDisplay) -> tuple[Path, ProviderPackage]:
        url, fragment = urldefrag(self.place)
        digest = _DIGEST.fullmatch(fragment or f"sha256={self.sha256}")
        file = Path(unquote(urlsplit(url).path)).name
        if digest is None or not file.endswith(SUFFIXES):
            raise ConfigError(
                f"--from {hide_password(self.place)}: give an archive's URL with its digest, as in "
                "URL/magma-cuda126-2.6.1-1.tar.bz2#sha256=…, or download it and give the file",
                code="no-digest-in-url",
            )
        piece = ProviderPackage(PROVIDER, MAGMA, "", file, url, digest[1], 0)
        with contextlib.closing(progress.task(f"{MAGMA} from {hide_password(url)}")) as bar:
            return fetch_piece(piece, cache, bar), piece


def _fill(request: ToolkitRequest, here: Path, progress: ProgressDisplay, proved: bool, folder: Path) -> None:
    """Copy the headers and the library. Raises SourceError for what is not compiled, HostError."""
    beside = folder.with_name("given")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        if here.is_file():
            with contextlib.closing(progress.task(f"{request} in {here}")) as bar:
                unpack_archive(here, beside, bar, proved=proved)
        root = beside if here.is_file() else here
        found = _libraries(root)
        if not found:
            raise SourceError(
                f"{here} has MAGMA's headers, but no lib/libmagma.a or .so: install the compiled library "
                "into a folder, and give that",
                code="magma-without-library",
            )
        for part, files in (("lib", found), ("include", sorted((root / "include").glob("*.h")))):
            (folder / part).mkdir()
            for file in files:
                shutil.copy2(file, folder / part / file.name, follow_symlinks=part == "include")
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def is_place(text: str) -> bool:
    """Tell whether what stands after `--from` is a place, and not a provider's name."""
    return os.sep in text or "/" in text or text.startswith((".", "~")) or text.endswith(SUFFIXES)


def user_magma(place: str, requested: Sequence[str], sha256: str) -> UserMagma:
    """Return the provider for a place. Raises ConfigError where anything but one MAGMA is asked for."""
    if len(requested) != 1 or not requested[0].startswith(MAGMA):
        raise ConfigError(
            f"--from {hide_password(place)}: a folder or an archive can only provide MAGMA, and nothing else "
            "with it: give --library magma-cu118, or name a provider",
            code="only-magma-from-a-place",
        )
    return UserMagma(place, sha256)


def _header(here: Path, *, proved: bool) -> str | None:
    """Return the header with the version, from a folder or an archive; None if there is none."""
    if here.is_dir():
        file = here / _VERSION_HEADER
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None

    def is_header(name: str) -> bool:
        return PurePosixPath(name).parts[-2:] == _VERSION_HEADER.parts

    with refuse_damage(here):
        if here.suffix == ".zip":
            with zipfile.ZipFile(here) as packed:
                content = next((packed.read(name) for name in packed.namelist() if is_header(name)), None)
        else:
            with open_tar(here, proved=proved) as (tar, _):
                found = next((tar.extractfile(member) for member in tar if is_header(member.name)), None)
                content = found.read() if found else None
    return None if content is None else content.decode(errors="replace")


def _libraries(root: Path) -> list[Path]:
    """Return the static library, else the shared one with its names."""
    folders = [root / name for name in ("lib", "lib64")]
    static = [folder / "libmagma.a" for folder in folders if (folder / "libmagma.a").is_file()]
    return static[:1] or [file for folder in folders for file in sorted(folder.glob("libmagma.so*"))]


_PLACES = (
    (re.compile(r"(?:usr/)?include/([^/]+\.h)"), r"include/\1"),
    (re.compile(r"(?:usr/)?lib(?:64)?/(?:[^/]+-linux-gnu/)?(libmagma\.a)"), r"lib/\1"),
    (re.compile(r"usr/share/doc/libmagma-dev/(copyright)"), r"licenses/magma/\1"),
)


def place_magma_file(path: str) -> str | None:
    """Return where a file of a package goes; None: it is left out, as shared libraries are.

    The official builds link MAGMA statically, and so do ours: nothing of it is needed where a wheel runs.
    """
    found = ((pattern.fullmatch(path), new) for pattern, new in _PLACES)
    return next((match.expand(new) for match, new in found if match), None)


def serving_magma(
    there: Mapping[str, ProvisionedFolder], request: ToolkitRequest, unserved: Unserved
) -> ProvisionedFolder | None:
    """Return the installed MAGMA that is requested and serves the capabilities, or None."""
    names = [
        one.name
        for one in provisioned.provisioned_magma(there, request.cuda or "")
        if one.version == request.version and not unserved(one.code, request.capabilities)
    ]
    return there[names[0]] if names else None


def name_magma(request: ToolkitRequest, folder: Path, unserved: Unserved, whose: str) -> str:
    """Return the name to install the content of a folder under; `whose` says where it is from: "debian has".

    Raises SourceError where it is of another version, or has no code for the capabilities asked for.
    """
    version = libraries.header_version(MAGMA, [folder / "include"])
    if version != request.version:
        raise SourceError(
            f"what {whose} as {request} is version {version or 'unknown'}: request that version",
            code="wrong-magma-version",
        )
    code = library_code(folder)
    if not code:
        raise SourceError(
            f"what {whose} as {request} has no GPU code that all of its objects share: {_OTHER}",
            code="magma-without-gpu-code",
        )
    if missed := unserved(code, request.capabilities):
        raise SourceError(
            f"what {whose} as {request} has GPU code for {code}, but none for {', '.join(missed)}: {_OTHER}",
            code="magma-lacks-capability",
        )
    return provisioned.magma_name(request.name, code)


_OTHER = "use another origin (`--from`)"


def library_code(folder: Path) -> str:
    """Return what the library in a folder has code for: "7.0;8.6+PTX". Raises BuildError for a broken one."""
    from torchmill.wheel.pack import elf
    from torchmill.wheel.verify import device_code

    library = next(one for one in (folder / "lib/libmagma.a", folder / "lib/libmagma.so") if one.exists())
    read = (
        device_code.read_static_device_code
        if elf.has_magic(real_path(library), elf.AR_MAGIC)
        else device_code.read_device_code
    )
    return device_code.common_arch_list(read(library))
