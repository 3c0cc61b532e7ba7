"""The tree in which one cell is built: a patched copy of the source, kept until something changes."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from filelock import FileLock, Timeout

from torchwright.errors import BusyError, ConfigError, HostError
from torchwright.model import Plan, Source
from torchwright.quantity import format_bytes

IRRELEVANT = frozenset({"MAX_JOBS"})  # changes how fast, not what


@dataclass(frozen=True, slots=True)
class Tree:
    """The folders of one cell: source (with its build folder), raw wheels, stage."""

    folder: Path

    @property
    def source(self) -> Path:
        """Return the patched copy of the source."""
        return self.folder / "source"

    @property
    def raw(self) -> Path:
        """Return the folder in which the build leaves its wheel."""
        return self.folder / "raw"

    @property
    def stage(self) -> Path:
        """Return the folder in which the wheel is unpacked and repaired."""
        return self.folder / "stage"

    @property
    def key_file(self) -> Path:
        """Return the file that says what the tree was prepared for; its presence means: complete."""
        return self.folder / "key"


def key(plan: Plan, source: Source, patches: Path, tools: Mapping[str, str]) -> str:
    """Return a digest of everything that can change what the tree compiles to.

    `tools` names versions that matter (compiler, interpreter).
    """
    parts = {
        "set": {name: value for name, value in plan.set.items() if name not in IRRELEVANT},
        "requirements": plan.requirements,
        "patches": [(patches / patch).read_text(encoding="utf-8") for patch in plan.patches],
        "prepare": [command.argv for command in plan.prepare],
        "compile": [command.argv for command in plan.compile],
        "source": [source.provider, source.origin, source.commit, dict(source.submodules)],
        "tools": dict(tools),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold the folder for this process alone.

    Raises BusyError when another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BusyError(f"{what} is being built by another run: wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def disk_full_told(folder: Path) -> Iterator[None]:
    """Turn a full disk into one sentence."""
    try:
        yield
    except (OSError, shutil.Error) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            free = format_bytes(shutil.disk_usage(folder).free)
            raise HostError(f"the disk of {folder} is full ({free} free): make room and run again") from error
        raise


def is_prepared(tree: Tree, wanted: str) -> bool:
    """Tell whether the tree is complete and was made for this key."""
    return tree.key_file.is_file() and tree.key_file.read_text(encoding="utf-8") == wanted


def copy_source(tree: Tree, source: Source) -> None:
    """Make a fresh copy of the source, without its history."""
    tree.key_file.unlink(missing_ok=True)
    for folder in (tree.source, tree.raw, tree.stage):
        if folder.exists():
            shutil.rmtree(folder)
    with disk_full_told(tree.folder):
        shutil.copytree(source.path, tree.source, symlinks=True, copy_function=_clone)


def _clone(origin: str, copy: str) -> str:
    """Copy a file; git's objects never change, so they are linked where the disk allows it."""
    if f"{os.sep}objects{os.sep}" in origin and f"{os.sep}.git{os.sep}" in origin:
        with contextlib.suppress(OSError):
            os.link(origin, copy)
            return copy
    return shutil.copy2(origin, copy, follow_symlinks=False)


def resolve(text: str, places: Mapping[str, str]) -> str:
    """Fill in the ${…} of a plan.

    Raises ConfigError for a name that stands for nothing.
    """
    try:
        return Template(text).substitute(places)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"'{text}' in build_configs: {error} stands for nothing") from None


def places(tree: Tree, venv: Path, python: Path, patches: Path, cuda_home: str | None) -> Mapping[str, str]:
    """Return what the ${…} of a plan stand for on this machine."""
    found = {
        "tree": str(tree.folder),
        "source": str(tree.source),
        "raw": str(tree.raw),
        "venv": str(venv),
        "python": str(python),
        "patches": str(patches),
        "PATH": os.environ.get("PATH", os.defpath),
    }
    return found | ({"cuda_home": cuda_home} if cuda_home else {})
