"""A plan as text and as data for programs."""

import shlex
from collections.abc import Iterator
from typing import Any

from torchmill.cuda import means
from torchmill.model import Host, Plan


def as_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-ready data."""
    return {
        "identifier": plan.identifier,
        "package": plan.build.package,
        "tag": plan.release.tag,
        "commit": plan.commit,
        "version": plan.version,
        "environment": {"set": dict(plan.set), "unset": list(plan.unset)},
        "toolkit": plan.toolkit,
        "libraries": dict(plan.libraries),
        "requirements": list(plan.requirements),
        "kit": list(plan.kit),
        "patches": list(plan.patches),
        "commands": [list(command.argv) for command in (*plan.prepare, *plan.compile)],
        "jobs": plan.jobs,
        "wheel": plan.wheel,
        "platform": {"at_most" if plan.computed else "exactly": plan.platform_tag},
    }


def as_text(plan: Plan, host: Host) -> str:
    """Return the plan for a person to read."""
    lines = [
        f"{plan.identifier}: {plan.build.package} {plan.release.tag} ({plan.commit or 'commit unknown'})",
        f"on {host.system} {host.arch}, {_pace(plan, host)}",
        *_cuda(plan, host),
        "",
        "environment",
        *(f"  {name}={value}" for name, value in plan.set.items()),
        f"  unset: {' '.join(plan.unset)}",
        "",
        "requirements",
        *(f"  {requirement}" for requirement in plan.requirements),
        *(f"  {requirement}, for every Python" for requirement in plan.kit),
    ]
    if plan.reasons:
        lines += ["", "because", *(f"  {reason}" for reason in plan.reasons)]
    commands = (*plan.prepare, *plan.compile)
    lines += ["", "commands, in ${source}", *(f"  {shlex.join(command.argv)}" for command in commands)]
    older = ", with an older platform tag where its symbols allow that" if plan.computed else ""
    lines += ["", f"makes dist/{plan.wheel}{older}"]
    return "\n".join(lines)


def _cuda(plan: Plan, host: Host) -> Iterator[str]:
    """Yield the toolkit and the libraries that the suite keeps, and where they are."""
    if plan.toolkit is None:
        return
    instead = "" if plan.toolkit == plan.build.cuda else f" in place of {plan.build.cuda}"
    said = {"cuda_home": f"CUDA {plan.toolkit}{instead}"}
    said |= {f"{name}_home": f"{name} {version}" for name, version in plan.libraries.items()}
    there = means.places(plan, host)
    if plan.toolkit in host.completed and "cuda_home" in there:
        there["cuda_home"] += f" ({host.completed[plan.toolkit]})"
    for place, what in said.items():
        yield f"with {what} in {there[place]}" if place in there else f"with {what}, which is not there yet"


def _pace(plan: Plan, host: Host) -> str:
    """Return how many compilers run, and what the fixed number of them is for."""
    fixed = f"{plan.jobs} {'compiler' if plan.jobs == 1 else 'compilers'} at a time"
    if host.system == "windows":
        return fixed
    return f"each compiler when there is memory for it; {fixed} where no guard watches it, as in --sh"
