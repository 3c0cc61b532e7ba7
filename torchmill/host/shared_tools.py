"""The tools that all cells of a tree share, such as CMake and ninja: installed once, and linked."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from packaging.tags import platform_tags

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.lenient_paths import link_file
from torchmill.core.stat_cache import digest_data
from torchmill.host.environments import Install
from torchmill.host.stored_folders import copy_stored

_DIGITS = 16  # of the digest that names a stored folder


def provide_shared_tools(
    folder: Path, requirements: Sequence[str], install: Install, store: Path
) -> None:
    """Make a folder with the tools that all interpreters share, unless it exists.

    The folder appears by a rename, once it is complete. `install` runs pip in any environment: the
    tools do not depend on an interpreter. They are stored in `store`, where empty environments are
    stored too, and the files in `folder` are hard links to them if the disk can have these.
    """
    if folder.is_dir():
        return
    with fresh_path(folder) as fresh:
        # pip takes other wheels on another platform, which may use the same store.
        digest = digest_data([requirements, next(platform_tags())])[:_DIGITS]
        copy_stored(
            store / f"tools-{digest}",
            fresh,
            make=partial(_install_tools, requirements, install),
            copy=partial(shutil.copytree, symlinks=True, copy_function=_link_or_copy),
        )
        fresh.rename(folder)


def _install_tools(requirements: Sequence[str], install: Install, folder: Path) -> None:
    """Install tools in a folder, and link their programs in its `bin`.

    pip writes scripts there, which start the program in a wheel by the interpreter that pip runs
    on. Each script is replaced by a link to the program, which needs no interpreter.
    """
    programs = folder / "bin"
    programs.mkdir(parents=True)
    if requirements:
        install(
            "--ignore-installed",
            "--no-warn-script-location",
            "--prefix",
            str(folder),
            *requirements,
        )
    for script in programs.iterdir():
        # pip compiles scripts that are named as modules into a folder `__pycache__` beside them.
        if script.is_symlink() or script.is_dir() or script.read_bytes()[:2] != b"#!":
            continue
        program = next(folder.glob(f"**/data/bin/{script.name}"), None)
        script.unlink()
        if program is not None:
            script.symlink_to(Path("..") / program.relative_to(folder))


def _link_or_copy(file: str, target: str) -> None:
    """Give a file a second name, or copy it if that is not possible."""
    if not link_file(Path(file), Path(target)):
        shutil.copy2(file, target)


def list_shared_tools(folder: Path) -> list[str]:
    """Return the distributions in the folder of shared tools, "name==version" each."""
    names = sorted(
        path.name.removesuffix(".dist-info") for path in folder.glob("**/*-packages/*.dist-info")
    )
    return [name.replace("-", "==", 1) for name in names]
