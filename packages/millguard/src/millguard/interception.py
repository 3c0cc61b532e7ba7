"""Lead every compiler of a command to the gate, however the command's programs name it.

The gate is a small program that asks the guard before it starts a compiler (see `compiler_gate`).
`intercept.c` is a library for LD_PRELOAD. In each program of the build it takes the place of the
functions that start another program, and starts the gate instead of a compiler. So nothing stands
in front of the compilers on disk, and CMake writes down the compiler's own path.

Programs that are linked statically, such as those written in Go, do not load such a library. A
compiler that they start loads it itself, and becomes the gate before it does anything else. The
compilers of set-user-ID programs, such as sudo, are not seen: ld.so(8) ignores the variable for
these, and sudo drops it.
"""

import ctypes
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from millguard.compiler_gate import compile_source, compiled_path

SOURCE = Path(__file__).with_name("intercept.c")
PRELOAD_VARIABLE = "LD_PRELOAD"
# A program with AddressSanitizer ends at once if its runtime is not the first library that is
# loaded: https://github.com/google/sanitizers/wiki/AddressSanitizerFlags (verify_asan_link_order).
SANITIZER_OPTIONS = "ASAN_OPTIONS"
_ANY_ORDER = "verify_asan_link_order=0"


def intercept_library(folder: Path, compiler: Sequence[str]) -> Path:
    """Return the library for LD_PRELOAD, compiled by `compiler` and kept in a folder.

    Raises OSError if this system has no LD_PRELOAD, the library cannot be compiled, or its folder
    lets no program be loaded.
    """
    if sys.platform != "linux":
        raise OSError("compilers can be intercepted on Linux only")
    target = compiled_path(folder, compiler, SOURCE, ".so")
    if any(character in str(target) for character in ": "):
        raise OSError(f"{target}: LD_PRELOAD is split at colons and blanks")  # by ld.so(8)
    if not _loads(target):
        words = [*compiler, "-fPIC", "-shared", "-fvisibility=hidden", "-ldl"]
        purpose = "library that finds compilers"
        compile_source(SOURCE, target, words, purpose=purpose, works=_loads)
    return target


def interception_environment(
    library: Path, gate: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to add to `environ`, so that programs start compilers by `gate`."""
    options = environ.get(SANITIZER_OPTIONS, "")
    libraries = [str(library)]
    for path in environ.get(PRELOAD_VARIABLE, "").split(":"):
        # Within a command that is guarded already, the list has this library.
        if path not in {"", str(library)}:
            libraries.append(path)
    return {
        PRELOAD_VARIABLE: ":".join(libraries),
        SANITIZER_OPTIONS: f"{options}:{_ANY_ORDER}" if options else _ANY_ORDER,
        "MILLGUARD_PRELOAD": str(library),
        "MILLGUARD_PROGRAM": str(gate),
    }


def _loads(library: Path) -> bool:
    """Tell whether programs here can load a library: it may be on a disk mounted noexec.

    It is loaded into this process, in which it does nothing, because only libraries that are loaded
    before the C library take its functions' places.
    """
    if not library.is_file():
        return False
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True
