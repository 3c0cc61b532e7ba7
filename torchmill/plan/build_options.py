"""The options of a build: everything that a user can give after `--`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.config.build import Processor
from torchmill.config.field_types import no_entries

# Values of switches, in upper case. CMake takes any case.
SWITCHED_ON = {"1", "ON", "YES", "TRUE", "Y"}
SWITCHED_OFF = {"0", "OFF", "NO", "FALSE", "N"}

PYPI = "PyPI"  # the value of `Options.torch` for the wheel on PyPI


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a user can give after `--`."""

    label: str = "official"  # "official": +cpu; "git": +git<sha>; "none"
    settings: Mapping[str, str] = no_entries()  # variables for the build
    arch_list: str | None = None  # compute capabilities
    jobs: int | None = None
    memory: int | None = None  # bytes
    # torch for a dependent package: "PyPI", a wheel, an environment or a folder of packages
    torch: str | None = None
    toolkit: str | None = None  # version of CUDA to build with, if it is not the variant's
    # of the wheel: "auto", "linux", "manylinux_2_28", "manylinux_2_28_x86_64"
    platform: str = "auto"
    guard: bool = True  # False: a fixed number of compilers at a time, and no gate before them
    network: bool = False  # True: programs of the build may use the network
    cpu: str | None = None  # the processor that it is for: "native", "x86-64-v3"; None: any
    processor: Processor | None = None  # as the compiler understands `cpu`, once it was asked
    shard: str | None = None  # "3/16": compile this share alone; "auto": as the engine says
    parts: str | None = None  # the folder of the objects of shares
    until: float | None = None  # seconds after which the run ends, done or not
    # "given/fix.patch" -> path of the user's file, in the order in which they are applied
    patches: Mapping[str, str] = no_entries()

    @property
    def torch_wheel(self) -> Path | None:
        """Return the wheel that `torch` names, if it names one."""
        if self.torch and self.torch.endswith(".whl"):
            return Path(self.torch)
        return None

    @property
    def torch_folder(self) -> Path | None:
        """Return the environment or folder of packages that `torch` names, if it names one."""
        if self.torch is None or self.torch == PYPI or self.torch_wheel:
            return None
        return Path(self.torch)


NO_OPTIONS = Options()
