"""`invoke build`: all that a wheel needs, from the sources to dist/.

This module reads the question: which cells, for which GPUs, of which release. `dialogue` shows the
way there, and has tasks and sessions do each part.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torchmill.commands import outlook
from torchmill.commands.command import CommandOutput
from torchmill.commands.dialogue import Dialogue, RequestedCells
from torchmill.commands.doctor import survey_machine
from torchmill.config import arch_list, selection
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import NamedGpu, find_gpus, gpu_names, gpus_of_host
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, newest_release
from torchmill.core.console import fit_screen
from torchmill.core.errors import ConfigError
from torchmill.core.exits import print_now
from torchmill.core.paths import Layout
from torchmill.fetch.source.request import source_requests
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import cell_lookup, gpu_hosts, published
from torchmill.plan.arch_choice import shortest_arch_list
from torchmill.plan.base_package import base_version
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cell import Cell
from torchmill.plan.cell_choice import BuildQuestion, choose_cells, is_pattern, named_cells


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
    """Build the wheels of cells that are named, or chosen by Pythons, toolkits and GPUs."""
    names = cell or []
    _refuse_contradictions(
        names=names,
        has_axes=bool(python or cuda),
        two_lists=bool(gpu and options.arch_list),
        host_without_dry_run=bool(host and not dry_run),
    )
    if host:
        machine = load_host(Path(host))
    else:
        # For other GPUs than those here, no cell says that they need not be measured.
        machine = survey_machine(facts, layout, () if gpu else names)
    variant_is_open = not (names or cuda or options.arch_list)
    named_gpus = _named_gpus(facts, gpu or (), machine, use_local=variant_is_open)
    if gpu:
        _require_machine_of(facts, named_gpus, machine, names)
    capabilities = [named_gpu.capability for named_gpu in named_gpus]
    selected = selection.selected_release(facts, layout, tag)
    question = BuildQuestion(
        names, python or (), cuda or (), capabilities, with_base=options.torch is None
    )
    chosen_cells = choose_cells(facts, question, machine, selected)
    cells = _buildable_against(facts, question, chosen_cells, options)
    if capabilities:
        shortest = arch_list.format_arch_list(shortest_arch_list(facts, capabilities))
        options = replace(options, arch_list=shortest)
    releases = {chosen.release.package: chosen.release for chosen in cells}
    requests = source_requests(facts, list(releases.values()), ref=ref, mirror=mirror, origin=from_)
    for request in requests:
        request.validate()
    source_options = {"from": from_, "mirror": mirror, "ref": ref}
    named: list[Cell] = []
    for name in names:
        named += named_cells(facts, name, machine.arch, selected)
    dialogue = Dialogue(
        facts=facts,
        layout=layout,
        host=machine,
        judged=outlook.judged_host(facts, machine, capabilities),
        native=cell_lookup.uncontained_arch(facts, names, machine.arch),
        requested=RequestedCells(cells, named or cells, options, elsewhere),
        source_options=[f"--{name}={value}" for name, value in source_options.items() if value],
        requests=requests,
        described=bool(host),
    )
    older_wheel = _older_wheel(facts, capabilities, machine, cells, selected)
    return dialogue.run(older_wheel, yes=yes, dry_run=dry_run)


def _refuse_contradictions(
    *, names: Sequence[str], has_axes: bool, two_lists: bool, host_without_dry_run: bool
) -> None:
    """Raise ConfigError for options that do not go together."""
    if names and has_axes:
        raise ConfigError(
            "name cells, or give --python and --cuda, not both", code="two-ways-to-name"
        )
    if two_lists:
        raise ConfigError(
            "--gpu stands for an --arch-list: give only one of them", code="two-lists"
        )
    if host_without_dry_run:
        raise ConfigError(
            "--host describes another machine, on which nothing can be run: add --dry-run",
            code="host-without-dry-run",
        )


def _buildable_against(
    facts: Facts, question: BuildQuestion, cells: Sequence[Cell], options: Options
) -> Sequence[Cell]:
    """Return the cells of a pattern that can be built against the torch of --torch.

    Others are left out, and the reason is printed. Raises ConfigError as `base_version` does if
    none can. Cells that were named one by one all stay.
    """
    if options.torch is None or not any(is_pattern(name) for name in question.names):
        return cells
    fitting: list[Cell] = []
    refusals: list[ConfigError] = []
    for cell in cells:
        try:
            base_version(facts, cell, options)
        except ConfigError as error:
            refusals.append(error)
        else:
            fitting.append(cell)
    if not fitting:
        raise refusals[0]
    for line in dict.fromkeys(f"left out: {refusal}" for refusal in refusals):
        print_now(fit_screen(line))
    return fitting


def _older_wheel(
    facts: Facts,
    capabilities: Sequence[Capability],
    host: Host,
    cells: Sequence[Cell],
    selected: Release | None,
) -> str:
    """Return which official wheel of an older release would do for some GPUs; "" if there is none.

    Nothing is said of one if a release is selected: then that is meant.
    """
    if not capabilities or selected is not None:
        return ""
    machine = published.with_gpus(host, [capability.name for capability in capabilities])
    releases = facts.releases[base_package(facts).name]
    wheel = published.newest_published(facts, releases, machine)
    if wheel is None or not wheel.would_do:
        return ""
    version = wheel.version.partition("+")[0]
    if version in {cell.release.version for cell in cells}:
        return ""
    return f"of an older release, {wheel}"


def _require_machine_of(
    facts: Facts, gpus: Sequence[NamedGpu], host: Host, names: Iterable[str]
) -> None:
    """Raise ConfigError for GPUs of boards whose machine has another architecture than this one.

    Cells may be named for that architecture.
    """
    board = gpu_hosts.find_board(facts, gpus)
    if board is None or board.arch == host.arch:
        return
    if any(name.endswith(f"-{board.arch}") for name in names):
        return
    capabilities = [gpu.capability for gpu in gpus]
    machine = published.with_gpus(
        gpu_hosts.board_machine(board, host), [capability.name for capability in capabilities]
    )
    releases = facts.releases[base_package(facts).name]
    wheel = published.newest_published(facts, releases, machine)
    hints = [f"for such a machine, {wheel}"] if wheel else []
    hints += [
        gpu_hosts.index_sentence(index) for index in gpu_hosts.board_indexes(facts, capabilities)
    ]
    sentences = "".join(f". {hint[0].upper()}{hint[1:]}" for hint in hints)
    listed = ", ".join(gpu.gpu for gpu in gpus)
    raise ConfigError(
        f"--gpu {listed}: {gpu_hosts.board_sentence(board, gpus[0])}, and this one is {host.arch}: "
        f"run this there, or name cells for it, such as wheel-3.12-cu130-{board.arch}{sentences}",
        code="gpu-of-a-board",
    )


def _named_gpus(
    facts: Facts, texts: Sequence[str], host: Host, *, use_local: bool
) -> list[NamedGpu]:
    """Return the GPUs that are named: "RTX 3090", "8.6", "Ampere", or "local" for those here.

    With `use_local`, those here are meant if none is named. Raises ConfigError for a name that
    means none.
    """
    if use_local and not texts and host.gpus_unknown:
        print_now(
            f"cannot tell which GPUs are here ({host.gpus_unknown}): name yours with --gpu, as in "
            "--gpu 8.6"
        )
    names: list[str] = []
    for text in texts:
        names += gpu_names(text)
    if not names and use_local and host.gpus.devices:
        names = ["local"]
    gpus: list[NamedGpu] = []
    for name in names:
        if name in cell_lookup.NO_VARIANTS:
            raise ConfigError(f"--gpu {name}: {cell_lookup.NO_VARIANTS[name]}", code="no-variant")
        if name == "local":
            gpus += gpus_of_host(facts, host.gpus.devices, host.gpus_unknown)
        else:
            gpus += _gpus_called(facts, name)
    return gpus


def _gpus_called(facts: Facts, name: str) -> Sequence[NamedGpu]:
    """Return the GPUs that a name may mean: a list of compute capabilities, or a product."""
    torch_version = newest_release(facts).torch_version
    targets, problems = arch_list.parse_arch_list(facts, name, torch_version)
    if problems and arch_list.UNDOTTED.fullmatch(name):
        # "86" is meant as a capability: no product has such a name.
        raise ConfigError(f"--gpu {name}: {problems[0]}", code="invalid-arch-list")
    capabilities = [facts.capability(target.capability) for target in targets]
    gpus = [NamedGpu(capability.name, capability) for capability in capabilities if capability]
    if problems or len(gpus) < len(targets):
        return find_gpus(facts, name)
    return gpus
