"""Exchange what compiles needed between machines: a file of JSON, one line for each unit.

The first line is `{"format": 1, "kind": "millguard costs"}`; each other one has the key of a unit,
its peak in bytes, its seconds, and the share of them after which it had half of its peak.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from millguard.atomic_files import replacing
from millguard.expectations import MeasuredNeed, NeedHistory
from millguard.strict_json import parse_object

FORMAT = 1
KIND = "millguard costs"
_MOST_BYTES = 2**50  # of one compile, and seconds of it: beyond that a file is damaged
_MOST_SECONDS = 10**7
_LONGEST_KEY = 10_000


class CostFileError(Exception):
    """A file of costs cannot be read or written; the message says why."""


def read_history(history: Path) -> list[tuple[str, MeasuredNeed]]:
    """Return the needs of all units that ran, by key. Raises CostFileError if there are none."""
    if not history.is_file():
        raise CostFileError("nothing was learned yet: run a build with `millguard -- COMMAND`")
    return sorted(NeedHistory(history).items())


def export_costs(history: Path, target: Path) -> int:
    """Write what was learned to a file; return the number of units. Raises CostFileError, OSError."""
    needs = read_history(history)
    lines = [json.dumps({"format": FORMAT, "kind": KIND})]
    for key, need in needs:
        values = {
            "key": key,
            "peak": need.peak,
            "seconds": round(need.seconds, 3),
            "half": need.half,
        }
        lines.append(json.dumps(values))
    with replacing(target) as fresh:
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(target)
    return len(needs)


def import_costs(source: Path, history: Path) -> int:
    """Add the costs in a file to what was learned; return their number.

    A unit that is known here already keeps the larger peak. Nothing is added if any line is wrong.
    Raises CostFileError, OSError.
    """
    needs = list(_parse_costs(source))
    known = NeedHistory(history)
    for key, need in needs:
        known.learn(key, need)
    problem = known.save()
    if problem is not None:
        raise CostFileError(f"{history} cannot be written: {problem}")
    return len(needs)


def printable(text: str) -> str:
    """Return a text without characters that steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _parse_costs(source: Path) -> Iterator[tuple[str, MeasuredNeed]]:
    lines = source.read_bytes().splitlines() or [b""]
    for number, line in enumerate(lines, start=1):
        try:
            values = parse_object(line)
            if number == 1:
                _check_head(values)
            else:
                yield _parse_cost(values)
        except (ValueError, KeyError, TypeError) as error:
            raise CostFileError(f"{source}: line {number}: {error}") from None


def _check_head(values: dict[str, object]) -> None:
    if values != {"format": FORMAT, "kind": KIND}:
        raise ValueError(f"it is not the first line of {KIND}, format {FORMAT}")


def _parse_cost(values: dict[str, object]) -> tuple[str, MeasuredNeed]:
    key, peak, seconds, half = (values[name] for name in ("key", "peak", "seconds", "half"))
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        raise ValueError("'key' is not the key of a unit")
    if type(peak) is not int or not 0 < peak < _MOST_BYTES:
        raise ValueError("'peak' is not a number of bytes")
    if not isinstance(seconds, int | float) or not 0 <= seconds < _MOST_SECONDS:
        raise ValueError("'seconds' is not a time")
    if not isinstance(half, int | float) or math.isnan(half) or not 0 <= half <= 1:
        raise ValueError("'half' is not a share")
    return key, MeasuredNeed(peak, float(seconds), float(half))
