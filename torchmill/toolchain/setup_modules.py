"""Run a setup.py that compiles its extensions: `setup_modules.py parallel setup.py bdist_wheel`.

setuptools compiles one module after the other, and torch's extension builder writes the same file
build.ninja for each of them. Here, with `parallel`, each module has its own process and folder, and
the progress of their ninjas is counted together. With `serial`, they are compiled one after the
other. So they are if a build is split among several machines, each of which makes a share: a part of
the compiles of every module.

The Python of a build runs this file. It may be as old as 3.8, and cannot import torchmill.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

# The beginning of a line about an edge, ninja's word for a command: "[3/40] c++ …".
_EDGE = re.compile(r"\[(\d+)/(\d+)\] ")
# Set if a share is made: `shards.ORDER_VARIABLE`, which cannot be imported here.
SHARE_VARIABLE = "TORCHMILL_SHARD"
# setuptools prints such a line before it compiles a module. It is dropped, because several modules
# are compiled at a time.
_MODULE_LINE = "building '"
_usual_build = build_ext.build_extensions


class SharedProgress:
    """The progress of all modules together.

    The ninja of each module works in a folder of the module's name, in `temp`.
    """

    def __init__(self, temp: str, modules: Iterable[str]) -> None:
        self._temp = temp
        # Of each module the edges that are done, and all its edges; None before its first line.
        self._edges: dict[str, tuple[int, int] | None] = dict.fromkeys(modules)

    def renumber(self, module: str, line: str) -> str:
        """Return a line of a module's ninja with the numbers of edges of all modules.

        Lines that are not about an edge are returned as they are.
        """
        match = _EDGE.match(line)
        if match is None:
            return line
        self._edges[module] = (int(match[1]), int(match[2]))
        all_done = 0
        all_edges = 0
        for name, edges in self._edges.items():
            done, total = edges or (0, self._count_edges(name))
            all_done += done
            all_edges += total
        return f"[{all_done}/{all_edges}] {line[match.end() :]}"

    def end(self, module: str) -> None:
        """Note that the ninja of a module has ended: no further edge of the module is counted."""
        done, _ = self._edges[module] or (0, 0)
        self._edges[module] = (done, done)

    def _count_edges(self, module: str) -> int:
        """Return the edges of a module's build.ninja, 0 if it is not written yet."""
        file = Path(self._temp, module, "build.ninja")
        try:
            return file.read_text(encoding="utf-8").count("\nbuild ")
        except OSError:
            return 0


def build_modules(command: build_ext) -> None:
    """Compile all modules, each in a process of its own, or make this machine's share of them.

    A module that is the only one is compiled in this process, as setuptools does it, and raises its
    own error. Of several, RuntimeError is raised with the names of those that failed, after the last
    one has ended. Optional ones may fail.
    """
    _prepare_modules(command)
    if SHARE_VARIABLE in os.environ:
        _share_modules(command)
        return
    if len(command.extensions) == 1:
        _usual_build(command)
        return
    compiles = {extension.name: _start(command, extension) for extension in command.extensions}
    progress = SharedProgress(command.build_temp, compiles)

    def follow(name: str) -> bool:
        """Print the output of a module's process to its end; tell whether it was compiled."""
        process, output = compiles[name]
        with open(output, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a pipe
            for line in lines:
                if not line.startswith(_MODULE_LINE):
                    print(progress.renumber(name, line), end="", flush=True)  # noqa: T201
        progress.end(name)
        process.join()
        return process.exitcode == 0

    with ThreadPoolExecutor(len(compiles)) as pool:
        succeeded = dict(zip(compiles, pool.map(follow, compiles)))  # noqa: B905 - Python 3.8
    failed = []
    for extension in command.extensions:
        if not succeeded[extension.name] and not extension.optional:
            failed.append(extension.name)
    if failed:
        raise RuntimeError(f"not compiled: {', '.join(failed)}")


def build_in_turn(command: build_ext) -> None:
    """Compile all modules as setuptools does, one after the other."""
    _prepare_modules(command)
    _usual_build(command)


def _prepare_modules(command: build_ext) -> None:
    """Check the modules of a build, and make the folders of their headers absolute.

    ninja compiles in another folder than setup.py, from which relative ones lead nowhere. torch
    makes those of the whole build absolute, and not those of a module: "Note [Absolute
    include_dirs]" in torch/utils/cpp_extension.py.
    """
    command.check_extensions_list(command.extensions)
    for extension in command.extensions:
        folders = [os.path.abspath(folder) for folder in extension.include_dirs]  # noqa: PTH100
        extension.include_dirs = folders


def _share_modules(command: build_ext) -> None:
    """Make this machine's share of each module.

    torchmill puts a program in the place of ninja (see `shards`), which selects the compiles of the
    share. Raises the last error of a module. There always is an error, because a module cannot be
    linked if only some of its objects are compiled.
    """
    last_error: Exception | None = None
    for extension in command.extensions:
        try:
            command.build_extension(extension)
        except Exception as error:  # noqa: BLE001 - its class depends on the release of torch
            last_error = error
    if last_error is not None:
        raise last_error


def _start(command: build_ext, extension: Any) -> tuple[ForkProcess, int]:
    """Start to compile a module in a new process.

    Return the process, and the file descriptor from which its output can be read.
    """
    reading_end, writing_end = os.pipe()
    # Forked, because `command` cannot be pickled for a new interpreter.
    process = get_context("fork").Process(target=_compile, args=(command, extension, writing_end))
    process.start()
    # The process has its own copy. The pipe ends only if all copies are closed.
    os.close(writing_end)
    return process, reading_end


def _compile(command: build_ext, extension: Any, output: int) -> None:
    """Compile a module in this process, with all output to a file descriptor."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    command.build_temp = str(Path(command.build_temp, extension.name))
    command.build_extension(extension)


if __name__ == "__main__":
    order = sys.argv[1]
    # setup.py finds these as if it had been started itself.
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path.cwd())
    build_ext.build_extensions = build_modules if order == "parallel" else build_in_turn
    runpy.run_path(str(Path(sys.argv[0]).resolve()), run_name="__main__")
