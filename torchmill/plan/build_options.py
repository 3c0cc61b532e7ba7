"""The options of a build: everything that a user can give after `--`.

They are parsed in `options.py`. What they name in the file system is looked up at the edge, in
`cell/option_files.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchmill.config.build import Processor
from torchmill.config.field_types import no_entries
from torchmill.host.installed_packages import EnvironmentPackage

# Values of switches, in upper case. CMake takes any case.
SWITCHED_ON = {"1", "ON", "YES", "TRUE", "Y"}
SWITCHED_OFF = {"0", "OFF", "NO", "FALSE", "N"}

# Which patches against known vulnerabilities `--secure` applies.
SecureChoice = Literal["proven", "all", "none"]
SECURE_CHOICES: tuple[SecureChoice, ...] = get_args(SecureChoice)

PYPI = "PyPI"  # the value of `Options.torch` for the wheel on PyPI


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a user can give after `--`; None stands for an option that is not given."""

    # The local label at the end of the wheel's version: "official" for "+cpu", as upstream has it;
    # "git" for "+git49444c3", the commit; "none" for no label.
    label: str = "official"
    settings: Mapping[str, str] = no_entries()  # variables for the build
    arch_list: str | None = None  # compute capabilities to compile for
    jobs: int | None = None  # compilers at a time
    memory: int | None = None  # bytes that the build may use
    # The torch that a dependent package is built against: "PyPI", a wheel, an environment or a
    # folder of packages.
    torch: str | None = None
    # The packages called torch in the folder that `torch` names. () for a wheel, and for no folder.
    torch_installed: tuple[EnvironmentPackage, ...] = ()
    toolkit: str | None = None  # version of CUDA to build with, if it is not the variant's
    # The wheel's platform tag: "auto", "linux", "manylinux_2_28", "manylinux_2_28_x86_64".
    platform: str = "auto"
    guard: bool = True  # False: a fixed number of compilers at a time, without the memory guard
    network: bool = False  # True: programs of the build may use the network
    cpu: str | None = None  # processor to compile for: "native", "x86-64-v3"; None: any
    processor: Processor | None = None  # `cpu` as its compiler understands it; None: not asked yet
    # The debug information that is put into an archive beside the wheel: "full", or "lines" for
    # functions and lines without variables; None: none is made.
    debug_info: str | None = None
    shard: str | None = None  # "3/16": compile this share alone; never "auto", which is resolved
    parts: str | None = None  # the folder of the objects of shares
    until: float | None = None  # seconds after which the run ends, done or not
    # Which patches against known vulnerabilities are applied: those that are proven, all, or none.
    secure: SecureChoice = "proven"
    # "given/fix.patch" -> path of the user's file, in the order in which they are applied
    patches: Mapping[str, str] = no_entries()

    @property
    def torch_wheel(self) -> Path | None:
        """Return the wheel that `torch` names; None if it names something else, or nothing."""
        if self.torch and self.torch.endswith(".whl"):
            return Path(self.torch)
        return None

    @property
    def torch_folder(self) -> Path | None:
        """Return the environment or folder of packages that `torch` names.

        None if it names a wheel or PyPI, or nothing.
        """
        if self.torch is None or self.torch == PYPI or self.torch_wheel:
            return None
        return Path(self.torch)


NO_OPTIONS = Options()
