"""`nox -s speed-…`: time small programs with a verified wheel and with the published one, in turns."""

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
    choose_published,
    describe_ours,
    installed_wheel,
    read_own_facts,
)
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import format_table, show_progress
from torchmill.core.errors import ConfigError, DeliveryError, VerifyError
from torchmill.core.optional_libraries import require_library
from torchmill.core.process import capture
from torchmill.core.strict_json import parse_json
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.host import interpreters
from torchmill.wheel.verify import clean_environment

ROUNDS = 7  # in each of which both wheels run once, each time the other one first
CASE_SECONDS = 0.1  # that a case is repeated for in each round
SLOWER = 0.95  # a ratio below which a case is named
WALL, CPU = 0, 1  # of what a case takes

Times = Mapping[
    str, list[float] | str
]  # of one run: by case, wall and processor time, or why it does not run


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


def trial_of(found: VerifiedWheel) -> SpeedTrial:
    """Return what is timed with a wheel; raises ConfigError where the facts name nothing."""
    package = found.cell.build.package
    trial = read_own_facts(
        found, "speed", lambda file: file.read(SpeedTrial) if file.data else None
    )
    if trial is None or trial.package != package:
        raise ConfigError(
            f"build_configs/speed.toml has no cases for {package}: add some", code="no-speed-cases"
        )
    return trial


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """How many times as fast as the published wheel ours is in one case: the median of the rounds, and their range."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return "1.18 (1.12 to 1.25)"."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def compare_rounds(rounds: Sequence[Mapping[str, Times]], measure: int) -> dict[str, SpeedRatio]:
    """Return the ratios of the cases that ran on both wheels in every round; `measure` is WALL or CPU."""
    found = {}
    for case in rounds[0][OURS]:
        both = [(one[OURS].get(case), one[PUBLISHED].get(case)) for one in rounds]
        ratios = [
            theirs[measure] / ours[measure]
            for ours, theirs in both
            if isinstance(ours, list) and isinstance(theirs, list) and ours[measure] > 0
        ]
        if len(ratios) == len(rounds):
            found[case] = SpeedRatio(median(ratios), min(ratios), max(ratios))
    return found


def geometric_mean(ratios: Mapping[str, SpeedRatio]) -> float:
    """Return the geometric mean of the medians; not a number where there is none."""
    logarithms = [math.log(one.median) for one in ratios.values()]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def measure_wheel(found: VerifiedWheel, own: ProductOptions) -> str:
    """Time a wheel and the published one, write picture and figures, and return them as text.

    Raises ConfigError where the facts name nothing to time, DeliveryError where the published wheel cannot be had.
    """
    with require_library("matplotlib"):  # for the picture at the end, hours later
        from matplotlib.figure import Figure  # noqa: F401
    trial = trial_of(found)
    ours = describe_ours(found)
    theirs = choose_published(
        found.facts, found.cell, interpreters.installed_interpreters(), own.published
    )
    cores = limits.LimitMeter().cores().count
    found.layout.logs.mkdir(parents=True, exist_ok=True)
    stem = found.layout.logs / f"{found.cell.release.tag}-speed-{found.plan.identifier}"
    with (
        Path(f"{stem}.log").open("w", encoding="utf-8") as log,
        installed_wheel(ours, found, (), log) as one,
    ):
        try:
            with installed_wheel(theirs, found, (), log) as other:
                runs = _run_rounds({OURS: one, PUBLISHED: other}, trial, sorted({1, cores}), stem)
        except VerifyError as error:
            raise DeliveryError(
                f"{theirs.title} cannot be had, and two wheels are timed in turns or not at all ({error}): name "
                "a file to compare with, as in -- --published WHEEL",
                code="no-published-wheel",
            ) from None
    # one thread is busy for just as long as it computes, whatever else runs on the machine
    ratios = {
        threads: compare_rounds(rounds, CPU if threads == 1 else WALL)
        for threads, rounds in runs.items()
    }
    errors = {
        side: {one: why for one, why in times.items() if isinstance(why, str)}
        for side, times in runs[1][0].items()
    }
    lacking = {
        one if all(one in each for each in errors.values()) else f"{one}, {side} alone": why
        for side, those in errors.items()
        for one, why in those.items()
    }
    said = {
        formats.KEY: formats.PROOF,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ours": ours.title,
        "published": theirs.title,
        "unlike": theirs.unlike,
        "ratios": {
            str(threads): {case: asdict(one) for case, one in found.items()}
            for threads, found in ratios.items()
        },
        "lacking": lacking,
        "rounds": {str(threads): rounds for threads, rounds in runs.items()},
    }
    write_atomically(Path(f"{stem}.json"), json.dumps(said, indent=1) + "\n")
    write_picture(ratios, f"{ours.title}\nagainst {theirs.title}", Path(f"{stem}.png"))
    lines = describe(
        ratios,
        lacking,
        {n: geometric_mean(compare_rounds(rounds, CPU)) for n, rounds in runs.items()},
    )
    unlike = [f"against {theirs.title}{''.join(f'; {sentence}' for sentence in theirs.unlike)}"]
    return "\n".join(
        [
            f"{ours.title}, times as fast",
            *unlike,
            *lines,
            f"picture and figures: {stem}.png, {stem.name}.json",
        ]
    )


def _run_rounds(
    pythons: Mapping[str, Path], trial: SpeedTrial, threads: Sequence[int], stem: Path
) -> dict[int, list[dict[str, Times]]]:
    """Return what each round took with each number of threads, by side."""
    file = Path(f"{stem}-trial.json")
    said = {
        "setup": trial.setup,
        "cases": [asdict(case) for case in trial.cases],
        "seconds": CASE_SECONDS,
    }
    write_atomically(file, json.dumps(said))
    runs: dict[int, list[dict[str, Times]]] = {number: [] for number in threads}
    with show_progress() as display:
        bar = display.task("rounds", ROUNDS)
        for number in range(ROUNDS):
            sides = sorted(pythons, reverse=bool(number % 2))
            for count in threads:
                runs[count].append({side: _run(pythons[side], file, count) for side in sides})
            bar.update(number + 1)
        bar.close()
    return runs


def _run(python: Path, trial: Path, threads: int) -> Times:
    """Return what each case takes in a process of its own, with so many threads."""
    script = clean_environment.CHECK_SCRIPTS / "speed_trial.py"
    variables = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
    )
    said = capture(
        [str(python), str(script), str(trial)],
        cwd=trial.parent,
        env={**clean_environment.clean_variables(), **variables},
    )
    times: Times = parse_json(said.strip().splitlines()[-1])
    return times


def describe(
    ratios: Mapping[int, Mapping[str, SpeedRatio]],
    lacking: Mapping[str, str],
    by_cpu: Mapping[int, float],
) -> Iterator[str]:
    """Yield the table, the geometric means and the verdict."""
    cases = list(dict.fromkeys(case for found in ratios.values() for case in found))
    rows = [[case, *(str(found.get(case, "")) for found in ratios.values())] for case in cases]
    yield format_table(["", *(_threads(number) for number in ratios)], rows)
    for number, found in ratios.items():
        mean = f"{geometric_mean(found):.2f} ({by_cpu[number]:.2f} by processor time)"
        yield f"geometric mean, {_threads(number)}: {mean}"
        slower = [f"{case} {one}" for case, one in found.items() if one.median < SLOWER]
        yield f"slower, {_threads(number)}: {'; '.join(slower) or 'none'}"
    if lacking:
        yield f"does not run in this release: {'; '.join(f'{case} ({why})' for case, why in lacking.items())}"


def _threads(number: int) -> str:
    return "one thread" if number == 1 else f"{number} threads"


def write_picture(ratios: Mapping[int, Mapping[str, SpeedRatio]], title: str, path: Path) -> None:
    """Draw the ratios, a line for each case, as a PNG."""
    from matplotlib.figure import Figure  # takes long to load

    cases = list(dict.fromkeys(case for found in ratios.values() for case in found))[::-1]
    figure = Figure(figsize=(9, 1.6 + 0.24 * len(cases)), layout="constrained")
    axes: Any = figure.subplots()
    for index, (number, found) in enumerate(ratios.items()):
        drawn = [
            (place + 0.16 * (1 - 2 * index), found[case])
            for place, case in enumerate(cases)
            if case in found
        ]
        spread = [
            [one.median - one.low for _, one in drawn],
            [one.high - one.median for _, one in drawn],
        ]
        places, medians = [place for place, _ in drawn], [one.median for _, one in drawn]
        label = f"{_threads(number)}: {geometric_mean(found):.2f}"
        axes.errorbar(medians, places, xerr=spread, fmt="o", markersize=4, linewidth=1, label=label)
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
