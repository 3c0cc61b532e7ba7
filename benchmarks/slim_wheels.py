"""What slimming a wheel saves and costs: bytes, seconds and memory, for real wheels, and what cuobjdump lists.

python benchmarks/slim_wheels.py --wheel torch-2.6.0-….whl=8.6 --cuobjdump PATH --results FILE
python benchmarks/slim_wheels.py --render FILE

`invoke slim` removes a wheel's GPU code, except that for a list of architectures (8.6 here), and `invoke verify`
compares the result with the original. cuobjdump is NVIDIA's, from a toolkit or a wheel; it lists the GPU code of each
library before and after.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import results
from results import Row

ROOT = Path(__file__).parent.parent
SECTION_NAMES = (b".nv_fatbin", b"__nv_relfatbin")  # of ELF sections with GPU code
SMALLEST_LIBRARY = 100_000  # bytes; smaller ones are not unpacked
MB = 10**6


def invoke(*words: str) -> tuple[str, dict[str, float]]:
    """Run a task; return its output and its costs. Exits if it fails."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    argv = [sys.executable, "-m", "invoke", *words]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"invoke {' '.join(words)} failed: {output}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return output, {
        "seconds": time.monotonic() - start,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory_mb": usage.ru_maxrss / 1024,
    }


def count_code_by_library(cuobjdump: Path, wheel: Path, scratch: Path) -> dict[str, dict[str, int]]:
    """Return how many pieces of GPU code of each kind cuobjdump lists in each library of a wheel."""
    counts = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.file_size < SMALLEST_LIBRARY or ".so" not in info.filename:
                continue
            file = Path(archive.extract(info, scratch))
            if has_gpu_code(file):
                counts[info.filename] = dict(sorted(count_code(cuobjdump, file).items()))
            file.unlink()
    return counts


def has_gpu_code(file: Path) -> bool:
    """Return whether a library contains the name of a section with GPU code."""
    overlap = b""
    # Read in parts and not mapped: the peak memory of a child begins with that of its parent.
    with file.open("rb") as library:
        while part := library.read(MB):
            if any(name in overlap + part for name in SECTION_NAMES):
                return True
            overlap = part[-32:]  # a name may lie on the border of two parts
    return False


def count_code(cuobjdump: Path, file: Path) -> Counter[str]:
    """Return how many pieces of each kind, such as "sm_80.cubin", cuobjdump lists in a library."""
    counts: Counter[str] = Counter()
    for option in ("-lelf", "-lptx"):
        listing = subprocess.run(
            [cuobjdump, "-all", option, file], check=False, capture_output=True, text=True
        )
        if "fatal" in listing.stderr:  # it refuses libraries with code for GPUs older than it knows
            return Counter({"refused": 1})
        counts.update(re.findall(r"\.(sm_\w+\.(?:cubin|ptx))", listing.stdout))
    return counts


def run(options: Namespace) -> None:
    """Slim each wheel, and record the costs and the sizes."""
    for words in options.wheel:
        name, _, arch_list = words.rpartition("=")
        wheel = Path(name)
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            _, costs = invoke("slim", str(wheel), "--arch-list", arch_list, "--out", folder)
            (slim_wheel,) = Path(folder).glob("*.whl")
            verification, _ = invoke("verify", str(slim_wheel), "--original", str(wheel))
            wheels = (wheel, slim_wheel)
            row = {
                "wheel": wheel.name,
                "slim": slim_wheel.name,
                "arch_list": arch_list,
                "bytes": [file.stat().st_size for file in wheels],
                "installed": [installed_bytes(file) for file in wheels],
                "proved": "except code for GPUs" in verification,
                **costs,
            }
            if options.cuobjdump:
                row["listed"] = [
                    count_code_by_library(options.cuobjdump, file, Path(folder)) for file in wheels
                ]
        results.record(options.results, row)


def installed_bytes(wheel: Path) -> int:
    """Return the bytes of a wheel's files, uncompressed."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(info.file_size for info in archive.infolist())


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of wheels, and a table of the GPU code in their libraries."""
    heads = ["wheel", "for", "MB", "of it", "installed, MB", "of it"]
    heads += ["CPU s", "s", "memory, MB", "proved"]
    yield results.table(heads, wheel_lines(rows))
    yield results.table(["torch", "library", "before", "after"], library_lines(rows))


def wheel_lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line for each wheel."""
    for row in rows:
        cells = [row["wheel"].removesuffix(".whl"), row["arch_list"]]
        for before, after in (row["bytes"], row["installed"]):
            cells += [f"{before / MB:.0f} → {after / MB:.0f}", f"{after / before:.2f}"]
        cells += [f"{row[key]:.0f}" for key in ("cpu", "seconds", "memory_mb")]
        yield *cells, "yes" if row["proved"] else "no"


def library_lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line for each library with GPU code of each wheel."""
    for row in rows:
        _, version, *_ = row["wheel"].split("-")
        before, after = row.get("listed", ({}, {}))
        for library, counts in before.items():
            name = library.rpartition("/")[2]
            yield version, name, _in_words(counts), _in_words(after.get(library, {}))


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument(
        "--wheel",
        action="append",
        metavar="WHEEL=LIST",
        help="a wheel, and the architectures to keep code for; may be repeated",
    )
    parser.add_argument("--cuobjdump", type=Path, help="NVIDIA's program; default: list nothing")
    parser.add_argument("--scratch", type=Path, help="a folder on a disk with room")
    options = results.parse_options(parser, "wheel", "the wheels to slim")
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
