"""A plan as text and as JSON-ready data, for `invoke plan` and for dry runs."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torchmill.config.facts import Facts
from torchmill.core.console import fold_text
from torchmill.fetch.toolkit.request import ToolkitRequest, remedy
from torchmill.host.host import Host
from torchmill.host.provisioned import MAGMA, TOOLKIT
from torchmill.plan import cuda_toolkit, exposure
from torchmill.plan.cell import Cell
from torchmill.plan.plan import Plan
from torchmill.plan.providers import usable_sources


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-ready data."""
    shortfalls = [
        {"what": shortfall.part, "cost": shortfall.cost, "cure": shortfall.cure}
        for shortfall in plan.official.shortfalls
    ]
    published = plan.official.published
    commands = (*plan.tree.preparation, *plan.commands)
    bound = "at_most" if plan.wheel.tag_is_upper_bound else "exactly"
    # Programs rely on these keys, whatever the fields of a plan are called.
    return {
        "identifier": plan.identifier,
        "package": plan.build.package,
        "tag": plan.release.tag,
        "commit": plan.source.commit,
        "source": plan.source.title,
        "version": plan.wheel.version,
        "environment": {"set": dict(plan.variables), "passed": list(plan.shell_patterns)},
        "toolkit": plan.cuda.toolkit,
        "libraries": dict(plan.cuda.libraries),
        "torch": plan.wheel.torch,
        "requirements": list(plan.requirements),
        "kit": list(plan.tree.kit),
        "patches": list(plan.tree.patches),
        "lacks": shortfalls,
        "vulnerabilities": [vulnerability.as_data() for vulnerability in plan.vulnerabilities],
        "differs": {difference.part: difference.cost for difference in plan.official.differences},
        "published": published.as_data() if published else None,
        "commands": [list(command.argv) for command in commands],
        "jobs": plan.jobs,
        "wheel": plan.wheel.file_name,
        "platform": {bound: plan.wheel.platform_tag},
    }


def plan_summary(
    facts: Facts,
    plan: Plan,
    host: Host,
    cost: Mapping[str, str],
    *,
    tag: str,
    options: Sequence[str],
) -> str:
    """Return what matters most in a plan, in a few lines with a title each.

    `facts` say which providers have what is missing. `cost` has the lines on its cost, by their
    titles. `tag` selects the release, and `options` are the words of the plan's options. Both are
    repeated in the suggested commands, so that these give the same plan.
    """
    arguments = shlex.join([plan.identifier, f"--tag={tag}", *options])
    toolkit = f", CUDA {plan.cuda.toolkit}" if plan.cuda.toolkit else ""
    older = ", or an older platform tag" if plan.wheel.tag_is_upper_bound else ""
    published = plan.official.published
    # Rows without a text are left out.
    rows = {
        "builds": f"{plan.release}, Python {plan.build.python}{toolkit}, {plan.build.arch}",
        "source": "" if plan.source.commit else plan.source.title,
        "makes": f"dist/{plan.wheel.file_name}{older}",
        "for GPUs": plan.arch_list,
        **cost,
        "missing": _describe_missing(facts, plan, host, f"`invoke build {arguments}`"),
        "lacks": ", ".join(shortfall.part for shortfall in plan.official.shortfalls),
        "published": published.summary if published else "",
        "more": f"`invoke plan {arguments} --all`",
    }
    lines = [f"{title:11}{text}" for title, text in rows.items() if text]
    return fold_text("\n".join(lines))


