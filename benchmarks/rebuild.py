"""How much of a clean build's cost a warm compiler cache saves, and whether two builds give the same wheel.

PYTHONPATH=. python benchmarks/rebuild.py --results FILE [--release v1.13.1] [--phases cold,warm]
PYTHONPATH=. python benchmarks/rebuild.py --render FILE

Everything but the caches is deleted before each build: trees, environments, wheels. Before "cold again" the
caches are deleted too. Each wheel is compared with that of the first build, byte for byte.
"""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import results
import wheel_builds
from command_cost import CountingCompilers
from results import Row
from wheel_builds import CCACHE, OURS, Site

from torchmill.deliver.wheel_comparison import wheel_differences

COLD, WARM, MOVED, COLD_AGAIN = "cold", "warm", "warm in another folder", "cold again"
MOST_DIFFERENCES = 20  # files whose differences a row lists


def run(options: Namespace) -> None:
    """Let each contender build in all phases."""
    with tempfile.TemporaryDirectory(prefix="rebuild-", dir=options.folder) as name:
        folder = Path(name)
        project, compilers = wheel_builds.project(options, folder), CountingCompilers(folder)
        for number in range(options.rounds):
            for contender in options.contenders:
                place = folder / f"{number}-{options.contenders.index(contender)}"
                for phase in options.phases:
                    if phase == COLD_AGAIN:
                        shutil.rmtree(place / "kept", ignore_errors=True)
                    home = place / ("elsewhere" if phase == MOVED else "home")
                    site = Site(project, compilers, home, place / "kept")
                    row = build_once(site, contender, options.python)
                    results.record(options.results, {"round": number, "phase": phase, **row})
                shutil.rmtree(place)


def build_once(site: Site, contender: str, python: str) -> Row:
    """Build and clean up; return the cost, and in which files the wheel differs from the first one ("others")."""
    busy = results.busy_share()
    cost, wheel = site.build(contender, python)
    row = {
        "project": site.project.title,
        "contender": contender,
        "python": python,
        "busy": busy,
        **cost.as_row(),
        "good": wheel is not None,
    }
    if wheel is not None:
        first_wheel = site.home.parent / wheel.name
        if not first_wheel.exists():
            shutil.copy(wheel, first_wheel)
        row["same"] = first_wheel.read_bytes() == wheel.read_bytes()
        differences = list(wheel_differences(first_wheel, wheel))
        row["others"] = differences[:MOST_DIFFERENCES]
    site.clean()
    return row


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender and phase."""
    good = [row for row in rows if row["good"]]
    for (title, contender), runs in results.grouped(good, "project", "contender").items():
        cold_runs = {row["round"]: row for row in runs if row["phase"] == COLD}
        for phase, phase_runs in results.grouped(runs, "phase").items():
            cpu_ratios, time_ratios = [], []
            for row in phase_runs:
                if row["round"] in cold_runs:
                    cold = cold_runs[row["round"]]
                    cpu_ratios.append(row["cpu"] / cold["cpu"])
                    time_ratios.append(row["seconds"] / cold["seconds"])
            yield (
                title,
                contender,
                phase,
                results.spread([row["cpu"] for row in phase_runs], 0),
                results.spread([row["seconds"] for row in phase_runs], 0),
                " ".join(str(row["compiles"]) for row in phase_runs),
                results.spread(cpu_ratios, 3),
                results.spread(time_ratios, 3),
                "yes" if all(row["same"] for row in phase_runs) else "no",
            )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and the differences between wheels."""
    heads = ("what", "contender", "cache", "CPU s", "s", "compiles", "/ cold: CPU", "time")
    yield results.table((*heads, "same wheel"), lines(rows))
    for row in rows:
        for difference in row.get("others", ()):
            yield f"{row['contender']}, {row['phase']}: {difference}"


def main() -> None:
    """Run, or render what was run."""
    parser = wheel_builds.parser(__doc__)
    parser.add_argument("--python", default="3.10", metavar="X.Y")
    results.add_choice(parser, "--contenders", (CCACHE, OURS))
    results.add_choice(parser, "--phases", (COLD, WARM, MOVED, COLD_AGAIN))
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
