"""What it costs to repair and pack a wheel: auditwheel, `wheel pack`, and ours, first and further wheels.

python benchmarks/pack_wheels.py --wheel RAW.whl --results FILE
python benchmarks/pack_wheels.py --render FILE

RAW.whl is what a build leaves, tagged plain linux. A further wheel is one for another Python: `--further`, or
one made of the first, in which every library that depends on Python differs and nothing else does.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import results
from results import Row

ROOT = Path(__file__).parent.parent
PLATFORM = f"manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"
OF_PYTHON = re.compile(r"\.cpython-|libtorch_python|_python\.so|\.dist-info/")
OURS = re.compile(r"ours:(?P<codec>[\w-]+):(?P<what>alone|first|further)")  # alone: by one thread
REFERENCE = "auditwheel"
MIB = 1 << 20


def packed(options: Namespace) -> None:
    """Stage, repair and pack one wheel, and say what came of it."""
    sys.path.insert(0, str(ROOT))
    from millpress import metadata, repair, staging, wheel_writer, zip_archive

    staged = staging.stage_wheel(options.wheel, options.into / "stage", {"torch/version.py"})
    repair.repair_staged(staged, PLATFORM, folders=options.folder)
    name = metadata.set_platform_tag(staged, PLATFORM)
    codec = zip_archive.available_codecs()[options.codec]
    made = wheel_writer.pack_wheel(
        staged.root,
        options.into / name,
        unstaged=staged.unstaged,
        cache_folder=options.members,
        threads=options.threads,
        codec=codec,
    )
    print(json.dumps({"sha256": made.sha256, "kept": made.copied_bytes, "codec": made.codec}))


def another(raw: Path, folder: Path) -> Path:
    """Make of a raw wheel one for another Python."""
    path = folder / raw.name
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(path, "w") as sink:
        for info in source.infolist():
            with source.open(info) as old:
                info.compress_type = zipfile.ZIP_STORED
                with sink.open(info, "w", force_zip64=True) as new:
                    shutil.copyfileobj(old, new, MIB)
                    if OF_PYTHON.search(info.filename) and info.filename.endswith(".so"):
                        new.write(b"another Python's")
    return path


class Contest:
    """One raw wheel, the next one, and a folder to work in."""

    def __init__(self, options: Namespace, folder: Path) -> None:
        self.folder = folder
        self.libraries = options.folder
        self.raw = options.wheel
        (folder / "further").mkdir()
        self.further = options.further or another(options.wheel, folder / "further")

    def run(self, contender: str) -> Row:
        """Let a contender repair and pack; return what it took."""
        into = self.folder / "into"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        match = OURS.fullmatch(contender)
        if match:
            return self._ours(match["codec"], match["what"], into)
        if contender == REFERENCE:
            arguments = [
                "auditwheel",
                "repair",
                "--plat",
                PLATFORM,
                "-w",
                str(into / "out"),
                str(self.raw),
            ]
            return self._measured([sys.executable, "-m", *arguments], into / "out")
        self._driven(
            self.raw, "zlib", into, []
        )  # `wheel pack` packs what somebody else has repaired
        (repaired,) = into.glob("*.whl")
        shutil.unpack_archive(repaired, into / "tree", "zip")
        (into / "out").mkdir()
        arguments = ["wheel", "pack", "--dest-dir", str(into / "out"), str(into / "tree")]
        return self._measured([sys.executable, "-m", *arguments], into / "out")

    def _ours(self, codec: str, what: str, into: Path) -> Row:
        members = self.folder / "members" / codec
        if what == "alone":
            return self._driven(self.raw, codec, into, ["--threads", "1"])
        if what == "first":
            shutil.rmtree(members, ignore_errors=True)
            return self._driven(self.raw, codec, into, ["--members", str(members)])
        if not members.is_dir():
            self._driven(self.raw, codec, self.folder / "before", ["--members", str(members)])
        return self._driven(self.further, codec, into, ["--members", str(members)])

    def _driven(self, raw: Path, codec: str, into: Path, more: list[str]) -> Row:
        command = [
            sys.executable,
            __file__,
            "--wheel",
            str(raw),
            "--into",
            str(into),
            "--codec",
            codec,
        ]
        for folder in self.libraries:
            command += ["--folder", str(folder)]
        return self._measured([*command, *more], into)

    def _measured(self, command: list[str], out: Path) -> Row:
        """Run a command to its end; its memory is that of the largest of its processes."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        start = time.monotonic()
        with (self.folder / "said").open("w+") as said:
            process = subprocess.Popen(command, stdout=said, env={**os.environ, "PATH": path})
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            lines = said.read().splitlines()
        if process.returncode:
            sys.exit(f"`{' '.join(command)}` failed: run it by hand to see why")
        told = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        (wheel,) = out.glob("*.whl")
        cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        return {
            "seconds": seconds,
            "cpu": cpu,
            "memory": memory,
            "size": wheel.stat().st_size,
            **told,
        }


def contenders() -> list[str]:
    """Return all who take part, "further" after "first", whose members it finds kept."""
    sys.path.insert(0, str(ROOT))
    from millpress import zip_archive

    whats = ("alone", "first", "further")
    ours = [f"ours:{codec}:{what}" for codec in zip_archive.available_codecs() for what in whats]
    return [REFERENCE, "wheel pack (no repair)", *ours]


def run(options: Namespace) -> None:
    """Let all contenders take turns, `rounds` times."""
    if options.into is not None:
        packed(options)
        return
    with tempfile.TemporaryDirectory(prefix="packing-", dir=options.scratch) as name:
        contest = Contest(options, Path(name))
        for number in range(options.rounds):
            for contender in options.contenders:
                busy = results.busy_share()
                row = contest.run(contender)
                results.record(
                    options.results, {"contender": contender, "round": number, "busy": busy, **row}
                )


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender."""
    reference = {row["round"]: row for row in rows if row["contender"] == REFERENCE}

    def ratios(found: Sequence[Row], field: str, digits: int) -> str:
        pairs = [
            (row[field], reference[row["round"]][field])
            for row in found
            if row["round"] in reference
        ]
        return results.spread([mine / theirs for mine, theirs in pairs], digits)

    def spread(found: Sequence[Row], value: Callable[[Row], float]) -> str:
        return results.spread([value(row) for row in found], 1)

    for contender, found in results.grouped(rows, "contender").items():
        yield (
            contender,
            len(found),
            spread(found, lambda row: row["seconds"]),
            ratios(found, "seconds", 2),
            spread(found, lambda row: row["cpu"]),
            ratios(found, "cpu", 2),
            f"{found[0]['size'] / 1e6:.1f}",
            ratios(found, "size", 3).split(" ")[0],
            f"{max(row['memory'] for row in found) / 1e6:.0f}",
            ", ".join(sorted({row["sha256"][:8] for row in found if "sha256" in row})) or "-",
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
    parser.add_argument(
        "--into", type=Path, help="only pack, into this folder, and say what came of it"
    )
    parser.add_argument("--codec", default="zlib")
    parser.add_argument("--members", type=Path)
    parser.add_argument("--threads", type=int)
    results.add_choice(parser, "--contenders", contenders())
    options = results.parse_options(parser, "wheel", "the raw wheel that is to be packed")
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
