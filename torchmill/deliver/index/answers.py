"""What a request to `invoke serve` means: which file, which kind of page, which part. Pure, but for links."""

from __future__ import annotations

import re
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote

from torchmill.deliver.index import pages

SIMPLE = "application/vnd.pypi.simple.v1"
KINDS = {"text/html": pages.HTML, f"{SIMPLE}+html": pages.HTML, f"{SIMPLE}+json": pages.JSON}
_LATEST = re.compile(r"(application/vnd\.pypi\.simple)\.latest(\+html|\+json)")
_RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)", re.ASCII)


def file(root: Path, target: str) -> Path | None:
    """Return the file or folder that a request means; None where that is not in `root`, or is hidden.

    `target` is what stands in the request: "/cpu/torch/?x=1". Links that lead out of `root` lead nowhere.
    """
    path = target.partition("?")[0].partition("#")[0]
    start, *parts = path.split("/")
    names = [unquote(part) for part in parts]
    if start or not all(names[:-1]) or any(_is_trick(name) for name in names):
        return None
    return within(root, root.joinpath(*names))


def within(root: Path, path: Path) -> Path | None:
    """Return where a path leads, links followed; None where that is not in `root`, or nothing is there."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # nothing, a circle of links, a name that cannot be
        return None
    return found if found.is_relative_to(root.resolve()) else None


def _is_trick(name: str) -> bool:
    return name.startswith(".") or any(sign in name for sign in "/\\:\0")


def kind_of(file: Path) -> str:
    """Return the type of a file that is asked for by its name."""
    names = {name: kind for kind, name in KINDS.items() if kind != f"{SIMPLE}+html"}
    return names.get(file.name) or ("text/html" if file.suffix == ".html" else "application/octet-stream")


def kind(accept: str) -> str | None:
    """Return which of KINDS a client wants most, HTML where it does not care; None: none of them."""
    wishes = _LATEST.sub(r"\1.v1\2", accept.lower()) or "*/*"
    found = {name: _quality(name, wishes) for name in KINDS}
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 0 else None


def _quality(name: str, wishes: str) -> float:
    """Return how much a kind is wished, from 0 to 1: what names it exactly counts before what names all."""
    said: dict[str, float] = {}
    for wish in wishes.split(","):
        pattern, *rest = (part.strip() for part in wish.split(";"))
        weights = [part[2:] for part in rest if part.startswith("q=")]
        try:
            said[pattern] = float(weights[0]) if weights else 1.0
        except ValueError:
            said[pattern] = 0.0
    patterns = (name, f"{name.partition('/')[0]}/*", "*/*")
    return next((said[pattern] for pattern in patterns if pattern in said), 0.0)


def part(wanted: str, size: int) -> tuple[int, int] | None:
    """Return from where to where (excluded) a file of `size` bytes is wanted; None where it has no such part.

    What is no range, or several of them, means the whole file.
    """
    match = _RANGE.fullmatch(wanted.strip())
    if match is None or not (match["first"] or match["last"]):
        return 0, size
    if not match["first"]:
        first, last = max(0, size - int(match["last"])), size
    else:
        first, last = int(match["first"]), min(int(match["last"] or size) + 1, size)
    return (first, last) if first < last else None


def unchanged(headers: Message, tag: str, changed: float) -> bool:
    """Tell whether a client has a file already: by its ETag, else by when it changed (seconds since 1970)."""
    if known := headers.get("If-None-Match"):
        return known.strip() == "*" or tag in {one.strip().removeprefix("W/") for one in known.split(",")}
    try:
        since = parsedate_to_datetime(headers.get("If-Modified-Since", ""))
    except ValueError:  # there is none, or it is no date
        return False
    return int(changed) <= since.timestamp()
