"""End a container, also where its session is killed: `python -m torchmill.build.containers.watch JSON`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from torchmill.core import process, reaper
from torchmill.core.errors import HostError
from torchmill.core.process import CommandError

SECOND_LOOK_SECONDS = 5.0  # after the first: an engine may have been about to start the container


@contextlib.contextmanager
def watch_container(mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]) -> Iterator[None]:
    """Have a container ended where this process is killed while the context lasts.

    `mark` has the one variable that all processes of it carry on this machine, `after` removes it.
    """
    words = [json.dumps([dict(mark), list(after)])]
    watch, pipe = reaper.start_watch("torchmill.build.containers.watch", words, reaper.without_mark(environ))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it was killed: then nobody watches
            os.write(pipe, b"done\n")
        os.close(pipe)
        watch.wait()


def end_container(mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    """End the processes that carry a variable, and have an engine remove their container."""
    if sys.platform != "win32" and mark:
        for name, value in mark.items():
            process.end_by_variable(name, value)
    with contextlib.suppress(CommandError, HostError):
        process.capture(after, env=environ)


if __name__ == "__main__":
    container = json.loads(sys.argv[1])
    end_container(*container)
    time.sleep(SECOND_LOOK_SECONDS)
    end_container(*container)
