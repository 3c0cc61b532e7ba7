"""Let ccache take from its own cache what shall go: it counts what it keeps."""

import os
from collections.abc import Mapping
from pathlib import Path

from torchmill import removal
from torchmill.housekeeping.choosing import Criteria
from torchmill.process import capture

_KILO = 1000  # of ccache's own unit "k"; a limit of none at all means no limit to it


def take(program: str | None, folder: Path, said: Criteria, limit: int) -> None:
    """Take from the cache in `folder` what is old enough, all but `limit` bytes, or everything.

    Without a ccache nobody uses it, and it goes as any folder does. Raises CommandError where ccache fails,
    OSError where the folder cannot be removed.
    """
    if program is None:
        removal.delete(removal.put_away(removal.contents(folder)))
    else:
        capture([program, *arguments(said, limit)], env=environment(os.environ, folder, limit))


def arguments(said: Criteria, limit: int) -> list[str]:
    """Return what ccache is told."""
    if said.idle is not None:
        return ["--evict-older-than", f"{int(said.idle)}s"]
    return ["--cleanup"] if limit >= _KILO else ["--clear"]


def environment(environ: Mapping[str, str], folder: Path, limit: int) -> dict[str, str]:
    """Return an environment in which ccache works on `folder` alone, whatever the user has set up."""
    own = {name: value for name, value in environ.items() if not name.startswith("CCACHE_")}
    size = {"CCACHE_MAXSIZE": f"{limit // _KILO}k"} if limit >= _KILO else {}
    return {**own, "CCACHE_DIR": str(folder), **size}
