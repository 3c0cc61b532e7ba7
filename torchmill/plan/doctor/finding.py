"""Findings of the doctor, the input of its checks, and the cures that bring CUDA.

A check compares one need of a build with a host. Its findings are the lines of the doctor's table:
the state of a subject, the need, a verdict, and a cure. A host is "complete" if it was measured:
things that its description does not name are then absent, otherwise only unknown.

A check yields "ok" for a need of every build of its kind (a compiler, room on the disk), so that
the table shows it as met. It yields nothing if the subject does not concern the build (cuDNN, for
a build without CUDA), or is an obstacle that most machines do not have (a limit on the processor
time of a process): a line that says "no limit" would only make the table longer.

A cure is the text that says how to mend a finding. It is a command if `cure_command.is_command`
says so: one of a few tasks of invoke, a package manager, uv, pip, pyenv or nox, several of them
joined by "&&", each with assignments before it if it needs them. `invoke doctor --fix` and `invoke
build` run these, for failures and warnings. A session of nox is not run: if it cures a failure,
`invoke build` builds with its options and variables. Every other cure is shown and not run: a
sentence, but also "export …" and "ulimit …", which change only the shell that the user types them
into.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.served_gpus import unserved_capabilities
from torchmill.config.toolkit import Toolkit, ToolkitPart, ToolkitSource
from torchmill.config.versions import cuda_label
from torchmill.fetch.source.source import Source
from torchmill.fetch.toolkit.request import ToolkitRequest, find_part_packages
from torchmill.host.cuda_toolkits import is_spread_in_system
from torchmill.host.host import Compiler, Host
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT
from torchmill.plan import cuda_libraries
from torchmill.plan.build_options import SWITCHED_OFF
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.plan import Plan
from torchmill.plan.providers import provider_obstacle, usable_sources
from torchmill.plan.rules import CellConstraints, Constraint

Verdict = Literal["ok", "warning", "failure", "unknown"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    subject: str
    state: str  # of the subject on this machine: "none", "gcc 11.3.0"
    needed: str
    verdict: Verdict
    cure: str = ""  # the best cure: a command, or else a sentence
    because: str = ""  # the reason for the verdict, as a sentence without its full stop
    runs_here: bool = True  # False: the wheel would run on no GPU of this machine
    other_cures: tuple[str, ...] = ()  # that this host can take as well, the better ones first

    def sentence(self) -> str:
        """Return the finding as one line of prose."""
        line = f"{self.subject}: {self.state}"
        if self.needed:
            line += f", needed {self.needed}"
        if self.because:
            line += f" ({self.because})"
        if self.cure:
            line += f": {self.cure}"
        return line

    def as_data(self) -> dict[str, object]:
        """Return the finding as JSON-ready data; the key of its state is "found"."""
        # Programs rely on the keys, whatever the fields of a finding are called.
        keys = {"state": "found"}
        return {keys.get(name, name): value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class CheckContext:
    """A build, and the machine that is to do it."""

    facts: Facts
    cell: Cell
    host: Host
    plan: Plan
    source: Source | None = None  # None: not fetched
    wheels: tuple[str, ...] | None = None  # names of the files in dist/; None: not looked at
    # Switches such as USE_MKLDNN that the source's build files name: at least those of the plan
    # that they have. None: not looked at.
    source_switches: frozenset[str] | None = None

    @property
    def build(self) -> Build:
        """Return the build of the cell."""
        return self.cell.build

    @property
    def package(self) -> Package:
        """Return the facts of the package."""
        return self.facts.packages[self.build.package]

    @property
    def toolkit(self) -> Toolkit | None:
        """Return the CUDA toolkit that compiles the wheel; None for a build without CUDA."""
        return self.facts.toolkit(self.plan.cuda.toolkit)

    @property
    def session(self) -> str:
        """Return the command that builds the wheel."""
        return f"nox -s {self.plan.identifier}"

    @property
    def compiler(self) -> Compiler | None:
        """Return the compiler of the build: the one that the plan names, or the host's own.

        None if the host is not known to have one.
        """
        return self.host.compilers.of_command(self.plan.variables.get("CXX", ""))

    @property
    def constraints(self) -> CellConstraints:
        """Return the demands of the rules on the cell, with the toolkit that compiles it."""
        provider = self.source.provider if self.source else None
        cell = cell_with_toolkit(self.cell, self.plan.cuda.toolkit)
        return CellConstraints(self.facts, cell, provider)

    def needs(self, name: str) -> Constraint:
        """Return the bounds of a tool or library, such as "cudnn", outside which the build fails."""
        return self.constraints.needs(name, self.compiler)

    def is_off(self, switch: str) -> bool:
        """Tell whether the plan turns a switch off."""
        return self.plan.variables.get(switch, "").upper() in SWITCHED_OFF

    def requirement(self, prefix: str) -> str | None:
        """Return the first Python requirement of the build whose project's name has a prefix.

        None if it has none.
        """
        for line in (*self.plan.tree.kit, *self.plan.requirements):
            if line.endswith(".whl"):
                continue  # the path of a wheel
            if canonicalize_name(Requirement(line).name).startswith(prefix):
                return line
        return None

    def library(self, name: str) -> str | None:
        """Return the version of the library that the build finds; None if it finds none.

        "" if the library does not tell its version. A library in a folder that a variable of the
        plan names goes first, then that of the toolkit, then that of the system.
        """
        # A host keys a library by its folder too: "cudnn@/opt/x" if CUDNN_ROOT is /opt/x.
        for value in self.plan.variables.values():
            place = f"{name}@{value}"
            if place in self.host.toolkits.libraries:
                return self.host.toolkits.libraries[place]
        return cuda_libraries.visible_version(self.host, name, self.plan.cuda.toolkit)


def absence_verdict(host: Host) -> Verdict:
    """Return the verdict on a need that a host's description does not name."""
    return "failure" if host.complete else "unknown"


