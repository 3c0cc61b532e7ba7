"""Let the guards of several builds of one user share one budget of memory and processors.

Each guard sees the memory that is free now, but not the memory that another build's units, its
compiles and links, are still going to take. So each guard writes a *claim*, the bytes and processors
that its units are expected to take, into a file of its own in a common folder, the *board*, and reads
the claims of the other builds. Reading, deciding and writing happen under one lock: no two guards
give the same bytes away.

A claim is valid while its guard holds a lock on its file. The kernel releases that lock when the
guard ends, however it ends, so a claim never outlives its build. A guard that is stopped, as when
Slurm suspends a job, keeps the lock: so each guard also dates its file now and then, and claims in
files with an old date do not count. The dates are those of the monotonic clock, which all processes
of a machine share: somebody may set the other clock.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from millguard.strict_json import parse_object

_LOCK = "lock"
_SUFFIX = ".build"
_LONGEST_CLAIM_BYTES = 2**16  # the path of a control group may have thousands of characters
# A guard looks at the memory at least once a second. Its machine may be very busy.
TOUCH_SECONDS = 5.0
STALE_SECONDS = 60.0
_MOST = 2**63  # above all bytes, processors and seconds; JSON's 1e999 is infinite
LOCK_TIMEOUT_SECONDS = 0.1
LOCK_POLL_SECONDS = 0.001
PHYSICAL_MEMORY = "physical memory"  # the source of the machine's own limit, see `limits`


@dataclass(frozen=True, slots=True)
class BuildClaim:
    """The memory and processors that one build claims; times are seconds of `time.monotonic`."""

    # The limit on memory that is tightest for this build, as `LimitReading.source` names it. Builds
    # in different control groups take memory from different limits.
    domain: str
    growth: int = 0  # bytes that its running units are still expected to take
    wanted: int = 0  # bytes that its smallest unit needs if none runs, else 0
    busy: float = 0.0  # processors that its running units keep busy; 1 if none runs and one waits
    moving: int = 0  # running units that are not paused
    oldest: float = 0.0  # the start of the oldest of those; 0 without any


@dataclass(frozen=True, slots=True)
class OtherBuilds:
    """The sum of the claims of other builds, as `sum_claims` makes it for one build.

    `busy` is of all of them. The rest is of those alone that take from the limit of this build.
    """

    growth: int = 0  # bytes that their running units will take, and their first ones (`wanted`)
    busy: float = 0.0  # processors
    moving: int = 0  # running units that are not paused
    oldest: float = 0.0  # the start of the oldest of those; 0 without any

    def is_older_than(self, since: float) -> bool:
        """Tell whether one of their units started before a moment of `time.monotonic`."""
        return self.moving > 0 and self.oldest < since


_CLAIM_FIELDS = tuple(field.name for field in fields(BuildClaim))
NOBODY = OtherBuilds()


def sum_claims(domain: str, claims: list[BuildClaim]) -> OtherBuilds:
    """Return the sum of some claims, for a build whose tightest limit is `domain`.

    Every build takes from the machine's memory and processors. From the memory of a control group,
    only builds with the same limit take: `growth`, `moving` and `oldest` are of these builds alone.
    What a build wants counts as growth.
    """
    growth = 0
    moving = 0
    oldest = 0.0
    for claim in claims:
        if domain in {PHYSICAL_MEMORY, claim.domain}:
            growth += claim.growth + claim.wanted
            moving += claim.moving
            if claim.moving and (not oldest or claim.oldest < oldest):
                oldest = claim.oldest
    busy = sum(claim.busy for claim in claims)
    return OtherBuilds(growth=growth, busy=busy, moving=moving, oldest=oldest)


class SharedBoard:
    """The claims of the builds that share a folder, as one of them sees it.

    The folder is made if it is missing. Raises OSError if it cannot be used, and if it is not for
    this user alone: other users must not even be able to read it (0o700).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written_claim: BuildClaim | None = None
        self._touched_at = time.monotonic()
        with contextlib.suppress(FileExistsError):  # a file, or a link to nothing
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ownership(folder)
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The process alone does not do: containers that share the folder number theirs alike.
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # Under the board's lock, or another guard removes the file before its own lock is taken.
        with self.locked():
            self._claim_file = os.open(self._path, flags, 0o600)
            fcntl.flock(self._claim_file, fcntl.LOCK_EX)  # held until this process ends
        # If the board's lock was not to be had, that may have happened. A claim that nobody can read is
        # worse than none: this guard would regard the others, and they would not regard it.
        if not self._path.exists():
            os.close(self._claim_file)
            os.close(self._lock)
            raise OSError(f"{self._path} was removed at once")

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Take the board's lock for as long as the context lasts; yield whether that worked.

        A guard holds it for less than a millisecond at a time, unless somebody stops its process
        just then. After LOCK_TIMEOUT_SECONDS this guard decides without the lock: two guards may
        give the same bytes away, which is better than a build that stands still.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not self._take_lock():
            if time.monotonic() > deadline:
                yield False
                return
            time.sleep(LOCK_POLL_SECONDS)
        try:
            yield True
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _take_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another guard has it, or the file system has run out of locks
            return False
        return True

    def read_others(self, domain: str) -> OtherBuilds:
        """Return the sum of the claims of the other builds, for one whose limit is `domain`.

        Builds that have ended, or are stopped, do not count; the files of the former are removed.
        If the folder cannot be read, there are no others.
        """
        claims = []
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - several times a second
        except OSError:  # somebody has cleaned up /tmp: this build goes on without the others
            return NOBODY
        for name in names:
            if name.endswith(_SUFFIX) and name != self._path.name:
                claim = _read_living_claim(self._folder / name)
                if claim is not None:
                    claims.append(claim)
        return sum_claims(domain, claims) if claims else NOBODY

    def write(self, claim: BuildClaim) -> None:
        """Replace this build's claim, unless it is written down already.

        To be called again and again, also with the same claim: this dates the claim, which counts
        for STALE_SECONDS after that. Errors are ignored: other builds then see the last claim.
        """
        now = time.monotonic()
        if claim == self._written_claim:
            if now - self._touched_at > TOUCH_SECONDS:
                self._touched_at = now
                self._date(now)
            return
        line = json.dumps(_values(claim), separators=(",", ":")).encode()
        with contextlib.suppress(OSError):  # a full disk: other builds see the last claim, or none
            # In place: a new file under the same name would not have the lock.
            os.pwrite(self._claim_file, line, 0)
            os.ftruncate(self._claim_file, len(line))
            self._written_claim = claim
            self._touched_at = now
        self._date(now)

    def _date(self, now: float) -> None:
        """Give the file of this build's claim a date of the monotonic clock."""
        with contextlib.suppress(OSError):
            os.utime(self._claim_file, (now, now))

    def close(self) -> None:
        """Take back this build's claim."""
        self._path.unlink(missing_ok=True)
        os.close(self._claim_file)
        os.close(self._lock)


