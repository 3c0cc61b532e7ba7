"""`invoke build`: all that a wheel needs, from the sources to dist/.

It runs the tasks and sessions that a person would run: cures of the machine (`invoke fetch`,
`invoke toolkit`, packages of the system), then `nox -s` for each cell. All of these steps are shown
before the first one runs.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.cell import disk_space
from torchmill.cell.context import has_finished_tree
from torchmill.commands import outlook
from torchmill.commands.add.offer import offer_drafts
from torchmill.commands.build_question import (
    buildable_against,
    choose_machine_of,
    find_named_gpus,
    name_cells_of_packages,
    other_wheel_for,
    why_without_cuda,
)
from torchmill.commands.build_request import BuildRequest
from torchmill.commands.command import CommandOutput
from torchmill.commands.machine_report import cell_folders, examine_host, survey_machine
from torchmill.commands.terminal import FETCH, STOPPED, agree, bring_missing, run_step
from torchmill.commands.walk import (
    Walk,
    ask_machine,
    configured_servers,
    described_disks,
    plan_steps,
    session_bytes,
    session_requirements,
    walk_steps,
    with_sources,
)
from torchmill.config import arch_list, selection
from torchmill.config.costs import CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import (
    base_package,
    base_release,
    selecting_tag,
)
from torchmill.core.console import colour_words, format_for_user
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
from torchmill.plan import cell_lookup, estimate_report, published, storage
from torchmill.plan.arch_choice import OFFICIAL, shortest_arch_list
from torchmill.plan.build_options import Options
from torchmill.plan.build_plan import asks_for_usual_wheel, compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.cell_choice import BuildQuestion, choose_cells, named_cells
from torchmill.plan.doctor.cures import Cures, find_cures
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.doctor.judgement import Judgement
from torchmill.plan.doctor.source import SOURCE
from torchmill.plan.options import format_options
from torchmill.plan.package_request import named_packages
from torchmill.plan.plan import Plan
from torchmill.plan.published_wheel import PublishedWheel
from torchmill.plan.step_origins import DownloadServers, Session, WalkContext
from torchmill.plan.walk import Answers, Foresight, foresee
from torchmill.wheel import dist_files


def build_wheels(
    facts: Facts,
    layout: Layout,
    request: BuildRequest,
    *,
    host: str = "",
) -> CommandOutput:
    """Build the wheels of cells that are named, or chosen by Pythons, toolkits and GPUs.

    The steps are shown first; with `dry_run`, none is taken. `host` is the file of a described
    machine, on which nothing can be run. Raises ConfigError for options that do not go together, as
    for a `host` without `dry_run`, and what `Dialogue.run` raises.
    """
    names = request.names
    options = request.options
    asks = not (request.yes or request.dry_run)
    facts = offer_drafts(facts, layout, names, request.tag, options, asks=asks)
    packages = named_packages(facts, names)
    cell_names = [name for name in names if name not in packages]
    _refuse_contradictions(request, cell_names, host)
    if host:
        machine = load_host(Path(host))
    else:
        machine = survey_machine(facts, layout, () if request.gpus else cell_names)
    # If nothing says what the wheels are for, they are for the GPUs of this machine. The name of
    # torch says nothing about that; extensions alone are for what their torch is for.
    names_no_variant = not names or base_package(facts) in packages.values()
    variant_is_open = names_no_variant and not (cell_names or request.variants or options.arch_list)
    named_gpus = find_named_gpus(facts, request.gpus, machine, use_local=variant_is_open)
    arch = choose_machine_of(
        facts, named_gpus if request.gpus else (), machine, cell_names, packages.values()
    )
    capabilities = [named_gpu.capability for named_gpu in named_gpus]

    selected = selection.selected_release(facts, layout, request.tag)
    question = BuildQuestion(
        names=names,
        pythons=request.pythons,
        variants=request.variants,
        gpus=capabilities,
        with_base=options.torch is None,
    )
    asked = name_cells_of_packages(
        facts,
        question,
        packages,
        host=machine,
        options=options,
        selected=selected,
        has_tag=bool(request.tag),
        described=bool(host),
        arch=arch,
    )
    question = asked.question
    options = asked.options
    selected = asked.release
    chosen_cells = choose_cells(facts, question, machine, selected)
    cells = buildable_against(facts, question, chosen_cells, options)
    if variant_is_open and not capabilities:
        sentence = why_without_cuda(machine, cells, described=bool(host))
        if sentence:
            print_now(format_for_user(sentence))
    if capabilities:
        shortest = arch_list.format_arch_list(shortest_arch_list(facts, capabilities))
        options = replace(options, arch_list=shortest)
    by_name: list[Cell] = []
    for name in question.names:
        by_name += named_cells(facts, name, machine.arch, selected)

    # One request for each package: all its releases come from the same servers.
    releases = {chosen.release.package: chosen.release for chosen in cells}
    wishes = request.source
    requests = source_requests(
        facts, list(releases.values()), ref=wishes.ref, mirror=wishes.mirror, origin=wishes.origin
    )
    for source_request in requests:
        source_request.validate()

    dialogue = Dialogue(
        facts=facts,
        layout=layout,
        host=machine,
        target=outlook.target_machine(facts, machine, capabilities),
        native=cell_lookup.uncontained_arch(facts, question.names, machine.arch),
        requested=RequestedCells(cells, by_name or cells, options, request.elsewhere),
        source_options=wishes.words,
        requests=requests,
        described=bool(host),
    )
    other_wheel = other_wheel_for(facts, capabilities, machine, cells, selected)
    return dialogue.run(other_wheel, yes=request.yes, dry_run=request.dry_run)


def _refuse_contradictions(request: BuildRequest, cell_names: Sequence[str], host: str) -> None:
    """Raise ConfigError for options that do not go together."""
    if cell_names and (request.pythons or request.variants):
        raise ConfigError(
            "name cells, or give --python and --cuda, not both", code="two-ways-to-name"
        )
    if request.gpus and request.options.arch_list:
        raise ConfigError(
            "--gpu stands for an --arch-list: give only one of them", code="two-lists"
        )
    if host and not request.dry_run:
        raise ConfigError(
            "--host describes another machine, on which nothing can be run: add --dry-run",
            code="host-without-dry-run",
        )


@dataclass(frozen=True, slots=True)
class RequestedCells:
    """The cells to build, and the options of their builds."""

    cells: Sequence[Cell]  # in the order of their builds
    # Those of `cells` that the user meant; the others are built because these are built against
    # them.
    by_name: Sequence[Cell]
    options: Options
    elsewhere: bool  # the wheels are for another machine


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One run of `invoke build`: it shows the steps to some wheels, asks, and takes them."""

    facts: Facts
    layout: Layout
    host: Host  # the machine that builds, before the first step
    target: Host  # the machine that the wheels are for (outlook.target_machine)
    native: str  # the arch that needs no container, "" for none (cell_lookup.uncontained_arch)
    requested: RequestedCells
    source_options: Sequence[str]  # of `invoke fetch`, such as "--from=debian"
    requests: Sequence[SourceRequest]
    described: bool  # the host is another machine: nothing is measured or run

    def run(self, other_wheel: str, *, yes: bool, dry_run: bool) -> CommandOutput:
        """Show the steps, and take them if the user agrees.

        `other_wheel` is a sentence on the official wheel of another release that would do, or "".
        Raises StepError before the first step runs if one of them cannot be done; HostError if a
        failure is left after the cures.
        """
        if not self._is_worth_building(other_wheel, yes=yes, dry_run=dry_run):
            return CommandOutput("nothing was done", exit_code=1)
        foresight = self._foresee()
        sessions = self._sessions(foresight)
        walk = self._walk(foresight, sessions)
        print_now(format_for_user(hide_password(self._list_steps(foresight, sessions, walk))))
        walk.require()
        if dry_run:
            return CommandOutput("nothing was done")
        if not agree("Go on?", yes=yes):
            return CommandOutput("nothing was done", exit_code=1)
        failure = bring_missing(self._cures, require_all=True, yes=yes, agreed=foresight.commands)
        if failure is not None:
            return failure
        for command in self._session_commands(self._cures().commands):
            if run_step(command):
                return CommandOutput(STOPPED, exit_code=BuildError.exit_code)
        return CommandOutput("\n".join(self._results()))

    def _is_worth_building(self, other_wheel: str, *, yes: bool, dry_run: bool) -> bool:
        """Show the outlook; tell whether to build, if the wheels would not run here, or exist.

        Asks the user in these two cases, unless nothing will be built (`dry_run`).
        """
        official = self._official_wheels()
        sentences = [str(wheel) for wheel in official if wheel]
        for sentence in dict.fromkeys([*sentences, other_wheel]):
            if sentence:
                print_now(format_for_user(sentence))
        judgements = self._outlook()
        text = outlook.format_outlook(judgements)
        if text:
            print_now(colour_words(format_for_user(text)))
        if dry_run:
            return True
        elsewhere = self.requested.elsewhere
        if not outlook.agree_to_outlook(judgements, elsewhere=elsewhere, yes=yes):
            return False
        all_fit = all(wheel and (wheel.is_known_to_fit or wheel.is_offered) for wheel in official)
        return not all_fit or agree("Build anyway?", yes=yes, default=False)

    def _official_wheels(self) -> list[PublishedWheel | None]:
        """Return for each cell the official wheel that is nearest to it.

        None for a cell without one, and for each cell if the user wants something that no official
        wheel can be: another source, or options that change the wheel.
        """
        # From these come the sources of the release; a mirror has the same sources.
        usual_sources = {f"--from={DEBIAN}", f"--from={PYPI}"}
        has_own_source = False
        for word in self.source_options:
            if word not in usual_sources and not word.startswith("--mirror="):
                has_own_source = True
        options = replace(self.requested.options, arch_list=None)
        folder = options.torch_folder
        if folder is not None:
            # Most people have installed the official torch there, with which wheels of extensions
            # go. Those of torchvision would bring a torch of their own.
            options = replace(options, torch=None, torch_installed=())
        if has_own_source or not asks_for_usual_wheel(options):
            return [None for _ in self.requested.cells]
        wheels: list[PublishedWheel | None] = []
        for cell in self.requested.cells:
            arch_list_of_cell = self._cell_options(cell).arch_list
            wheel = published.find_published(self.facts, cell, self.target, arch_list_of_cell)
            if wheel is not None and folder is not None:
                wheel = published.for_installed_torch(wheel, folder)
            wheels.append(wheel)
        return wheels

    def _outlook(self) -> dict[str, list[Judgement]]:
        """Return the judgements of each cell by its name, on the machine that the wheels are for."""
        judgements = {}
        for cell in self.requested.cells:
            host = self.target
            options = self._cell_options(cell)
            if not self.described:
                host = with_named_compiler(host, options.settings, os.environ)
                options = self._with_processor(cell, host, options)
            name = cell.build.identifier(self.native)
            judgements[name] = outlook.judge_cell(self.facts, cell, host, options)
        return judgements

    def _with_processor(self, cell: Cell, host: Host, options: Options) -> Options:
        """Return options with the processor that --cpu names, such as "native", on a machine."""
        processor = resolve_processor(
            self.facts, cell.build.arch, host, options.cpu, options.settings
        )
        return replace(options, processor=processor)

    def _cell_options(self, cell: Cell) -> Options:
        """Return the options of one cell, which are not the same for all."""
        requested = self.requested
        options = requested.options
        if cell not in requested.by_name:
            # These three are for the packages that the user meant.
            options = replace(options, settings={}, patches={}, debug_info=None)
        any_cuda = any(other.build.cuda for other in requested.cells)
        if any_cuda and not cell.build.cuda:
            # --arch-list is for the cells with CUDA. If there is none, the option stays, and the
            # plan of the cell refuses it.
            return replace(options, arch_list=None)
        ignores_gpus = requested.elsewhere and self.host.gpus.devices
        if cell.build.cuda and ignores_gpus and not options.arch_list:
            # Without a list, a session would take the GPUs of this machine.
            return replace(options, arch_list=OFFICIAL)
        return outlook.options_here(self.facts, cell, self.host, options, self.native)

    def _foresee(self) -> Foresight:
        """Return the commands that cure the machine, also those that only a later step needs."""

        def examine(host: Host) -> list[Finding]:
            findings = []
            for cell in self.requested.cells:
                findings += self._foreseen_findings(cell, host)
            return findings

        foresight = foresee(examine, self.host)
        return replace(foresight, commands=self._with_source_options(foresight.commands))

    def _foreseen_findings(self, cell: Cell, host: Host) -> list[Finding]:
        """Return the findings on a cell on a host that the commands so far have changed.

        If its source will come from Debian, the findings with that source are first.
        """
        findings = list(self._findings(cell, host))
        release = cell.release
        requests = {request.package.name: request for request in self.requests}
        if requests[cell.build.package].origin != DEBIAN:
            return findings
        # Only sources of Debian leave out libraries that the build then needs from the system. The
        # fields of this source but its provider do not matter, since it is not fetched yet.
        source = Source(
            package=release.package,
            version=release.version,
            tag=release.tag,
            provider=DEBIAN,
            origin=DEBIAN,
            commit=None,
            path=self.layout.source(cell.build.package) / release.tag / "tree",
            verified=False,
        )
        findings_with_source = []
        for finding in self._findings(cell, host, source):
            # Whether the source is fetched, is among the other findings.
            if finding.subject != SOURCE:
                findings_with_source.append(finding)
        return [*findings_with_source, *findings]

    def _findings(
        self, cell: Cell, host: Host, foreseen: Source | None = None
    ) -> Sequence[Finding]:
        """Return the findings on a cell; `foreseen` stands for a source that is not fetched yet."""
        report = examine_host(
            self.facts,
            None if self.described else self.layout,
            host,
            cell.build.identifier(self.native),
            base_release(self.facts, cell.release),
            self._cell_options(cell),
            foreseen,
        )
        return report.findings

    def _with_source_options(self, commands: Mapping[str, Finding]) -> dict[str, Finding]:
        """Return commands, those of `invoke fetch` with the user's options on sources."""
        extended = {}
        for command, finding in commands.items():
            words = shlex.split(command)
            if command.startswith(FETCH):
                words += self.source_options
                extended[shlex.join(words)] = finding
            else:
                extended[command] = finding
        return extended

    def _survey(self) -> Host:
        """Return this machine, measured now."""
        identifiers = [cell.build.identifier(self.native) for cell in self.requested.cells]
        return survey_machine(self.facts, self.layout, identifiers)

    def _cures(self) -> Cures:
        """Return the cures of the cells' failures on this machine, measured now."""
        host = self._survey()
        findings: list[Finding] = []
        for cell in self.requested.cells:
            findings += self._findings(cell, host)
        cures = find_cures(findings)
        return replace(cures, commands=self._with_source_options(cures.commands))

    def _walk(self, foresight: Foresight, sessions: Sequence[Session]) -> Walk:
        """Return the walk to the wheels. Of a described machine, only its disk is known."""
        arch = self.requested.cells[0].build.arch
        if self.described:
            servers = with_sources(DownloadServers(), self.requests)
            context = WalkContext(self.facts, arch, self.host, servers)
            answers = Answers(disks=described_disks(self.host))
        else:
            servers = configured_servers(self.facts, self.layout, self.requests, os.environ)
            context = WalkContext(self.facts, arch, self.host, servers)
            answers = ask_machine(plan_steps(context, foresight, sessions), self.layout)
        return walk_steps(context, foresight, sessions, answers)

    def _list_steps(self, foresight: Foresight, sessions: Sequence[Session], walk: Walk) -> str:
        """Return the steps to come as text, each with its purpose and the origins of downloads."""
        lines = ["to do, in this order:", *walk.list_commands(foresight)]
        fetches = any(command.startswith(FETCH) for command in foresight.commands)
        if self.source_options and not fetches:
            words = shlex.join(self.source_options)
            lines.append(f"  the sources already here are kept: {words} is for `{FETCH}`")
        for session in sessions:
            lines.append(f"  {session.command}")
            notes = [*session.lines, *walk.notes(session.command)]
            lines += [f"      {note}" for note in notes]
        lines += [f"  {line}" for line in walk.room()]
        return "\n".join(lines)

    def _sessions(self, foresight: Foresight) -> list[Session]:
        """Return the sessions that build the cells, with the time and the bytes that each takes."""
        runs = read_own_runs(self.facts, self.layout.dist)
        commands = self._session_commands(foresight.commands)
        sessions = []
        trees = set()  # of earlier sessions in this list
        for cell, command in zip(self.requested.cells, commands, strict=True):
            options = self._cell_options(cell)
            host = self.host
            if not self.described:
                host = with_named_compiler(host, options.settings, os.environ)
            options = self._with_processor(cell, host, options)
            plan = compute_plan(self.facts, cell, host, options)
            tree = (cell.release.tag, cell.build.family(""))
            is_base = self.facts.packages[cell.build.package].after is None
            # A second Python of a variant is built in the tree of the first, so that little is
            # compiled again. Only torch is built like that.
            in_tree = (is_base and tree in trees) or has_finished_tree(
                self.layout, self.facts, cell, self.native
            )
            trees.add(tree)
            duration = estimate_report.expected_duration(
                self.facts, plan, runs, is_further_python=in_tree
            )
            line = f"{cell.release}: {duration or 'nobody knows how long this takes'}"
            present = self._present_bytes(cell)
            written_bytes = session_bytes(self._storage(plan, runs, in_tree=in_tree), present)
            requirements = session_requirements(plan, present)
            sessions.append(Session(command, (line,), requirements, written_bytes))
        return sessions

    def _storage(
        self, plan: Plan, runs: Sequence[MeasuredRun], *, in_tree: bool
    ) -> dict[str, CostRange]:
        """Return the bytes of a build by part.

        With `in_tree`, the tree and the toolkit in it exist by then, and are not counted.
        """
        parts = dict(storage.storage_needs(self.facts, plan, runs) or {})
        if in_tree:
            parts.pop("tree", None)
            parts.pop("kit", None)
        return parts

    def _present_bytes(self, cell: Cell) -> dict[str, int]:
        """Return the bytes that earlier runs have left of a build, by part."""
        if self.described:
            return {}
        folders = cell_folders(self.layout, cell, self.host, in_container=False)
        sizes: dict[str, int] = {}
        for space in disk_space.disk_spaces(folders, self.layout.cache, None):
            sizes.update(space.present_bytes)
        return sizes

    def _session_commands(self, commands: Iterable[str]) -> list[str]:
        """Return the commands that build the cells, after `commands` have run.

        They set TORCHMILL_TAG if the release of the cell is not the selected one by then.
        """
        selected = selection.selected_tag(self.layout)
        for command in commands:
            if command.startswith(FETCH):
                # `invoke fetch --tag TAG` selects what it fetches.
                words = shlex.split(command)
                selected = words[words.index("--tag") + 1]
        host = self.host if self.described else self._survey()
        lines = []
        for cell in self.requested.cells:
            cures = find_cures(self._findings(cell, host))
            variables = dict(cures.variables)
            tag = selecting_tag(self.facts, cell.release)
            if tag != selected:
                variables = {"TORCHMILL_TAG": tag, **variables}
            words = [f"{name}={value}" for name, value in variables.items()]
            words += ["nox", "-s", cell.build.identifier(self.native)]
            options = [*format_options(self._cell_options(cell)), *cures.options]
            if options:
                words += ["--", *options]
            lines.append(shlex.join(words))
        return lines

    def _results(self) -> Iterator[str]:
        """Yield the paths of the wheels, and commands for their use."""
        wheels: dict[str, list[str]] = {}  # by Python
        last_wheel = ""
        for cell in self.requested.cells:
            verified = products.require_verified(
                self.layout.root,
                self.facts,
                cell,
                format_options(self._cell_options(cell)),
                contained=cell.build.arch != self.native,
            )
            last_wheel = os.path.relpath(verified.wheel)
            wheels.setdefault(cell.build.python, []).append(last_wheel)
            yield str(verified.wheel)
            if self._cell_options(cell).debug_info:
                archive = dist_files.document_path(verified.wheel, dist_files.DEBUG_SUFFIX)
                yield f"debug information: {archive}"
        # The wheels of one Python are installed together: an extension with its torch.
        for python, paths in wheels.items():
            yield f"install:  python{python} -m pip install {shlex.join(paths)}"
        yield f"picture:  invoke report {shlex.quote(last_wheel)}"
        yield "projects: invoke snippet --tool uv"
