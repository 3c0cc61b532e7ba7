"""Let the guards of several builds of one user share one budget of memory and processors.

Each guard sees the memory that is free now, but not what the units of another build are still going
to take. So each one writes down, in a file of its own in a common folder, what its units are
expected to take, and reads what the others wrote. Reading, deciding and writing happen under one
lock: no two guards give the same bytes away.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from millguard.strict_json import parse_object

_LOCK = "lock"
_SUFFIX = ".build"
_LONGEST_CLAIM_BYTES = 4096
LOCK_TIMEOUT_SECONDS = 0.1
LOCK_POLL_SECONDS = 0.001
PHYSICAL_MEMORY = "physical memory"  # the source of the machine's own limit, see `limits`


@dataclass(frozen=True, slots=True)
class BuildClaim:
    """What one build lays claim to: bytes, processors, and seconds of the machine's own clock."""

    domain: str  # the limit on memory that is tightest for it, as `LimitReading.source` names it
    growth: int = 0  # bytes that its running units are still expected to take
    wanted: int = 0  # bytes that it needs to run anything at all; 0 if something runs
    busy: float = 0.0  # processors that its units keep busy, or that it needs to run anything
    moving: int = 0  # units that run and are not paused
    oldest: float = 0.0  # when the oldest of those started; 0 without any


@dataclass(frozen=True, slots=True)
class OtherBuilds:
    """What all other builds on this machine lay claim to."""

    growth: int = 0
    busy: float = 0.0
    moving: int = 0
    oldest: float = 0.0

    def is_older_than(self, since: float) -> bool:
        """Tell whether one of their units started before a moment, by the machine's clock."""
        return self.moving > 0 and self.oldest < since


NOBODY = OtherBuilds()


def sum_claims(domain: str, claims: list[BuildClaim]) -> OtherBuilds:
    """Return what other builds claim, as far as it matters for one whose limit is `domain`.

    Every build counts against the machine's memory. In a control group, only builds with the same
    limit take from it.
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
    return OtherBuilds(growth, sum(claim.busy for claim in claims), moving, oldest)


class SharedBoard:
    """The claims of the builds that share a folder, as one of them sees it.

    Raises OSError if the folder cannot be used, or if somebody else could write to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: BuildClaim | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ownership(folder)
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self.locked():  # or another guard removes the file, which nobody holds yet
            self._own = os.open(self._path, flags, 0o600)
            # Held until this process ends, however it ends: so others know that the claim is alive.
            fcntl.flock(self._own, fcntl.LOCK_EX)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep all other guards from deciding while the context lasts; yield whether that worked.

        Another guard holds the lock for less than a millisecond, unless it was stopped just then.
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
        except BlockingIOError:
            return False
        return True

    def read_others(self, domain: str) -> OtherBuilds:
        """Return what the other builds claim, as it is written down."""
        claims = []
        for name in os.listdir(self._folder):  # noqa: PTH208 - several times a second
            if name.endswith(_SUFFIX) and name != self._path.name:
                claim = _read_living_claim(self._folder / name)
                if claim is not None:
                    claims.append(claim)
        return sum_claims(domain, claims) if claims else NOBODY

    def write(self, claim: BuildClaim) -> None:
        """Write down what this build claims, unless that is there already."""
        if claim == self._written:
            return
        self._written = claim
        line = json.dumps(asdict(claim), separators=(",", ":")).encode()
        with contextlib.suppress(OSError):  # a full disk: others decide without this claim
            os.pwrite(self._own, line, 0)
            os.ftruncate(self._own, len(line))

    def close(self) -> None:
        """Take back this build's claim."""
        self._path.unlink(missing_ok=True)
        os.close(self._own)
        os.close(self._lock)


def _check_ownership(folder: Path) -> None:
    """Raise OSError unless a folder belongs to this user alone: /tmp is everybody's."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is not a folder")
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OSError(f"{folder} is open to other users")


def _read_living_claim(file: Path) -> BuildClaim | None:
    """Return the claim in a file; None if its guard has ended, and then the file is removed."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            file.unlink(missing_ok=True)  # nobody holds it
            return None
        return _parse_claim(os.read(descriptor, _LONGEST_CLAIM_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parse_claim(content: bytes) -> BuildClaim | None:
    """Return a claim; None if another release wrote something else, or nothing yet."""
    try:
        values = parse_object(content)
        claim = BuildClaim(**values)
    except (ValueError, TypeError):
        return None
    for claim_field in fields(claim):
        value = getattr(claim, claim_field.name)
        is_number = isinstance(value, int | float) and value >= 0
        if not (isinstance(value, str) if claim_field.name == "domain" else is_number):
            return None
    return claim
