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
    """Put the files that every toolkit needs into a folder."""
    program(folder / "bin", "nvcc", f"Cuda compilation tools, release {version}, V{version}.89")
    for name in ("include/cuda_runtime_api.h", "lib64/libcudart.so"):
        (folder / name).parent.mkdir()
        (folder / name).touch()


def source(
    provider: str, kind: ToolkitKind = "toolkit", *versions: str, cuda: str | None = None
) -> ToolkitSource:
    """Return the fact that a provider has something."""
    return ToolkitSource(provider, kind, versions, ("all",), (ARCH,), (), cuda, "test")


def toolkit_request(
    version: str = "11.8", kind: ToolkitKind = "toolkit", major: str | None = None
) -> ToolkitRequest:
    """Return a request for a toolkit, or for a library for a major version of CUDA."""
    return ToolkitRequest(kind, version, major, ARCH)


@dataclass
class MadeUp:
    """A provider with some versions, each with a function that fills its folder."""

    name: str
    contents: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    size: int = 10  # bytes to download
    file_name: str = ""  # of the package; "": after the request
    requests: list[ToolkitRequest] = field(default_factory=list)
    refusal: str = "its host cannot be reached (no answer in 5 s)"

    def offer(
        self,
        request: ToolkitRequest,
        sources: Sequence[ToolkitSource],  # noqa: ARG002 (the protocol's)
        cache: Path,
        progress: ProgressDisplay,  # noqa: ARG002 (the same)
    ) -> ProviderOffer | ProviderRefusal:
        """Offer the first version that begins as the requested one."""
        self.requests.append(request)
        versions = [version for version in self.contents if version.startswith(request.version)]
        if not versions:
            return ProviderRefusal(self.name, self.refusal)
        version = versions[0]
        exact = replace(request, version=version)
        file_name = self.file_name or f"{exact.name}.pkg"
        piece = ProviderPackage(self.name, "all", version, file_name, "", "0", self.size)

        def fill(folder: Path) -> None:
            file = downloads_folder(cache, exact) / piece.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"downloaded")
            self.contents[version](folder)

        return ProviderOffer(exact, self.name, f"{version}.89", (piece,), fill)


def shop(cache: Path, sources: Sequence[ToolkitSource], *providers: MadeUp) -> ProvisionContext:
    """Return a context with some providers."""
    offers: dict[str, AskProvider] = {provider.name: provider.offer for provider in providers}
    run = make_runner({"PATH": "/usr/bin:/bin"})
    return ProvisionContext(offers, sources, cache, run, SilentProgress())
