"""The fixes of `invoke doctor --fix`: the needs of all are checked before the first one runs."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torchmill.commands.command import CommandOutput
from torchmill.commands.terminal import agree, bring_missing
from torchmill.commands.walk import ask_machine, configured_servers, plan_steps, walk_steps
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.core.console import format_for_user
from torchmill.core.exits import print_now
from torchmill.core.paths import Layout
from torchmill.core.urls import hide_password
from torchmill.fetch.source.request import source_requests
from torchmill.host.host import Host
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.step_origins import WalkContext
from torchmill.plan.walk import foresee

Examine = Callable[[Host], Iterable[Finding]]


def run_fixes(
    context: WalkContext,
    layout: Layout,
    examine: Examine,
    measure: Callable[[], Host],
    *,
    yes: bool,
) -> CommandOutput | None:
    """List the fixes of a machine, and run them if the user agrees.

    `examine` returns the findings on a machine, and `measure` this machine as it is now. Returns
    None, or the output of a command that ends because a fix failed or the user said no. Raises
    StepError before the first fix runs if one of them cannot be done.
    """
    # A finding without a command stops nothing here: the doctor reports it afterwards.
    foresight = replace(foresee(examine, context.host), incurable=())
    if not foresight.commands:
        return None
    answers = ask_machine(plan_steps(context, foresight, ()), layout)
    walk = walk_steps(context, foresight, (), answers)
    lines = ["to do, in this order:", *walk.list_commands(foresight)]
    lines += [f"  {line}" for line in walk.room()]
    print_now(format_for_user(hide_password("\n".join(lines))))
    walk.require()
    if not agree("Go on?", yes=yes):
        return CommandOutput("nothing was done", exit_code=1)
    return bring_missing(
        lambda: find_cures(examine(measure())),
        require_all=False,
        yes=yes,
        agreed=foresight.commands,
    )


def local_walk_context(
    facts: Facts, layout: Layout, host: Host, arch: str, releases: Sequence[Release]
) -> WalkContext:
    """Return the context of a walk on this machine, to wheels of some releases for `arch`."""
    requests = source_requests(facts, releases, ref="", mirror="", origin="")
    return WalkContext(facts, arch, host, configured_servers(facts, layout, requests, os.environ))
