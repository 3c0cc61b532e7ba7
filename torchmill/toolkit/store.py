"""Put things into the user's cache, such that nobody ever meets half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from torchmill import locks
from torchmill.host.kept import FOLDER, MAKING, RECORD, WHOLE, Kept, Record, kept, written
from torchmill.removal import delete
from torchmill.source.disk import disk_full_told


def home(cache: Path, name: str, arch: str) -> Path:
    """Return the folder in which something is kept, or will be."""
    return cache / FOLDER / f"{name}-{arch}"


def workplace(cache: Path, name: str, arch: str) -> Path:
    """Return the folder in which something is made; who holds its lock makes it."""
    return cache / FOLDER / f"{MAKING}{name}-{arch}"


def make(  # noqa: PLR0917 - the last two are for what is not known by the name of its place alone
    cache: Path,
    name: str,
    arch: str,
    fill: Callable[[Path], Record],
    note: Callable[[str], None],
    find: Callable[[], Kept | None] | None = None,
    named: Callable[[Path], str] | None = None,
) -> Kept:
    """Return what is kept under a name; where it is not, `fill` puts it into an empty folder first.

    One process makes it, others wait. Where `find` is given, it says whether it is kept; where `named` is, it
    says under which name, by what lies in the folder, it is kept in the end. What these raise leaves no trace
    but what was downloaded. Raises HostError for a full disk, or a cache that cannot be written.
    """
    place = workplace(cache, name, arch)
    who = f"the run that brings {name} (process {os.getpid()})"
    with locks.awaited(place, who, lambda _: note(f"waiting for {locks.holder(place)}")):
        if (there := find() if find else kept(cache, arch).get(name)) is not None:
            return there
        whole = place / WHOLE
        with disk_full_told(place):
            delete([whole])  # what an interrupted run left
            whole.mkdir()
            try:
                record = fill(whole)
                name = named(whole) if named else name
                final = home(cache, name, arch)
                delete([final])  # it has lost its record
                made = datetime.now(UTC).isoformat(timespec="seconds")
                (whole / RECORD).write_text(written(record, arch, made), encoding="utf-8")
                whole.rename(final)
            finally:
                shutil.rmtree(whole, ignore_errors=True)
    return Kept(name, arch, final, record)
