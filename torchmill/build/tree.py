"""The folders of a build: the tree that interpreters share, and what each cell makes."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from torchmill.config.model import Source
from torchmill.core.errors import ConfigError
from torchmill.core.files import report_unwritable


class BuildTree:
    """The folders and files in which a build works: the source, and what is compiled in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"  # the patched copy of the source
        self.build = self.source / "build"  # in which CMake and ninja work
        self.kit = folder / "kit"  # what every interpreter's build needs: CMake, ninja
        self.env = folder / "env"  # link to the environment of the cell that uses the tree
        self.interpreter_file = folder / "interpreter"  # for which interpreter the tree was used last
        self.external_inputs_file = folder / "outside"  # what was read outside of the tree, with digests
        self.patched_file = folder / "patched"  # the source files that differ from what was fetched
        self.unfinished_file = folder / "unfinished"  # is there while a build runs, and after one that did not end well
        self.key_file = folder / "key"  # what the tree was prepared for; where it exists the tree is complete

    def is_prepared(self, key: str) -> bool:
        """Tell whether the tree is complete and was made for this key."""
        file = self.key_file
        return file.is_file() and file.read_text(encoding="utf-8", errors="replace") == key


class CellOutputs:
    """The folders of what one cell makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw = folder / "raw"  # the wheel as the build left it
        self.stage = folder / "stage"  # the wheel unpacked, to be repaired
        self.packed = folder / "packed"  # the wheel that is not verified yet
        self.verify = folder / "verify"  # in which the wheel is tried
        self.offers = folder / "offers"  # wheels of elsewhere that may be this one
        self.ledger = folder / "ledger"  # what each stage made, and of what


@dataclass(frozen=True, slots=True)
class BuildFolders:
    """Where one build writes to; none of them need be there yet."""

    tree: Path
    outputs: Path  # of the cell; the tree's own folder, where no other cell shares that
    environment: Path


def copy_source(tree: BuildTree, source: Source) -> None:
    """Make a fresh copy of the source; what was noted of the tree before goes."""
    notes = (tree.key_file, tree.interpreter_file, tree.external_inputs_file, tree.patched_file)
    for note in notes:
        note.unlink(missing_ok=True)
    if tree.source.exists():
        shutil.rmtree(tree.source)
    with report_unwritable(tree.folder):
        shutil.copytree(source.path, tree.source, symlinks=True, copy_function=_clone)


def _clone(origin: str, copy: str) -> str:
    """Copy a file; git's objects never change, so they are linked where the disk allows it."""
    if f"{os.sep}objects{os.sep}" in origin and f"{os.sep}.git{os.sep}" in origin:
        with contextlib.suppress(OSError):
            os.link(origin, copy)
            return copy
    return shutil.copy2(origin, copy, follow_symlinks=False)


def fill_placeholders(text: str, places: Mapping[str, str]) -> str:
    """Fill in the ${…} of a plan.

    Raises ConfigError for a name that stands for nothing.
    """
    try:
        return Template(text).substitute(places)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"'{text}' in build_configs: unknown placeholder {error}", code="unknown-placeholder"
        ) from None
