"""The options of a build: what a user may say after `--`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.config.build import Processor
from torchmill.config.field_types import no_entries

SWITCHED_ON, SWITCHED_OFF = (
    {"1", "ON", "YES", "TRUE", "Y"},
    {"0", "OFF", "NO", "FALSE", "N"},
)  # whatever their case

PYPI = "PyPI"  # as what a dependent package is built against


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say after `--`."""

    label: str = "official"  # "official": +cpu; "git": +git<sha>; "none"
    settings: Mapping[str, str] = no_entries()  # variables for the build
    arch_list: str | None = None  # compute capabilities
    jobs: int | None = None
    memory: int | None = None  # bytes
    torch: str | None = (
        None  # what a dependent package is built against: "PyPI", a wheel, or an environment
    )
    toolkit: str | None = None  # the version of CUDA to build with, where it is not the variant's
    platform: str = (
        "auto"  # the wheel's tag: "auto", "linux", "manylinux_2_28", "manylinux_2_28_x86_64"
    )
    guard: bool = True  # False: a fixed number of compilers at a time, and no gate before them
    network: bool = False  # True: what the build itself starts may use the network
    cpu: str | None = None  # the processor that it is for: "native", "x86-64-v3"; None: any
    processor: Processor | None = None  # what the compiler makes of `cpu`, once it was asked
    shard: str | None = None  # "3/16": compile this share alone, "auto" as the engine says
    parts: str | None = None  # the folder of what shares made
    until: float | None = None  # seconds after which the run ends, done or not
    patches: Mapping[str, str] = (
        no_entries()
    )  # "given/fix.patch" to the path of the user's file, in their order

    @property
    def torch_wheel(self) -> Path | None:
        """Return the wheel that `torch` names, if it names one."""
        return Path(self.torch) if self.torch and self.torch.endswith(".whl") else None

    @property
    def torch_folder(self) -> Path | None:
        """Return the environment, or the folder of packages, that `torch` names, if it names one."""
        return None if self.torch in {None, PYPI} or self.torch_wheel else Path(str(self.torch))


NO_OPTIONS = Options()
