"""What git says while it works."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from torchmill.source.request import Bar

_LINE = re.compile(
    r"^(?:remote: )?(?P<phase>[A-Z][a-z]+(?: [a-z]+)*):\s+\d+% "
    r"\((?P<done>\d+)/(?P<total>\d+)\)(?:, (?P<rest>[^,]*\|[^,]*))?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """How far git is in one of its phases."""

    done: int
    total: int
    note: str  # "Receiving objects, 3.1 MiB | 2.0 MiB/s"


def parse(line: str) -> Step | None:
    """Return what a line of `git --progress` says, or None where it is no such line."""
    match = _LINE.match(line.strip())
    if match is None:
        return None
    rest = match["rest"]
    note = f"{match['phase']}, {rest.strip()}" if rest else match["phase"]
    return Step(int(match["done"]), int(match["total"]), note)


def showing(bar: Bar) -> Callable[[str], None]:
    """Return what moves the bar for each line of git."""

    def show(text: str) -> None:
        for line in text.split("\r"):
            step = parse(line)
            if step is not None:
                bar.update(step.done, step.total, step.note)

    return show
