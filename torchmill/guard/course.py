"""What one gate's unit goes through, and what can be done to its processes."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field

from torchmill.guard.clients import Client
from torchmill.guard.expected import Expectations, again
from torchmill.guard.timeline import Ran
from torchmill.guard.units import Described
from torchmill.guard.view import Ticket, Unit
from torchmill.quantity import format_bytes

NOTED = 1.05  # of what it had when that was noted last


@dataclass(slots=True)
class Course:
    """The runs of one gate's unit; bytes, and seconds since the start of the build."""

    client: Client
    described: Described | None = None  # None until it asks
    group: int | None = None  # of the compiler's processes, while they are there
    peak: int = 0  # most that was seen in this run
    most: int = 0  # and in any
    allowed: int = 0  # most that all units together could have in this run
    begun: float = 0.0
    paused: float | None = None  # since when
    rested: float = 0.0  # seconds of this run in which it was paused before
    rises: list[tuple[float, int]] = field(default_factory=list)  # when it had run so long, it had so much
    ended: int = 0  # times that the guard ended it
    killed: int = 0  # times that the kernel did
    killed_alone: int = 0  # those of them when nothing else ran

    def expected(self, expectations: Expectations) -> Unit:
        """Return what is expected of its next run."""
        if self.described is None:
            raise ValueError("a gate that has not asked yet")
        unit = expectations.of(self.described)
        return again(unit, self.most) if self.most else unit

    def begin(self, now: float) -> None:
        """Let its compiler start."""
        self.peak, self.allowed = 0, 0
        self.begun, self.paused, self.rested = now, None, 0.0
        self.rises.clear()
        self.client.say("go")

    def ran(self, now: float) -> float:
        """Return the seconds of this run in which it was not paused."""
        return now - self.begun - self.rest(now)

    def rest(self, now: float) -> float:
        """Return the seconds of this run in which it was paused."""
        return self.rested + (0.0 if self.paused is None else now - self.paused)

    def half(self, now: float) -> float:
        """Return the share of its time in which it had less than half of its peak; 0.0 where nobody saw."""
        low = max((seconds for seconds, had in self.rises if 2 * had < self.peak), default=0.0)
        return low / self.ran(now) if low else 0.0

    def saw_now(self, now: float, has: int) -> None:
        """Remember what its processes have at a time."""
        if not self.rises or has > NOTED * self.rises[-1][1]:
            self.rises.append((self.ran(now), has))
        self.saw(has)

    def saw(self, peak: int) -> None:
        """Remember that its processes had so many bytes."""
        self.peak = max(self.peak, peak)
        self.most = max(self.most, peak)

    def pause(self, now: float) -> None:
        """Stop its processes where they are."""
        self.paused = now
        self.signal(signal.SIGSTOP)

    def resume(self, now: float) -> None:
        """Let them go on."""
        if self.paused is not None:
            self.rested += now - self.paused
        self.paused = None
        self.signal(signal.SIGCONT)

    def again(self) -> None:
        """End its processes now: its gate would too, but it may be late, and asks again in any case.

        They are asked: what they leave in a temporary folder may lie in memory. The gate kills who is deaf.
        """
        self.client.say("again")
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # one that is paused hears only now

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its processes, if there are any."""
        if self.group is not None:
            with contextlib.suppress(OSError):  # they have ended
                os.killpg(self.group, number)

    def record(self, ticket: Ticket, now: float, outcome: str) -> Ran:
        """Return the record of this run."""
        family = self.described.family if self.described else ""
        unit = ticket.unit
        return Ran(unit.key, family, ticket.since, now, self.peak, unit.peak, outcome, unit.measured)

    def figures(self, needed: str) -> str:
        """Return what it needed and what is allowed, in words."""
        return f"{needed} {format_bytes(self.peak)}, {format_bytes(self.allowed)} are allowed"
