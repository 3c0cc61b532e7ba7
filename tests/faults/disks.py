"""Disks that fill up, run out of inodes, limit the size of files, or are read-only.

torchmill must name the disk and the reason, and the same command must work afterwards on a large disk. The small disk
is a tmpfs, so that the attack needs the right to mount.
"""

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
"""Filled: by another program during the run; the others are limits from its start."""
PLACES = ("home", "cache", "tmp")
"""What is on the small disk: the folder with sources, trees and wheels, the user's cache, or temporary files."""
_LARGE = "size=2g,nr_inodes=1000000"
# One of these must be in the message; some are the words of other programs.
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
    setback: str  # what is taken away before and made again: of SETBACKS, or "source"
    share: float  # of the space that this needs, how much the disk has

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        return f"{self.kind} of {self.place}, without {self.setback}, {self.share:.0%} of what it takes"


def attack_by_disks(count: int, seed: int) -> Tally:
    """Run the sample `count` times on disks that are too small, and again on a large one after each.

    Raises CalledProcessError without the right to mount.
    """
    chance, tally = random.Random(f"{seed} disks"), Tally("disks")  # noqa: S311 - no secret
    # Nox's environments are on the large disk in every case.
    setbacks = ("source", *(setback for setback in SETBACKS if setback != "environment"))
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
    """The main job, from the fetch to two wheels, with one of PLACES on the small disk."""

    def __init__(self, folder: Path, disk: Path, place: str) -> None:
        self._disk, self._place = disk, place
        self._places = [(disk if name == place else folder / "other") / name for name in PLACES]
        self._home, self._cache, self._tmp = self._places
        self._mirror = f"--mirror=file://{folder / 'upstream'}"
        self._sample = Sample(folder, folder / "envs", self._cache)
        self._sample.home = self._home
        self._sample.env |= {"TMPDIR": str(self._tmp)}
        for path in self._places:
            path.mkdir(parents=True, exist_ok=True)
        self._needed = (0, 0)  # bytes and inodes of the small disk after a whole run
        self._usual_files: set[str] = set()

    def clear(self) -> None:
        """Remove everything except for the environments of Nox."""
        for path in self._places:
            shutil.rmtree(path)

    def measure(self) -> None:
        """Measure what a whole run takes of the disk, and which files a second run leaves."""
        self._needed = self.used_space()
        self._set_back("everything")
        self.finish()
        self._usual_files = list_files(self._home)

    def used_space(self) -> tuple[int, int]:
        """Return how many bytes and inodes of the disk are used."""
        usage = os.statvfs(self._disk)
        return (usage.f_blocks - usage.f_bfree) * usage.f_frsize, usage.f_files - usage.f_ffree

    def _run_commands(self) -> Iterator[subprocess.CompletedProcess[str]]:
        """Run the commands of the job one after another."""
        words = ("fetch", "--tag=v1.0.0", "--all", self._mirror)
        yield run("invoke", *words, home=self._home, env=self._sample.env)
        for session in SESSIONS:
            yield self._sample.nox("-s", session)

    def finish(self) -> str:
        """Run the job to its end; return the digests of both wheels. Raises CalledProcessError."""
        for command in self._run_commands():
            if command.returncode:
                output = command.stdout + command.stderr
                raise subprocess.CalledProcessError(command.returncode, command.args, output)
        wheels = sorted((self._home / "dist").glob("*.whl"))
        return " ".join(hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)

    def outcome(self, small: SmallDisk, expected: str) -> str:
        """Run the job on a small disk, and again on a large one; return the outcome."""
        if small.setback == "source":
            shutil.rmtree(self._home / ".torchmill")
        else:
            self._set_back(small.setback)
        if self._place != "home":
            shutil.rmtree(self._disk / self._place)
            (self._disk / self._place).mkdir()
        with self._limited(small), self._filled(small):
            first_outcome = self._run_on_small_disk(small)
        try:
            digests = self.finish()
        except subprocess.CalledProcessError as error:
            again = f"the same command ended with {error.returncode}: {error.output[-600:]}"
            return f"{first_outcome}, and afterwards {again}"
        if digests != expected:
            return "the wheels are others"
        litter = list_files(self._home) - self._usual_files
        for place in (self._cache, self._tmp):
            names = (str(path) for path in place.rglob(".*"))
            litter.update(name for name in names if LITTER.search(name))
        return f"left behind: {sorted(litter)[:5]}" if litter else first_outcome

    def _set_back(self, setback: str) -> None:
        for session in SESSIONS:
            set_back(self._sample, session, setback)

    def _run_on_small_disk(self, small: SmallDisk) -> str:
        """Run the job; return RIGHT, or REFUSED if the first error names the disk and the reason."""
        for command in self._run_commands():
            output = command.stdout + command.stderr
            if "Traceback" in output or "please report" in output:
                return f"unforeseen: {output[-900:]}"
            if command.returncode:
                message = output[-1500:]
                names_disk = small.kind == "file size" or str(self._disk) in message
                names_reason = any(word in message for word in _WORDS)
                if names_disk and names_reason:
                    return REFUSED
                return f"called something else: {message}"
        return RIGHT

    @contextlib.contextmanager
    def _limited(self, small: SmallDisk) -> Iterator[None]:
        """Set the limit of a case on the disk, and remove it at the end."""
        used_bytes, used_inodes = self.used_space()
        needed_bytes, needed_inodes = self._needed
        size = round(used_bytes + max(0, needed_bytes - used_bytes) * small.share)
        inodes = round(used_inodes + max(0, needed_inodes - used_inodes) * small.share)
        options = {
            # Never less than what is in use, which a tmpfs would refuse.
            "bytes": f"size={size // 1024 + 8}k",
            "inodes": f"nr_inodes={inodes + 2}",
            "read-only": "ro",
        }
        self._remount(options.get(small.kind, "rw"))
        if small.kind == "file size":
            largest = round(2**20 * small.share)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, _UNLIMITED)
            self._remount(f"rw,{_LARGE}")

    @contextlib.contextmanager
    def _filled(self, small: SmallDisk) -> Iterator[None]:
        """If the case is "filled", take the rest of the disk once the run has written its share."""
        if small.kind != "filled":
            yield
            return
        run_ended = threading.Event()
        filler = self._disk / "somebody-else"
        used_before, _ = self.used_space()
        needed, _ = self._needed
        run_share = max(0, needed - used_before) * small.share  # bytes

        def fill() -> None:
            while not run_ended.wait(0.02):
                used, _ = self.used_space()
                if used - used_before >= run_share:
                    usage = os.statvfs(self._disk)
                    rest = max(1, (usage.f_bavail - 2) * usage.f_frsize)
                    # OSError: the run has just written more, and the rest is smaller.
                    with contextlib.suppress(OSError), filler.open("wb") as file:
                        os.posix_fallocate(file.fileno(), 0, rest)
                    return

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            yield
        finally:
            run_ended.set()
            thread.join()
            filler.unlink(missing_ok=True)

    def _remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self._disk)], check=True)