def _describe_missing(facts: Facts, plan: Plan, host: Host, command: str) -> str:
    """Return the missing needs of a build and what brings them; "" if nothing is missing.

    `command` brings what providers have. The user installs what no provider has.
    """
    missing = _missing_needs(plan, host)
    if not missing:
        return ""
    names = ", ".join(missing)
    unavailable: list[str] = []
    way_out = ""  # of the first unavailable item: the toolkit, unless a provider has the toolkit
    cell = Cell(plan.build, plan.release)
    places = _cuda_places(plan, host)
    for (name, place), request in zip(places.items(), _cuda_requests(plan), strict=True):
        if place:
            continue
        usable, refusals = usable_sources(facts, request, host)
        if usable:
            continue
        unavailable.append(name)
        other_versions: set[str] = set()
        for refusal in refusals:
            other_versions.update(refusal.versions)
        # A newer toolkit does not help if the release does not build with it.
        replacements = cuda_toolkit.usable_toolkits(facts, cell, other_versions)
        way_out = way_out or remedy(request, replacements)
    if not unavailable:
        return f"{names}: {command} brings what is missing"
    machine = "this machine" if plan.build.arch == host.arch else plan.build.arch
    text = f"{names}: no provider has {', '.join(unavailable)} for {machine}: {way_out}"
    if len(unavailable) < len(missing):
        text += f"; then {command} brings the rest"
    return text


def _cuda_requests(plan: Plan) -> list[ToolkitRequest]:
    """Return the requests for the toolkit and libraries of a plan, in the order of `_cuda_places`.

    There is none for a build without CUDA.
    """
    toolkit = plan.cuda.toolkit
    if toolkit is None:
        return []
    arch = plan.build.arch
    requests = [ToolkitRequest(TOOLKIT, toolkit, None, arch)]
    for library, version in plan.cuda.libraries.items():
        # A MAGMA is for one toolkit, other libraries for all toolkits of a major version.
        cuda = toolkit if library == MAGMA else toolkit.partition(".")[0]
        requests.append(ToolkitRequest(library, version, cuda, arch))
    return requests


def _missing_needs(plan: Plan, host: Host) -> list[str]:
    """Return the needs of a build that a host does not meet, as far as it is known."""
    missing: list[str] = []
    # A host that is described in part may have a Python or a compiler that its description leaves
    # out. Toolkits and libraries are listed all the same: a plan's commands contain their places.
    if host.complete:
        if not host.interpreters.paths.get(plan.build.python):
            missing.append(f"Python {plan.build.python}")
        # A crossed build has no default compiler, because it names its own.
        if not host.compilers.default and not host.compilers.by_command:
            missing.append("a C++ compiler")
    for component, place in _cuda_places(plan, host).items():
        if not place:
            missing.append(component)
    return missing


def plan_as_text(plan: Plan, host: Host) -> str:
    """Return the whole plan for people."""
    commands = (*plan.tree.preparation, *plan.commands)
    lines = [
        *_heading(plan, host),
        "",
        "environment",
        *(f"  {name}={value}" for name, value in plan.variables.items()),
        f"  from your shell only: {' '.join(plan.shell_patterns)}",
        "",
        "requirements",
        *_requirement_lines(plan),
    ]
    if plan.official.shortfalls:
        lines += ["", "lacks, compared with the official wheel"]
        lines += [f"  {shortfall}" for shortfall in plan.official.shortfalls]
    vulnerabilities = [
        vulnerability
        for vulnerability in plan.vulnerabilities
        if vulnerability.state != "not affected"
    ]
    if vulnerabilities:
        lines += ["", "known vulnerabilities"]
        lines += [f"  {exposure.describe(vulnerability)}" for vulnerability in vulnerabilities]
    if plan.reasons:
        lines += ["", "because"]
        lines += [f"  {reason}" for reason in plan.reasons]
    lines += ["", "commands, in ${source}"]
    lines += [f"  {shlex.join(command.argv)}" for command in commands]
    older = ""
    if plan.wheel.tag_is_upper_bound:
        older = ", with an older platform tag where its symbols allow that"
    lines += ["", f"makes dist/{plan.wheel.file_name}{older}"]
    return "\n".join(lines)


