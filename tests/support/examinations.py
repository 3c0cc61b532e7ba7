"""Machines examined for builds, as `invoke doctor SESSION` does it."""

from collections.abc import Iterable
from pathlib import Path

from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.options import parse_options

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
) -> tuple[Finding, ...]:
    """Return the findings of a build with some options on a machine."""
    release = find_release(facts, "torch", tag)
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release)
    options = parse_options(arguments, "test")
    plan = build_plan.compute_plan(facts, cell, host, options, source)
    return examination.examine_build(CheckContext(facts, cell, host, plan, source))


def finding_on(findings: Iterable[Finding], subject: str) -> Finding:
    """Return the only finding on a subject."""
    (finding,) = [finding for finding in findings if finding.subject == subject]
    return finding
