"""What a build will cost and whether its link will hold, for people and for programs."""

from dataclasses import asdict
from typing import Any

from torchmill import overflow
from torchmill.estimate import Estimate, of
from torchmill.model import Facts, Plan, Range, Run
from torchmill.overflow import Risk
from torchmill.quantity import format_bytes

MINUTE, HOUR = 60, 3600


def as_data(facts: Facts, plan: Plan, own: tuple[Run, ...] = ()) -> dict[str, Any]:
    """Return the estimate and the risk as JSON-ready data; null where nothing is known."""
    estimate, risk = of(facts, plan, own), _risk(facts, plan)
    return {"estimate": asdict(estimate) if estimate else None, "overflow": asdict(risk) if risk else None}


def as_text(facts: Facts, plan: Plan, memory: int, own: tuple[Run, ...] = ()) -> str:
    """Return the estimate and the risk for a person to read; `memory` is what the build may use, in bytes."""
    estimate, risk = of(facts, plan, own), _risk(facts, plan)
    lines = ["", "estimate", *(f"  {line}" for line in _estimate(estimate, memory))] if estimate else []
    if risk is not None and risk.level != "none":
        lines += ["", f"warning: {risk.sentence}:", '  "relocation truncated to fit" would end the build']
        lines += [f"  instead: {cure}" for cure in risk.cures]
    return "\n".join(lines)


def expected(facts: Facts, plan: Plan, own: tuple[Run, ...] = ()) -> str:
    """Return a sentence on how long carrying out a plan takes; "" where nothing is known."""
    estimate = of(facts, plan, own)
    if estimate is None:
        return ""
    wall = estimate.wall
    likely, low, high = map(duration, (wall.likely, wall.low, wall.high))
    return f"expected to take about {likely} ({low} to {high}), less for all that the compiler cache has"


def _risk(facts: Facts, plan: Plan) -> Risk | None:
    cuda = plan.toolkit
    return overflow.predict(facts, plan.release, cuda, plan.set) if cuda else None


def _estimate(estimate: Estimate, memory: int) -> list[str]:
    wall, cpu = estimate.wall, estimate.cpu.likely
    lines = [
        f"time: about {duration(wall.likely)} ({duration(wall.low)} to {duration(wall.high)})",
        f"  with an empty compiler cache; {duration(cpu)} of processor time",
        f"memory: {_range(estimate.memory)} by all compiles together",
        f"  {_range(estimate.compile)} by each of the largest",
        f"disk: {_range(estimate.tree)} for the tree, {_range(estimate.wheel)} for the wheel",
        f"judged by {estimate.confidence}: {estimate.basis}",
    ]
    if estimate.memory.high > memory:
        few = f"  at worst more than the {format_bytes(memory)} there is: the guard then lets fewer run"
        lines.insert(4, few)
    return lines


def duration(seconds: float) -> str:
    """Return seconds as people read them: "40 s", "12 min", "2.4 h"."""
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"


def _range(bounds: Range) -> str:
    return f"{format_bytes(bounds.low)} to {format_bytes(bounds.high)}"
