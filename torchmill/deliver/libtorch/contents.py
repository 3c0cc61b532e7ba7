"""What of a wheel C++ users need, and how the archive that holds it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from torchmill.pack import elf

FOLDERS = ("include", "lib", "share")  # of the package's own; its bin/ serves the build, and Python
PYTHON = re.compile(r"_?Py[A-Z_]\w+")  # how all names of CPython's C API begin
ABI = re.compile(rb"_GLIBCXX_USE_CXX11_ABI=(\d)")


def chosen(package: Path) -> dict[str, Path]:
    """Return the files of an unpacked import package that belong to C++, by their place in the archive.

    Left out is what needs a Python to be loaded into: `libtorch_python`, and whatever needs that.
    """
    every = {
        path.relative_to(package).as_posix(): path
        for folder in FOLDERS
        for path in sorted((package / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    left_out = set(of_python([path for path in every.values() if path.parent.name == "lib"]))
    return {name: path for name, path in every.items() if path not in left_out}


def of_python(libraries: list[Path]) -> Iterator[Path]:
    """Yield the libraries that call Python, or need one that does; what is no ELF file goes by its name."""
    found = {path: elf.read(path) for path in libraries if elf.is_elf(path)}
    named = [path for path in libraries if path not in found and "_python" in path.name]
    dropped = {path for path in found if any(PYTHON.match(name) for name in elf.imports(path))}
    names = {path.name for path in dropped}
    while more := {
        path for path, facts in found.items() if path not in dropped and facts and names & set(facts.needed)
    }:
        dropped |= more
        names |= {path.name for path in more}
    yield from (*named, *dropped)


def is_cxx11(package: Path) -> bool:
    """Say whether the package's CMake files tell consumers to compile for libstdc++'s ABI of 2015."""
    files = sorted((package / "share").rglob("*.cmake"))
    said = [match[1] for file in files for match in ABI.finditer(file.read_bytes())]
    return b"1" in said


def title(import_name: str, version: str, system: str, arch: str, abi: str) -> str:
    """Return the archive's name, as the official ones are called: "libtorch-shared-with-deps-1.13.1+cpu.zip".

    `abi` is "cxx11-abi-" or "". Of Linux the official names tell no machine: all but x86_64 are told here.
    """
    stem = f"lib{import_name}"
    if system == "macos":
        return f"{stem}-macos-{arch}-{version}.zip"
    if system == "windows":
        return f"{stem}-win-shared-with-deps-{version}.zip"
    machine = "" if arch == "x86_64" else f"-{arch}"
    return f"{stem}-{abi}shared-with-deps-{version}{machine}.zip"