def _values(claim: BuildClaim) -> dict[str, object]:
    """Return a claim's values by name; not dataclasses.asdict, which copies deeply."""
    return {name: getattr(claim, name) for name in _CLAIM_FIELDS}


def _check_ownership(folder: Path) -> None:
    """Raise OSError unless a folder belongs to this user alone: /tmp is everybody's."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is not a folder")
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OSError(f"{folder} is another user's, or open to other users")


def _read_living_claim(file: Path) -> BuildClaim | None:
    """Return the claim in a file; None if its guard is stopped, or has ended.

    The file is removed if the guard has ended. Anything but a file of this user is no claim, and stays.
    """
    # O_NONBLOCK: opening a FIFO would wait for somebody who writes to it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(file, flags)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            file.unlink(missing_ok=True)  # its lock was free: its guard has ended
            return None
        if time.monotonic() - status.st_mtime > STALE_SECONDS:
            return None
        return _parse_claim(os.read(descriptor, _LONGEST_CLAIM_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parse_claim(content: bytes) -> BuildClaim | None:
    """Return a claim; None if another release wrote something else, or nothing yet."""
    try:
        claim = BuildClaim(**parse_object(content))
    except (ValueError, TypeError):
        return None
    for claim_field in fields(claim):
        value = getattr(claim, claim_field.name)
        # JSON has no difference between 1 and 1.0. A bool is an int for isinstance, but not here.
        types = {float, int} if claim_field.type is float else {claim_field.type}
        if type(value) not in types:
            return None
        if not isinstance(value, str) and not 0 <= value < _MOST:
            return None
    return claim