def _heading(plan: Plan, host: Host) -> list[str]:
    """Return the first lines: the build, the host, the toolkit and libraries with their places.

    The last one is about the nearest published wheel, if there is any.
    """
    source = plan.source.commit or plan.source.title
    compilers = "compiler" if plan.jobs == 1 else "compilers"
    unguarded = f"{plan.jobs} {compilers} at a time"
    if host.system == "windows":
        jobs = unguarded
    else:
        jobs = (
            f"each compiler when there is memory for it; {unguarded} where no guard watches it, as "
            "in --sh"
        )
    lines = [
        f"{plan.identifier}: {plan.build.package} {plan.release.tag} ({source})",
        f"on {host.system} {host.arch}, {jobs}",
    ]
    for component, place in _cuda_places(plan, host).items():
        if place:
            lines.append(f"with {component} in {place}")
        else:
            lines.append(f"with {component}, which is missing")
    if plan.official.published:
        lines.append(str(plan.official.published))
    return lines


def _requirement_lines(plan: Plan) -> list[str]:
    """Return the lines on the packages that pip installs for the build, and how to fetch them."""
    local_torch = _local_torch(plan)
    lines: list[str] = []
    for requirement in plan.requirements:
        place = ", a wheel in dist/" if requirement == local_torch else ""
        lines.append(f"  {requirement}{place}")
    lines += [f"  {requirement}, for every Python" for requirement in plan.tree.kit]
    if plan.wheel.torch_folder:
        lines.append(f"  {plan.wheel.torch}, as it is installed in {plan.wheel.torch_folder}")
    lines.append(f"  to build offline, download them beforehand: {_download_command(plan)}")
    # An absolute path: pip is not always started in this folder.
    lines.append('  and build with PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/wheels"')
    return lines


def _local_torch(plan: Plan) -> str | None:
    """Return the requirement on a torch with a local version, such as "torch==1.8.0+cu102".

    PyPI does not have it, because it takes no local versions. pip finds its wheel in dist/. None if
    the build requires no such torch.
    https://packaging.python.org/en/latest/specifications/version-specifiers/
    """
    torch = plan.wheel.torch
    if torch and torch in plan.requirements and "+" in torch:
        return torch
    return None


def _download_command(plan: Plan) -> str:
    """Return the command that downloads everything that a build takes from an index.

    To verify the wheel, pip installs its requirements too. They are those of the official wheel, so
    the command names that wheel, unless it certainly does not fit.
    """
    local_torch = _local_torch(plan)
    requirements = [requirement for requirement in plan.requirements if requirement != local_torch]
    python = [f"python{plan.build.python}"]
    if plan.wheel.platform_tag.startswith("win"):
        # Python's installer for Windows makes no program of this name, but the launcher `py`.
        python = ["py", f"-{plan.build.python}"]
    command = [*python, "-m", "pip", "wheel", "-w", "wheels", *requirements, *plan.tree.kit]
    wheel = plan.official.published
    if wheel is None or wheel.verdict.is_ruled_out:
        return shlex.join(command)
    # The requirement is several arguments, if an index goes with it.
    return shlex.join([*command, *wheel.requirement.split()])


def _cuda_places(plan: Plan, host: Host) -> dict[str, str]:
    """Return the toolkit and libraries of a plan, and where a host has each; "" if it is missing.

    Behind the folder of a toolkit that was completed, its original and the added package stand in
    brackets: "(/opt/cuda, completed with PACKAGE 1.0)". {} for a build without CUDA.
    """
    toolkit = plan.cuda.toolkit
    if toolkit is None:
        return {}
    folders = cuda_toolkit.cuda_placeholders(plan, host)
    name = f"CUDA {toolkit}"
    if toolkit != plan.build.cuda:
        name += f" in place of {plan.build.cuda}"
    place = folders.get("cuda_home", "")
    if place and toolkit in host.toolkits.completed:
        place += f" ({host.toolkits.completed[toolkit]})"
    places = {name: place}
    for library, version in plan.cuda.libraries.items():
        places[f"{library} {version}"] = folders.get(f"{library}_home", "")
    return places
