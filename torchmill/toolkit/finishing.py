"""What a folder of unpacked packages still needs before it is a toolkit, or a compiler that works."""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path

from torchmill.errors import HostError
from torchmill.process import CommandError, capture
from torchmill.toolkit.shape import complete

# Settings of nvcc for a toolkit that is one folder.
_PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
CUDAFE_FLAGS +=
PTXAS_FLAGS +=
"""
_TRIAL = """\
#include <stdexcept>
#include <string>
#include <vector>
int main() {
  std::vector<std::string> words(3, "whole");
  try { throw std::runtime_error(words.at(2)); }
  catch (const std::exception& error) { return words[0] != error.what(); }
}
"""


def complete_toolkit(folder: Path, version: str, arch: str) -> None:
    """Add what the packages of a distribution leave out.

    That is nvcc's settings, the toolkit's version, and the profiling interface and other parts where NVIDIA
    has them.
    """
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin/nvcc.profile").write_text(_PROFILE, encoding="utf-8")
    said = {"cuda": {"name": "CUDA SDK", "version": version}}
    (folder / "version.json").write_text(json.dumps(said) + "\n", encoding="utf-8")
    profiling = folder / "extras/CUPTI"
    profiling.mkdir(parents=True)
    for name in ("include", "lib64"):
        (profiling / name).symlink_to(f"../../{name}")
    complete(folder, arch)


def try_compiler(program: Path, arch: str, what: str) -> None:
    """Raise HostError where a compiler makes no program that runs here; another machine's is not tried."""
    if arch != platform.machine():
        return
    with tempfile.TemporaryDirectory(
        dir=program.parents[1]
    ) as place:  # programs may be kept from running in /tmp
        trial, made = Path(place, "trial.cpp"), Path(place, "trial")
        trial.write_text(_TRIAL, encoding="utf-8")
        try:
            capture([str(program), "-O1", "-o", str(made), str(trial)])
            capture([str(made)])
        except CommandError as error:
            said = next((line for line in error.output.splitlines() if "error" in line.lower()), str(error))
            raise HostError(
                f"{what} does not work on this machine ({said.strip()}): install the machine's own with its "
                "package manager"
            ) from None
