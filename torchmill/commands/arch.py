"""`invoke arch`: the compute capabilities of GPUs, and the GPUs that a list of them serves.

A *list* is the value of TORCH_CUDA_ARCH_LIST, such as "8.0;8.6+PTX": the compute capabilities for
which a wheel has code, and those for which it has PTX, from which the driver of a later GPU makes
its code.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torchmill.commands.command import CommandOutput
from torchmill.config import arch_list, selection
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Board, Capability
from torchmill.config.gpu_names import NamedGpu, find_gpus, gpus_of_host
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, find_release
from torchmill.config.served_gpus import serving_kind
from torchmill.config.toolkit import Toolkit
from torchmill.core.console import fold_text, format_table
from torchmill.core.paths import Layout
from torchmill.host.host import Host, HostResources
from torchmill.host.measurement import read_or_measure_host
from torchmill.plan import estimate_report, gpu_hosts, official_support, published
from torchmill.plan.arch_choice import check_arch_list, find_arch_problems, shortest_arch_list
from torchmill.plan.arch_toolkits import find_toolkit, format_toolkit_range, toolkits_with_target
from torchmill.plan.build_options import Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import can_build_with, possible_cells
from torchmill.plan.plan import Plan
from torchmill.plan.published_wheel import PublishedWheel
from torchmill.plan.trial import find_trial

_FEW_GPUS = 3  # that a summary names


@dataclass(frozen=True, slots=True)
class ArchQuestion:
    """A list of capabilities, or GPUs for which a list is to be made."""

    arch_list: str = ""
    gpu_names: Sequence[str] = ()
    # With a release, the GPUs of this machine are meant, too. The answer then has the time that a
    # build of this release saves with their list.
    local: Release | None = None
    cuda: str = ""  # the toolkit that must take the list, "11.8"; "" for any
    tag: str = ""  # of the release that must take the list; "" for any


def show_arch(
    facts: Facts,
    layout: Layout,
    *,
    list_: str | None = None,
    gpu: list[str] | None = None,
    local: bool = False,
    cuda: str = "",
    tag: str = "",
    host: str = "",
) -> CommandOutput:
    """Return which GPUs, toolkits and releases match compute capabilities.

    The arguments are the options of `invoke arch`: `list_` is a list of capabilities, `gpu` has the
    names of GPUs, `local` means those of this machine, or of the machine that the file `host`
    describes. Raises the errors of `answer_arch`, UnknownReleaseError for an unknown release, and
    ConfigError for a file that describes no machine.
    """
    release = selection.selected_or_newest(facts, layout, tag) if local else None
    machine = read_or_measure_host(host, layout.root)
    question = ArchQuestion(list_ or "", gpu or (), release, cuda, tag)
    return answer_arch(facts, machine, question)


def answer_arch(facts: Facts, host: Host, question: ArchQuestion) -> CommandOutput:
    """Return the facts about a list, or about GPUs and the list for them.

    If the question names neither, a summary of all capabilities that fit its toolkit and release.
    With both of these, the answer has the cost of a build with the list on `host`. Raises
    ConfigError for an unknown GPU and for a list that cannot be read, ImpossibleBuildError for a
    list that the toolkit or the release does not take.
    """
    base = base_package(facts).name
    toolkit = None
    if question.cuda:
        toolkit = find_toolkit(facts, "--cuda", question.cuda)
    release = None
    if question.tag:
        release = find_release(facts, base, question.tag)
    gpus = _named_gpus(facts, host, question)
    capabilities = {gpu.capability.name: gpu.capability for gpu in gpus}
    # A GPU may run the code of an older one, so that the shortest list may leave some out.
    shortest = arch_list.format_arch_list(shortest_arch_list(facts, capabilities.values()))
    if question.arch_list:
        text = question.arch_list
    elif question.local:
        text = shortest
    else:
        text = ";".join(capabilities)
    if not text:
        return _summarize_all(facts, toolkit, release)
    answer = ListAnswer(
        facts=facts,
        host=host,
        targets=check_arch_list(facts, text, toolkit, release, host.gpus.devices),
        gpus=gpus,
        shortest=shortest,
        toolkit=toolkit,
        release=release,
        is_local=question.local is not None,
        saving=_saving_lines(facts, question, host),
    )
    return answer.as_output()


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """The facts about one list of capabilities."""

    facts: Facts
    host: Host
    targets: Sequence[ArchTarget]  # the list
    gpus: Sequence[NamedGpu]  # that the question names, or has by `local`
    shortest: str  # the shortest list that serves these GPUs; "" without GPUs
    toolkit: Toolkit | None  # that takes the list
    release: Release | None  # that takes the list
    is_local: bool  # the GPUs of this machine are meant
    saving: Sequence[str]  # lines on the time that the list saves

    @property
    def capabilities(self) -> list[Capability]:
        """Return the capabilities on the list, in the order of the facts."""
        names = {target.capability for target in self.targets}
        return [
            capability for capability in self.facts.gpus.capabilities if capability.name in names
        ]

    @property
    def support(self) -> dict[str, str | None]:
        """Return by capability whether the list serves it by "code", by "PTX" or not (None)."""
        return {
            capability.name: serving_kind(self.facts, self.targets, capability)
            for capability in self.facts.gpus.capabilities
        }

    def as_output(self) -> CommandOutput:
        """Return the answer as text for people, and as data for --json."""
        # A list without GPUs is for any GPUs of its capabilities.
        shown_gpus = self.gpus or [
            NamedGpu(capability.name, capability) for capability in self.capabilities
        ]
        board = None if self.is_local else gpu_hosts.find_board(self.facts, shown_gpus)
        releases = self.facts.releases[base_package(self.facts).name]
        wheel = _official_wheel(
            self.facts,
            [self.release] if self.release else releases,
            shown_gpus,
            self.host,
            board,
            is_local=self.is_local,
        )
        plan = _plan_of_list(self.facts, self.targets, self.toolkit, self.release, self.host)
        text = "\n".join(self._lines(shown_gpus, board, wheel, plan))
        return CommandOutput(text, self._as_data(wheel, plan))

    def _lines(
        self,
        shown_gpus: Sequence[NamedGpu],
        board: Board | None,
        wheel: PublishedWheel | None,
        plan: Plan | None,
    ) -> Iterator[str]:
        """Yield the lines of the answer; `wheel` is the official one for some GPUs or a board."""
        for gpu in self.gpus:
            if gpu.name != gpu.capability.name:
                yield f"{gpu.name}: {gpu.capability.name}"
        if self.shortest not in {"", arch_list.format_arch_list(self.targets)}:
            yield f"{self.shortest} would do: its code runs on all of them"
        for capability in self.capabilities:
            yield _capability_as_text(self.facts, capability)
        yield from _describe_support(self.targets, self.support, self.gpus)
        yield from _describe_official(self.facts, wheel, shown_gpus, board)
        yield from self.saving
        yield from _warnings(self.facts, self.targets, self.toolkit, self.release)
        if plan:
            memory = self.host.resources.memory
            yield estimate_report.estimate_as_text(
                self.facts, plan, memory, gpus=self._requested_capabilities()
            )

    def _as_data(self, wheel: PublishedWheel | None, plan: Plan | None) -> dict[str, Any]:
        """Return the answer as JSON-ready data."""
        costs: dict[str, Any] = {"estimate": None, "overflow": None}
        if plan:
            costs = estimate_report.estimate_as_data(
                self.facts, plan, gpus=self._requested_capabilities()
            )
        return {
            "gpus": {gpu.name: gpu.capability.name for gpu in self.gpus},
            "capabilities": [
                capability_as_data(self.facts, capability) for capability in self.capabilities
            ],
            "list": arch_list.format_arch_list(self.targets),
            "published": wheel and wheel.as_data(),
            "saving": self.saving[0] if self.saving else None,
            "serves": self.support,
            **costs,
        }

    def _requested_capabilities(self) -> list[Capability]:
        """Return the capabilities of `gpus`, each once."""
        capabilities = {gpu.capability.name: gpu.capability for gpu in self.gpus}
        return list(capabilities.values())


def _named_gpus(facts: Facts, host: Host, question: ArchQuestion) -> list[NamedGpu]:
    """Return the GPUs that a question names, and those of this machine if it means them."""
    gpus: list[NamedGpu] = []
    for name in question.gpu_names:
        gpus += find_gpus(facts, name)
    if question.local:
        gpus += gpus_of_host(facts, host.gpus.devices, host.unknown_gpus_reason)
    return gpus


def _summarize_all(facts: Facts, toolkit: Toolkit | None, release: Release | None) -> CommandOutput:
    """Return a summary of all capabilities that fit a toolkit and a release."""
    rows = []
    data = []
    for capability in facts.gpus.capabilities:
        targets = [ArchTarget(capability.name)]
        if any(find_arch_problems(facts, targets, toolkit, release)):
            continue
        toolkits = toolkits_with_target(facts, capability.name)
        gpus = ", ".join(capability.gpus[:_FEW_GPUS])
        if len(capability.gpus) > _FEW_GPUS:
            gpus += ", …"
        cuda = format_toolkit_range(toolkits) if toolkits else "none"
        rows.append((capability.name, capability.architecture, cuda, gpus))
        data.append(capability_as_data(facts, capability))
    table = format_table(("capability", "architecture", "CUDA", "GPUs"), rows)
    return CommandOutput(table, {"capabilities": data})


def capability_as_data(facts: Facts, capability: Capability) -> dict[str, Any]:
    """Return the facts about a capability as JSON-ready data."""
    toolkits = toolkits_with_target(facts, capability.name)
    targets = [ArchTarget(capability.name)]
    drivers = {}
    for toolkit in toolkits:
        drivers[toolkit.version] = {
            "linux": toolkit.driver,
            "windows": toolkit.driver_windows,
            "linux_ptx": toolkit.driver_ptx,
        }
    return {
        "capability": capability.name,
        "architecture": capability.architecture,
        "gpus": list(capability.gpus),
        "toolkits": [toolkit.version for toolkit in toolkits],
        "deprecated": [
            toolkit.version for toolkit in toolkits if capability.name in toolkit.deprecated
        ],
        "targets": _targets(facts, capability),
        "drivers": drivers,
        "official": {
            arch: official_support.support_by_release(facts, capability, arch)
            for arch in official_support.OFFICIAL_ARCHES
        },
        "buildable": _newest_buildable(facts, toolkits, tried=False),
        "tried": _newest_buildable(facts, toolkits, tried=True),
        "runs": {
            other.name: serving_kind(facts, targets, other) for other in facts.gpus.capabilities
        },
    }


def _capability_as_text(facts: Facts, capability: Capability) -> str:
    """Return the facts about a capability as lines, folded for a terminal."""
    lines = [f"{capability.name}  {capability.architecture}"]
    for title, text in _capability_rows(facts, capability):
        lines.append(fold_text(f"  {title:<10}  {text}"))
    return "\n".join(lines)


def _capability_rows(facts: Facts, capability: Capability) -> Iterator[tuple[str, str]]:
    """Yield the facts about a capability, each with its title."""
    yield "GPUs", ", ".join(capability.gpus) or "none listed on NVIDIA's pages"
    toolkits = toolkits_with_target(facts, capability.name)
    if not toolkits:
        yield "toolkits", "none makes code for it"
        return
    text = f"CUDA {format_toolkit_range(toolkits)}"
    deprecating = [toolkit for toolkit in toolkits if capability.name in toolkit.deprecated]
    if deprecating:
        text += f" (deprecated in {format_toolkit_range(deprecating)})"
    yield "toolkits", text
    ranges = []
    for target in _targets(facts, capability):
        if target != capability.name:
            of_target = format_toolkit_range(toolkits_with_target(facts, target))
            ranges.append(f"{target}: CUDA {of_target}")
    if ranges:
        yield "targets", "; ".join(ranges)
    if capability.tegra:
        yield "driver", "comes with the board's JetPack"
    else:
        yield "driver", f"Linux {_driver_ranges(toolkits)}"
    yield "torch", _history(facts, capability, toolkits)
    targets = [ArchTarget(capability.name)]
    served = [
        other.name for other in facts.gpus.capabilities if serving_kind(facts, targets, other)
    ]
    yield "runs on", f"{', '.join(served)}; with +PTX on every later one too"


def _driver_ranges(toolkits: Sequence[Toolkit]) -> str:
    """Return the oldest driver for each range of toolkits: "450.80.02 with CUDA 11.0 to 11.8"."""
    ranges = []
    for driver, group in groupby(toolkits, key=lambda toolkit: toolkit.driver):
        cuda = format_toolkit_range(list(group))
        ranges.append(f"{driver or 'not known'} with CUDA {cuda}")
    return ", ".join(ranges)


def _targets(facts: Facts, capability: Capability) -> list[str]:
    """Return the names by which compilers make code for a capability: "9.0", "9.0a".

    Code with a letter runs on GPUs of this capability (a) or family (f) alone.
    """
    names: set[str] = set()
    for toolkit in facts.toolkits:
        names.update(toolkit.capabilities)
    return sorted(name for name in names if name.rstrip("af") == capability.name)


def _history(facts: Facts, capability: Capability, toolkits: Sequence[Toolkit]) -> str:
    """Return which official builds run on a capability, as ranges of versions.

    If the newest release is not among them, also the newest that can be built for it.
    """
    releases = facts.releases[base_package(facts).name]
    # Tegras are the processors of boards, which are all aarch64.
    arch = "aarch64" if capability.tegra else "x86_64"
    support = official_support.support_by_release(facts, capability, arch)
    text = f"official builds that run on it: {_stretches(releases, support) or 'none'}"
    on_arm = official_support.support_by_release(facts, capability, "aarch64")
    if on_arm and not capability.tegra:
        text += f"; for aarch64: {_stretches(releases, on_arm)}"
    if official_support.READ_CODE.fullmatch(support.get(releases[-1].version, "")):
        return text
    tried = _newest_buildable(facts, toolkits, tried=True)
    if tried:
        release, cuda = tried
        return f"{text}; build it yourself: torch up to {release} was built with CUDA {cuda}"
    untried = _newest_buildable(facts, toolkits, tried=False)
    if untried:
        release, cuda = untried
        return (
            f"{text}; build it yourself: torch up to {release} takes CUDA {cuda}, "
            "though nobody has tried it"
        )
    return f"{text}; no release builds with such a toolkit"


def _newest_buildable(
    facts: Facts, toolkits: Iterable[Toolkit], *, tried: bool
) -> tuple[str, str] | None:
    """Return the newest release that builds with one of some toolkits, and the newest such toolkit.

    With `tried`, only builds count that somebody is known to have made. None if there is none.
    """
    # Oldest first. As texts, "9.2" would count as newer than "12.4".
    order = [toolkit.version for toolkit in facts.toolkits]
    versions = {toolkit.version for toolkit in toolkits}
    for release in reversed(facts.releases[base_package(facts).name]):
        fitting_versions = []
        for arch in release.arches:
            for cell in possible_cells(facts, release, arch):
                cuda = cell.build.cuda
                if cuda in versions and (not tried or find_trial(facts, cell).witness):
                    fitting_versions.append(str(cuda))
        if fitting_versions:
            return release.version, max(fitting_versions, key=order.index)
    return None


def _stretches(releases: Sequence[Release], support: Mapping[str, str]) -> str:
    """Return ranges of releases: "1.0.0 to 1.3.1 (code for 3.5), 1.4.0 (code for 3.7)".

    `support` has, by version, how a release runs on a GPU; a release that does not is not in it.
    """
    texts = []
    for kind, group in groupby(releases, key=lambda release: support.get(release.version)):
        versions = [release.version for release in group]
        if kind:
            stretch = versions[0]
            if len(versions) > 1:
                stretch = f"{stretch} to {versions[-1]}"
            texts.append(f"{stretch} ({kind})")
    return ", ".join(texts)


def _describe_support(
    targets: Sequence[ArchTarget], support: Mapping[str, str | None], gpus: Iterable[NamedGpu]
) -> Iterator[str]:
    """Yield lines on a list: its text, how it serves each capability, GPUs that it does not serve.

    `support` has, by capability, whether the list serves it by "code", by "PTX" or not (None).
    """
    yield f"TORCH_CUDA_ARCH_LIST={arch_list.format_arch_list(targets)}"
    titles = {"code": "runs on", "PTX": "by PTX on", None: "not on"}
    for kind, title in titles.items():
        names = [name for name, served in support.items() if served == kind]
        if names:
            yield f"  {title:<10}  {', '.join(names)}"
    for gpu in gpus:
        if support[gpu.capability.name] is None:
            yield f"{gpu.name} ({gpu.capability.name}) can run nothing on this list"


def _describe_official(
    facts: Facts, wheel: PublishedWheel | None, gpus: Sequence[NamedGpu], board: Board | None
) -> list[str]:
    """Return which official wheel serves some GPUs, and facts about their board."""
    capabilities = {gpu.capability.name for gpu in gpus}
    subject = "all of these GPUs" if len(capabilities) > 1 else "this GPU"
    lines = []
    if board:
        lines.append(gpu_hosts.board_clause(board, gpus[0]))
    if wheel:
        lines.append(str(wheel))
    else:
        lines.append(f"no official wheel that was read fits {subject}")
    indexes = gpu_hosts.board_indexes(facts, [gpu.capability for gpu in gpus])
    lines += [gpu_hosts.index_clause(index) for index in indexes]
    return lines


def _official_wheel(
    facts: Facts,
    releases: Sequence[Release],
    gpus: Iterable[NamedGpu],
    host: Host,
    board: Board | None,
    *,
    is_local: bool,
) -> PublishedWheel | None:
    """Return the newest official wheel for some GPUs; None if no wheel that was read fits.

    The GPUs are in `host` (`is_local`), or on a board such as a Jetson: then the wheel must also run
    with the rest of that machine. Or they are in a Linux machine of which nothing else is known.
    """
    names = [gpu.capability.name for gpu in gpus]
    if is_local:
        machine = published.with_gpus(host, names)
        return published.newest_published(facts, releases, machine)
    if board and board.arch not in facts.arches:
        return None
    if board:
        machine = published.with_gpus(gpu_hosts.board_machine(board, host), names)
        return published.newest_published(facts, releases, machine)
    arch = host.arch if host.system == "linux" else official_support.OFFICIAL_ARCHES[0]
    resources = HostResources(host.resources.cores, host.resources.memory)
    machine = published.with_gpus(Host(arch, "linux", resources), names)
    return published.newest_for_gpus(facts, releases, machine)


def _saving_lines(facts: Facts, question: ArchQuestion, host: Host) -> list[str]:
    """Return how much sooner a build for this machine's GPUs ends than one with the official list.

    [] if the question does not mean them (`local`), or if no cell has such GPUs on its list. The
    cell is one of the question's release and toolkit, else of the newest release that has one.
    """
    if question.local is None:
        return []
    for candidate in (question.local, *reversed(facts.releases[question.local.package])):
        for cell in _preferred_cells(facts, candidate, host):
            if question.cuda in {"", cell.build.cuda, cell.build.variant}:
                saving = estimate_report.saving_for_gpus(facts, cell, host)
                if saving:
                    return saving
    return []


def _preferred_cells(facts: Facts, release: Release, host: Host) -> list[Cell]:
    """Return the possible cells of a release, the most usual first.

    Only those for an installed Python, if there are any; first those with an official toolkit, then
    those whose Python is not free-threaded ("3.13t"), the newest Python and toolkit first.
    """
    cells = list(possible_cells(facts, release, host.arch))
    installed = [cell for cell in cells if cell.build.python in host.interpreters.paths]

    def preference(cell: Cell) -> tuple[bool, bool]:
        has_official_toolkit = cell.build.cuda in release.cuda.official
        return has_official_toolkit, not cell.build.python.endswith("t")

    # Cells come in the order of Pythons and toolkits, the oldest first, and sorting keeps that.
    return sorted(installed or cells, key=preference)[::-1]


def _warnings(
    facts: Facts, targets: Sequence[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield warnings before a list is built with a toolkit."""
    if toolkit is None:
        return
    version = toolkit.version
    deprecated = [target.name for target in targets if target.name in toolkit.deprecated]
    if deprecated:
        names = ", ".join(deprecated)
        yield f"  CUDA {version} warns about {names}, which a later toolkit drops"
    if toolkit.driver_ptx and any(target.ptx for target in targets):
        yield (
            f"  PTX made by CUDA {version} is sure to run with Linux driver {toolkit.driver_ptx}"
        )
    if release and not can_build_with(facts, release, toolkit):
        yield f"  {release} does not build with CUDA {version}"


def _plan_of_list(
    facts: Facts,
    targets: Sequence[ArchTarget],
    toolkit: Toolkit | None,
    release: Release | None,
    host: Host,
) -> Plan | None:
    """Return the plan of a build with a list, for the newest Python.

    None without a toolkit or a release, and if the release does not build with the toolkit.
    """
    if toolkit is None or release is None:
        return None
    all_cells = possible_cells(facts, release, host.arch)
    cells = [cell for cell in all_cells if cell.build.cuda == toolkit.version]
    if not cells:
        return None
    options = Options(arch_list=arch_list.format_arch_list(targets))
    return compute_plan(facts, cells[-1], host, options)
