"""A provider of toolkits that has what a test gives it, and facts that lead to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from machines import program

from torchmill.host.programs import runner
from torchmill.model import Piece, ToolkitSource
from torchmill.source.request import Progress, Silent
from torchmill.toolkit.pieces import downloads
from torchmill.toolkit.provision import Shop
from torchmill.toolkit.wanted import Lacking, Offer, Provider, Wanted

ARCH = "x86_64"


def toolkit(folder: Path, version: str = "11.8") -> None:
    """Put what makes a toolkit into a folder."""
    program(folder / "bin", "nvcc", f"Cuda compilation tools, release {version}, V{version}.89")
    for name in ("include/cuda_runtime_api.h", "lib64/libcudart.so"):
        (folder / name).parent.mkdir()
        (folder / name).touch()


def source(provider: str, kind: str = "toolkit", *versions: str, cuda: str | None = None) -> ToolkitSource:
    return ToolkitSource(provider, kind, versions, ("all",), (ARCH,), (), cuda, "test")


def wanted(version: str = "11.8", kind: str = "toolkit", major: str | None = None) -> Wanted:
    return Wanted(kind, version, major, ARCH)


@dataclass(frozen=True)
class MadeUpOffer:
    wanted: Wanted
    provider: str
    full: str
    pieces: Sequence[Piece]
    put: Callable[[Path], None]
    cache: Path

    def fill(self, folder: Path) -> None:
        for piece in self.pieces:
            file = downloads(self.cache, piece.provider) / piece.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"downloaded")
        self.put(folder)


@dataclass
class MadeUp:
    """It has what it is given: what puts it into a folder, by its version."""

    name: str
    has: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    size: int = 10  # bytes to download
    asked: list[Wanted] = field(default_factory=list)
    sentence: str = "its host cannot be reached (no answer in 5 s)"

    def offer(
        self,
        wanted: Wanted,
        sources: Sequence[ToolkitSource],  # noqa: ARG002 (the protocol's)
        cache: Path,
        progress: Progress,  # noqa: ARG002 (the same)
    ) -> Offer | Lacking:
        self.asked.append(wanted)
        exact = next((version for version in self.has if version.startswith(wanted.version)), None)
        if exact is None:
            return Lacking(self.name, self.sentence)
        found = replace(wanted, version=exact)
        piece = Piece(self.name, "all", exact, f"{found.name}.pkg", "", "0", self.size)
        return MadeUpOffer(found, self.name, f"{exact}.89", (piece,), self.has[exact], cache)


def shop(cache: Path, sources: Sequence[ToolkitSource], *providers: MadeUp) -> Shop:
    known: dict[str, Provider] = {one.name: one for one in providers}
    return Shop(known, sources, cache, runner({"PATH": "/usr/bin:/bin"}), Silent())
