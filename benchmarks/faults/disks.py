"""Disks that fill up, have no inodes left, limit the size of files, or are read-only: told as that, nothing lost."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.kills import LITTER, ROOT, SESSIONS
from faults.tally import REFUSED, RIGHT, Tally
from tests.support.commands import run
from tests.support.sampled import Sample

KINDS = ("bytes", "inodes", "file size", "read-only")
PLACES = ("home", "cache", "tmp")
"""What lies on the small disk: the folder with trees and wheels, the user's cache, the folder for temporary files."""
_LARGE = "size=2g,nr_inodes=1000000"
_WORDS = ("full", "No space left", "no room", "too large", "read-only", "Read-only", "inodes")
_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass(frozen=True)
class SmallDisk:
    """The limit of one case."""

    kind: str  # of KINDS
    place: str  # of PLACES
    share: float  # how much of what a whole run takes is there

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        return f"{self.kind} of {self.place}, {self.share:.0%} of what it takes"


def attack_by_disks(count: int, seed: int) -> Tally:
    """Run the sample `count` times on disks that are too small, each time followed by the same on a large one.

    Needs the right to mount. Raises CalledProcessError where that is lacking.
    """
    chance, tally = random.Random(f"{seed} disks"), Tally("disks")  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as place, _mounted(Path(place, "disk")) as disk:
        folder = Path(place)
        upstream = [sys.executable, str(ROOT / "sample/upstream.py"), str(folder / "upstream")]
        subprocess.run(upstream, check=True, capture_output=True)
        (folder / "other").mkdir()
        shutil.copytree(ROOT / "sample" / "build_configs", folder / "build_configs")
        whole = {one: _Attempt(folder, disk, one) for one in PLACES}
        taken, expected = {}, {}
        for name, attempt in whole.items():
            expected[name] = attempt.finish()
            usage = os.statvfs(disk)
            taken[name] = {"bytes": (usage.f_blocks - usage.f_bfree) * usage.f_frsize, "inodes": attempt.count_files()}
            attempt.clear()
        for number in range(count):
            kind = KINDS[number % len(KINDS)]
            small = SmallDisk(kind, PLACES[number // len(KINDS) % len(PLACES)], chance.random())
            attempt = whole[small.place]
            outcome = attempt.outcome(small, taken[small.place], expected[small.place])
            attempt.clear()
            tally.add(str(small), outcome)
    return tally


@contextlib.contextmanager
def _mounted(disk: Path) -> Iterator[Path]:
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", _LARGE, "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


class _Attempt:
    """The main job, from the fetch to two wheels, with one folder of it on the small disk."""

    def __init__(self, folder: Path, disk: Path, place: str) -> None:
        self._folder, self._disk = folder, disk
        self._home, self._cache, self._tmp = ((disk if name == place else folder / "other") / name for name in PLACES)
        self._sample = Sample(folder, folder / "envs", self._cache)
        self._sample.home = self._home
        self._sample.configs = folder / "build_configs"
        self._sample.env |= {"TMPDIR": str(self._tmp), "TORCHMILL_CONFIGS": str(folder / "build_configs")}
        self._make()

    def _make(self) -> None:
        for path in (self._home, self._cache, self._tmp):
            path.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Start over; the environments of Nox stay."""
        for path in (self._home, self._cache, self._tmp):
            shutil.rmtree(path)
        self._make()

    def count_files(self) -> int:
        """Return how many files and folders are on the disk."""
        return sum(1 for _ in self._disk.rglob("*"))

    def _commands(self) -> Iterator[Callable[[], subprocess.CompletedProcess[str]]]:
        mirror = f"--mirror=file://{self._folder / 'upstream'}"
        home, env = self._home, self._sample.env
        yield lambda: run("invoke", "fetch", "--tag=v1.0.0", "--all", mirror, home=home, env=env)
        for session in SESSIONS:
            yield lambda session=session: self._sample.nox("-s", session)  # type: ignore[misc]

    def finish(self) -> str:
        """Return the digest of both wheels. Raises CalledProcessError."""
        for command in self._commands():
            done = command()
            if done.returncode:
                raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout + done.stderr)
        wheels = sorted((self._home / "dist").glob("*.whl"))
        return " ".join(hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)

    def outcome(self, small: SmallDisk, taken: dict[str, int], expected: str) -> str:
        """Return what happened on a small disk, and on a large one afterwards."""
        with self._limited(small, taken):
            told = self._meet(small)
        try:
            found = self.finish()
        except subprocess.CalledProcessError as error:
            return f"{told}, and afterwards the same command ended with {error.returncode}: {error.output[-600:]}"
        if found != expected:
            return "the wheels are others"
        places = (self._home, self._cache, self._tmp)
        litter = [str(path) for place in places for path in place.rglob(".*") if LITTER.search(str(path))]
        return f"left behind: {litter}" if litter else told

    def _meet(self, small: SmallDisk) -> str:
        for command in self._commands():
            done = command()
            said = done.stdout + done.stderr
            if "Traceback" in said or "please report" in said:
                return f"unforeseen: {said[-600:]}"
            if done.returncode:
                where = str(self._disk) if small.kind != "file size" else ""
                last = said[-1500:]
                fine = where in last and any(word in last for word in _WORDS)
                return REFUSED if fine else f"called something else: {last}"
        return RIGHT

    @contextlib.contextmanager
    def _limited(self, small: SmallDisk, taken: dict[str, int]) -> Iterator[None]:
        options = {
            "bytes": f"size={max(1, round(taken['bytes'] * small.share / 1024))}k",
            "inodes": f"nr_inodes={max(8, round(taken['inodes'] * small.share))}",
            "read-only": "ro",
            "file size": "rw",
        }
        self._remount(options[small.kind])
        if small.kind == "file size":
            limit = round(2**20 * small.share)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, _UNLIMITED)
            self._remount(f"rw,{_LARGE}")

    def _remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self._disk)], check=True)
