"""Run the setup.py of a source dry as often as it takes to know what makes it build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchmill.cell.dry_run import DryEnvironment, edit_copy
from torchmill.core.errors import HostError
from torchmill.core.process import CommandError
from torchmill.plan.package_draft.compose import DryRuns, ReadSource
from torchmill.plan.package_draft.edits import (
    Edit,
    change_constant,
    doubts_without_edits,
    edit_works,
    propose_edits,
)
from torchmill.plan.package_draft.scenarios import (
    WITH_CUDA,
    WITHOUT_CUDA,
    Scenario,
    choose_scenario,
    further_scenarios,
    paired_scenarios,
)
from torchmill.plan.package_draft.setup_run import SetupRun
from torchmill.plan.package_draft.source_texts import CUDA_SUFFIX

_MOST_MODULES = 6  # that are installed because a setup.py imports them


def run_dry(source: ReadSource, tree: Path, environment: DryEnvironment) -> DryRuns:
    """Return the dry runs of a source: with CUDA and without, and with what else is needed for them.

    The runs of `edits` are among them, if the edits do what they are for. If the program that runs
    setup.py fails itself, the result has no runs, and says why.
    """
    title = environment.torch.title
    try:
        tried = _try_scenarios(source, tree, environment)
    except (CommandError, HostError) as error:
        return DryRuns(torch=title, refusal=f"no dry run: {error}")
    edits = [*_try_constants(source, tree, environment, tried)]
    doubts: list[str] = []
    chosen = choose_scenario(tried, cuda=True) or choose_scenario(tried, cuda=False)
    if chosen is not None:
        edits += _try_edits(source, tree, environment, chosen, edits)
        doubts += doubts_without_edits(*chosen, edits)
    backend_requires: tuple[str, ...] = ()
    if source.metadata.backend_is_own:
        backend_requires, doubt = _ask_backend(source, tree, environment)
        doubts += filter(None, [doubt])
    if environment.sandbox.why_open:
        doubts.append(f"the dry run had a network: {environment.sandbox.why_open}")
    return DryRuns(
        tried=tuple(tried),
        torch=title,
        edits=tuple(edits),
        missing=dict(environment.missing),
        backend_requires=backend_requires,
        doubts=tuple(doubts),
    )


def _ask_backend(
    source: ReadSource, tree: Path, environment: DryEnvironment
) -> tuple[tuple[str, ...], str]:
    """Return what a backend of the source requires for a wheel, and why it does not say it, or ""."""
    copy = environment.folder / "asked"
    edit_copy(tree, copy, [])
    backend = source.metadata.backend.text if source.metadata.backend else ""
    try:
        run = environment.ask_backend(copy, backend, source.metadata.backend_path)
    except (CommandError, HostError) as error:
        return (), f"its backend could not be asked what it requires: {error}"
    if run.error is not None:
        return (), f"its backend could not be asked what it requires: {run.error.text}"
    return run.backend_requires, ""


def _try_scenarios(
    source: ReadSource, tree: Path, environment: DryEnvironment
) -> list[tuple[Scenario, SetupRun]]:
    """Return the runs of all scenarios that are worth a try."""
    first = [WITHOUT_CUDA, WITH_CUDA]
    runs = environment.run(tree, first)
    for _ in range(_MOST_MODULES):
        modules = {run.error.module for run in runs if run.error and run.error.kind == "module"}
        brought = [environment.bring_module(module) for module in sorted(modules)]
        if not any(brought):
            break
        runs = environment.run(tree, first)
    tried = list(zip(first, runs, strict=True))
    has_cuda_files = bool(source.texts.with_suffix(CUDA_SUFFIX))
    further = further_scenarios(*runs, has_cuda_files=has_cuda_files)
    if further:
        tried += zip(further, environment.run(tree, further), strict=True)
    if has_cuda_files and choose_scenario(tried, cuda=True) is None:
        paired = paired_scenarios(*runs)
        tried += zip(paired, environment.run(tree, paired), strict=True)
    return tried


def _try_constants(
    source: ReadSource,
    tree: Path,
    environment: DryEnvironment,
    tried: list[tuple[Scenario, SetupRun]],
) -> Iterator[Edit]:
    """Yield changes of constants that lead to a build with CUDA or without, where nothing else does.

    Their runs are added to `tried`.
    """
    for cuda in (False, True):
        for constant in source.script.constants:
            if choose_scenario(tried, cuda=cuda) is not None:
                break
            edit = change_constant(constant, cuda=cuda)
            scenario = Scenario(cuda, constant=f"{constant.name} = {not constant.value}")
            run = _run_edited(tree, environment, [edit], scenario)
            if run is not None and run.has_build(cuda=cuda):
                tried.append((scenario, run))
                yield edit


def _try_edits(
    source: ReadSource,
    tree: Path,
    environment: DryEnvironment,
    chosen: tuple[Scenario, SetupRun],
    earlier: Sequence[Edit],
) -> tuple[Edit, ...]:
    """Return the edits that a run in an edited copy confirms: of all together, else of each alone.

    `earlier` edits are confirmed already.
    """
    scenario, run = chosen
    proposed = propose_edits(source.texts, scenario, run)
    if not proposed:
        return ()
    # The edits are to do without a GPU.
    usual = replace(scenario, gpu=False, constant="", edited=True)
    constant = "cuda constant" if scenario.cuda else "cpu constant"
    earlier = [edit for edit in earlier if edit.purpose == constant]
    edited = _run_edited(tree, environment, [*earlier, *proposed], usual)
    if edited is not None and edited.has_build(cuda=scenario.cuda):
        return tuple(edit for edit in proposed if edit_works(edit, usual, edited))
    confirmed: list[Edit] = []
    for edit in proposed:
        edited = _run_edited(tree, environment, [*earlier, *confirmed, edit], usual)
        if edited is not None and edit_works(edit, usual, edited):
            confirmed.append(edit)
    return tuple(confirmed)


def _run_edited(
    tree: Path, environment: DryEnvironment, edits: Sequence[Edit], scenario: Scenario
) -> SetupRun | None:
    """Return the run in an edited copy of a tree; None if it cannot be edited, or if setup.py fails."""
    copy = environment.folder / "edited"
    if edit_copy(tree, copy, [edit.argv for edit in edits]):
        return None
    try:
        (run,) = environment.run(copy, [scenario])
    except (CommandError, HostError):
        return None
    return run if run.error is None else None
