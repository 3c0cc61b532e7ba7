"""`invoke build`: all that a wheel needs, from the sources to dist/, by the tasks and sessions that do each part."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torchmill.cell import disk_space
from torchmill.cell.context import has_finished_tree
from torchmill.commands import outlook
from torchmill.commands.command import CommandOutput
from torchmill.commands.doctor import cell_folders, examine_host, survey_machine
from torchmill.commands.terminal import FETCH, STOPPED, agree, bring_missing, run_step
from torchmill.commands.walk import (
    Walk,
    ask_machine,
    described_disks,
    own_places,
    plan_steps,
    session_needs,
    session_requirements,
    walk_steps,
    with_sources,
)
from torchmill.config import arch_list, selection
from torchmill.config.costs import CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import NamedGpu, find_gpus, gpu_names, gpus_of_host
from torchmill.config.release import Release
from torchmill.config.release_lookup import (
    base_package,
    base_release,
    newest_release,
    selecting_tag,
)
from torchmill.core.console import colour_words, fit_screen
from torchmill.core.errors import BuildError, ConfigError
from torchmill.core.exits import print_now
from torchmill.core.paths import Layout
from torchmill.core.urls import hide_password
from torchmill.deliver import products
from torchmill.fetch.source.request import DEBIAN, PYPI, SourceRequest, source_requests
from torchmill.fetch.source.source import Source
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.host.measurement import with_named_compiler
from torchmill.host.own_runs import read_own_runs
from torchmill.host.processor import resolve_processor
from torchmill.plan import cell_lookup, estimate_report, gpu_hosts, published, storage
from torchmill.plan.arch_choice import OFFICIAL, shortest_arch_list
from torchmill.plan.base_package import base_version
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import asks_for_usual_wheel, compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.cell_choice import BuildQuestion, choose_cells, is_pattern, named_cells
from torchmill.plan.doctor.cures import Cures, find_cures
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.doctor.judgement import Judgement
from torchmill.plan.doctor.source import SOURCE
from torchmill.plan.options import format_options
from torchmill.plan.plan import Plan
from torchmill.plan.published_wheel import PublishedWheel
from torchmill.plan.step_origins import Places, Session, WalkContext
from torchmill.plan.walk import Answers, Foresight, foresee


def build_wheels(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    cell: list[str] | None = None,
    tag: str = "",
    python: list[str] | None = None,
    cuda: list[str] | None = None,
    gpu: list[str] | None = None,
    yes: bool = False,
    elsewhere: bool = False,
    dry_run: bool = False,
    from_: str = "",
    mirror: str = "",
    ref: str = "",
    host: str = "",
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Build wheels from start to finish, with all that they need."""
    if cell and (python or cuda):
        raise ConfigError(
            "name cells, or give --python and --cuda, not both", code="two-ways-to-name"
        )
    if gpu and options.arch_list:
        raise ConfigError(
            "--gpu stands for an --arch-list: give only one of them", code="two-lists"
        )
    if host and not dry_run:
        raise ConfigError(
            "--host describes another machine, on which nothing can be run: add --dry-run",
            code="host-without-dry-run",
        )
    described = load_host(Path(host)) if host else None
    machine = described or survey_machine(facts, layout, () if gpu else cell or ())
    chosen = not (cell or cuda or options.arch_list)
    named_gpus = _named_gpus(facts, gpu or (), machine, chosen=chosen)
    if gpu:
        _require_machine_of(facts, named_gpus, machine, cell or ())
    gpus = [one.capability for one in named_gpus]
    release = selection.selected_release(facts, layout, tag)
    question = BuildQuestion(cell or (), python or (), cuda or (), gpus, options.torch is None)
    cells = _buildable_against(
        facts, question, choose_cells(facts, question, machine, release), options
    )
    if gpus:
        options = replace(
            options, arch_list=arch_list.format_arch_list(shortest_arch_list(facts, gpus))
        )
    releases = {cell.release.package: cell.release for cell in cells}
    requests = source_requests(facts, [*releases.values()], ref=ref, mirror=mirror, origin=from_)
    for request in requests:
        request.validate()
    source = [
        f"--{name}={value}"
        for name, value in (("from", from_), ("mirror", mirror), ("ref", ref))
        if value
    ]
    newest = _older_wheel(facts, gpus, machine, cells, release)
    native = cell_lookup.uncontained_arch(facts, cell or (), machine.arch)
    named = [
        each for one in cell or () for each in named_cells(facts, one, machine.arch, release)
    ] or cells
    judged = outlook.judged_host(facts, machine, gpus)
    wanted = WantedCells(cells, named, options, elsewhere)
    dialogue = Dialogue(
        facts, layout, machine, judged, native, wanted, source, requests, described is not None
    )
    return dialogue.go(newest, yes=yes, dry_run=dry_run)


