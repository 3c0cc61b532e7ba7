"""Wrong clocks: sessions of the sample while the clock is set back, ahead, or runs too fast.

A *case* takes results of earlier sessions away, runs a session by a wrong clock, and runs it once more by the right
one. Both must end in the same wheel. The clock is libfaketime's, which also changes the speed of the monotonic clock.
The dates of files on the disk are shifted as well or, in every second case, stay right.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults.kills import SESSIONS, digest_delivered, make_upstream, set_back
from tests.faults.tally import RIGHT, Tally
from tests.support.sampled import Sample, fetched

LIBRARIES = ("faketime/libfaketimeMT.so.1", "faketime/libfaketime.so.1")
CLOCKS = {
    "a day behind": "-1d",
    "a day ahead": "+1d",
    "ten years behind": "-3650d",
    "ten years ahead": "+3650d",
    "before 1980": "@1979-06-01 00:00:00",  # the first date of a zip archive is in 1980
    "ten times too fast": "+0 x10",  # limits of minutes then end after seconds
}  # by what is wrong, in libfaketime's language
SETBACKS = ("nothing", "delivered", "packed", "tree")


def find_library() -> Path | None:
    """Return libfaketime, as Debian and Ubuntu install it; None if it is not installed."""
    for name in LIBRARIES:
        for path in Path("/usr/lib").glob(f"*/{name}"):
            return path
    return None


def attack_by_clocks(count: int, _: int) -> Iterator[Tally]:
    """Run `count` sessions by wrong clocks, each followed by the same one by the right clock."""
    tally = Tally("wrong clocks")
    library = find_library()
    if library is None:
        tally.add("libfaketime", "is not installed: `apt-get install faketime`")
        yield tally
        return
    session = SESSIONS[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sample = fetched(folder / "user", make_upstream(folder), folder / "envs")
        expected = _finish(sample, session, {})
        cases = [(clock, setback) for setback in SETBACKS for clock in CLOCKS]
        for number, (clock, setback) in enumerate(cases[:count]):
            if setback != "nothing":
                set_back(sample, session, setback)
            variables = {"LD_PRELOAD": str(library), "FAKETIME": CLOCKS[clock]}
            if number % 2:
                variables["NO_FAKE_STAT"] = "1"
            first = _finish(sample, session, variables)
            second = _finish(sample, session, {})
            outcome = RIGHT
            if first != expected:
                outcome = first
            elif second != expected:
                outcome = f"afterwards {second}"
            tally.add(f"{clock}, without {setback}", outcome)
    yield tally


def _finish(sample: Sample, session: str, variables: dict[str, str]) -> str:
    """Run a session to its end; return the digest of its wheel, or how it failed."""
    usual = dict(sample.env)
    sample.env.update(variables)
    try:
        run = sample.start("-s", session)
        output, _ = run.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        run.kill()
        return "no end after 600 s"
    finally:
        sample.env.clear()
        sample.env.update(usual)
    if run.returncode:
        return f"ended with {run.returncode}: {output[-600:]}"
    return digest_delivered(sample, session)
