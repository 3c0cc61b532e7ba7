"""What further Pythons cost: wheels of one release for several Pythons, by each contender from nothing.

PYTHONPATH=. python benchmarks/many_pythons.py --results FILE                      # the stand-in, minutes
PYTHONPATH=. python benchmarks/many_pythons.py --release v1.13.1 --results FILE    # hours
PYTHONPATH=. python benchmarks/many_pythons.py --render FILE

Two contenders build by hand, with the script of `invoke plan --sh`: an environment, requirements, a patched copy of
the source, setup.py, libraries bundled, `wheel pack`. Their folder is emptied before each wheel, and has the same path
each time, which is the best case for a cache that hashes paths. torchmill is `nox -s`, checks of the wheel included.
"""

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import results
import wheel_builds
from command_cost import CountingCompilers
from results import Row
from wheel_builds import CCACHE, NO_CACHE, OURS, Site

from torchmill.deliver.wheel_comparison import different_libraries


def run(options: Namespace) -> None:
    """Let each contender build the wheels of all Pythons, in reverse order in every other round."""
    pythons = options.pythons.split(",")
    with tempfile.TemporaryDirectory(prefix="pythons-", dir=options.folder) as name:
        folder = Path(name)
        project, compilers = wheel_builds.project(options, folder), CountingCompilers(folder)
        for number in range(options.rounds):
            order = options.contenders if number % 2 == 0 else options.contenders[::-1]
            for contender in order:
                place = folder / f"{number}-{options.contenders.index(contender)}"
                site = Site(project, compilers, place / "home", place / "kept")
                for row in build_wheels(site, contender, pythons):
                    results.record(options.results, {"round": number, **row})
                site.clean()


def build_wheels(site: Site, contender: str, pythons: Sequence[str]) -> Iterator[Row]:
    """Yield the cost of each wheel, and which of its libraries differ from the first wheel's ("others")."""
    first_wheel: Path | None = None
    for number, python in enumerate(pythons):
        if contender != OURS:
            site.clean()
        busy = results.busy_share()
        cost, wheel = site.build(contender, python)
        row = {
            "project": site.project.title,
            "contender": contender,
            "python": python,
            "number": number,
            **cost.as_row(),
            "busy": busy,
            "good": wheel is not None,
        }
        if wheel is not None:
            copy = site.kept / wheel.name
            copy.write_bytes(wheel.read_bytes())
            first_wheel = first_wheel or copy
            row["size"] = copy.stat().st_size
            row["others"] = different_libraries(first_wheel, copy)
        yield row


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender of each project."""
    for title, project_runs in results.grouped(rows, "project").items():
        by_contender = results.grouped(project_runs, "contender")
        no_cache_totals = round_totals(by_contender.get(NO_CACHE, []))
        for contender, runs in by_contender.items():
            first = [row for row in runs if row["number"] == 0]
            further = [row for row in runs if row["number"]]
            totals = round_totals(runs)
            ratio = "-"
            if totals and no_cache_totals:
                ratio = f"{statistics.mean(totals) / statistics.mean(no_cache_totals):.2f}"
            yield (
                title,
                contender,
                results.spread([row["cpu"] for row in first], 0),
                results.spread([row["seconds"] for row in first], 0),
                " ".join(str(row["compiles"]) for row in first),
                results.spread(list(ratios_to_first(runs, "cpu")), 3),
                results.spread(list(ratios_to_first(runs, "seconds")), 3),
                " ".join(str(row["compiles"]) for row in further),
                ratio,
            )


def ratios_to_first(runs: Sequence[Row], key: str) -> Iterator[float]:
    """Yield the ratio of a cost of each further wheel to that of the first wheel of its round."""
    good = [row for row in runs if row["good"]]
    for round_runs in results.grouped(good, "round").values():
        first_costs = [row[key] for row in round_runs if row["number"] == 0]
        if first_costs and first_costs[0]:
            for row in round_runs:
                if row["number"]:
                    yield row[key] / first_costs[0]


def round_totals(runs: Iterable[Row]) -> list[float]:
    """Return the processor seconds of all wheels of each round, without rounds in which a build failed."""
    totals = []
    for round_runs in results.grouped(runs, "round").values():
        if all(row["good"] for row in round_runs):
            totals.append(sum(row["cpu"] for row in round_runs))
    return totals


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and the libraries that differ between torchmill's wheels."""
    first = ("what", "contender", "first wheel: CPU s", "s", "compiles")
    further = ("a further one / first: CPU", "time", "compiles", "all, CPU / no cache")
    yield results.table((*first, *further), lines(rows))
    for row in rows:
        if row["number"] and row["good"] and row["contender"] == OURS:
            libraries = ", ".join(row["others"]) or "none"
            wheel = f"{row['python']}, {row['project']}"
            yield f"{wheel}: libraries unlike the first wheel's: {libraries}"


def main() -> None:
    """Run, or render what was run."""
    parser = wheel_builds.parser(__doc__)
    parser.add_argument("--pythons", default="3.9,3.10,3.11", metavar="X.Y,...")
    results.add_choice(parser, "--contenders", (NO_CACHE, CCACHE, OURS))
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
