"""What a provider downloads: one file each, checked before it is unpacked."""

from __future__ import annotations

from pathlib import Path

from torchmill.model import Piece
from torchmill.source.download import download
from torchmill.source.request import Bar

__all__ = ["Piece", "downloads", "fetched"]

_OTHERWISE = "name another provider (`--from conda|debian|pypi`)"
_REFUSED = "the index names a file that is not there: run the command again later, or " + _OTHERWISE


def downloads(cache: Path, provider: str) -> Path:
    """Return where a provider's files are downloaded to; they go when what they make up is whole."""
    return cache / "downloads" / provider


def fetched(piece: Piece, cache: Path, bar: Bar) -> Path:
    """Return the file of a piece that has a URL, whole and checked; what has come of it before is used.

    Raises NetworkError, HostError for a full disk, SourceError for a file that is not what the index says.
    """
    folder = downloads(cache, piece.provider)
    return download(piece.url, folder, bar, otherwise=_OTHERWISE, refused=_REFUSED, sha256=piece.sha256)
