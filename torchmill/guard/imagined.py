"""An imagined machine, what is built on it, and what became of the build."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchmill.guard.curves import Curve, linear


@dataclass(frozen=True, slots=True)
class Machine:
    """An imagined machine; memory in bytes."""

    memory: int
    cores: int
    slots: int  # how many compilers the build tool starts at a time
    delay: float = 0.02  # seconds between looking at the memory and acting upon it
    spacing: float = 0.0  # seconds between two compilers that the build tool starts


@dataclass(frozen=True, slots=True)
class Job:
    """What a unit really does."""

    key: str
    peak: int
    seconds: float
    weight: float = 1.0
    curve: Curve = linear


@dataclass(slots=True)
class Outcome:
    """What became of a build."""

    seconds: float = 0.0
    kills: int = 0  # by the kernel
    pauses: int = 0
    reruns: int = 0
    lost: float = 0.0  # seconds of work thrown away
    busiest: int = 0  # most bytes in use


def lower_bound(jobs: Iterable[Job], machine: Machine) -> float:
    """Return the seconds below which no order of the units can come, if each holds its peak all the time."""
    jobs = tuple(jobs)
    work = sum(job.seconds * job.weight for job in jobs) / machine.cores
    memory = sum(job.peak * job.seconds for job in jobs) / machine.memory
    apart = sum(job.seconds for job in jobs if 2 * job.peak > machine.memory)  # no two at once
    return max(work, memory, apart, *(job.seconds for job in jobs))
