"""Exchange the measured costs of units between machines: a file of JSON, one line for each unit.

A unit is one compile or link, and its key says which one (see `units`). The first line of the file
is `{"format": 2, "kind": "millguard costs"}`. Each other line has four values: `key`; `peak`, the
unit's memory in bytes; `seconds`, its time; and `curve`, the most memory that it had in each of 24
equal parts of that time, as shares of the peak, or `[1.0]` if that is not known.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from millguard.atomic_files import fresh_path
from millguard.expectations import MeasuredNeed, NeedHistory, read_curve
from millguard.strict_json import parse_object

FORMAT = 2
KIND = "millguard costs"
_MOST_BYTES = 2**50  # of one compile, and seconds of it: beyond that a file is damaged
_MOST_SECONDS = 10**7
_LONGEST_KEY = 10_000


class CostFileError(Exception):
    """A file of costs cannot be read or written; the message says why."""


def read_history(history: Path) -> list[tuple[str, MeasuredNeed]]:
    """Return the needs of all units that ran, by key. Raises CostFileError if there are none."""
    needs = []
    if history.is_file():  # otherwise NeedHistory would make an empty one
        needs = sorted(NeedHistory(history).items())
    if not needs:
        raise CostFileError("nothing was learned yet: run a build with `millguard -- COMMAND`")
    return needs


def export_costs(history: Path, target: Path) -> int:
    """Write the needs of all units to a file; return their number. Raises CostFileError, OSError."""
    needs = read_history(history)
    lines = [json.dumps({"format": FORMAT, "kind": KIND})]
    for key, need in needs:
        values = {
            "key": key,
            "peak": need.peak,
            "seconds": round(need.seconds, 3),
            "curve": [round(share, 3) for share in need.curve],
        }
        lines.append(json.dumps(values))
    with fresh_path(target) as fresh:
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(target)
    return len(needs)


def import_costs(source: Path, history: Path) -> int:
    """Add the costs in a file to the history; return their number.

    Each counts as one more run of its unit, so a larger peak in the history falls by a tenth at
    most. Nothing is added if any line is wrong. Raises CostFileError, OSError.
    """
    needs = list(_parse_costs(source))
    need_history = NeedHistory(history)
    for key, need in needs:
        need_history.learn(key, need)
    problem = need_history.save()
    if problem is not None:
        raise CostFileError(f"{history} cannot be written: {problem}")
    return len(needs)


def _parse_costs(source: Path) -> Iterator[tuple[str, MeasuredNeed]]:
    """Yield the key and the need in each line but the first. Raises CostFileError."""
    lines = source.read_bytes().splitlines() or [b""]
    for number, line in enumerate(lines, start=1):
        try:
            values = _parse_line(line)
            if number == 1:
                _check_head(values)
            else:
                yield _parse_cost(values)
        except KeyError as error:
            raise CostFileError(f"{source}: line {number}: it has no {error}") from None
        except ValueError as error:
            raise CostFileError(f"{source}: line {number}: {error}") from None


def _parse_line(line: bytes) -> dict[str, object]:
    """Return the JSON object in a line. Raises ValueError, in words for a user."""
    try:
        return parse_object(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("it is not JSON, as `millguard costs export` writes it") from None


def _check_head(values: dict[str, object]) -> None:
    if values != {"format": FORMAT, "kind": KIND}:
        raise ValueError(f"it is not the first line of {KIND}, format {FORMAT}")


def _parse_cost(values: dict[str, object]) -> tuple[str, MeasuredNeed]:
    """Return the key and the need in a line's values. Raises ValueError or KeyError."""
    key, peak, seconds, curve = (values[name] for name in ("key", "peak", "seconds", "curve"))
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        raise ValueError("'key' is not the key of a unit")
    key.encode()  # half of a surrogate pair, as in "\\ud800", is a ValueError here, not in SQLite
    if type(peak) is not int or not 0 < peak < _MOST_BYTES:
        raise ValueError("'peak' is not a number of bytes")
    if not isinstance(seconds, int | float) or not 0 <= seconds < _MOST_SECONDS:
        raise ValueError("'seconds' is not a time")
    if not isinstance(curve, list) or not all(isinstance(share, int | float) for share in curve):
        raise ValueError("'curve' is not a list of shares")
    return key, MeasuredNeed(peak, float(seconds), read_curve(curve))