def absence_text(host: Host) -> str:
    """Return the state of a need that a host's description does not name."""
    return "none" if host.complete else "not described"


def absence_finding(
    host: Host, subject: str, needed: str, cures: str | Sequence[str] = "", because: str = ""
) -> Finding:
    """Return the finding on a need that a host's description does not name.

    `because` is left out unless the host is known not to have it.
    """
    finding = Finding(
        subject,
        absence_text(host),
        needed,
        absence_verdict(host),
        because=because if host.complete else "",
    )
    return with_cures(finding, [cures] if isinstance(cures, str) else cures)


def with_cures(finding: Finding, cures: Iterable[str]) -> Finding:
    """Return a finding with its cures, commands before sentences; the first is the one shown.

    They take the place of those that it had. "" and repetitions are left out.
    """
    distinct = [cure for cure in dict.fromkeys(cures) if cure]
    ordered = sorted(distinct, key=is_command, reverse=True)  # stable: else in the given order
    if not ordered:
        return replace(finding, cure="", other_cures=())
    return replace(finding, cure=ordered[0], other_cures=tuple(ordered[1:]))


def toolkit_command(context: CheckContext, kind: str, version: str) -> str | None:
    """Return the command that brings a toolkit, a compiler ("gcc-11"), or a library.

    A library is for the toolkit of the build. None if no provider is known to have the item for
    the machine.
    """
    cuda: str | None = None
    if kind == TOOLKIT:
        option = f"--cuda {version}"
        if context.host.crosses:
            option += f" --arch {context.host.crosses}"
    elif kind == COMPILER:
        option = f"--compiler {version}"
    else:
        # Packages of libraries serve all toolkits of one major version.
        cuda = (context.plan.cuda.toolkit or "0").partition(".")[0]
        option = f"--library {kind}-cu{cuda}={version}"
    request = ToolkitRequest(kind, version, cuda, context.build.arch)
    usable, _ = usable_sources(context.facts, request, context.host)
    return f"invoke toolkit {option}" if usable else None


def _usable_by_host(context: CheckContext) -> Sequence[ToolkitSource]:
    """Return the sources of all toolkits, libraries and compilers that the host can use."""
    return [
        source
        for source in context.facts.toolkit_sources
        if not provider_obstacle(source, context.host)
    ]


def completion_command(context: CheckContext, version: str, parts: Sequence[ToolkitPart]) -> str:
    """Return how to bring the parts that an installed toolkit lacks: complete it, or get another.

    A toolkit can be completed if packages have every part without which a build stops, and if it
    has a folder of its own, not one among the files of the system.
    """
    folder = Path(context.host.toolkits.homes[version])
    packages, unavailable = find_part_packages(
        version, context.build.arch, parts, _usable_by_host(context)
    )
    stops = any(part.is_required for part in unavailable)
    if packages and not stops and not is_spread_in_system(folder):
        return f"invoke toolkit --complete {version}"
    another = toolkit_command(context, TOOLKIT, version)
    return another or f"install what is missing into {folder}"


def magma_command(context: CheckContext, official: str) -> str | None:
    """Return how to bring a MAGMA for the toolkit and the arch list of the build.

    That is a command, or if no source has code for the whole list, a sentence. `official` names the
    version of the official build. None for machines for which there is no MAGMA at all.
    """
    cuda = context.plan.cuda.toolkit
    if context.host.system != "linux" or cuda is None:
        return None
    listed = context.plan.arch_list
    for source in _usable_by_host(context):
        if (source.kind, source.cuda) != (MAGMA, cuda) or context.build.arch not in source.arches:
            continue
        code = ";".join(source.capabilities)
        if not unserved_capabilities(context.facts, code, listed):
            library = f"magma-{cuda_label(cuda)}"
            return f"invoke toolkit --library {library} --arch-list '{listed}'"
    return (
        f"{context.session} -- --set MAGMA_HOME=FOLDER, "
        f"where FOLDER has a {official} compiled for {listed}"
    )
