"""Read the wheels that go into an index, each once; remember them in the index's state file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchmill.core import files, locks, stat_cache
from torchmill.core.errors import DeliveryError
from torchmill.deliver.index import pages
from torchmill.deliver.index.pages import IndexEntry
from torchmill.wheel import wheel_file

FOLDER = ".torchmill"  # in the index; it also holds the lock, and what is just being written
STATE_FILE = "index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class RememberedWheel:
    """A wheel that was read, and how its file looked then ("" where it had just changed)."""

    look: str
    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class IndexState:
    """The memory of an index.

    `written` has, for each file that the index wrote, the digests (sha256) that it may have: two while a run
    writes, for that may be stopped.
    """

    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wheels: Mapping[str, RememberedWheel] = field(default_factory=dict)  # by the name of the file
    yanked: Mapping[str, str] = field(default_factory=dict)  # "torch==1.13.1+cpu" -> the reason

    def as_text(self) -> str:
        """Return the state as it is kept."""
        wheels = {name: {"look": kept.look} | kept.entry.as_data() for name, kept in self.wheels.items()}
        data = {"format": FORMAT, "yanked": self.yanked, "wheels": wheels, "written": self.written}
        return json.dumps(data, indent=0, sort_keys=True) + "\n"


def state_file(out: Path) -> Path:
    """Return where the state of an index lies."""
    return out / FOLDER / STATE_FILE


def load_state(out: Path) -> IndexState | None:
    """Return the state of an index; None where the folder is none of ours.

    Raises DeliveryError where it cannot be read.
    """
    kept = state_file(out)
    for path in (kept.parent, kept, kept.with_name(locks.LOCK_FILE)):
        if path.is_symlink() or (path.exists() and path.is_dir() != (path == kept.parent)):
            raise DeliveryError(
                f"{path} was not written by `invoke index`: remove it, or name another folder with --out",
                code="foreign-folder",
            )
    try:
        data = files.read_json_object(kept)
        return _state(data) if data["format"] == FORMAT else _refuse(out, f"its format is {data['format']}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _refuse(out, error.strerror or str(error))
    except (ValueError, KeyError, TypeError, AttributeError, DeliveryError):
        return _refuse(out, "it is damaged")


def save_state(out: Path, state: IndexState) -> None:
    """Write the state, unless it is kept so already. Raises OSError."""
    kept, text = state_file(out), state.as_text()
    if not kept.exists() or kept.read_text(encoding="utf-8") != text:
        files.write_atomically(kept, text)


def _state(data: Mapping[str, Any]) -> IndexState:
    return IndexState(
        written={place: tuple(digests) for place, digests in data["written"].items()},
        wheels={
            name: RememberedWheel(fields["look"], pages.restore_entry(name, fields))
            for name, fields in data["wheels"].items()
        },
        yanked=dict(data["yanked"]),
    )


def _refuse(out: Path, why: str) -> IndexState:
    raise DeliveryError(
        f"{state_file(out)}: cannot be read ({why}): write the index to another folder with --out, or "
        f"remove {out} if you need nothing that is in it",
        code="index-state-damaged",
    ) from None


MOST = 3  # problems of one wheel that are named
Note = Callable[[int, int, str], None]  # how many are read, of how many, and which is being read


@dataclass(frozen=True, slots=True)
class ScannedWheel:
    """A wheel of dist/ and its entry in the index."""

    path: Path
    look: str
    entry: IndexEntry

    @property
    def remembered(self) -> RememberedWheel:
        """Return what is remembered: nothing of how it looks, where it changed just now."""
        settled = int(self.look.split()[1]) < (time.time() - stat_cache.SETTLED_SECONDS) * 1e9
        return RememberedWheel(self.look if settled else "", self.entry)


def scan_wheels(
    dists: Sequence[Path], known: Mapping[str, RememberedWheel], replace: Collection[str], note: Note
) -> tuple[ScannedWheel, ...]:
    """Return the wheels of some folders, by name, version and file.

    `known` is what the index remembers by file names, `replace` names versions whose wheels may have changed.
    Raises DeliveryError for whatever is wrong with any of them, all in one message.
    """
    paths = [path for dist in dists for path in wheel_file.list_wheels(dist)]
    looks = {path: stat_wheel(path) for path in paths}
    fresh = [path for path in paths if path.name not in known or known[path.name].look != looks[path]]
    read: dict[Path, IndexEntry] = {}
    problems: list[str] = []
    for number, path in enumerate(fresh):
        note(number, len(fresh), path.name)
        try:
            read[path] = _read(path, known.get(path.name), replace)
        except DeliveryError as error:
            problems.append(str(error))
    if problems:
        raise DeliveryError("\n  ".join(["these wheels are not indexed:", *problems]), code="wheels-rejected")
    all_ = [ScannedWheel(path, looks[path], read[path] if path in read else known[path.name].entry) for path in paths]
    return _single(all_)


def stat_wheel(path: Path) -> str:
    """Return how a file looks, which a further name of it does not change. Raises DeliveryError."""
    try:
        seen = path.stat()
    except OSError as error:
        raise DeliveryError(
            f"{path}: cannot be read ({error.strerror or error}): remove it", code="not-readable"
        ) from None
    return f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ino}"


def _read(path: Path, before: RememberedWheel | None, replace: Collection[str]) -> IndexEntry:
    from torchmill.wheel.verify import static_checks

    wheel = wheel_file.read_wheel(path)
    known = before.entry if before else None
    if known is not None and known.sha256 == wheel.sha256:
        return pages.make_entry(wheel, known.uploaded)
    found = pages.make_entry(wheel, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    if known is not None and not any(pages.is_meant(one, found) for one in replace):
        raise DeliveryError(
            f"{path}: is another file than the index has under this name (sha256 {wheel.sha256[:12]}…, not "
            f"{known.sha256[:12]}…), and who pinned that one would be refused this one: give it a build "
            f"number or another version, or say --replace {found.name}=={found.version}",
            code="wheel-replaced",
        )
    if wrong := [*wheel_file.wheel_problems(path), *static_checks.tag_problems(path)]:
        more = f" (and {len(wrong) - MOST} more)" if len(wrong) > MOST else ""
        raise DeliveryError(
            f"{path}: {'; '.join(wrong[:MOST])}{more}: build or fetch it again, or leave it out",
            code="wheel-rejected",
        )
    return found


def _single(wheels: Sequence[ScannedWheel]) -> tuple[ScannedWheel, ...]:
    """Return each wheel once. Raises DeliveryError where two files claim to be the same and are not."""
    known: dict[object, ScannedWheel] = {}
    for one in wheels:
        name, version, build, tags = wheel_file.parse_file_name(one.path)
        other = known.setdefault((name, version, build, tags), one)
        if other.entry.sha256 != one.entry.sha256:
            raise DeliveryError(
                f"{other.path} and {one.path} are different files for the same wheel: remove one of them",
                code="same-wheel-twice",
            )
    return tuple(sorted(known.values(), key=lambda one: (one.entry.name, one.entry.version, one.entry.file)))
