"""Examine a machine for a build, before anything is built: pure, but for `survey`."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from torchmill import deps
from torchmill.doctor import compiler, cuda, driver, interpreter, parts, room, system, tools
from torchmill.doctor.finding import Finding, Question
from torchmill.errors import HostError
from torchmill.host import packages
from torchmill.host.parts import lacking
from torchmill.host.programs import runner
from torchmill.matrix import Cell
from torchmill.model import Facts, Host, Plan, Source

__all__ = ["Finding", "can_start", "examine", "survey"]

_CHECKS = (interpreter, compiler, tools, cuda, parts, driver, system, room)


def examine(
    facts: Facts, cell: Cell, host: Host, plan: Plan, source: Source | None = None
) -> tuple[Finding, ...]:
    """Return what a build of a cell finds on a host, in the order of a build."""
    question = Question(facts, cell, host, plan, source)
    return tuple(finding for check in _CHECKS for finding in check.check(question))


def can_start(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing stands in the way of a build."""
    return all(finding.verdict != "failure" for finding in findings)


def survey(facts: Facts, host: Host, environ: Mapping[str, str]) -> Host:
    """Return a measured host with what facts ask of it.

    That is the parts that its toolkits lack, and the system packages that any rule names, installed or not.
    """
    lacks = {
        version: [one.name for one in lacking(Path(home), version, facts.toolkit_parts)]
        for version, home in host.toolkits.items()
    }
    named = {version: ", ".join(names) for version, names in lacks.items() if names}
    host = replace(host, lacking=named) if named else host
    try:
        manager = deps.find_manager(environ, partial(shutil.which, path=environ.get("PATH")))
    except HostError:
        return host
    there = packages.installed(manager, environ, runner(environ))
    asked = {
        name
        for package in facts.packages.values()
        for rule in package.rules
        for name in rule.system_packages.get(manager, ())
    }
    return replace(host, manager=manager, packages={name: there.get(name, "") for name in sorted(asked)})
