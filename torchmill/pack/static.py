"""The objects in a static library: each as the ELF file that it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchmill.errors import BuildError
from torchmill.pack.image import MAGIC as ELF
from torchmill.pack.image import Image, opened

MAGIC = b"!<arch>\n"
_HEADER, _SIZE, _END = 60, slice(48, 58), b"`\n"


def is_static(path: Path) -> bool:
    """Tell whether a file is a static library."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def objects(path: Path) -> Iterator[Image]:
    """Yield the objects of a static library; raise BuildError where it is damaged."""
    with opened(path) as whole:
        at = len(MAGIC)
        while at < len(whole.data):
            header = whole.data[at : at + _HEADER]
            if len(header) < _HEADER or header[-2:] != _END:
                raise BuildError(
                    f"{path}: not a sound static library ({at:#x} begins no member): get it again"
                )
            at, size = at + _HEADER, int(header[_SIZE])
            content = whole.data[at : at + size]
            if len(content) < size:
                raise BuildError(f"{path}: not a sound static library (it ends too soon): get it again")
            if content.startswith(ELF):  # else it is a table of symbols or of names
                yield Image(content)
            at += size + size % 2
