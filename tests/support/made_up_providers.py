"""A provider of toolkits that has what a test gives it, and facts that lead to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.machines import program
from tests.support.silent_progress import SilentProgress
from torchmill.config.toolkit import ProviderPackage, ToolkitKind, ToolkitSource
from torchmill.core.console import ProgressDisplay
from torchmill.fetch.toolkit.provision import ProvisionContext
from torchmill.fetch.toolkit.request import (
    AskProvider,
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
)
from torchmill.fetch.toolkit.store import downloads_folder
from torchmill.host.programs import make_runner

ARCH = "x86_64"


def toolkit(folder: Path, version: str = "11.8") -> None:
    """Put what makes a toolkit into a folder."""
    program(folder / "bin", "nvcc", f"Cuda compilation tools, release {version}, V{version}.89")
    for name in ("include/cuda_runtime_api.h", "lib64/libcudart.so"):
        (folder / name).parent.mkdir()
        (folder / name).touch()


def source(
    provider: str, kind: ToolkitKind = "toolkit", *versions: str, cuda: str | None = None
) -> ToolkitSource:
    return ToolkitSource(provider, kind, versions, ("all",), (ARCH,), (), cuda, "test")


def wanted(
    version: str = "11.8", kind: ToolkitKind = "toolkit", major: str | None = None
) -> ToolkitRequest:
    return ToolkitRequest(kind, version, major, ARCH)


@dataclass
class MadeUp:
    """It has what it is given: what puts it into a folder, by its version."""

    name: str
    has: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    size: int = 10  # bytes to download
    asked: list[ToolkitRequest] = field(default_factory=list)
    sentence: str = "its host cannot be reached (no answer in 5 s)"

    def offer(
        self,
        request: ToolkitRequest,
        sources: Sequence[ToolkitSource],  # noqa: ARG002 (the protocol's)
        cache: Path,
        progress: ProgressDisplay,  # noqa: ARG002 (the same)
    ) -> ProviderOffer | ProviderRefusal:
        self.asked.append(request)
        exact = next((version for version in self.has if version.startswith(request.version)), None)
        if exact is None:
            return ProviderRefusal(self.name, self.sentence)
        found = replace(request, version=exact)
        piece = ProviderPackage(self.name, "all", exact, f"{found.name}.pkg", "", "0", self.size)

        def fill(folder: Path) -> None:
            file = downloads_folder(cache, self.name) / piece.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"downloaded")
            self.has[exact](folder)

        return ProviderOffer(found, self.name, f"{exact}.89", (piece,), fill)


def shop(cache: Path, sources: Sequence[ToolkitSource], *providers: MadeUp) -> ProvisionContext:
    known: dict[str, AskProvider] = {one.name: one.offer for one in providers}
    return ProvisionContext(
        known, sources, cache, make_runner({"PATH": "/usr/bin:/bin"}), SilentProgress()
    )
