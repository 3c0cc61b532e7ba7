"""Try a draft: read it as facts, plan one of its cells, and compile a first file of each language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from torchmill.cell.dry_run import DryEnvironment, edit_copy
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.facts_reader import read_usable_facts
from torchmill.config.own_facts import merge_facts
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import format_for_user
from torchmill.core.errors import ConfigError, HostError, TorchmillError
from torchmill.core.exits import print_now
from torchmill.core.process import CommandError
from torchmill.host.environments import packages_folder
from torchmill.host.host import Host
from torchmill.plan import causes, cell_lookup
from torchmill.plan.base_package import recorded_pypi_variant
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cuda_toolkit import cuda_placeholders
from torchmill.plan.package_draft.draft import PackageDraft
from torchmill.plan.package_draft.setup_run import SetupRun
from torchmill.plan.package_draft.source_texts import CUDA_SUFFIX, CXX_SUFFIXES
from torchmill.plan.package_draft.summary import DraftTrial, FirstCompile
from torchmill.plan.package_request import GivenTorch, cell_names, usual_variant
from torchmill.plan.plan import Plan

_SECONDS = 900.0  # of processor time, for the compile of one file


def facts_with_draft(facts: Facts, draft: PackageDraft, text: str, folder: Path) -> Facts:
    """Return the facts together with a draft, read as they will be read.

    Both are written into `folder`. Raises ConfigError if the draft's file has mistakes.
    """
    own_facts = folder / "draft"
    write_atomically(own_facts / "packages" / draft.file_name, text)
    merged = merge_facts(own_facts, facts.folder, folder / "facts")
    drafted = read_usable_facts(merged or facts.folder)
    for file in drafted.left_out:
        if file.name == f"packages/{draft.file_name}":
            problems = "; ".join(file.problems)
            raise ConfigError(
                f"the draft of {draft.name} cannot be read ({problems}): `invoke add --print` shows "
                "it; describe the package by hand, as docs/how-to/add-a-package.md says",
                code="draft-unreadable",
            )
    return drafted


def try_draft(  # noqa: PLR0917
    facts: Facts,
    draft: PackageDraft,
    tree: Path,
    environment: DryEnvironment,
    host: Host,
    torch: GivenTorch,
    options: Options,
) -> DraftTrial:
    """Return what comes of a draft: the plan of a cell, and the first compile of each language.

    `facts` have the draft (`facts_with_draft`). A cell that cannot be planned is a refusal in the
    result. Files are compiled in a copy of the tree.
    """
    try:
        plan = _plan_cell(facts, draft, host, torch, options)
    except TorchmillError as error:
        return DraftTrial(refusal=str(error))
    return DraftTrial(
        cell=plan.identifier,
        release=str(torch.release),
        compiles=tuple(_compile_first(facts, draft, plan, tree, environment, host)),
    )


def _plan_cell(
    facts: Facts, draft: PackageDraft, host: Host, torch: GivenTorch, options: Options
) -> Plan:
    """Return the plan of the cell that `invoke build NAME` would build.

    If a draft needs CUDA and torch has none, it is planned for the CUDA of PyPI's torch, without
    the user's options.
    """
    package = facts.packages[draft.name]
    variant = usual_variant(torch)
    if variant == CPU and draft.cpu is None and draft.cuda is not None:
        variant = recorded_pypi_variant(facts, torch.release, host.arch) or variant
        options = NO_OPTIONS
    options = replace(options, torch=torch.option) if variant == torch.variant else options
    (name,) = cell_names([package], [torch.python], [variant])
    cell = cell_lookup.find_cell(facts, name, host.arch, torch.release)
    return compute_plan(facts, cell, host, options)


def _compile_first(  # noqa: PLR0917
    facts: Facts,
    draft: PackageDraft,
    plan: Plan,
    tree: Path,
    environment: DryEnvironment,
    host: Host,
) -> list[FirstCompile]:
    """Return the outcomes of compiling the smallest file of C++, and of CUDA."""
    sources = [source for extension in draft.extensions for source in extension.sources]
    languages: list[tuple[str, Sequence[str]]] = []
    if any(source.endswith(CXX_SUFFIXES) for source in sources):
        languages.append(("C++", CXX_SUFFIXES))
    if any(source.endswith(CUDA_SUFFIX) for source in sources):
        languages.append(("CUDA", (CUDA_SUFFIX,)))
    if not languages:
        return [FirstCompile("first file", reason="nothing tells which files are compiled")]
    reason = _obstacle(draft, environment)
    if reason:
        return [FirstCompile(language, reason=reason) for language, _ in languages]
    copy = environment.folder / "compiled"
    placeholders = _placeholders(plan, environment, host, copy)
    commands = []
    for step in plan.tree.preparation:
        commands.append([_fill(word, placeholders) for word in step.argv])
    problem = edit_copy(tree, copy, commands)
    if problem:
        return [FirstCompile(language, reason=problem) for language, _ in languages]
    variables = _variables(plan, draft, placeholders, environment)
    outcomes = []
    for language, suffixes in languages:
        print_now(format_for_user(f"compiling the smallest file of {language} of {draft.name}"))
        home = environment.toolkit if draft.cuda is not None else None
        try:
            run = environment.compile(copy, variables, suffixes, home, _SECONDS)
        except (CommandError, HostError) as error:
            outcomes.append(FirstCompile(language, reason=str(error)))
        else:
            outcomes.append(_outcome(facts, language, run))
    return outcomes


def _obstacle(draft: PackageDraft, environment: DryEnvironment) -> str:
    """Return why nothing can be compiled here; "" if something can."""
    if environment.torch.folder is None and environment.torch.wheel is None:
        return "no torch is installed here; --torch names an environment that has it"
    if draft.cuda is not None and environment.toolkit is None:
        return f"no CUDA {environment.cuda} here: `invoke toolkit --cuda {environment.cuda}`"
    return ""


def _placeholders(
    plan: Plan, environment: DryEnvironment, host: Host, copy: Path
) -> dict[str, str]:
    """Return the values of a plan's placeholders for a compile in a copy of the source."""
    packages = environment.torch.folder
    if packages is None:
        packages = packages_folder(environment.venv, plan.build.python)
    placeholders = {
        **cuda_placeholders(plan, host),
        "torch_packages": str(packages),
        "venv": str(environment.venv),
        "kit": str(environment.venv),
        "tree": str(environment.folder),
        "source": str(copy),
    }
    if environment.toolkit is not None:
        placeholders["cuda_home"] = str(environment.toolkit)
    return placeholders


