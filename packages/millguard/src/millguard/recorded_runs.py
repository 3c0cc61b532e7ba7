"""The latest guarded commands: what ran, how it ended, and the timeline of its compilers.

Each run is two files in the cache: `NAME.timeline.jsonl` has its records (see `timeline`),
`NAME.run.json` describes the command and is written when that has ended. The oldest runs are
removed.
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
from millguard.atomic_files import fresh_path
from millguard.strict_json import parse_object
from millguard.timeline import SUFFIX as TIMELINE_SUFFIX
from millguard.timeline import Record, parse_record

FORMAT = 1
KEPT_RUNS = 20
# A timeline without a description, to which nothing was written for so long, is of a run that was
# killed. A running build writes to its own more often: see MOMENT_SHARE in `timeline`.
ABANDONED_SECONDS = 24 * 3600.0
RUN_SUFFIX = ".run.json"
_MOST = 2**53  # above all seconds and numbers of compilers
# "https://user:token@host": a report may be handed on, so passwords stay out of it. Users also type
# passwords with "@" or "/", which a valid address would encode. A path with "@" is no password, as
# in "https://host:8080/project@v1".
_CREDENTIALS = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@\[]+:(?!/|\d+/)\S+)(?=@)")


class NoRunError(Exception):
    """There is no recorded run, or its files cannot be read."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One guarded command."""

    command: tuple[str, ...]  # without credentials
    folder: str  # that it ran in; "" if the folder was removed
    began: str  # ISO 8601 with the offset from UTC
    seconds: float  # it took
    exit_code: int  # as a shell gives it: 128 + the signal's number if a signal ended it
    cores: int  # processors that it could use, at least 1
    # compilers that the guard did not see, by the name of the program that started them
    unguarded: dict[str, int] = field(default_factory=dict)
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
    """Return the path for the timeline of a run that begins now, and make its folder.

    Raises OSError.
    """
    folder = places.runs_folder(cache)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    moment = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{moment}-{os.getpid()}{TIMELINE_SUFFIX}"


def without_credentials(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command with `…` in place of user names and passwords in addresses."""
    return tuple(_CREDENTIALS.sub("…", word) for word in command)


def save_run(timeline: Path, record: RunRecord) -> None:
    """Write the description beside a run's timeline, and remove the oldest runs. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = _description_of(timeline)
    with fresh_path(file) as fresh:
        # A command line is nobody else's business.
        with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as opened:
            json.dump(asdict(record), opened)
        fresh.replace(file)
    _remove_old_runs(timeline)


def _remove_old_runs(latest: Path) -> None:
    """Remove the oldest runs that have ended, except `latest`. Raises OSError.

    A build of many hours may have begun before all others. It keeps its timeline while it runs.
    """
    # Not the clock of this machine: others that share the folder date their timelines by the disk's.
    now = _description_of(latest).stat().st_mtime
    ended = []
    for timeline in _timelines(latest.parent):
        with contextlib.suppress(FileNotFoundError):  # another run removes it just now
            is_abandoned = now - timeline.stat().st_mtime > ABANDONED_SECONDS
            if is_abandoned or _description_of(timeline).is_file():
                ended.append(timeline)
    for timeline in ended[:-KEPT_RUNS]:
        if timeline != latest:
            timeline.unlink(missing_ok=True)
            _description_of(timeline).unlink(missing_ok=True)


def load_latest(cache: Path) -> RecordedRun:
    """Return the latest run that was recorded to its end.

    Raises NoRunError without one, and if its files cannot be read.
    """
    for timeline in reversed(_timelines(places.runs_folder(cache))):
        if _description_of(timeline).is_file():
            return load_run(timeline)
    raise NoRunError("no guarded command was recorded yet: run one with `millguard -- COMMAND`")


def load_run(timeline: Path) -> RecordedRun:
    """Return a recorded run, without the lines of its timeline that are no records.

    Raises NoRunError if it is still running or was killed, and if its files cannot be read.
    """
    try:
        record = _parse_description(_description_of(timeline).read_bytes())
        lines = timeline.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise NoRunError(f"{timeline} is no recorded run: {error}") from None
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line of a killed run may be cut off
            records.append(parse_record(line))
    return RecordedRun(record, tuple(records), timeline)


def _parse_description(content: bytes) -> RunRecord:
    """Return the description of a run. Raises ValueError, TypeError or KeyError if it is none."""
    values = parse_object(content)
    if values["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT}: another release of millguard wrote it")
    command, unguarded = values["command"], values.get("unguarded", {})
    if not (isinstance(command, list) and isinstance(unguarded, dict)):
        raise TypeError("its command is not a list, or its unguarded compilers have no names")
    values["command"] = tuple(command)
    record = RunRecord(**values)
    texts = (*record.command, record.folder, record.began, *record.unguarded)
    counts = (record.exit_code, record.cores, *record.unguarded.values())
    has_texts = all(isinstance(text, str) for text in texts)
    has_counts = all(type(count) is int and count < _MOST for count in counts)
    has_seconds = type(record.seconds) in {int, float} and 0 <= record.seconds < _MOST
    if not (has_texts and has_counts and has_seconds and record.cores > 0):
        raise ValueError("a value in its description is of another type, or impossible")
    return record


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
