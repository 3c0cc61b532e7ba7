"""The results of building a family: what the end of a command means, and the summary."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torchmill.plan.package_family import FamilyCell, State

# An error that torchmill or nox shows: "nox > Session … aborted: error[compile-failed]: …".
_ERROR = re.compile(r"(?:nox > )?(?:Session \S+ aborted: )?error\[(?P<code>[\w-]+)\]: (?P<text>.*)")
_LONGEST_ERROR = 400  # characters
# Errors that are about the package: the same command would fail again. All others, such as those
# of a network or a disk, say nothing about it.
_FINAL_CODES = frozenset(
    {
        "ambiguous-import-package",
        "check-script-stopped",
        "compile-failed",
        "damaged-library",
        "damaged-raw-wheel",
        "foreign-object",
        "impossible-build",
        "invalid-raw-wheel",
        "library-not-found",
        "not-one-wheel",
        "preparation-failed",
        "unexpected-wheel-name",
        "wheel-check-failed",
        "wheel-not-installable",
        "wrong-source-version",
    }
)


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The end of a command that was run for a cell."""

    exit_code: int
    lines: Sequence[str]  # of its output


@dataclass(frozen=True, slots=True)
class FirstError:
    """The first error that a command shows."""

    code: str  # "compile-failed"; "" if it shows none
    text: str

    def __str__(self) -> str:
        """Return the error as it is shown, "error[compile-failed]: …"."""
        return f"error[{self.code}]: {self.text}" if self.code else self.text


def first_error(lines: Iterable[str]) -> FirstError:
    """Return the first error among lines of output, or the last line that says anything."""
    last = "it printed nothing"
    for line in lines:
        match = _ERROR.match(line)
        if match:
            return FirstError(match["code"], match["text"][:_LONGEST_ERROR])
        last = line.strip() or last
    return FirstError("", last[:_LONGEST_ERROR])


def with_end(cell: FamilyCell, end: SessionEnd) -> FamilyCell:
    """Return a cell with its state after its `invoke build` has ended.

    It is "failed" if the first error is about the package, "unfinished" after any other.
    """
    if end.exit_code == 0:
        return replace(cell, state="built")
    error = first_error(end.lines)
    state: State = "failed" if error.code in _FINAL_CODES else "unfinished"
    return replace(cell, state=state, reason=str(error))


def count_states(cells: Iterable[FamilyCell]) -> str:
    """Return the number of cells in each state, "2 built, 1 failed"."""
    counts = Counter(cell.state for cell in cells)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def describe_cells(cells: Sequence[FamilyCell]) -> Iterator[str]:
    """Yield a line for each cell with its state, and in the end the number of cells in each."""
    width = max((len(cell.identifier) for cell in cells), default=0)
    for cell in cells:
        note = cell.reason or cell.wheel or cell.claim
        name = cell.release or cell.package
        yield f"  {cell.state:10} {cell.identifier:{width}}  {name}: {note}"
    yield count_states(cells)
