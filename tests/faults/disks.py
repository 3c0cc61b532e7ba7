"""Disks that fill up, have no inodes left, limit the size of files, or are read-only: told as that, nothing lost."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.kills import LITTER, ROOT, SESSIONS, SETBACKS, list_files, make_upstream, set_back
from tests.faults.tally import REFUSED, RIGHT, Tally
from tests.support.commands import run
from tests.support.sampled import Sample

KINDS = ("filled", "bytes", "inodes", "filled", "file size", "read-only")
"""Filled: by somebody else, while the run is at work; the others are limits from its beginning."""
PLACES = ("home", "cache", "tmp")
"""What lies on the small disk: the folder with sources, trees and wheels, the user's cache, temporary files."""
_LARGE = "size=2g,nr_inodes=1000000"
_WORDS = (
    "full",
    "the build does not fit",
    "No space left",
    "too large",
    "larger than files",
    "ead-only",
    "no more files",
)
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass(frozen=True)
class SmallDisk:
    """The limit of one case."""

    kind: str  # of KINDS
    place: str  # of PLACES
    setback: str  # what is made anew: of SETBACKS, or "source"
    share: float  # how much of what that takes is there

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        return f"{self.kind} of {self.place}, without {self.setback}, {self.share:.0%} of what it takes"


def attack_by_disks(count: int, seed: int) -> Tally:
    """Run the sample `count` times on disks that are too small, each time followed by the same on a large one.

    Needs the right to mount. Raises CalledProcessError where that is lacking.
    """
    chance, tally = random.Random(f"{seed} disks"), Tally("disks")  # noqa: S311 - no secret
    setbacks = ("source", *(one for one in SETBACKS if one != "environment"))
    with tempfile.TemporaryDirectory() as folder, _mounted(Path(folder, "disk")) as disk:
        make_upstream(Path(folder))
        shutil.copytree(ROOT / "sample" / "build_configs", Path(folder, "build_configs"))
        for place in PLACES[:count]:
            work = _Work(Path(folder), disk, place)
            expected = work.finish()
            work.measure()
            for number in range(PLACES.index(place), count, len(PLACES)):
                kind = KINDS[number // len(PLACES) % len(KINDS)]
                small = SmallDisk(kind, place, chance.choice(setbacks), chance.random())
                tally.add(str(small), work.outcome(small, expected))
            work.clear()
    return tally


@contextlib.contextmanager
def _mounted(disk: Path) -> Iterator[Path]:
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", _LARGE, "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


class _Work:
    """The main job, from the fetch to two wheels, with one folder of it on the small disk."""

    def __init__(self, folder: Path, disk: Path, place: str) -> None:
        self._disk, self._place = disk, place
        places = [(disk if name == place else folder / "other") / name for name in PLACES]
        self._home, self._cache, self._tmp = self._places = places
        self._mirror = f"--mirror=file://{folder / 'upstream'}"
        self._sample = Sample(folder, folder / "envs", self._cache)
        self._sample.home = self._home
        self._sample.env |= {"TMPDIR": str(self._tmp)}
        for path in self._places:
            path.mkdir(parents=True, exist_ok=True)
        self._full = (0, 0)  # bytes and inodes
        self._usual: set[str] = set()

    def clear(self) -> None:
        """Remove all that was made, but for the environments of Nox."""
        for path in self._places:
            shutil.rmtree(path)

    def measure(self) -> None:
        """Note what a whole run takes of the disk, and which files are there after two."""
        self._full = self.taken()
        self._set_back("everything")
        self.finish()
        self._usual = list_files(self._home)

    def taken(self) -> tuple[int, int]:
        """Return how many bytes and inodes of the disk are used."""
        usage = os.statvfs(self._disk)
        return (usage.f_blocks - usage.f_bfree) * usage.f_frsize, usage.f_files - usage.f_ffree

    def _commands(self) -> Iterator[subprocess.CompletedProcess[str]]:
        order = ("fetch", "--tag=v1.0.0", "--all", self._mirror)
        yield run("invoke", *order, home=self._home, env=self._sample.env)
        for session in SESSIONS:
            yield self._sample.nox("-s", session)

    def finish(self) -> str:
        """Return the digest of both wheels. Raises CalledProcessError."""
        for done in self._commands():
            if done.returncode:
                raise subprocess.CalledProcessError(
                    done.returncode, done.args, done.stdout + done.stderr
                )
        wheels = sorted((self._home / "dist").glob("*.whl"))
        return " ".join(hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)

    def outcome(self, small: SmallDisk, expected: str) -> str:
        """Return what happened on a small disk, and on a large one afterwards."""
        if small.setback == "source":
            shutil.rmtree(self._home / ".torchmill")
        else:
            self._set_back(small.setback)
        if self._place != "home":
            shutil.rmtree(self._disk / self._place)
            (self._disk / self._place).mkdir()
        with self._limited(small), self._filled(small):
            told = self._meet(small)
        try:
            found = self.finish()
        except subprocess.CalledProcessError as error:
            return f"{told}, and afterwards the same command ended with {error.returncode}: {error.output[-600:]}"
        if found != expected:
            return "the wheels are others"
        litter = list_files(self._home) - self._usual
        litter |= {
            str(path)
            for place in self._places[1:]
            for path in place.rglob(".*")
            if LITTER.search(str(path))
        }
        return f"left behind: {sorted(litter)[:5]}" if litter else told

    def _set_back(self, what: str) -> None:
        for session in SESSIONS:
            set_back(self._sample, session, what)

    def _meet(self, small: SmallDisk) -> str:
        for done in self._commands():
            said = done.stdout + done.stderr
            if "Traceback" in said or "please report" in said:
                return f"unforeseen: {said[-900:]}"
            if done.returncode:
                last = said[-1500:]
                named = small.kind == "file size" or str(self._disk) in last
                fine = named and any(word in last for word in _WORDS)
                return REFUSED if fine else f"called something else: {last}"
        return RIGHT

    @contextlib.contextmanager
    def _limited(self, small: SmallDisk) -> Iterator[None]:
        size, inodes = (
            round(used + max(0, most - used) * small.share)
            for used, most in zip(self.taken(), self._full, strict=True)
        )
        options = {
            "bytes": f"size={size // 1024 + 8}k",
            "inodes": f"nr_inodes={inodes + 2}",
            "read-only": "ro",
        }
        self._remount(options.get(small.kind, "rw"))
        if small.kind == "file size":
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (round(2**20 * small.share), resource.RLIM_INFINITY)
            )
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, _UNLIMITED)
            self._remount(f"rw,{_LARGE}")

    @contextlib.contextmanager
    def _filled(self, small: SmallDisk) -> Iterator[None]:
        """Take the rest of the disk once the run has written its share."""
        ended, filler = threading.Event(), self._disk / "somebody-else"
        before, (wanted, _) = self.taken()[0], self._full

        def fill() -> None:
            while not ended.wait(0.02):
                if self.taken()[0] - before >= max(0, wanted - before) * small.share:
                    usage = os.statvfs(self._disk)
                    with (
                        contextlib.suppress(OSError),
                        filler.open("wb") as file,
                    ):  # the run may be quicker
                        os.posix_fallocate(
                            file.fileno(), 0, max(1, (usage.f_bavail - 2) * usage.f_frsize)
                        )
                    return

        thread = threading.Thread(target=fill)
        if small.kind == "filled":
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if small.kind == "filled":
                thread.join()
                filler.unlink(missing_ok=True)

    def _remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self._disk)], check=True)
