"""What is asked of a provider, and its two answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchmill.host.kept import COMPILER, TOOLKIT
from torchmill.model import Piece, ToolkitSource
from torchmill.source.request import Progress

__all__ = ["COMPILER", "LIBRARIES", "MAGMA", "TOOLKIT", "Lacking", "Offer", "Provider", "Wanted"]

MAGMA = "magma"
LIBRARIES = ("cudnn", "nccl", "cusparselt", MAGMA)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One thing that is to lie in the cache."""

    kind: str  # TOOLKIT, COMPILER, or one of LIBRARIES
    version: str  # "11.8"; "gcc-11"; of a library "8.5.0.96", its beginning "8.5", or "" for the newest
    cuda: str | None  # "11": the toolkits that a library goes with, of MAGMA "11.8"; None of all else
    arch: str  # "x86_64", "aarch64"
    capabilities: str = ""  # of MAGMA: what its code must serve, "7.0;8.6"; "": whatever it is for
    completes: str = ""  # the folder of a toolkit of this version that lacks parts: these are wanted

    @property
    def name(self) -> str:
        """Return what it is called where it is kept: "11.8", "gcc-11", "cudnn-8.5.0.96-cu11".

        Of MAGMA it is the beginning, "magma-2.6.1-cu118": what its code is for follows.
        """
        if self.completes:
            return f"{self.version}-completed-{hashlib.sha256(self.completes.encode()).hexdigest()[:8]}"
        if self.cuda is None or self.kind not in LIBRARIES:
            return self.version
        return f"{self.kind}-{self.version}-cu{self.cuda.replace('.', '')}"

    def __str__(self) -> str:
        """Return how messages call it: "CUDA 11.8", "gcc-11", "cudnn 8.5.0.96 for CUDA 11"."""
        if self.completes:
            return f"what CUDA {self.version} in {self.completes} lacks"
        if self.kind in LIBRARIES:
            return f"{self.kind} {self.version} for CUDA {self.cuda}".replace("  ", " ")
        return f"CUDA {self.version}" if self.kind == TOOLKIT else self.version


class Offer(Protocol):
    """A provider has it, and says what it would download; nothing was downloaded yet but lists."""

    @property
    def wanted(self) -> Wanted:
        """Return what it is, its version written out."""

    @property
    def provider(self) -> str:
        """Return the provider's name."""

    @property
    def full(self) -> str:
        """Return the provider's own version of the whole: "11.8.89"; where there is none, the version."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Return all that would be downloaded."""

    def fill(self, folder: Path) -> None:
        """Download (what was downloaded before is used), check and unpack it into an empty folder.

        Raises NetworkError, SourceError for a file that is not what the index says, HostError for no room.
        """


@dataclass(frozen=True, slots=True)
class Lacking:
    """A provider does not have it, or cannot be asked."""

    provider: str
    sentence: str  # what it lacks, or why it cannot be asked: a clause, without a full stop
    has: tuple[str, ...] = ()  # versions of the same kind that it does have


class Provider(Protocol):
    """A module of this room, or what stands for one in a test."""

    def offer(
        self, wanted: Wanted, sources: Sequence[ToolkitSource], cache: Path, progress: Progress
    ) -> Offer | Lacking:
        """Ask for something; `sources` are this provider's facts on that kind, `cache` the user's folder.

        Raises nothing for a provider that cannot be reached: that is Lacking, too.
        """
