"""The wheel that a plan promises, and by which the finished one is judged."""

from dataclasses import dataclass
from pathlib import Path

from torchmill.config.build import Build, Processor
from torchmill.config.release import Release


@dataclass(frozen=True, slots=True)
class PlannedWheel:
    """A wheel that is to be built: its name, its tags, what it requires and who can run it."""

    build: Build
    release: Release
    version: str  # with the local label: "1.13.1+cu118"
    file_name: str
    platform_tag: str
    # True: `platform_tag` is the newest possible; the symbols of the wheel may allow an older tag.
    tag_is_upper_bound: bool = False
    processor: Processor | None = None  # that it is compiled for; None: any
    torch: str | None = None  # what a dependent package is built against: "torch==1.13.1+cpu"
    # The folder of installed packages from which the build borrows torch; None: pip installs it.
    torch_folder: Path | None = None

    @property
    def stem(self) -> str:
        """Return the file name up to its platform tag: "torch-1.13.1+cpu-cp310-cp310-"."""
        return self.file_name.removesuffix(f"{self.platform_tag}.whl")

    @property
    def torch_requirement(self) -> str | None:
        """Return the wheel's requirement on torch, or None if the wheel is torch itself.

        A wheel works with one torch only ("torch==1.13.1+cpu"), unless it uses nothing but
        libtorch's stable ABI: then it works with a range of them ("torch>=2.10").
        """
        torch_range = self.release.wheel.stable_abi
        if self.torch is None or torch_range is None:
            return self.torch
        name = self.torch.partition("==")[0]
        return f"{name}{torch_range}"
