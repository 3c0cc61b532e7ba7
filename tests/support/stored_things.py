"""A made-up home: everything that builds and caches leave behind, in miniature."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support import source_upstream
from tests.support.source_upstream import release
from torchmill.commands.clean.items import StoragePlace
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import SourceDir, SourceProof

ROOT = Path(__file__).parents[2]
TREE, CELL, VISION = "v1.0.0/wheel-cpu-0123abcd", "v1.0.0/wheel-3.10-cpu", "v0.1.0/vision-3.10-cpu"
WHEEL = "base-1.0.0+cpu-cp310-cp310-linux_x86_64.whl"
DAY = 86400

# Takes a lock as a build does, says so, and holds it until its stdin closes.
HOLD = (
    "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); "
    "print('held', flush=True); sys.stdin.read()"
)


def layout(home: Path) -> Layout:
    return Layout(home, home / "cache" / "torchmill")


def place(home: Path, facts: Facts) -> StoragePlace:
    return StoragePlace(layout(home), home / "envs", facts)


def write(path: Path, size: int, days: float = 0) -> Path:
    """Write a file of so many bytes that was needed last so many days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    age(path, days)
    return path


def age(path: Path, days: float) -> None:
    """Let a file or a folder, with all in it, look as if it was needed so many days ago."""
    then = path.lstat().st_mtime - days * DAY
    for one in (*path.rglob("*"), path):
        os.utime(one, (then, then), follow_symlinks=False)


def fetched(home: Path, package: str, tag: str) -> Source:
    """Leave a fetched source, recorded."""
    slot = SourceDir(layout(home).source(package), tag)
    made = slot.unpacked
    write(made / "tree" / "setup.py", 3000)
    request = SourceRequest(replace(source_upstream.package(""), name=package), release(tag, None))
    return slot.publish(made, request, "path", "somewhere", proof=SourceProof())


def fill(home: Path) -> None:
    """Leave something of each kind, a hundred kilobytes each."""
    where = layout(home)
    for name in (TREE, CELL, VISION):
        write(where.trees / name / "lock", 0)
    for name in (TREE, VISION):
        write(where.trees / name / "key", 10)
        write(where.trees / name / "source" / "build" / "a.o", 100_000)
    for name in (CELL, VISION):
        write(where.trees / name / "raw" / "a.whl", 50_000)
        write(where.trees / name / "stage" / "a.so", 50_000)
    fetched(home, "base", "v1.0.0")
    write(home / "envs" / "wheel-3-10-cpu" / "pyvenv.cfg", 50)
    write(home / "envs" / "wheel-3-10-cpu" / "lib" / "numpy.py", 100_000)
    write(where.logs / "v1.0.0-wheel-3.10-cpu.log", 50_000)
    write(where.logs / "v1.0.0-wheel-3.10-cpu.timeline.jsonl", 50_000)
    write(where.dist / WHEEL, 100_000)
    said = {"package": "base", "tag": "v1.0.0", "identifier": "wheel-3.10-cpu"}
    (where.dist / f"{WHEEL}.json").write_text(json.dumps(said))
    write(where.dist / f"{WHEEL}.cdx.json", 10)
    write(where.dist / "foreign-1.0-py3-none-any.whl", 100)
    write(where.dist / "conda" / "linux-64" / "base-1.0.0-py3.10_cpu_0.conda", 100_000)
    write(where.dist / "libbase-1.0.0+cpu.zip", 100_000)
    write(where.dist / "libbase-1.0.0+cpu.zip.json", 10)
    write(where.dist / "library.zip", 100)
    write(where.demo / "envs" / "a", 100_000)
    for name in (
        "members/ab/cd",
        "debian/downloads/a.tar",
        "upstream/a.json",
        "gates/0123",
        "units.sqlite",
        "downloads/pypi/a.whl",
        "toolkits/11.8-x86_64/bin/nvcc",
        "toolkits/.making-12.4-x86_64/whole/a",
    ):
        write(where.cache / name, 100_000)


def present(home: Path) -> set[str]:
    """Return the files that are there, but for locks."""
    found = (path.relative_to(home) for path in home.rglob("*") if path.is_file())
    return {str(path) for path in found if path.name != "lock" and path.parts[0] != "build_configs"}


@contextmanager
def held(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a lock."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()
