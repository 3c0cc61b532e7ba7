"""Read the files of an unpacked source into values, for a draft."""

from __future__ import annotations

import contextlib
from pathlib import Path

from torchmill.core.lenient_paths import read_text
from torchmill.fetch.source.tree import walk_tree
from torchmill.fetch.unpacked_package import UnpackedPackage
from torchmill.plan.package_draft.compose import ReadSource, read_source
from torchmill.plan.package_draft.draft import Bindings, SourceOrigin, defines_module
from torchmill.plan.package_draft.source_texts import (
    CUDA_SUFFIX,
    CXX_SUFFIXES,
    SourceTexts,
    is_read,
)

_LARGEST_TEXT = 1 << 20  # bytes of a file that is read


def read_unpacked(package: UnpackedPackage) -> ReadSource:
    """Return an unpacked source with what its texts show."""
    texts = read_texts(package.tree)
    archive = SourceOrigin(package.origin, package.on_index, package.sha256)
    return read_source(archive, texts, read_bindings(package.tree, texts))


def read_texts(tree: Path) -> SourceTexts:
    """Return the files of a tree, and the texts of those that its build is written in."""
    sizes: dict[str, int] = {}
    texts: dict[str, str] = {}
    for entry in walk_tree(tree):
        path = Path(entry.path)
        name = path.relative_to(tree).as_posix()
        with contextlib.suppress(OSError):
            sizes[name] = entry.stat(follow_symlinks=False).st_size
            # A link may lead anywhere: only files of the source itself are read.
            if is_read(name) and not entry.is_symlink() and sizes[name] <= _LARGEST_TEXT:
                texts[name] = read_text(path)
    return SourceTexts(dict(sorted(sizes.items())), dict(sorted(texts.items())))


def read_bindings(tree: Path, texts: SourceTexts) -> Bindings:
    """Return which C++ and CUDA files of a tree define a module of Python."""
    names: list[str] = []
    for name, size in texts.with_suffix(*CXX_SUFFIXES, CUDA_SUFFIX).items():
        path = tree / name
        if size <= _LARGEST_TEXT and not path.is_symlink() and defines_module(read_text(path)):
            names.append(name)
    return Bindings(frozenset(names))
