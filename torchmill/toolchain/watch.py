"""Watch a shared cache while a build runs: sccache waits a minute for one that has died, at every file."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torchmill.toolchain import remote
from torchmill.toolchain.remote import Remote
from torchmill.toolchain.stand_ins import WITHOUT

EVERY = 10.0  # seconds


@contextlib.contextmanager
def watched(
    shared: Remote | None,
    environ: Mapping[str, str],
    folder: Path,
    note: Callable[[str], None],
    every: float = EVERY,
) -> Iterator[None]:
    """Let sccache be done without for as long as its shared cache does not answer; the first time is noted.

    Its launcher looks for a file in `folder`, in which gates and guard meet. `environ` is the build's,
    `every` is in seconds.
    """
    if shared is None or shared.endpoint is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        noted = False
        while not ended.wait(every):
            why = remote.unreachable(shared, environ)
            with contextlib.suppress(OSError):
                if why is None:
                    (folder / WITHOUT).unlink(missing_ok=True)
                else:
                    (folder / WITHOUT).touch()
            if why is not None and not noted:
                note(f"{shared} no longer answers ({why}): compiling without a cache until it does")
                noted = True

    watcher = threading.Thread(target=look, name="shared cache", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
