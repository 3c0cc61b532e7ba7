"""The files outside a tree that a build in it read: headers and libraries, as ninja wrote them down.

ninja looks at times alone, and a package manager gives the files of an upgrade older ones.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from torchmill import ninja
from torchmill.recall import Recall, look, look_below

UNKNOWN = "?"  # stands for what could not be found out, and is never unchanged
_WORD = re.compile(r"(?:[^ $|:\n]|\$.)+")  # of a line in build.ninja
_SYSTEM = ("/proc/", "/dev/", "/sys/")
_HEADERS = ("/usr/include/", "/usr/local/include/")


def read(source: Path, own: Sequence[Path], recall: Recall, began: float) -> dict[str, str]:
    """Return the files that builds below `source` read, with the digests of their contents.

    Those below one of `own` (the tree, an environment) are not meant. What changed after the build began
    (seconds since 1970) may have been read before. Where nobody wrote down what was read, as with
    setuptools alone, all headers of the system stand for it.
    """
    logs = sorted(source.glob("build/**/.ninja_deps"))
    if not logs:
        looks = {folder: look_below(folder) for folder in _HEADERS}
        return {folder: UNKNOWN if seen.since > began * 1e9 else seen.text for folder, seen in looks.items()}
    try:
        found = {path for log in logs for path in _used(log)}
    except (OSError, ValueError) as error:
        return {str(error): UNKNOWN}
    roots = tuple(f"{each}{os.sep}" for one in own for each in {one.absolute(), one.resolve()})
    outside = sorted(path for path in found if not path.startswith((*roots, *_SYSTEM)))
    digests = ((path, _digest(path, recall, began)) for path in outside)
    return {path: digest for path, digest in digests if digest is not None}


def changed(known: Mapping[str, str], recall: Recall) -> Iterator[str]:
    """Yield the files that are no longer what they were when they were read."""
    for path, digest in known.items():
        now = look_below(path).text if path.endswith("/") else recall.digest(path)
        if now != digest:
            yield path


def _digest(path: str, recall: Recall, began: float) -> str | None:
    seen = look(path)
    return UNKNOWN if seen and seen.since > began * 1e9 else recall.digest(path)


def _used(log: Path) -> Iterator[str]:
    """Yield every path that a build folder's logs and commands name, made absolute."""
    folder = str(log.parent)
    built = (needed for output, needed in ninja.dependencies(log).items() if (log.parent / output).exists())
    for path in (*set(chain.from_iterable(built)), *_linked(log.with_name("build.ninja"))):
        yield os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 (thousands)


def _linked(commands: Path) -> Iterator[str]:
    """Yield the absolute paths that the edges of a build.ninja name."""
    with commands.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.startswith("build "):
                words = (word for word in _WORD.findall(line) if word[0] == "/")
                yield from (re.sub(r"\$(.)", r"\1", word) for word in words)
