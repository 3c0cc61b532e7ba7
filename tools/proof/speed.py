"""`nox -s speed-…`: time small programs with a verified wheel and with the published one, in turns.

The programs (cases) are those of build_configs/speed.toml. In each round both wheels run all of
them once, so that a slow round of the machine is slow for both. The ratio of a round says how many
times as fast our wheel is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from millguard import limits

from tools.proof.compared_wheels import (
    OURS,
    PUBLISHED,
    WheelComparison,
    begin_comparison,
    installed_wheel,
    read_session_facts,
)
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import format_table, show_progress
from torchmill.core.errors import ConfigError, DeliveryError, VerifyError
from torchmill.core.process import capture
from torchmill.core.strict_json import parse_json
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.wheel.verify import clean_environment

ROUNDS = 7
CASE_SECONDS = 0.1  # that a case is repeated for in each round
SLOWER = 0.95  # a ratio below which the report names a case
# Indexes of the two times of a case.
WALL = 0
CPU = 1
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# Of one run, by the name of the case: wall and processor seconds, or why the case does not run.
Times = Mapping[str, list[float] | str]
Round = Mapping[str, Times]  # by side, OURS and PUBLISHED


@dataclass(frozen=True, slots=True)
class SpeedCase:
    """A small program by whose time wheels of a package are compared."""

    name: str  # "matmul 512"
    run: str  # the line of Python that is timed
    setup: tuple[str, ...] = ()  # what stands before it


@dataclass(frozen=True, slots=True)
class SpeedTrial:
    """All programs by whose time wheels of a package are compared."""

    package: str
    setup: tuple[str, ...]  # of every case
    cases: tuple[SpeedCase, ...]
    source: str


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """How many times as fast as the published wheel ours is in one case, over all rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return "1.18 (1.12 to 1.25)"."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


Ratios = Mapping[str, SpeedRatio]  # by the names of cases


def measure_wheel(verified: VerifiedWheel, options: ProductOptions) -> str:
    """Time a wheel and the published one, write picture and figures, and return the report.

    Raises ConfigError if the facts name nothing to time, DeliveryError if the published wheel
    cannot be had.
    """
    trial = find_trial(verified)
    wheels = begin_comparison(verified, options, "speed")
    rounds_by_threads = _time_wheels(verified, wheels, trial)
    ratios = {}
    cpu_means = {}
    for threads, rounds in rounds_by_threads.items():
        # The processor time of a single thread does not depend on what else the machine does.
        ratios[threads] = compare_rounds(rounds, CPU if threads == 1 else WALL)
        cpu_means[threads] = geometric_mean(compare_rounds(rounds, CPU))
    lacking = find_lacking_cases(rounds_by_threads[1][0])
    ratios_as_data = {}
    for threads, ratios_of_cases in ratios.items():
        ratios_as_data[str(threads)] = {
            case: asdict(ratio) for case, ratio in ratios_of_cases.items()
        }
    ours = wheels.ours
    published = wheels.published
    figures = {
        formats.KEY: formats.PROOF,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ours": ours.title,
        "published": published.title,
        "unlike": published.differences,
        "ratios": ratios_as_data,
        "lacking": lacking,
        "rounds": {str(threads): rounds for threads, rounds in rounds_by_threads.items()},
    }
    picture = wheels.file(".png")
    record = wheels.file(".json")
    write_atomically(record, json.dumps(figures, indent=1) + "\n")
    write_picture(ratios, f"{ours.title}\nagainst {published.title}", picture)
    lines = [
        f"{ours.title}, times as fast",
        "; ".join([f"against {published.title}", *published.differences]),
        *describe(ratios, lacking, cpu_means),
        f"picture and figures: {picture}, {record.name}",
    ]
    return "\n".join(lines)


def find_trial(verified: VerifiedWheel) -> SpeedTrial:
    """Return the programs for a wheel. Raises ConfigError if the facts have none."""
    package = verified.cell.build.package
    trial = read_session_facts(
        verified, "speed", lambda file: file.read(SpeedTrial) if file.data else None
    )
    if trial is None or trial.package != package:
        raise ConfigError(
            f"build_configs/speed.toml has no cases for {package}: add some", code="no-speed-cases"
        )
    return trial


def _time_wheels(
    verified: VerifiedWheel, wheels: WheelComparison, trial: SpeedTrial
) -> dict[int, list[Round]]:
    """Return the rounds by the number of threads: with one, and with as many as there are cores."""
    threads = sorted({1, limits.LimitMeter().cores().count})
    with (
        wheels.file(".log").open("w", encoding="utf-8") as log,
        installed_wheel(wheels.ours, verified, (), log) as our_python,
    ):
        try:
            with installed_wheel(wheels.published, verified, (), log) as their_python:
                pythons = {OURS: our_python, PUBLISHED: their_python}
                return _run_rounds(pythons, trial, threads, wheels.file("-trial.json"))
        except VerifyError as error:
            raise DeliveryError(
                f"{wheels.published.title} cannot be had, and two wheels are timed in turns or not at all "
                f"({error}): name a file to compare with, as in -- --published WHEEL",
                code="no-published-wheel",
            ) from None


def _run_rounds(
    pythons: Mapping[str, Path], trial: SpeedTrial, threads: Sequence[int], file: Path
) -> dict[int, list[Round]]:
    """Return the rounds by the number of threads.

    `pythons` are the interpreters by side. They read the trial from `file`, which is written first.
    """
    cases = [asdict(case) for case in trial.cases]
    order = {"setup": trial.setup, "cases": cases, "seconds": CASE_SECONDS}
    write_atomically(file, json.dumps(order))
    rounds: dict[int, list[Round]] = {count: [] for count in threads}
    with show_progress() as display:
        bar = display.start_bar("rounds", ROUNDS)
        for number in range(ROUNDS):
            # The sides take turns in going first, so that neither profits from its place.
            sides = sorted(pythons, reverse=bool(number % 2))
            for count in threads:
                rounds[count].append({side: _run(pythons[side], file, count) for side in sides})
            bar.update(number + 1)
        bar.close()
    return rounds


