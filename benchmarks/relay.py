"""What it costs to end a build several times by --until and to continue it, against the same build in one piece.

PYTHONPATH=. python benchmarks/relay.py --results FILE [--release v1.13.1] [--ends 3]
PYTHONPATH=. python benchmarks/relay.py --render FILE

Both builds start from nothing and have caches of their own. The build in one piece is timed first; each piece of the
other gets an equal part of that time, and the last piece as long as it takes. The wheels are compared byte for byte.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import results
import wheel_builds
from command_cost import CommandCost, CountingCompilers
from results import Row
from wheel_builds import OURS, Site

ONE_PIECE, RELAY = "in one piece", "ended"
UNFINISHED = 15  # exit code of a session that --until ended


def run(options: Namespace) -> None:
    """Build in one piece and in several, in each round."""
    with tempfile.TemporaryDirectory(prefix="relay-", dir=options.folder) as name:
        folder = Path(name)
        project, compilers = wheel_builds.project(options, folder), CountingCompilers(folder)
        site = Site(project, compilers, folder / "home", folder / "kept")
        for number in range(options.rounds):
            busy = results.busy_share()
            whole_seconds, whole_wheel = 0.0, None
            for way in (ONE_PIECE, RELAY):
                piece_options: list[list[str]] = []
                if way == RELAY:
                    piece_seconds = whole_seconds / (options.ends + 1)
                    piece_options = [["--until", f"{piece_seconds:.0f}s"]] * options.ends
                costs, wheel = build_in_pieces(site, options.python, piece_options)
                seconds = round(sum(cost.seconds for cost in costs), 1)
                if way == ONE_PIECE:
                    whole_seconds, whole_wheel = seconds, wheel
                row = {
                    "project": project.title,
                    "round": number,
                    "busy": busy,
                    "way": way,
                    "cpu": round(sum(cost.cpu for cost in costs), 1),
                    "seconds": seconds,
                    "compiles": [cost.compiles for cost in costs],
                    "codes": [cost.code for cost in costs],
                    "good": wheel is not None,
                    "same": wheel == whole_wheel,
                }
                results.record(options.results, row)
                site.clean()
                shutil.rmtree(site.kept)


def build_in_pieces(
    site: Site, python: str, piece_options: Sequence[Sequence[str]]
) -> tuple[list[CommandCost], bytes | None]:
    """Build until there is a wheel: once with each set of options, and then without.

    Returns the cost of each piece, and the bytes of the wheel, or None if the last piece failed.
    """
    costs = []
    for words in [*piece_options, []]:
        cost, wheel = site.build(OURS, python, *words)
        costs.append(cost)
        if wheel is not None:
            return costs, wheel.read_bytes()
    return costs, None


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each way of each project."""
    good = [row for row in rows if row["good"]]
    for title, runs in results.grouped(good, "project").items():
        whole_cpu = {row["round"]: row["cpu"] for row in runs if row["way"] == ONE_PIECE}
        for way, way_runs in results.grouped(runs, "way").items():
            paired = [row for row in way_runs if row["round"] in whole_cpu]
            built = way
            if way == RELAY:
                ends = ", ".join(str(row["codes"].count(UNFINISHED)) for row in way_runs)
                built = f"{way} {ends} times"
            yield (
                title,
                built,
                results.spread([row["cpu"] for row in way_runs], 0),
                results.spread([row["cpu"] / whole_cpu[row["round"]] for row in paired], 3),
                " ".join("+".join(map(str, row["compiles"])) for row in way_runs),
                "yes" if all(row["same"] for row in way_runs) else "no",
            )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ("what", "built", "CPU s", "/ in one piece", "compiles", "same wheel")
    yield results.table(heads, lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = wheel_builds.parser(__doc__)
    parser.add_argument("--python", default="3.10", metavar="X.Y")
    parser.add_argument("--ends", type=int, default=3, help="how often a build is ended")
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
