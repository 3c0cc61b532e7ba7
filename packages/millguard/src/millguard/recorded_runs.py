"""The latest guarded commands: what ran, how it ended, and the timeline of its compilers.

Each run is two files in the cache: `NAME.run.json` describes the command, `NAME.timeline.jsonl` has
its records (see `timeline`). The oldest runs are removed.
"""

import contextlib
import datetime as dt
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millguard import places
from millguard.strict_json import parse_object
from millguard.timeline import SUFFIX as TIMELINE_SUFFIX
from millguard.timeline import Record, parse_record

FORMAT = 1
KEPT_RUNS = 20
RUN_SUFFIX = ".run.json"
# "https://user:token@host": a report may be handed on, so passwords stay out of it.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class NoRunError(Exception):
    """There is no recorded run, or its files cannot be read."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One guarded command."""

    command: tuple[str, ...]  # without credentials
    folder: str  # it ran in
    began: str  # ISO 8601 with the offset from UTC
    seconds: float  # it took
    exit_code: int  # 128 and the number of the signal that ended it
    cores: int  # that it could use
    unguarded: dict[str, int] = field(default_factory=dict)  # compilers, by who started them
    format: int = FORMAT

    @property
    def title(self) -> str:
        """Return the command as one line."""
        import shlex

        return shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as it was recorded."""

    record: RunRecord
    records: tuple[Record, ...]  # of its timeline
    timeline: Path


def new_recording(cache: Path) -> Path:
    """Return the path for the timeline of a run that begins now. Raises OSError."""
    folder = places.runs_folder(cache)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    moment = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{moment}-{os.getpid()}{TIMELINE_SUFFIX}"


def without_credentials(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command with `…` in place of user names and passwords in addresses."""
    return tuple(_CREDENTIALS.sub("…", word) for word in command)


def save_run(timeline: Path, record: RunRecord) -> None:
    """Write the description beside a run's timeline, and remove the oldest runs. Raises OSError."""
    file = _description_of(timeline)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(asdict(record), opened)
    for old in _timelines(timeline.parent)[:-KEPT_RUNS]:
        for path in (old, _description_of(old)):
            path.unlink(missing_ok=True)


def load_latest(cache: Path) -> RecordedRun:
    """Return the latest run that was recorded to its end. Raises NoRunError without one."""
    for timeline in reversed(_timelines(places.runs_folder(cache))):
        if _description_of(timeline).is_file():
            return load_run(timeline)
    raise NoRunError("no guarded command was recorded yet: run one with `millguard -- COMMAND`")


def load_run(timeline: Path) -> RecordedRun:
    """Return a recorded run. Raises NoRunError if its files cannot be read."""
    try:
        values = parse_object(_description_of(timeline).read_bytes())
        values["command"] = tuple(values["command"])
        record = RunRecord(**values)
        lines = timeline.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise NoRunError(f"{timeline} is no recorded run: {error}") from None
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line of a run that was killed
            records.append(parse_record(line))
    return RecordedRun(record, tuple(records), timeline)


def iso_time(seconds: float) -> str:
    """Return a moment, in seconds since 1970, in local time as ISO 8601."""
    return dt.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def wall_clock() -> float:
    """Return the seconds since 1970."""
    return time.time()


def _timelines(folder: Path) -> list[Path]:
    """Return the timelines in a folder, oldest first: their names begin with the time."""
    return sorted(folder.glob(f"*{TIMELINE_SUFFIX}"))


def _description_of(timeline: Path) -> Path:
    return timeline.with_name(timeline.name.removesuffix(TIMELINE_SUFFIX) + RUN_SUFFIX)
