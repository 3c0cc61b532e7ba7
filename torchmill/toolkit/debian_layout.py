"""Where files of Debian's packages go in one folder that serves as CUDA_HOME, or as a compiler's prefix.

Debian spreads a toolkit over /usr; nvcc looks for its parts where NVIDIA has put them, beside itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

Place = Callable[[str], str | None]

TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}

# Debian's own: scripts that stand for nvcc, links to a compiler that nvcc would take for its host's, a model
# of CUDA_HOME made of links, settings for its folders; and what is of no use to a build.
_LEFT = re.compile(
    r"usr/bin/(?:nvcc|nvprof|cuda-(?:gcc|g\+\+|memcheck)|compute-sanitizer|TreeLauncher.*)"
    r"|usr/lib/nvidia-cuda-toolkit/(?:bin/(?:gcc|g\+\+|nvcc\.profile)|compute-sanitizer/.*)"
    r"|usr/lib/cuda/.*|usr/include/cuda-gdb/.*|usr/lib/[^/]+/(?:pkgconfig|cuda-gdb)/.*"
)
_TOOLKIT = (
    (r"usr/lib/nvidia-cuda-toolkit/bin/(cicc)", r"nvvm/bin/\1"),
    (r"usr/lib/nvidia-cuda-toolkit/bin/(.+)", r"bin/\1"),
    (r"usr/lib/nvidia-cuda-toolkit/(libdevice/.+)", r"nvvm/\1"),
    (r"usr/bin/([^/]+)", r"bin/\1"),
    (r"usr/include/nvvm\.h", r"nvvm/include/nvvm.h"),
    (r"usr/include/(.+)", r"include/\1"),
    (r"usr/lib/TRIPLE/(libnvvm\.so.*)", r"nvvm/lib64/\1"),
    (r"usr/lib/TRIPLE/(lib[^/]+|stubs/[^/]+)", r"lib64/\1"),
    (r"usr/share/cmake/(.+)", r"lib64/cmake/\1"),
)
_COMPILER = re.compile(r"usr/((?:bin|include|lib|libexec)/.+)")


def toolkit(arch: str) -> Place:
    """Return what tells where a file of a toolkit goes in CUDA_HOME, or None for one that is left out."""
    rules = [(re.compile(pattern.replace("TRIPLE", TRIPLES[arch])), place) for pattern, place in _TOOLKIT]

    def place(path: str) -> str | None:
        if _LEFT.fullmatch(path):
            return None
        matches = ((pattern.fullmatch(path), new) for pattern, new in rules)
        return next((match.expand(new) for match, new in matches if match), None)

    return place


def compiler(path: str) -> str | None:
    """Return where a file of a compiler goes: its parts find each other if they keep their distances."""
    match = _COMPILER.fullmatch(path)
    return match[1] if match else None


def relinked(path: str, target: str, place: Place) -> str | None:
    """Return what a link must say where it is placed, None where it leads to what is left out.

    `path` is the link's in its package, `target` what it says there.
    """
    whole = PurePosixPath("/", path).parent / target  # an absolute target stands by itself
    parts: list[str] = []
    for part in whole.parts[1:]:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    new, there = place(path), place("/".join(parts))
    if new is None or there is None:
        return None
    here, to = PurePosixPath(new).parent.parts, PurePosixPath(there).parts
    shared = next(
        (i for i, (a, b) in enumerate(zip(here, to, strict=False)) if a != b), min(len(here), len(to))
    )
    return "/".join([".."] * (len(here) - shared) + list(to[shared:]))


def libraries(arch: str) -> tuple[Path, ...]:
    """Return where a machine of this kind has the libraries that the packages of a compiler lead to."""
    return tuple(Path(folder, TRIPLES[arch]) for folder in ("/usr/lib", "/lib"))
