"""What benchmarks measured: one JSON line for each run, so that nothing is lost, and tables made of them."""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_RUN = time.time_ns()  # several runs may be appended to one file, and each counts its rounds from 0


def machine() -> str:
    """Return the machine in a few words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{platform.machine()}, {os.cpu_count()} processors, {memory:.0f} GiB, {system}"


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of what every benchmark takes; `text` is the script's own, of which line 1 is shown."""
    made = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    made.add_argument(
        "--results", type=Path, help="append every run to this file, as a line of JSON"
    )
    made.add_argument(
        "--render", type=Path, metavar="FILE", help="print the table of such a file; run nothing"
    )
    made.add_argument(
        "--ninja", help="1.13 or newer; else one is found, or installed for the time being"
    )
    return made


def run_or_render(
    asked: argparse.Namespace,
    run: Callable[[argparse.Namespace], None],
    render: Callable[[Sequence[Row]], Iterable[str]],
) -> None:
    """Run a benchmark, or print what `render` makes of the runs in a file, and where they are from."""
    if asked.render is None:
        run(asked)
        return
    rows = read(asked.render)
    print(*render(rows), origin(rows), sep="\n\n")


def given(parser: argparse.ArgumentParser, option: str, what: str) -> argparse.Namespace:
    """Return what is asked for; wherever something is to be run, an option must be there: `what` it means."""
    asked = parser.parse_args()
    if asked.render is None and getattr(asked, option) is None:
        parser.error(f"--{option} is missing: {what}")
    return asked


def choice(parser: argparse.ArgumentParser, option: str, names: Sequence[str]) -> None:
    """Let an option take some of the names, separated by commas; all of them where it is not given."""

    def chosen(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(unknown)}; there are {', '.join(names)}"
            )
        return text.split(",")

    parser.add_argument(
        option, type=chosen, default=list(names), metavar="NAME,...", help=", ".join(names)
    )


def keep(file: Path | None, row: Row) -> Row:
    """Append a run to the file, if any, and say it on stderr; return it."""
    whole = {
        **row,
        "run": _RUN,
        "machine": machine(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    if file is not None:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(whole) + "\n")
    shown = " ".join(
        f"{name}={_short(value)}"
        for name, value in row.items()
        if value not in (None, {}, "") and name != "said"
    )
    sys.stderr.write(shown + "\n")
    return whole


def read(file: Path) -> Sequence[Row]:
    """Return the runs in a file; rounds are counted on from one run of the script to the next."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rounds: dict[tuple[Any, Any], int] = {}
    for row in rows:
        if "run" in row and "round" in row:
            row["round"] = rounds.setdefault((row["run"], row["round"]), len(rounds))
    return rows


def fields(*names: str) -> Callable[[Row], tuple[Any, ...]]:
    """Return what reads some fields of a row."""
    return lambda row: tuple(row[name] for name in names)


def grouped(rows: Iterable[Row], by: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Return rows by what they have in common, in the order of their first."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return groups


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return median and range: "1.21 (1.18 to 1.30)"."""
    if not values:
        return "-"
    least, most = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def interventions(rows: Iterable[Row]) -> str:
    """Return how often the guard paused and ran again, and how many kills of the kernel it made good."""
    counts = [row["counts"] for row in rows]
    return "/".join(
        str(sum(count.get(kind, 0) for count in counts)) for kind in ("pause", "rerun", "kill")
    )


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def origin(rows: Sequence[Row]) -> str:
    """Return the sentence that says where and when runs were made, and how busy the machine was besides."""
    machines = sorted({row["machine"] for row in rows})
    dates = sorted({row["date"] for row in rows})
    busy = max((row.get("busy", 0.0) for row in rows), default=0.0)
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = "; ".join(machines)
    return f"{len(rows)} runs, {days}; {where}; between runs others kept at most {busy:.0%} of it busy."


def busy(seconds: float = 0.5) -> float:
    """Measure the share of all processors that others keep busy."""
    before = _idle()
    time.sleep(seconds)
    after = _idle()
    passed = after[1] - before[1]
    return round(1 - (after[0] - before[0]) / passed, 2) if passed else 0.0


def _idle() -> tuple[int, int]:
    ticks = list(
        map(int, Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:])
    )
    return ticks[3] + ticks[4], sum(ticks[:8])


def _short(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else value
