"""The folders and files of one build: its tree, and what its cell makes.

A tree is a patched copy of the source, with everything that is compiled in it. Cells that differ
only in their interpreter are a family, such as "wheel-cpu". They share one tree as long as their
inputs are the same, because few objects depend on the interpreter. The kit is the folder in a tree
with the tools that all of them use, such as CMake and ninja.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.deletion import delete_paths
from torchmill.core.locks import KEY_FILE
from torchmill.core.system_errors import report_unwritable
from torchmill.fetch.source.git_command import copy_or_link
from torchmill.fetch.source.source import Source

_KEY_DIGITS = 8  # of a tree's key, in the name of its folder


class BuildTree:
    """The folders and files in which a build works: the source, and what is compiled in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"  # the patched copy of the source
        self.build = self.source / "build"  # in which CMake and ninja work
        self.kit = folder / "kit"  # tools for the builds of all interpreters: CMake, ninja
        self.env = folder / "env"  # link to the environment of the cell that uses the tree
        self.interpreter_file = folder / "interpreter"  # that the tree was used for last
        # files outside of the tree that builds read, with digests
        self.external_inputs_file = folder / "external-inputs"
        self.inputs_file = folder / "inputs"  # what the tree was prepared for, by name
        self.patched_file = folder / "patched"  # source files that differ from the fetched ones
        # exists while a build runs, and after a build that failed or was killed
        self.unfinished_file = folder / "unfinished"
        # what the tree was prepared for; it exists only if the tree is complete
        self.key_file = folder / KEY_FILE


class CellOutputs:
    """The folders of what one cell makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw = folder / "raw"  # the wheel as the build left it
        self.stage = folder / "stage"  # the wheel unpacked, to be repaired
        self.debug = folder / "debug"  # the debug files of the staged wheel's libraries
        self.packed = folder / "packed"  # the wheel that is not verified yet
        self.verify = folder / "verify"  # the clean environment in which the wheel is tried
        self.offers = folder / "offers"  # wheels from elsewhere that may be this one
        self.ledger = folder / "ledger"  # what each stage made, and from what


@dataclass(frozen=True, slots=True)
class BuildFolders:
    """The folders that one build writes to; none of them need exist yet."""

    tree: Path
    outputs: Path  # what the cell makes; it is the same folder as `tree` if no cell shares the tree
    environment: Path


def shared_tree_folder(trees: Path, family: str, key: str) -> Path:
    """Return the folder of the tree that a family shares; `key` is the digest of its inputs.

    `trees` is the folder of the release's trees.
    """
    return trees / f"{family}-{key[:_KEY_DIGITS]}"


def find_shared_trees(trees: Path, family: str) -> Iterator[Path]:
    """Yield the folders of all trees of a family, for whichever inputs they were prepared."""
    return trees.glob(f"{family}-{'?' * _KEY_DIGITS}")


def copy_source(tree: BuildTree, source: Source) -> None:
    """Make a fresh copy of the source in a tree, with its repository, in place of an earlier copy.

    The records of what was in the tree before are deleted first: a copy that is interrupted has no
    key, and is made anew by the next run.
    """
    records = (
        tree.key_file,
        tree.interpreter_file,
        tree.external_inputs_file,
        tree.patched_file,
    )
    delete_paths((*records, tree.source))
    with report_unwritable(tree.folder):
        shutil.copytree(source.path, tree.source, symlinks=True, copy_function=copy_or_link)
