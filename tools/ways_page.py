"""Which machines can get which CUDA toolkits: docs/reference/compatibility/ways.md."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tools import compatibility_page
from torchmill.commands.walk import walk_steps
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package
from torchmill.config.toolkit import Toolkit
from torchmill.fetch.source.git_command import mirror_candidates
from torchmill.fetch.source.request import source_requests
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import matrix
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.step_origins import DownloadServers, Session, WalkContext, source_origins
from torchmill.plan.walk import Answers, Origin, Step, Stop, chosen_origin, foresee

Walked = tuple[tuple[Step, ...], tuple[Stop, ...]]  # the steps to a wheel, and what stops them
HEAD = """\
# Ways to a toolkit

See which machines `invoke build` can bring which CUDA toolkit, and why not the others. Each pair is walked to its
last step, for the newest release of torch that builds with the toolkit. A provider is named where the last step is
reached if the hosts answer; "there" means that nothing has to be brought. For all other pairs the refusal comes before
the first step; the number leads to its reason below.
"""
NOTE = """
The machines are described in `tools/hosts/`: what their installers leave, a C++ compiler and git, root by sudo.
`invoke build --dry-run --host FILE` walks the same way for another machine. The channels of conda, and Ubuntu's
archives, have not been tried.

"""
HOSTS = Path(__file__).with_name("hosts")
# Beginnings of the commands that install a toolkit or a compiler.
_INSTALLING = ("invoke toolkit --cuda", "invoke toolkit --compiler", "invoke toolkit --complete")


def described_hosts() -> dict[str, Host]:
    """Return the machines of the table by their names."""
    return {path.stem: load_host(path) for path in sorted(HOSTS.glob("*.toml"))}


def newest_cell(facts: Facts, toolkit: Toolkit, host: Host) -> Cell | None:
    """Return the newest build of the base package with a toolkit on a host, or None.

    Its Python is one that the host has if possible, else the newest that is not free-threaded.
    """
    for release in reversed(facts.releases[base_package(facts).name]):
        cells = [
            cell
            for cell in matrix.possible_cells(facts, release, host.arch)
            if cell.build.cuda == toolkit.version
        ]
        if not cells:
            continue
        installed = [cell for cell in cells if cell.build.python in host.interpreters.paths]
        usual = [cell for cell in cells if not cell.build.python.endswith("t")]
        return (installed or usual or cells)[-1]
    return None


def walk_cell(facts: Facts, cell: Cell, host: Host) -> Walked:
    """Return the steps to a wheel on a host, and what stops them; no address is probed."""

    def examine(host_now: Host) -> Sequence[Finding]:
        """Return the doctor's findings after some steps, which change the host."""
        plan_now = compute_plan(facts, cell, host_now, NO_OPTIONS)
        return examination.examine_build(CheckContext(facts, cell, host_now, plan_now))

    plan = compute_plan(facts, cell, host, NO_OPTIONS)
    requests = source_requests(facts, [cell.release], ref="", mirror="", origin="")
    sources = {}
    for request in requests:
        repositories: tuple[str, ...] = ()
        if request.origin is None:
            repositories = mirror_candidates(request.package.source.repository, request.mirror)
        sources[request.package.name] = source_origins(request, DownloadServers(), repositories)
    context = WalkContext(facts, host.arch, host, replace(DownloadServers(), sources=sources))
    session = Session(f"nox -s {plan.identifier}", (str(cell.release),), plan.requirements, {})
    walk = walk_steps(context, foresee(examine, host), [session], Answers())
    return walk.steps, walk.stops


def walk_every_pair(facts: Facts) -> dict[tuple[str, str], Walked]:
    """Return the steps and stops of every pair of a toolkit and a machine that some release has."""
    walks = {}
    for name, host in described_hosts().items():
        for toolkit in facts.toolkits:
            cell = newest_cell(facts, toolkit, host)
            if cell is not None:
                walks[toolkit.version, name] = walk_cell(facts, cell, host)
    return walks


def ways_page(facts: Facts, walks: Mapping[tuple[str, str], Walked]) -> str:
    """Return the page; `walks` are those of every pair."""
    hosts = described_hosts()
    reasons: dict[str, int] = {}  # reason -> its number
    rows = []
    for toolkit in facts.toolkits:
        row = [toolkit.version]
        for name, host in hosts.items():
            walked = walks.get((toolkit.version, name))
            row.append(_table_cell(toolkit, host, walked, reasons))
        rows.append(row)
    listed = [f"{number}. {reason}" for reason, number in reasons.items()]
    table = compatibility_page.page(HEAD, ("CUDA", *hosts), rows)
    return "\n".join([table, NOTE, *listed, ""])


def _table_cell(
    toolkit: Toolkit, host: Host, walked: Walked | None, reasons: dict[str, int]
) -> str:
    """Return the providers that install a toolkit, or the number of the reason why none can."""
    if walked is None:
        machine = "" if host.arch in toolkit.arches else f" on {host.arch}"
        return _numbered(f"No release of torch builds with it{machine}.", reasons)
    steps, stops = walked
    if stops:
        return _numbered(stop_reason(stops, host), reasons)
    providers = []
    for step in steps:
        if step.command.startswith(_INSTALLING):
            origin = chosen_origin(step, {})
            if origin is not None:
                providers.append(_provider(origin))
    return " + ".join(dict.fromkeys(providers)) or "there"


def _numbered(reason: str, reasons: dict[str, int]) -> str:
    """Return a refusal with the number of its reason, which is added if it is new."""
    number = reasons.setdefault(reason, len(reasons) + 1)
    return f"no ({number})"


def _provider(origin: Origin) -> str:
    """Return the short name of a provider: "conda", "PyPI"."""
    return origin.provider.partition(",")[0].replace("the package index", "PyPI")


def stop_reason(stops: Sequence[Stop], host: Host) -> str:
    """Return why there is no way, without the versions that differ from toolkit to toolkit."""
    by_subject = {}
    for stop in stops:
        subject = (stop.step.purpose or stop.step.command).partition(":")[0]
        by_subject[subject] = stop
    if "CUDA toolkit" in by_subject:
        return _toolkit_reason(host)
    if "host compiler of nvcc" in by_subject or "C++ compiler" in by_subject:
        return "No compiler that its nvcc takes is known to be had for this machine."
    subject, stop = next(iter(by_subject.items()))
    return f"{subject}: {stop.reason}."


def _toolkit_reason(host: Host) -> str:
    """Return why no provider has a CUDA toolkit for a host."""
    if host.platform.glibc is None:
        return "NVIDIA's programs need glibc, which this machine does not have."
    if host.platform.distribution is not None and host.platform.distribution.l4t:
        return "JetPack has another CUDA, and the packages for Arm servers are not for its boards."
    return "No provider that this machine can use has it."
