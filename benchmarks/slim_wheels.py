"""What slimming gives and costs: real wheels, by bytes, seconds, memory, and what cuobjdump lists.

python benchmarks/slim_wheels.py --wheel torch-2.6.0-….whl=8.6 --cuobjdump PATH --results FILE
python benchmarks/slim_wheels.py --render FILE

Each wheel is slimmed by `invoke slim`, and compared with its original by `invoke verify`. cuobjdump is
NVIDIA's, from a toolkit or a wheel; it lists the code of each library before and after.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import results
from results import Row

ROOT = Path(__file__).parent.parent
MARKS = (b".nv_fatbin", b"__nv_relfatbin")
MB = 10**6


def invoke(*words: str) -> tuple[str, dict[str, float]]:
    """Run a task, and return what it printed and what it took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(
        [ROOT / ".venv/bin/invoke", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    printed = process.stdout.read() if process.stdout else ""
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"invoke {' '.join(words)} failed: {printed}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return printed, {
        "seconds": time.monotonic() - start,
        "cpu": cpu,
        "memory_mb": used.ru_maxrss / 1024,
    }


def listed(cuobjdump: Path, wheel: Path, scratch: Path) -> dict[str, dict[str, int]]:
    """Return how many pieces of each kind cuobjdump lists in each library."""
    counts = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.file_size < MB // 10 or ".so" not in info.filename:
                continue
            file = Path(archive.extract(info, scratch))
            if has_device_code(file):
                counts[info.filename] = dict(sorted(pieces(cuobjdump, file).items()))
            file.unlink()
    return counts


def has_device_code(file: Path) -> bool:
    """Tell whether a library names the sections of GPU code."""
    before = b""
    with file.open("rb") as source:  # not mapped: a child's memory is counted from its parent's on
        while part := source.read(MB):
            if any(mark in before + part for mark in MARKS):
                return True
            before = part[-32:]
    return False


def pieces(cuobjdump: Path, file: Path) -> Counter[str]:
    """Return how many pieces cuobjdump lists in a library."""
    found: Counter[str] = Counter()
    for option in ("-lelf", "-lptx"):
        ran = subprocess.run(
            [cuobjdump, "-all", option, file], check=False, capture_output=True, text=True
        )
        if "fatal" in ran.stderr:  # it refuses code for GPUs that are too old for it
            return Counter({"refused": 1})
        found.update(re.findall(r"\.(sm_\w+\.(?:cubin|ptx))", ran.stdout))
    return found


def measure(options: Namespace) -> None:
    """Slim each wheel, and note what came of it."""
    for words in options.wheel:
        name, _, arch_list = words.rpartition("=")
        wheel = Path(name)
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            _, took = invoke("slim", str(wheel), "--arch-list", arch_list, "--out", folder)
            (slim,) = Path(folder).glob("*.whl")
            said, _ = invoke("verify", str(slim), "--original", str(wheel))
            sizes = [(file.stat().st_size, installed(file)) for file in (wheel, slim)]
            row = {
                "wheel": wheel.name,
                "slim": slim.name,
                "arch_list": arch_list,
                "bytes": [sizes[0][0], sizes[1][0]],
                "installed": [sizes[0][1], sizes[1][1]],
                "proved": "except code for GPUs" in said,
                **took,
            }
            if options.cuobjdump:
                row["listed"] = [
                    listed(options.cuobjdump, file, Path(folder)) for file in (wheel, slim)
                ]
        results.record(options.results, row)


def installed(wheel: Path) -> int:
    """Return the bytes of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(info.file_size for info in archive.infolist())


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the tables."""
    heads = [
        "wheel",
        "for",
        "MB",
        "of it",
        "installed, MB",
        "of it",
        "CPU s",
        "s",
        "memory, MB",
        "proved",
    ]
    lines = []
    for row in rows:
        cells = [row["wheel"].removesuffix(".whl"), row["arch_list"]]
        for before, after in (row["bytes"], row["installed"]):
            cells += [f"{before / MB:.0f} → {after / MB:.0f}", f"{after / before:.2f}"]
        cells += [f"{row[key]:.0f}" for key in ("cpu", "seconds", "memory_mb")]
        lines.append([*cells, "yes" if row["proved"] else "no"])
    yield results.table(heads, lines)
    lines = []
    for row in rows:
        before, after = row.get("listed", ({}, {}))
        for library in before:
            pair = (each.get(library, {}) for each in (before, after))
            counts = (", ".join(f"{name} {count}" for name, count in each.items()) for each in pair)
            lines.append([row["wheel"].split("-")[1], library.rpartition("/")[2], *counts])
    yield results.table(["torch", "library", "before", "after"], lines)


if __name__ == "__main__":
    parser = results.parser(__doc__)
    parser.add_argument(
        "--wheel",
        action="append",
        metavar="WHEEL=LIST",
        help="a wheel, and what to keep code for; may be repeated",
    )
    parser.add_argument("--cuobjdump", type=Path, help="NVIDIA's program; else nothing is listed")
    parser.add_argument("--scratch", type=Path, help="a folder on a disk with room")
    results.run_or_render(
        results.parse_options(parser, "wheel", "the wheels to slim"), measure, render
    )
