"""Machines examined for builds, as `invoke doctor SESSION` does it."""

from collections.abc import Iterable
from pathlib import Path

from tests.support.plans import options_of
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext, Finding

_HOSTS = Path(__file__).parents[1] / "golden" / "hosts"


def golden_host(name: str) -> Host:
    """Return a machine that is described in tests/golden/hosts."""
    return load_host(_HOSTS / f"{name}.toml")


def examine(
    facts: Facts,
    host: Host,
    identifier: str,
    tag: str,
    *arguments: str,
    source: Source | None = None,
    source_switches: frozenset[str] | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of a build with some options on a machine."""
    release = find_release(facts, "torch", tag)
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release)
    options = options_of(*arguments)
    plan = build_plan.compute_plan(facts, cell, host, options, source)
    context = CheckContext(facts, cell, host, plan, source, source_switches=source_switches)
    return examination.examine_build(context)


def finding_on(findings: Iterable[Finding], subject: str) -> Finding:
    """Return the only finding on a subject."""
    (finding,) = [finding for finding in findings if finding.subject == subject]
    return finding
