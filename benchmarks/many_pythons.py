"""What further Pythons cost: wheels of one release for several, each contender from nothing.

PYTHONPATH=. python benchmarks/many_pythons.py --results FILE                      # the stand-in, minutes
PYTHONPATH=. python benchmarks/many_pythons.py --release v1.13.1 --results FILE    # hours
PYTHONPATH=. python benchmarks/many_pythons.py --render FILE

By hand means what `invoke plan --sh` prints: an environment, requirements, a patched copy of the source,
setup.py, libraries carried along, `wheel pack`; the folder is emptied before each wheel, and is the same, the
best case of a cache that knows files by their paths. Ours is `nox -s`, checks of the wheel included.
"""

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import building
import compare_wheels
import results
from building import CCACHE, CLEAN, OURS, Site
from results import Row
from spent import Compilers


def run(options: Namespace) -> None:
    """Let each contender make the wheels of all Pythons."""
    with tempfile.TemporaryDirectory(prefix="pythons-", dir=options.folder) as name:
        folder = Path(name)
        built, compilers = building.project(options, folder), Compilers(folder)
        for number in range(options.rounds):
            order = options.contenders if number % 2 == 0 else options.contenders[::-1]
            for contender in order:
                place = folder / f"{number}-{options.contenders.index(contender)}"
                site = Site(built, compilers, place / "home", place / "kept")
                for row in wheels(site, contender, options.pythons.split(",")):
                    results.record(options.results, {"round": number, **row})
                site.clean()


def wheels(site: Site, contender: str, pythons: Sequence[str]) -> Iterator[Row]:
    """Yield what each wheel took, and which of its libraries are others than the first one's."""
    first: Path | None = None
    for number, python in enumerate(pythons):
        if contender != OURS:
            site.clean()
        busy = results.busy_share()
        took, wheel = site.build(contender, python)
        row = {
            "project": site.project.title,
            "contender": contender,
            "python": python,
            "number": number,
        }
        row |= {**took.as_row(), "busy": busy, "good": wheel is not None}
        if wheel is not None:
            kept = site.kept / wheel.name
            kept.write_bytes(wheel.read_bytes())
            first = first or kept
            row |= {"size": kept.stat().st_size, "others": compare_wheels.libraries(first, kept)}
        yield row


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender."""
    for title, both in results.grouped(rows, "project").items():
        plain = totals(row for row in both if row["contender"] == CLEAN)
        for contender, found in results.grouped(both, "contender").items():
            first = [row for row in found if row["number"] == 0]
            costs = [results.spread([row[name] for row in first], 0) for name in ("cpu", "seconds")]
            shares = [results.spread(list(further(found, name)), 3) for name in ("cpu", "seconds")]
            counts = [_counts(one) for one in (first, [row for row in found if row["number"]])]
            whole = totals(found)
            against = (
                f"{statistics.mean(whole) / statistics.mean(plain):.2f}" if whole and plain else "-"
            )
            yield title, contender, *costs, counts[0], *shares, counts[1], against


def further(rows: Sequence[Row], name: str) -> Iterator[float]:
    """Yield what each further wheel took of what its round's first one did."""
    for found in results.grouped((row for row in rows if row["good"]), "round").values():
        first = next((row[name] for row in found if row["number"] == 0), None)
        if first:
            yield from (row[name] / first for row in found if row["number"])


def totals(rows: Iterable[Row]) -> list[float]:
    """Return the processor seconds of all wheels of each round in which every one was made."""
    rounds = results.grouped(rows, "round").values()
    return [
        sum(row["cpu"] for row in found) for found in rounds if all(row["good"] for row in found)
    ]


def _counts(rows: Sequence[Row]) -> str:
    return " ".join(str(row["compiles"]) for row in rows)


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and what differs between the wheels."""
    first = ("what", "contender", "first wheel: CPU s", "s", "compiles")
    more = ("a further one / first: CPU", "time", "compiles", "all, CPU / no cache")
    yield results.table((*first, *more), lines(rows))
    for row in rows:
        if row["number"] and row["good"] and row["contender"] == OURS:
            said = ", ".join(row["others"]) or "none"
            yield f"{row['python']}, {row['project']}: libraries unlike the first wheel's: {said}"


def main() -> None:
    """Run, or render what was run."""
    parser = building.parser(__doc__)
    parser.add_argument("--pythons", default="3.9,3.10,3.11", metavar="X.Y,...")
    results.add_choice(parser, "--contenders", (CLEAN, CCACHE, OURS))
    options = parser.parse_args()
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
