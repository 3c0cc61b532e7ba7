"""Before a build: refuse what cannot succeed on this machine, and note what may go wrong."""

import os
from collections.abc import Callable

from torchmill.build import disk_space
from torchmill.build.context import BuildContext
from torchmill.core.errors import HostError
from torchmill.plan.cuda_toolkit import describe_passed_over
from torchmill.plan.doctor import examination
from torchmill.toolchain import remote_cache


def preflight(context: BuildContext, note: Callable[[str], None]) -> None:
    """Refuse a build that cannot succeed on this machine; note what may go wrong with one that can.

    Raises HostError that lists everything missing, ConfigError where a shared cache is named wrongly.
    """
    remote_cache.parse_remote(os.environ.get(remote_cache.VARIABLE, ""))
    machine = examination.survey_host(context.facts, context.host, os.environ)
    machine = disk_space.with_disk_space(
        machine, context.facts, context.layout, context.folders, context.source
    )
    if sentence := describe_passed_over(os.environ, machine, context.plan.toolkit):
        note(sentence)
    findings = examination.examine_build(context.facts, context.cell, machine, context.plan, context.source)
    if not examination.can_start(findings):
        lines = "\n".join(f"  {one.sentence()}" for one in findings if one.verdict == "failure")
        raise HostError(
            f"{context.plan.identifier} cannot be built on this machine yet:\n{lines}", code="host-not-ready"
        )
    for one in findings:
        if one.verdict == "warning":
            note(one.sentence())