def _buildable_against(
    facts: Facts, question: BuildQuestion, cells: Sequence[Cell], options: Options
) -> Sequence[Cell]:
    """Return the cells of a pattern that can be built against the torch that is given; say which are left out.

    Raises ConfigError as `base_version` does if none can, or if the cells were named one by one.
    """
    if options.torch is None or not any(is_pattern(name) for name in question.names):
        return cells
    fitting: list[Cell] = []
    reasons: list[ConfigError] = []
    for cell in cells:
        try:
            base_version(facts, cell, options)
            fitting.append(cell)
        except ConfigError as error:
            reasons.append(error)
    if not fitting:
        raise reasons[0]
    for line in dict.fromkeys(f"left out: {reason}" for reason in reasons):
        print_now(fit_screen(line))
    return fitting


def _older_wheel(
    facts: Facts,
    gpus: Sequence[Capability],
    host: Host,
    cells: Sequence[Cell],
    release: Release | None,
) -> str:
    """Return the newest official wheel for some GPUs, where it is of an older release than the one that was chosen."""
    if not gpus or release is not None:
        return ""
    where = published.with_gpus(host, [one.name for one in gpus])
    wheel = published.newest_published(facts, facts.releases[base_package(facts).name], where)
    own = (
        wheel is None
        or not wheel.would_do
        or wheel.version.partition("+")[0] in {one.release.version for one in cells}
    )
    return "" if own else f"of an older release, {wheel}"


def _require_machine_of(
    facts: Facts, gpus: Sequence[NamedGpu], host: Host, cells: Iterable[str]
) -> None:
    """Raise ConfigError for GPUs of boards that are in machines of another kind, unless cells are named for these."""
    board = gpu_hosts.find_board(facts, gpus)
    if (
        board is None
        or board.arch == host.arch
        or any(one.endswith(f"-{board.arch}") for one in cells)
    ):
        return
    capabilities = [one.capability for one in gpus]
    where = published.with_gpus(
        gpu_hosts.board_machine(board, host), [one.name for one in capabilities]
    )
    wheel = published.newest_published(facts, facts.releases[base_package(facts).name], where)
    there = [
        *([f"for such a machine, {wheel}"] if wheel else ()),
        *map(gpu_hosts.index_sentence, gpu_hosts.board_indexes(facts, capabilities)),
    ]
    said = "".join(f". {one[0].upper()}{one[1:]}" for one in there)
    raise ConfigError(
        f"--gpu {', '.join(one.gpu for one in gpus)}: {gpu_hosts.board_sentence(board, gpus[0])}, and this one is "
        f"{host.arch}: run this there, or name cells for it, such as wheel-3.12-cu130-{board.arch}{said}",
        code="gpu-of-a-board",
    )


def _named_gpus(facts: Facts, names: Sequence[str], host: Host, *, chosen: bool) -> list[NamedGpu]:
    """Return the GPUs that are named: "RTX 3090", "8.6", "Ampere", or "local" for those of this machine.

    Its own are meant too where the variant is `chosen` and none is named. Raises ConfigError.
    """
    found: list[NamedGpu] = []
    if chosen and not names and host.unknown_gpus_reason:
        print_now(
            f"cannot tell which GPUs are here ({host.unknown_gpus_reason}): name yours with --gpu, as in --gpu 8.6"
        )
    named = [one for text in names for one in gpu_names(text)]
    for name in named or (["local"] if chosen and host.gpus.devices else []):
        if name in cell_lookup.REFUSED_VARIANTS:
            raise ConfigError(
                f"--gpu {name}: {cell_lookup.REFUSED_VARIANTS[name]}", code="no-variant"
            )
        if name == "local":
            found += gpus_of_host(facts, host.gpus.devices, host.unknown_gpus_reason)
            continue
        targets, problems = arch_list.parse_arch_list(
            facts, name, newest_release(facts).torch_version
        )
        if arch_list.UNDOTTED.fullmatch(name) and problems:
            raise ConfigError(f"--gpu {name}: {problems[0]}", code="invalid-arch-list")
        known = [
            NamedGpu(one.name, one)
            for each in targets
            if (one := facts.capability(each.capability))
        ]
        strange = bool(problems) or len(known) < len(targets)
        found += find_gpus(facts, name) if strange else known
    return found


