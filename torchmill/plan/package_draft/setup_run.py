"""The record of a dry run: what a setup.py asked setuptools to build, in one scenario.

A *scenario* is an environment in which setup.py is run: with a CUDA toolkit or without, with some
variables set. `checks/dry_run.py` makes the records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchmill.config.field_types import no_entries
from torchmill.plan.package_draft.setup_script import ReadVariable
from torchmill.plan.package_draft.source_texts import CUDA_SUFFIX, Place

_CAPABILITY = re.compile(r"(?:compute|sm)_(\d+)[a-z]?")
_STANDARD = re.compile(r"-{1,2}std[= ]?=?(?:c|gnu)\+\+(\w+)")
_THIS_PROCESSOR = re.compile(r"-m(?:arch|cpu)=native")


@dataclass(frozen=True, slots=True)
class Extension:
    """A library that a setup.py asks for."""

    name: str  # "torch_scatter._scatter_cuda"
    kind: str  # the function or class that made it: "CUDAExtension", "CMakeExtension"
    sources: tuple[str, ...]
    flags: Mapping[str, Sequence[str]] = no_entries()  # by language: "cxx", "nvcc"
    defines: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    limited_api: bool = False

    @property
    def has_cuda(self) -> bool:
        """Tell whether it is compiled with CUDA."""
        has_source = any(source.endswith(CUDA_SUFFIX) for source in self.sources)
        return has_source or self.kind == "CUDAExtension"

    @property
    def is_left_open(self) -> bool:
        """Tell whether its files are not known: another program compiles it, which is usually CMake."""
        return "cmake" in self.kind.lower() or not self.sources

    @property
    def is_of_torch(self) -> bool:
        """Tell whether torch's own functions made it."""
        return self.kind in {"CppExtension", "CUDAExtension"}

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Return the compute capabilities that its flags for nvcc name: "8.0"."""
        names: dict[str, None] = {}
        for digits in _CAPABILITY.findall(" ".join(self.flags.get("nvcc", ()))):
            names[f"{digits[:-1]}.{digits[-1]}"] = None
        return tuple(names)

    @property
    def names_capabilities(self) -> bool:
        """Tell whether torch's extension builder takes its flags for nvcc to name capabilities."""
        flags = [flag for flag in self.flags.get("nvcc", ()) if "TORCH_EXTENSION_NAME" not in flag]
        return self.has_cuda and any("arch" in flag for flag in flags)

    @property
    def names_this_processor(self) -> bool:
        """Tell whether it is compiled for the processor of the machine that compiles it."""
        for flags in self.flags.values():
            if any(_THIS_PROCESSOR.search(flag) for flag in flags):
                return True
        return False

    @property
    def standards(self) -> tuple[str, ...]:
        """Return the standards of C++ that its flags name: "17"."""
        names: dict[str, None] = {}
        for flags in self.flags.values():
            for standard in _STANDARD.findall(" ".join(flags)):
                names[standard] = None
        return tuple(names)


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run of a setup.py ended without a call of setup()."""

    # "module" (it imports one that is missing), "exit", "exception", "time", "nothing"
    kind: str
    text: str
    module: str = ""
    place: str = ""  # "setup.py:12"; "" if it is not known


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """The first file of a language that was compiled."""

    source: str
    seconds: float
    error: str  # "" if an object file was made
    output: str = ""


@dataclass(frozen=True, slots=True)
class SetupRun:
    """What one run of a setup.py did."""

    name: str | None = None
    version: str | None = None
    requires_python: str | None = None
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    package_dir: Mapping[str, str] = no_entries()
    extensions: tuple[Extension, ...] = ()
    setup_requires: tuple[str, ...] = ()
    install_requires: tuple[str, ...] = ()
    use_ninja: bool | None = None
    wheel_tag: str = ""  # "cp39-abi3", "py3-none", if it makes one wheel for several Pythons
    variables: tuple[ReadVariable, ...] = ()
    network: tuple[str, ...] = ()  # hosts, and commands that download
    changed: Mapping[str, str] = no_entries()  # variables that it set
    backend_requires: tuple[str, ...] = ()  # that the backend of the source has told
    error: RunError | None = None
    compiled: CompiledFile | None = None

    @property
    def has_cuda(self) -> bool:
        """Tell whether it ended well, and has code for GPUs."""
        return self.error is None and any(item.has_cuda for item in self.extensions)

    @property
    def has_cpu(self) -> bool:
        """Tell whether it ended well, and has libraries, none of which needs CUDA."""
        return self.error is None and bool(self.extensions) and not self.has_cuda

    def has_build(self, *, cuda: bool) -> bool:
        """Tell whether it ended well, with code for GPUs or with libraries that need no CUDA."""
        return self.has_cuda if cuda else self.has_cpu

    @property
    def is_of_torch(self) -> bool:
        """Tell whether torch's functions made any of its libraries."""
        return any(item.is_of_torch for item in self.extensions)

    @property
    def names_capabilities(self) -> bool:
        """Tell whether a library's flags name compute capabilities."""
        return any(item.names_capabilities for item in self.extensions)

    @property
    def names_this_processor(self) -> bool:
        """Tell whether a library is compiled for the processor of the machine that compiles it."""
        return any(item.names_this_processor for item in self.extensions)

    @property
    def source_count(self) -> int:
        """Return the number of files that it would compile."""
        return sum(len(item.sources) for item in self.extensions)

    @property
    def needs_network(self) -> bool:
        """Tell whether it failed after it had asked for a host, or started a download."""
        return self.error is not None and bool(self.network)


def parse_run(data: Mapping[str, Any]) -> SetupRun:
    """Return the run that a record of checks/dry_run.py describes."""
    variables = []
    for name, (default, place) in data["variables"].items():
        file, _, line = place.rpartition(":")
        variables.append(ReadVariable(name, default, Place(file, int(line))))
    run = SetupRun(
        variables=tuple(variables),
        network=tuple(data["network"]),
        changed=data.get("changed", {}),
        backend_requires=tuple(data.get("requires", ())),
    )
    if data["error"]:
        error = data["error"]
        run = replace(
            run,
            error=RunError(error["kind"], error["text"], error.get("module", ""), error["place"]),
        )
    setup = data["setup"]
    if not setup:
        return run
    compiled = setup.get("compiled")
    if compiled:
        compiled = CompiledFile(
            compiled["source"], compiled["seconds"], compiled["error"], data.get("output", "")
        )
    return replace(
        run,
        name=setup["name"],
        version=setup["version"],
        requires_python=setup["requires_python"],
        packages=tuple(setup["packages"]),
        modules=tuple(setup["modules"]),
        package_dir=setup["package_dir"],
        extensions=tuple(_parse_extension(item) for item in setup["extensions"]),
        setup_requires=tuple(setup["setup_requires"]),
        install_requires=tuple(setup["install_requires"]),
        use_ninja=setup["use_ninja"],
        wheel_tag=setup.get("wheel_tag", ""),
        compiled=compiled or None,
    )


def _parse_extension(data: Mapping[str, Any]) -> Extension:
    """Return the extension of a record."""
    return Extension(
        name=data["name"],
        kind=data["kind"],
        sources=tuple(data["sources"]),
        flags=data["flags"],
        defines=tuple(data["defines"]),
        includes=tuple(data["includes"]),
        libraries=tuple(data["libraries"]),
        limited_api=data["limited_api"],
    )
