"""Estimates of builds on a small and a large machine."""

from collections.abc import Sequence
from dataclasses import replace

from tests.support.plans import GIB, options_of, plan_torch
from torchmill.config.costs import CostAssumptions, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan.estimate import Estimate, estimate_build
from torchmill.plan.plan import Plan

SMALL = Host(
    "x86_64", "linux", HostResources(cores=2, memory=24 * GIB), platform=HostPlatform(glibc="2.36")
)
LARGE = Host(
    "x86_64",
    "linux",
    HostResources(cores=64, memory=128 * GIB),
    platform=HostPlatform(glibc="2.36"),
)


def plan_with_options(
    shipped: Facts, identifier: str, tag: str, host: Host = SMALL, *words: str
) -> Plan:
    """Return the plan of a cell with options as users write them: "--arch-list=8.6"."""
    return plan_torch(shipped, identifier, tag, host, options=options_of(*words))


def require_estimate(
    facts: Facts,
    plan: Plan,
    own_runs: Sequence[MeasuredRun] = (),
    *,
    is_further_python: bool = False,
) -> Estimate:
    """Return the estimate of a plan, of which something must be known."""
    estimate = estimate_build(facts, plan, own_runs, is_further_python=is_further_python)
    assert estimate is not None
    return estimate


def require_assumptions(facts: Facts) -> CostAssumptions:
    """Return the assumptions of estimates, which the facts must have."""
    assert facts.costs.assumptions is not None
    return facts.costs.assumptions


def own_run(cpu_seconds: float, **changes: object) -> MeasuredRun:
    """Return a build of torch 1.13.1 without CUDA that this machine has made with two jobs."""
    run = MeasuredRun(
        "torch",
        "1.13.1",
        "",
        "this machine",
        "compile",
        "mine.whl",
        jobs=2,
        cpu_seconds=cpu_seconds,
        wall_seconds=cpu_seconds / 2,
    )
    return replace(run, **changes)  # type: ignore[arg-type]
