"""What it costs to end a build several times by --until and to go on: against the same build in one piece.

PYTHONPATH=. python benchmarks/relay.py --results FILE [--release v1.13.1] [--ends 3]
PYTHONPATH=. python benchmarks/relay.py --render FILE

Both begin with nothing and keep their own caches. The time of each piece is an equal part of that of the whole, and the
last one has as long as it takes. The wheels are compared byte for byte.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import building
import results
from building import OURS, Site
from results import Row
from spent import Compilers

WHOLE, RELAY = "in one piece", "ended"
UNFINISHED = 15  # the exit code of a build that was ended in time


def run(options: Namespace) -> None:
    """Build in one piece and in several, as often as options."""
    with tempfile.TemporaryDirectory(prefix="relay-", dir=options.folder) as name:
        folder = Path(name)
        built, compilers = building.project(options, folder), Compilers(folder)
        for number in range(options.rounds):
            wheels, row = (
                {},
                {"project": built.title, "round": number, "busy": results.busy_share()},
            )
            for way in (WHOLE, RELAY):
                site = Site(built, compilers, folder / "home", folder / "kept")
                limits = (
                    [["--until", f"{row['seconds'] / (options.ends + 1):.0f}s"]] * options.ends
                    if way == RELAY
                    else []
                )
                wheel, spent = None, []
                for words in [*limits, []]:
                    if wheel is None:  # else a piece came to the end
                        took, wheel = site.build(OURS, options.python, *words)
                        spent.append(took)
                wheels[way] = wheel and wheel.read_bytes()
                row |= {
                    "way": way,
                    "cpu": round(sum(one.cpu for one in spent), 1),
                    "seconds": round(sum(one.seconds for one in spent), 1),
                    "compiles": [one.compiles for one in spent],
                    "codes": [one.code for one in spent],
                    "good": wheel is not None,
                    "same": wheels[way] == wheels[WHOLE],
                }
                results.record(options.results, row)
                site.clean()
                shutil.rmtree(site.kept)


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each way of each project."""
    good = [row for row in rows if row["good"]]
    for title, found in results.grouped(good, "project").items():
        whole = {row["round"]: row["cpu"] for row in found if row["way"] == WHOLE}
        for way, same in results.grouped(found, "way").items():
            shares = [row["cpu"] / whole[row["round"]] for row in same if row["round"] in whole]
            compiles = " ".join("+".join(map(str, row["compiles"])) for row in same)
            ends = ", ".join(str(row["codes"].count(UNFINISHED)) for row in same)
            said = way if way == WHOLE else f"{way} {ends} times"
            alike = "yes" if all(row["same"] for row in same) else "no"
            yield (
                title,
                said,
                results.spread([row["cpu"] for row in same], 0),
                results.spread(shares, 3),
                compiles,
                alike,
            )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    yield results.table(
        ("what", "built", "CPU s", "/ in one piece", "compiles", "same wheel"), lines(rows)
    )


def main() -> None:
    """Run, or render what was run."""
    parser = building.parser(__doc__)
    parser.add_argument("--python", default="3.10", metavar="X.Y")
    parser.add_argument("--ends", type=int, default=3, help="how often a build is ended")
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
