"""Results of benchmarks: a file with a line of JSON for each run, and Markdown tables made of such files.

A benchmark runs each of its contenders (torchmill and what it is compared with) several times, in rounds, and
records each run at once, so that an interrupted benchmark keeps what it measured. `--render FILE` prints the tables
of recorded runs without running anything; the keys of a line therefore stay as they are.
"""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]  # one run, as its line of JSON has it

# Several runs of a script may append to one file, and each numbers its rounds from 0.
_SCRIPT_RUN = time.time_ns()


def machine() -> str:
    """Describe this machine: architecture, processors, memory and system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{platform.machine()}, {os.cpu_count()} processors, {memory:.0f} GiB, {system}"


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark, described by the first line of a docstring."""
    summary, _, _ = (docstring or "").partition("\n")
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument(
        "--results", type=Path, help="append every run to this file, as a line of JSON"
    )
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="print the table of such a file; run nothing"
    )
    return parser


def add_choice(parser: argparse.ArgumentParser, option: str, names: Sequence[str]) -> None:
    """Add an option that takes some of the names, separated by commas, and all of them by default."""

    def parse_names(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(unknown)}; choose from {', '.join(names)}"
            )
        return text.split(",")

    parser.add_argument(
        option, type=parse_names, default=list(names), metavar="NAME,...", help=", ".join(names)
    )


def parse_options(
    parser: argparse.ArgumentParser, required: str, meaning: str
) -> argparse.Namespace:
    """Parse the command line, with an option that is required unless `--render` is given.

    Exits with a message that explains the option by its `meaning` if it is missing.
    """
    options = parser.parse_args()
    if options.render is None and getattr(options, required) is None:
        parser.error(f"--{required} is missing: {meaning}")
    return options


def run_or_render(
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace], None],
    render: Callable[[Sequence[Row]], Iterable[str]],
) -> None:
    """Call `run`, or with `--render` print the paragraphs that `render` makes of recorded runs."""
    if options.render is None:
        run(options)
        return
    rows = read_runs(options.render)
    if not rows:
        sys.exit(f"{options.render} has no runs: record some with --results {options.render}")
    print(*render(rows), origin(rows), sep="\n\n")


def record(file: Path | None, row: Row) -> Row:
    """Print a run to stderr and append it to the file, if any; return it with its date and machine."""
    whole_row = {
        **row,
        "run": _SCRIPT_RUN,
        "machine": machine(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    if file is not None:
        with file.open("a", encoding="utf-8") as results:
            results.write(json.dumps(whole_row) + "\n")
    shown = []
    for name, value in row.items():
        # "said" is the output of a failed build: many lines, and in the file.
        if name != "said" and value not in (None, {}, ""):
            shown.append(f"{name}={value:.2f}" if isinstance(value, float) else f"{name}={value}")
    sys.stderr.write(" ".join(shown) + "\n")
    return whole_row


def read_runs(file: Path) -> Sequence[Row]:
    """Return the runs in a file, with rounds numbered through all runs of the script."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    round_numbers: dict[tuple[Any, Any], int] = {}
    for row in rows:
        if "run" in row and "round" in row:
            script_round = (row["run"], row["round"])
            row["round"] = round_numbers.setdefault(script_round, len(round_numbers))
    return rows


def grouped(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Return rows by the value of a key, or by the tuple of values of several, in the order of the rows."""
    groups: dict[Any, list[Row]] = {}
    value_of = itemgetter(*keys)
    for row in rows:
        groups.setdefault(value_of(row), []).append(row)
    return groups


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return median and range, such as "1.21 (1.18 to 1.30)", and "-" for no values."""
    if not values:
        return "-"
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def guard_interventions(rows: Iterable[Row]) -> str:
    """Return how many compilers the guard paused, reran, and reran because the kernel killed them: "3/1/0"."""
    counts = [row["counts"] for row in rows]
    sums = [sum(count.get(kind, 0) for count in counts) for kind in ("pause", "rerun", "kill")]
    return "/".join(map(str, sums))


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def origin(rows: Sequence[Row]) -> str:
    """Return a sentence on when and on which machines runs were made, and how busy others kept these."""
    machines = "; ".join(sorted({row["machine"] for row in rows}))
    dates = sorted({row["date"] for row in rows})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    busy = max(row.get("busy", 0.0) for row in rows)
    return (
        f"{len(rows)} runs, {days}; {machines}; "
        f"between runs others kept at most {busy:.0%} of it busy."
    )


def busy_share(seconds: float = 0.5) -> float:
    """Measure for some seconds the share of all processors that other programs keep busy (0 to 1)."""
    idle_before, total_before = _processor_ticks()
    time.sleep(seconds)
    idle_after, total_after = _processor_ticks()
    if total_after == total_before:
        return 0.0
    return round(1 - (idle_after - idle_before) / (total_after - total_before), 2)


def _processor_ticks() -> tuple[int, int]:
    """Return the idle ticks and all ticks of the processors since the start of the system, by proc(5)."""
    first_line, _, _ = Path("/proc/stat").read_text(encoding="ascii").partition("\n")
    ticks = [int(word) for word in first_line.split()[1:]]
    _user, _nice, _system, idle, waiting_for_disk = ticks[:5]
    # The columns after the eighth are those of guests, which the first two include.
    return idle + waiting_for_disk, sum(ticks[:8])
