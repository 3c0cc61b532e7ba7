"""A libcuda.so to link with where there is no driver: wheels have none, and torch's build links with it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from torchmill import process
from torchmill.errors import HostError
from torchmill.process import CommandError

_COMPILERS = ("cc", "gcc", "clang")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY: what a function of a stub returns
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)\s*$", re.MULTILINE)
_STREAMED = re.compile(r"__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)")  # of which there is a form for each thread


def add(home: Path) -> None:
    """Make `lib64/stubs/libcuda.so` of what the headers declare, unless the toolkit has one.

    Raises HostError where no C compiler makes it.
    """
    stub = home / "lib64/stubs/libcuda.so"
    if stub.exists():
        return
    texts = [file.read_text(errors="replace") for file in sorted((home / "include").glob("cuda*.h"))]
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise HostError(
            "the stub of the driver's library needs a C compiler, and this machine has none: install gcc"
        )
    stub.parent.mkdir(parents=True, exist_ok=True)
    code = stub.with_suffix(".c")
    code.write_text(source(functions(texts)), encoding="utf-8")
    # a fixed soname, as the driver's own library has it, and nothing that differs from run to run
    flags = ("-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-Wl,--build-id=none")
    try:
        process.capture([compiler, *flags, "-o", str(stub), str(code)])
    except CommandError as error:
        raise HostError(
            f"{compiler} could not make the stub of the driver's library ({error.output.strip()[-200:]}): "
            "install gcc, and run the command again"
        ) from None
    finally:
        code.unlink()


def functions(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the driver that headers declare, under all names that code may ask for."""
    found = set()
    for text in headers:
        found |= set(_DECLARED.findall(text)) | set(_RENAMED.findall(text))
        for form, name in _STREAMED.findall(text):
            found |= {name, f"{name}_{form.lower()}"}
    return tuple(sorted(found))


def source(names: Iterable[str]) -> str:
    """Return C that defines functions which only say that they are stubs."""
    return "".join(f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in names)
