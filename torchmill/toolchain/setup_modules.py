"""Run a setup.py that compiles its extension modules side by side: `python setup_modules.py setup.py bdist_wheel`.

setuptools compiles one module after the other, and torch's extension builder gives all of them one build.ninja. Here
each module has a process and a folder of its own, and what their ninjas say is counted together. A share is made of all
modules, one after the other. The Python of a build runs this file, 3.8 or newer, and has nothing of the suite.
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

_EDGE = re.compile(r"\[(\d+)/(\d+)\] ")
SHARE_VARIABLE = "TORCHMILL_SHARD"  # is there where a share is made
_SAYS_WHICH = "building '"  # begins the line of a module, which would name one of several for all


class SharedProgress:
    """How far the ninjas of all modules are; each works in a folder of its module's name below `temp`."""

    def __init__(self, temp: str, modules: Iterable[str]) -> None:
        self._temp = temp
        self._edges: dict[str, tuple[int, int] | None] = dict.fromkeys(
            modules
        )  # None: it has not said anything

    def retell(self, module: str, line: str) -> str:
        """Return a line of a module's ninja with the edges of all modules in place of its own."""
        match = _EDGE.match(line)
        if match is None:
            return line
        self._edges[module] = int(match[1]), int(match[2])
        every = [edges or (0, self._written(one)) for one, edges in self._edges.items()]
        return f"[{sum(done for done, _ in every)}/{sum(total for _, total in every)}] {line[match.end() :]}"

    def end(self, module: str) -> None:
        """Expect no more of a module."""
        done, _ = self._edges[module] or (0, 0)
        self._edges[module] = done, done

    def _written(self, module: str) -> int:
        """Return the edges that a module's ninja will count, as far as its file is there."""
        try:
            return (
                Path(self._temp, module, "build.ninja")
                .read_text(encoding="utf-8")
                .count("\nbuild ")
            )
        except OSError:
            return 0


def build_modules(command: build_ext) -> None:
    """Compile all modules, each in a process of its own. Raises RuntimeError with those that failed, after the last."""
    command.check_extensions_list(command.extensions)
    if SHARE_VARIABLE in os.environ:
        _share_modules(command)
        return
    if len(command.extensions) == 1:
        command.build_extension(command.extensions[0])
        return
    modules = {extension.name: _begin(command, extension) for extension in command.extensions}
    progress = SharedProgress(command.build_temp, modules)

    def follow(name: str) -> bool:
        process, output = modules[name]
        with open(output, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a pipe
            for line in lines:
                if not line.startswith(_SAYS_WHICH):
                    print(progress.retell(name, line), end="", flush=True)  # noqa: T201
        progress.end(name)
        process.join()
        return process.exitcode == 0

    with ThreadPoolExecutor(len(modules)) as pool:
        made = dict(zip(modules, pool.map(follow, modules)))  # noqa: B905
    if failed := [one.name for one in command.extensions if not (made[one.name] or one.optional)]:
        raise RuntimeError(f"not compiled: {', '.join(failed)}")


def _share_modules(command: build_ext) -> None:
    """Let what stands in for ninja make its share of each module. Raises what the last raised: none is linked."""
    stopped: Exception | None = None
    for extension in command.extensions:
        try:
            command.build_extension(extension)
        except Exception as error:  # noqa: BLE001 - of a class that depends on the release of torch
            stopped = error
    if stopped is not None:
        raise stopped


def _begin(command: build_ext, extension: Any) -> tuple[ForkProcess, int]:
    """Let a process compile a module; return it, and the end of a pipe with what it says."""
    output, said = os.pipe()
    process = get_context("fork").Process(target=_compile, args=(command, extension, said))
    process.start()
    os.close(said)
    return process, output


def _compile(command: build_ext, extension: Any, said: int) -> None:
    os.dup2(said, 1)
    os.dup2(said, 2)
    command.build_temp = str(Path(command.build_temp, extension.name))
    command.build_extension(extension)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path.cwd())
    build_ext.build_extensions = build_modules
    runpy.run_path(str(Path(sys.argv[0]).resolve()), run_name="__main__")
