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
from torchmill.core.files import report_disk_full


@dataclass(frozen=True, slots=True)
class BuildTree:
    """The folders in which a build works: the source, and what is compiled in it."""

    folder: Path

    @property
    def source(self) -> Path:
        """Return the patched copy of the source."""
        return self.folder / "source"

    @property
    def build(self) -> Path:
        """Return the folder in which CMake and ninja work."""
        return self.source / "build"

    @property
    def kit(self) -> Path:
        """Return the folder of what every interpreter's build needs: CMake, ninja."""
        return self.folder / "kit"

    @property
    def env(self) -> Path:
        """Return the link to the environment of the cell whose turn it is."""
        return self.folder / "env"

    @property
    def interpreter_file(self) -> Path:
        """Return the file that says for which interpreter the tree was used last."""
        return self.folder / "interpreter"

    @property
    def outside_file(self) -> Path:
        """Return the file that says what was read outside of the tree."""
        return self.folder / "outside"

    @property
    def patched_file(self) -> Path:
        """Return the file that says which files of the source are not as they were fetched."""
        return self.folder / "patched"

    @property
    def key_file(self) -> Path:
        """Return the file that says what the tree was prepared for; its presence means: complete."""
        return self.folder / "key"


@dataclass(frozen=True, slots=True)
class CellOutputs:
    """The folders of what one cell makes: raw wheel, stage, packed wheel, its trial."""

    folder: Path

    @property
    def raw(self) -> Path:
        """Return the folder in which the build leaves its wheel."""
        return self.folder / "raw"

    @property
    def stage(self) -> Path:
        """Return the folder in which the wheel is unpacked and repaired."""
        return self.folder / "stage"

    @property
    def packed(self) -> Path:
        """Return the folder of the wheel that is not verified yet."""
        return self.folder / "packed"

    @property
    def verify(self) -> Path:
        """Return the folder in which the wheel is tried."""
        return self.folder / "verify"

    @property
    def ledger(self) -> Path:
        """Return the file that says what each stage made, and of what."""
        return self.folder / "ledger"


def is_prepared(tree: BuildTree, wanted: str) -> bool:
    """Tell whether the tree is complete and was made for this key."""
    return tree.key_file.is_file() and tree.key_file.read_text(encoding="utf-8", errors="replace") == wanted


def copy_source(tree: BuildTree, source: Source) -> None:
    """Make a fresh copy of the source, without its history."""
    tree.key_file.unlink(missing_ok=True)
    for note in (tree.interpreter_file, tree.outside_file, tree.patched_file):
        note.unlink(missing_ok=True)
    if tree.source.exists():
        shutil.rmtree(tree.source)
    with report_disk_full(tree.folder):
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