def _run(python: Path, trial: Path, threads: int) -> Times:
    """Return the times of all cases in one process, with so many threads."""
    script = clean_environment.CHECK_SCRIPTS / "speed_trial.py"
    variables = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    output = capture(
        [str(python), str(script), str(trial)],
        cwd=trial.parent,
        env={**clean_environment.clean_variables(), **variables},
    )
    times: Times = parse_json(output.strip().splitlines()[-1])
    return times


def compare_rounds(rounds: Sequence[Round], measure: int) -> dict[str, SpeedRatio]:
    """Return the ratios of the cases that ran on both wheels in every round.

    `measure` is WALL or CPU.
    """
    ratios_by_case = {}
    for case in rounds[0][OURS]:
        ratios = []
        for times in rounds:
            ours = times[OURS].get(case)
            theirs = times[PUBLISHED].get(case)
            if isinstance(ours, list) and isinstance(theirs, list) and ours[measure] > 0:
                ratios.append(theirs[measure] / ours[measure])
        if len(ratios) == len(rounds):
            ratios_by_case[case] = SpeedRatio(median(ratios), min(ratios), max(ratios))
    return ratios_by_case


def geometric_mean(ratios: Ratios) -> float:
    """Return the geometric mean of the medians; not a number if there are none."""
    logarithms = [math.log(ratio.median) for ratio in ratios.values()]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def find_lacking_cases(first_round: Round) -> dict[str, str]:
    """Return the cases that do not run, with the error; one that fails on a single side names it."""
    errors: dict[str, dict[str, str]] = {}  # side -> case -> error
    for side, times in first_round.items():
        errors[side] = {case: error for case, error in times.items() if isinstance(error, str)}
    lacking = {}
    for side, errors_of_side in errors.items():
        for case, error in errors_of_side.items():
            fails_on_both = all(case in errors_of_other for errors_of_other in errors.values())
            lacking[case if fails_on_both else f"{case}, {side} alone"] = error
    return lacking


def describe(
    ratios: Mapping[int, Ratios],
    lacking: Mapping[str, str],
    cpu_means: Mapping[int, float],
) -> Iterator[str]:
    """Yield the parts of the report: the table, the geometric means and the verdict.

    `ratios` and `cpu_means`, the geometric means by processor time, are by the number of threads.
    """
    rows = []
    for case in _list_cases(ratios):
        cells = [str(ratios_of_cases.get(case, "")) for ratios_of_cases in ratios.values()]
        rows.append([case, *cells])
    yield format_table(["", *(_threads(number) for number in ratios)], rows)
    for number, ratios_of_cases in ratios.items():
        mean = geometric_mean(ratios_of_cases)
        by_cpu = f"{cpu_means[number]:.2f} by processor time"
        yield f"geometric mean, {_threads(number)}: {mean:.2f} ({by_cpu})"
        slower = []
        for case, ratio in ratios_of_cases.items():
            if ratio.median < SLOWER:
                slower.append(f"{case} {ratio}")
        yield f"slower, {_threads(number)}: {'; '.join(slower) or 'none'}"
    if lacking:
        cases = "; ".join(f"{case} ({error})" for case, error in lacking.items())
        yield f"does not run in this release: {cases}"


def _list_cases(ratios: Mapping[int, Ratios]) -> list[str]:
    """Return the cases that have a ratio for any number of threads, in their order."""
    cases: dict[str, None] = {}  # an ordered set
    for ratios_of_cases in ratios.values():
        cases |= dict.fromkeys(ratios_of_cases)
    return list(cases)


def _threads(number: int) -> str:
    return "one thread" if number == 1 else f"{number} threads"


def write_picture(ratios: Mapping[int, Ratios], title: str, path: Path) -> None:
    """Draw the ratios, a line for each case, as a PNG; `ratios` are by the number of threads."""
    from matplotlib.figure import Figure  # takes long to load

    # matplotlib counts from below.
    cases = list(reversed(_list_cases(ratios)))
    figure = Figure(figsize=(9, 1.6 + 0.24 * len(cases)), layout="constrained")
    axes: Any = figure.subplots()
    for index, (number, ratios_of_cases) in enumerate(ratios.items()):
        # The points for one thread lie a little above the line of their case, the others below.
        shift = 0.16 * (1 - 2 * index)
        heights = []
        medians = []
        below = []
        above = []
        for line, case in enumerate(cases):
            ratio = ratios_of_cases.get(case)
            if ratio is not None:
                heights.append(line + shift)
                medians.append(ratio.median)
                below.append(ratio.median - ratio.low)
                above.append(ratio.high - ratio.median)
        label = f"{_threads(number)}: {geometric_mean(ratios_of_cases):.2f}"
        axes.errorbar(
            medians, heights, xerr=[below, above], fmt="o", markersize=4, linewidth=1, label=label
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(
        xscale="log", xlabel="times as fast as the published wheel (median and range of the rounds)"
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.margins(y=0.01)
    axes.set_yticks(range(len(cases)), cases, fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(axis="x", which="both", color="#e3e6ea")
    axes.legend(loc="lower right", fontsize=8)
    with report_unwritable(path):
        figure.savefig(path, format="png", dpi=140)