def _fill(text: str, placeholders: Mapping[str, str]) -> str:
    """Return a text of a plan with its placeholders filled; unknown ones stay."""
    return Template(text).safe_substitute(placeholders)


def _variables(
    plan: Plan,
    draft: PackageDraft,
    placeholders: Mapping[str, str],
    environment: DryEnvironment,
) -> dict[str, str]:
    """Return the variables of a plan for one compile: for one capability, with one compiler.

    A variable with a placeholder that has no value here is left out.
    """
    path = environment.base_path()
    variables = {}
    for name, value in plan.variables.items():
        filled = _fill(value, {**placeholders, "PATH": path})
        if "${" not in filled:
            variables[name] = filled
    variables["MAX_JOBS"] = "1"
    if draft.cuda is not None:
        variables["TORCH_CUDA_ARCH_LIST"] = environment.capability
    return variables


def _outcome(facts: Facts, language: str, run: SetupRun) -> FirstCompile:
    """Return the outcome of a run that compiled a file, with its error and the cause of that."""
    if run.error is not None:
        return FirstCompile(language, reason=run.error.text)
    if run.compiled is None:
        return FirstCompile(language, reason="no file of this language is in the edited build")
    if not run.compiled.error:
        return FirstCompile(language, run.compiled)
    diagnosis = causes.diagnose(facts.causes, run.compiled.output.splitlines(), rules=facts)
    error = diagnosis.headline
    if diagnosis.failure is None and diagnosis.match is None:
        error = run.compiled.error
    cause = diagnosis.match.cause.cause if diagnosis.match else ""
    return FirstCompile(language, run.compiled, error=error, cause=cause)
