"""What a warm compiler cache leaves of a clean build, and whether two builds give the same wheel.

PYTHONPATH=. python benchmarks/rebuild.py --results FILE [--release v1.13.1] [--phases cold,warm]
PYTHONPATH=. python benchmarks/rebuild.py --render FILE

Everything but the caches is deleted before each build: trees, environments, wheels. Before "cold again" the
caches go as well. Each wheel is compared with the one of the first build, byte for byte.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import building
import compare_wheels
import results
from building import CCACHE, OURS, Site
from results import Row
from spent import Compilers

COLD, WARM, MOVED, AGAIN = "cold", "warm", "warm in another folder", "cold again"
OTHERS = 20  # files of which a row says in what they differ


def run(options: Namespace) -> None:
    """Let each contender build in all phases."""
    with tempfile.TemporaryDirectory(prefix="rebuild-", dir=options.folder) as name:
        folder = Path(name)
        built, compilers = building.project(options, folder), Compilers(folder)
        for number in range(options.rounds):
            for contender in options.contenders:
                place = folder / f"{number}-{options.contenders.index(contender)}"
                for phase in options.phases:
                    if phase == AGAIN:
                        shutil.rmtree(place / "kept", ignore_errors=True)
                    site = Site(built, compilers, place / home(phase), place / "kept")
                    row = once(site, contender, options.python)
                    results.record(options.results, {"round": number, "phase": phase, **row})
                shutil.rmtree(place)


def home(phase: str) -> str:
    """Return the name of the folder that a phase builds in."""
    return "elsewhere" if phase == MOVED else "home"


def once(site: Site, contender: str, python: str) -> Row:
    """Build once and clean up; return what it took, and the files that are others than in the first wheel."""
    busy = results.busy_share()
    took, wheel = site.build(contender, python)
    row = {"project": site.project.title, "contender": contender, "python": python, "busy": busy}
    row |= {**took.as_row(), "good": wheel is not None}
    if wheel is not None:
        first = site.home.parent / wheel.name
        if not first.exists():
            shutil.copy(wheel, first)
        same = first.read_bytes() == wheel.read_bytes()
        row |= {"same": same, "others": list(compare_wheels.differences(first, wheel))[:OTHERS]}
    site.clean()
    return row


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender and phase."""
    good = [row for row in rows if row["good"]]
    for (title, contender), found in results.grouped(good, "project", "contender").items():
        cold = {row["round"]: row for row in found if row["phase"] == COLD}
        for phase, same in results.grouped(found, "phase").items():
            pairs = [(row, cold[row["round"]]) for row in same if row["round"] in cold]
            costs = [results.spread([row[name] for row in same], 0) for name in ("cpu", "seconds")]
            shares = [
                results.spread([row[name] / one[name] for row, one in pairs], 3)
                for name in ("cpu", "seconds")
            ]
            counts = " ".join(str(row["compiles"]) for row in same)
            alike = "yes" if all(row["same"] for row in same) else "no"
            yield title, contender, phase, *costs, counts, *shares, alike


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and what differs between wheels."""
    heads = (
        "what",
        "contender",
        "cache",
        "CPU s",
        "s",
        "compiles",
        "/ cold: CPU",
        "time",
        "same wheel",
    )
    yield results.table(heads, lines(rows))
    for row in rows:
        for said in row.get("others", ()):
            yield f"{row['contender']}, {row['phase']}: {said}"


def main() -> None:
    """Run, or render what was run."""
    parser = building.parser(__doc__)
    parser.add_argument("--python", default="3.10", metavar="X.Y")
    results.add_choice(parser, "--contenders", (CCACHE, OURS))
    results.add_choice(parser, "--phases", (COLD, WARM, MOVED, AGAIN))
    options = parser.parse_args()
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
