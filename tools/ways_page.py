"""Which machine can be brought which toolkit, as a page: docs/reference/compatibility/ways.md."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tools import compatibility_page
from torchmill.commands.walk import walk_steps
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package
from torchmill.config.toolkit import Toolkit
from torchmill.fetch.source.request import source_requests
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import matrix
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.step_origins import Places, Session, WalkContext, source_origins
from torchmill.plan.walk import Answers, Origin, Step, Stop, chosen_origin, foresee

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

_BRINGS = ("invoke toolkit --cuda", "invoke toolkit --compiler", "invoke toolkit --complete")


def described_hosts() -> dict[str, Host]:
    """Return the machines of the table by their names."""
    return {path.stem: load_host(path) for path in sorted(HOSTS.glob("*.toml"))}


def newest_cell(facts: Facts, toolkit: Toolkit, host: Host) -> Cell | None:
    """Return the newest build of the base package with a toolkit on a host, with a Python of the host's if one fits."""
    for release in reversed(facts.releases[base_package(facts).name]):
        cells = [
            cell
            for cell in matrix.possible_cells(facts, release, host.arch)
            if cell.build.cuda == toolkit.version
        ]
        if cells:
            at_hand = [cell for cell in cells if cell.build.python in host.interpreters.paths]
            return (
                at_hand or [cell for cell in cells if not cell.build.python.endswith("t")] or cells
            )[-1]
    return None


def walk_cell(facts: Facts, cell: Cell, host: Host) -> tuple[tuple[Step, ...], tuple[Stop, ...]]:
    """Return the steps to a wheel on a host, of which no address is asked, and what stops them."""

    def examine(now: Host) -> Sequence[Finding]:
        return examination.examine_build(
            CheckContext(facts, cell, now, compute_plan(facts, cell, now, NO_OPTIONS))
        )

    plan = compute_plan(facts, cell, host, NO_OPTIONS)
    requests = source_requests(facts, [cell.release], ref="", mirror="", origin="")
    sources = {request.package.name: source_origins(request, Places()) for request in requests}
    around = WalkContext(facts, host.arch, host, replace(Places(), sources=sources))
    session = Session(f"nox -s {plan.identifier}", (str(cell.release),), plan.requirements, {})
    walk = walk_steps(around, foresee(examine, host), [session], Answers())
    return walk.steps, walk.stops


def ways_page(facts: Facts) -> str:
    """Return the page."""
    hosts = described_hosts()
    reasons: dict[str, int] = {}
    rows = []
    for toolkit in facts.toolkits:
        cells = {name: newest_cell(facts, toolkit, host) for name, host in hosts.items()}
        told = [_way(facts, toolkit, hosts[name], cell, reasons) for name, cell in cells.items()]
        rows.append([toolkit.version, *told])
    listed = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([compatibility_page.page(HEAD, ("CUDA", *hosts), rows), NOTE, *listed, ""])


def _way(
    facts: Facts, toolkit: Toolkit, host: Host, cell: Cell | None, reasons: dict[str, int]
) -> str:
    """Return a cell of the table: who brings the toolkit, or the number of the reason why there is no way."""
    if cell is None:
        on = f" on {host.arch}" if host.arch not in toolkit.arches else ""
        return _numbered(f"No release of torch builds with it{on}.", reasons)
    steps, stops = walk_cell(facts, cell, host)
    if stops:
        return _numbered(stop_reason(stops, host), reasons)
    chosen = {
        step.command: chosen_origin(step, {}) for step in steps if step.command.startswith(_BRINGS)
    }
    names = [_provider(origin) for origin in chosen.values() if origin is not None]
    return " + ".join(dict.fromkeys(names)) or "there"


def _numbered(reason: str, reasons: dict[str, int]) -> str:
    return f"no ({reasons.setdefault(reason, len(reasons) + 1)})"


def _provider(origin: Origin) -> str:
    return origin.provider.partition(",")[0].replace("the package index", "PyPI")


def stop_reason(stops: Sequence[Stop], host: Host) -> str:
    """Return why there is no way, without the versions that differ from toolkit to toolkit."""
    subjects = {(stop.step.purpose or stop.step.command).partition(":")[0]: stop for stop in stops}
    if "CUDA toolkit" in subjects:
        return _toolkit_reason(host)
    if "host compiler of nvcc" in subjects or "C++ compiler" in subjects:
        return "No compiler that its nvcc takes is known to be had for this machine."
    subject, stop = next(iter(subjects.items()))
    return f"{subject}: {stop.reason}."


def _toolkit_reason(host: Host) -> str:
    if host.platform.glibc is None:
        return "NVIDIA's programs need glibc, which this machine does not have."
    if host.platform.distribution is not None and host.platform.distribution.l4t:
        return "JetPack has another CUDA, and the packages for Arm servers are not for its boards."
    return "No provider that this machine can use has it."