class WantedCells(NamedTuple):
    """What is asked for."""

    cells: Sequence[Cell]
    named: Sequence[Cell]  # of these, not what they are built against
    options: Options
    elsewhere: bool  # the wheels are for another machine


class Dialogue(NamedTuple):
    """What is said and asked on the way to some wheels."""

    facts: Facts
    layout: Layout
    host: Host  # before anything was brought
    judged: Host  # that the wheels are for (outlook.judged_host)
    native: str  # the arch that needs no container, "" for none (cell_lookup.uncontained_arch)
    wanted: WantedCells
    source: Sequence[str]  # what `invoke fetch` is told of it
    requests: Sequence[SourceRequest]
    described: bool  # the host is another machine

    def go(self, newest: str, *, yes: bool, dry_run: bool) -> CommandOutput:
        """Show what would be done, and do it if that is wanted; `newest` is an older release's official wheel.

        Raises StepError if the last step cannot be reached, before the first one runs; HostError if something is
        missing that the commands did not bring.
        """
        if not self._wanted_all_the_same(newest, yes=yes, dry_run=dry_run):
            return CommandOutput("nothing was done", exit_code=1)
        foresight = self.foresight()
        sessions = self.sessions(foresight)
        walk = self.walk(foresight, sessions)
        print_now(fit_screen(hide_password(self.list_steps(foresight, sessions, walk))))
        walk.require()
        if dry_run or not agree("Go on?", yes=yes):
            return CommandOutput("nothing was done", exit_code=int(not dry_run))
        ended = bring_missing(self.cures, all_of_it=True, yes=yes, agreed=foresight.commands)
        if ended is not None:
            return ended
        for line in self.session_lines(self.cures().commands):
            if run_step(line):
                return CommandOutput(STOPPED, exit_code=BuildError.exit_code)
        return CommandOutput("\n".join(self.results()))

    @property
    def cells(self) -> Sequence[Cell]:
        """Return the cells that are built, each after what it is built on."""
        return self.wanted.cells

    def identifiers(self) -> list[str]:
        """Return the names of the sessions."""
        return [cell.build.identifier(self.native) for cell in self.cells]

    def foresight(self) -> Foresight:
        """Return what has to be done before the sessions, also what becomes known only on the way."""
        seen = foresee(
            lambda host: [one for cell in self.cells for one in self._foreseen(cell, host)],
            self.host,
        )
        return replace(seen, commands=self._with_source(seen.commands))

    def _foreseen(self, cell: Cell, host: Host) -> list[Finding]:
        """Return the findings on a cell, first those that depend on where its source will come from."""
        request = next(one for one in self.requests if one.package.name == cell.build.package)
        if request.origin != DEBIAN:  # whose sources alone leave something out
            return [*self._findings(cell, host)]
        tree = self.layout.source(cell.build.package) / cell.release.tag / "tree"
        release = cell.release
        source = Source(
            release.package,
            release.version,
            release.tag,
            DEBIAN,
            DEBIAN,
            None,
            tree,
            verified=False,
        )
        of_source = [one for one in self._findings(cell, host, source) if one.subject != SOURCE]
        return [*of_source, *self._findings(cell, host)]

    def walk(self, foresight: Foresight, sessions: Sequence[Session]) -> Walk:
        """Return the walk to the wheels; a machine that is described is asked for nothing."""
        arch = self.cells[0].build.arch
        if self.described:
            places = with_sources(Places(), self.requests)
            around = WalkContext(self.facts, arch, self.host, places)
            return walk_steps(
                around, foresight, sessions, Answers(disks=described_disks(self.host))
            )
        places = own_places(self.facts, self.layout, self.requests, os.environ)
        around = WalkContext(self.facts, arch, self.host, places)
        answers = ask_machine(plan_steps(around, foresight, sessions), self.layout)
        return walk_steps(around, foresight, sessions, answers)

    def cures(self) -> Cures:
        """Return what the cells need on this machine."""
        host = survey_machine(self.facts, self.layout, self.identifiers())
        found = find_cures(one for cell in self.cells for one in self._findings(cell, host))
        return replace(found, commands=self._with_source(found.commands))

    def _with_source(self, commands: Mapping[str, Finding]) -> dict[str, Finding]:
        """Return commands of which those that fetch say from where."""
        return {
            shlex.join([*shlex.split(command), *self.source])
            if command.startswith(FETCH)
            else command: finding
            for command, finding in commands.items()
        }

    def _findings(
        self, cell: Cell, host: Host, foreseen: Source | None = None
    ) -> Sequence[Finding]:
        name, base = (
            cell.build.identifier(self.native),
            base_release(self.facts, cell.release),
        )
        layout = None if self.described else self.layout
        return examine_host(
            self.facts, layout, host, name, base, self._own(cell), foreseen
        ).findings

    def _own(self, cell: Cell) -> Options:
        """Return the options of a cell: variables and patches are for what was named, capabilities for CUDA alone.

        The GPUs of this machine are the default of a list, unless the wheels are for another machine.
        """
        wanted = self.wanted
        beside = any(one.build.cuda for one in self.cells) and not cell.build.cuda
        options = (
            wanted.options
            if cell in wanted.named
            else replace(wanted.options, settings={}, patches={})
        )
        if beside:
            return replace(options, arch_list=None)
        if (
            wanted.elsewhere
            and cell.build.cuda
            and self.host.gpus.devices
            and not options.arch_list
        ):
            return replace(options, arch_list=OFFICIAL)
        return outlook.options_here(self.facts, cell, self.host, options, self.native)

    def _wanted_all_the_same(self, newest: str, *, yes: bool, dry_run: bool) -> bool:
        """Show what is known beforehand; tell whether wheels are wanted although they are not needed, or useless."""
        published_instead = self._published()
        for line in dict.fromkeys([*(str(one) for one in published_instead if one), newest]):
            print_now(fit_screen(line), end="\n" if line else "")
        judged = self._outlook()
        if text := outlook.format_outlook(judged):
            print_now(colour_words(fit_screen(text)))
        if dry_run:
            return True
        if not outlook.agree_to_outlook(judged, elsewhere=self.wanted.elsewhere, yes=yes):
            return False
        would_do = all(wheel and wheel.would_do for wheel in published_instead)
        return not would_do or agree("Build anyway?", yes=yes, default=False)

    def _published(self) -> list[PublishedWheel | None]:
        """Return for each cell the official wheel that is nearest to it."""
        usual_words = {f"--from={DEBIAN}", f"--from={PYPI}"}
        own = any(one not in usual_words and not one.startswith("--mirror=") for one in self.source)
        if own or not asks_for_usual_wheel(replace(self.wanted.options, arch_list=None)):
            return [None for _ in self.cells]
        return [
            published.find_published(self.facts, cell, self.judged, self._own(cell).arch_list)
            for cell in self.cells
        ]

    def _outlook(self) -> dict[str, list[Judgement]]:
        """Return what is known beforehand of each cell, on the machine that the wheels are for."""
        judged = {}
        for cell, name in zip(self.cells, self.identifiers(), strict=True):
            host, options = self.judged, self._own(cell)
            if not self.described:
                host = with_named_compiler(host, options.settings, os.environ)
                processor = resolve_processor(
                    self.facts, cell.build.arch, host, options.cpu, options.settings
                )
                options = replace(options, processor=processor)
            judged[name] = outlook.judge_cell(self.facts, cell, host, options)
        return judged

    def list_steps(self, foresight: Foresight, sessions: Sequence[Session], walk: Walk) -> str:
        """Return the steps to come, with what each is for and where it takes what it needs from."""
        lines = ["to do, in this order:", *walk.list_commands(foresight)]
        if self.source and not any(one.startswith(FETCH) for one in foresight.commands):
            lines.append(
                f"  the sources already here are kept: {shlex.join(self.source)} is for `{FETCH}`"
            )
        for session in sessions:
            lines += [
                f"  {session.command}",
                *(f"      {line}" for line in (*session.lines, *walk.notes(session.command))),
            ]
        return "\n".join([*lines, *(f"  {line}" for line in walk.room())])

    def sessions(self, foresight: Foresight) -> list[Session]:
        """Return the sessions that build the cells, with what each takes."""
        runs = read_own_runs(self.facts, self.layout.dist)
        found, trees = [], set()
        for cell, command in zip(self.cells, self.session_lines(foresight.commands), strict=True):
            host = (
                self.host
                if self.described
                else with_named_compiler(self.host, self._own(cell).settings, os.environ)
            )
            own = self._own(cell)
            processor = resolve_processor(self.facts, cell.build.arch, host, own.cpu, own.settings)
            options = replace(own, processor=processor)
            plan = compute_plan(self.facts, cell, host, options)
            tree = cell.release.tag, cell.build.family("")
            shared = tree in trees and self.facts.packages[cell.build.package].after is None
            shared = shared or has_finished_tree(self.layout, self.facts, cell, self.native)
            trees.add(tree)
            takes = estimate_report.expected_duration(self.facts, plan, runs, further=shared)
            lines = [f"{cell.release}: {takes or 'nobody knows how long this takes'}"]
            there = self._there(cell)
            needs = session_needs(self._storage(plan, runs, shared=shared), there)
            found.append(Session(command, tuple(lines), session_requirements(plan, there), needs))
        return found

    def _storage(
        self, plan: Plan, runs: Sequence[MeasuredRun], *, shared: bool
    ) -> dict[str, CostRange]:
        """Return the bytes of a build by part; a shared tree is counted where it is made."""
        parts = storage.storage_needs(self.facts, plan, runs) or {}
        return {
            part: need for part, need in parts.items() if not (shared and part in {"tree", "kit"})
        }

    def _there(self, cell: Cell) -> dict[str, int]:
        """Return the bytes of a build that are there already, by part."""
        if self.described:
            return {}
        folders = cell_folders(self.layout, cell, self.host, in_container=False)
        spaces = disk_space.disk_spaces(folders, self.layout.cache, None)
        return {part: size for space in spaces for part, size in space.present.items()}

    def session_lines(self, commands: Iterable[str]) -> list[str]:
        """Return the commands that build the cells; one of another release than the selected one names that."""
        fetched = [
            command.split("--tag ")[1].split()[0]
            for command in commands
            if command.startswith(FETCH)
        ]
        selected = fetched[-1] if fetched else selection.selected_tag(self.layout)
        lines, host = (
            [],
            self.host
            if self.described
            else survey_machine(self.facts, self.layout, self.identifiers()),
        )
        for cell in self.cells:
            tag, own = (
                selecting_tag(self.facts, cell.release),
                find_cures(self._findings(cell, host)),
            )
            variables = {**({} if tag == selected else {"TORCHMILL_TAG": tag}), **own.variables}
            words = [*format_options(self._own(cell)), *own.options]
            session = [
                "nox",
                "-s",
                cell.build.identifier(self.native),
                *(["--", *words] if words else []),
            ]
            lines.append(
                shlex.join([*(f"{name}={value}" for name, value in variables.items()), *session])
            )
        return lines

    def results(self) -> Iterator[str]:
        """Yield where the wheels are, and what to do with them."""
        files: dict[str, list[str]] = {}
        for cell in self.cells:
            words, contained = format_options(self._own(cell)), cell.build.arch != self.native
            found = products.require_verified(
                self.layout.root, self.facts, cell, words, contained=contained
            )
            files.setdefault(cell.build.python, []).append(os.path.relpath(found.wheel))
            yield f"{found.wheel}"
        for python, wheels in files.items():
            yield f"install:  python{python} -m pip install {shlex.join(wheels)}"
        yield f"picture:  invoke report {shlex.quote(wheels[-1])}"
        yield "projects: invoke snippet --tool uv"
