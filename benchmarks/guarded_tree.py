"""Compile a tree of heavy and light C++ files below memory limits: make -jN, and `millguard -- make`.

python benchmarks/guarded_tree.py --torch SITE_PACKAGES --caps 2.5,4 --rounds 3 --results FILE
python benchmarks/guarded_tree.py --render FILE

The heavy files include torch's header for extensions, the light ones a part of the standard library. SITE_PACKAGES is a
folder with an installed torch. Contenders take turns in each round. "cold" is a guard that has never compiled these
files, "warm" one that has compiled them in the same round. Needs root, for the control group.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import memory_cap
import results
from results import Row

GIB = 2**30
HEAVY, LIGHT = 6, 18
LIMIT_SECONDS = 3600.0
HEAVY_SOURCE = """#include <torch/extension.h>
at::Tensor heavy_%d(at::Tensor x) { return (x * %d).sum(); }
"""
LIGHT_SOURCE = """#include <map>
#include <regex>
#include <string>
int light_%d() { std::map<std::string, std::regex> found; return (int)found.size() + %d; }
"""
FIXED = ("-j1", "-j2", "-j4")
COLD, WARM = "guard, cold", "guard, warm"


def write_tree(folder: Path, torch: Path) -> None:
    """Write sources and a Makefile; heavy and light files alternate, as in a real tree."""
    folder.mkdir()
    includes = [torch / "torch/include", torch / "torch/include/torch/csrc/api/include"]
    flags = " ".join(f"-I{path}" for path in (*includes, sysconfig.get_path("include")))
    names = []
    for number in range(HEAVY + LIGHT):
        is_heavy = number % ((HEAVY + LIGHT) // HEAVY) == 0
        source = HEAVY_SOURCE if is_heavy else LIGHT_SOURCE
        name = f"{'heavy' if is_heavy else 'light'}{number}"
        (folder / f"{name}.cpp").write_text(source % (number, number), encoding="utf-8")
        names.append(f"{name}.o")
    rules = f"all: {' '.join(names)}\n%.o: %.cpp\n\t@c++ -std=c++20 -O2 -fPIC {flags} -c $< -o $@\n"
    (folder / "Makefile").write_text(rules, encoding="utf-8")


def build(folder: Path, cap: float, contender: str, caches: Path) -> dict[str, object]:
    """Let one contender build below a limit in GiB; describe what happened."""
    for product in folder.glob("*.o"):
        product.unlink()
    environ = {**os.environ, "CCACHE_DISABLE": "1", "MILLGUARD_CACHE": str(caches / f"{cap:g}")}
    if contender == COLD:
        shutil.rmtree(caches / f"{cap:g}", ignore_errors=True)
    if contender in FIXED:
        command = ["make", contender]
    else:
        command = [sys.executable, "-m", "millguard", "--", "make", "-j4"]
    memory_cap.reclaim_memory(int(cap * GIB))
    with memory_cap.Cap(int(cap * GIB)) as group:
        began = time.monotonic()
        done = subprocess.run(
            group.inside(command),
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        seconds = time.monotonic() - began
        kills = group.kills()
    return {
        "cap": cap,
        "contender": contender,
        "seconds": round(seconds, 1),
        "built": done.returncode == 0,
        "kills": kills,
        "guard": done.stderr.strip().splitlines()[-1] if "guard" in contender else "",
    }


def run(options: Namespace) -> None:
    """Let all contenders build below each limit, in turns."""
    with tempfile.TemporaryDirectory(prefix="guarded-tree-") as name:
        folder = Path(name, "tree")
        write_tree(folder, options.torch)
        caps = [float(word) for word in options.caps.split(",")]
        for number in range(options.rounds):
            for cap in caps:
                for contender in (*FIXED, COLD, WARM):
                    row = build(folder, cap, contender, Path(name, "caches"))
                    results.record(options.results, {"round": number, **row})


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table: each contender below each limit, relative to -j1 of the same round."""
    serial = {}
    for row in rows:
        if row["contender"] == "-j1":
            serial[row["cap"], row["round"]] = row["seconds"]
    lines = []
    for cap in sorted({row["cap"] for row in rows}):
        for contender in (*FIXED, COLD, WARM):
            mine = [row for row in rows if row["cap"] == cap and row["contender"] == contender]
            built = [row for row in mine if row["built"]]
            ratios = [row["seconds"] / serial[cap, row["round"]] for row in built]
            kills = sum(row["kills"] for row in mine)
            shown = [f"{cap:g} GiB", contender, f"{len(built)} of {len(mine)}", kills]
            lines.append(
                [
                    *shown,
                    results.spread([row["seconds"] for row in built], 0),
                    results.spread(ratios),
                ]
            )
    yield results.table(
        ["limit", "contender", "built", "kills", "seconds", "relative to -j1"], lines
    )


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--torch", type=Path, help="a folder with an installed torch")
    parser.add_argument("--caps", default="2.5,4", help="limits in GiB, split at commas")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.render is None and options.torch is None:
        parser.error("--torch is missing: the folder that torch is installed in")
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
