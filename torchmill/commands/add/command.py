"""`invoke add`: draft the facts about a package, try a plan and a first compile, say what to look at."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from torchmill.cell.dry_run import DryEnvironment, DryTorch
from torchmill.cell.sandbox import find_sandbox
from torchmill.commands.add import draft_trial
from torchmill.commands.add.source_files import read_unpacked
from torchmill.commands.add.trial_runs import run_dry
from torchmill.commands.build_question import with_active_torch
from torchmill.commands.command import CommandOutput
from torchmill.commands.machine_report import survey_machine
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.core import console
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import format_for_user
from torchmill.core.errors import ConfigError
from torchmill.core.exits import print_now
from torchmill.core.paths import Layout
from torchmill.fetch.unpacked_package import (
    UnpackedPackage,
    locate_package,
    named_project,
    unpack_package,
)
from torchmill.host.host import Host
from torchmill.host.interpreters import resolve_interpreter
from torchmill.plan.build_options import NO_OPTIONS, PYPI, Options
from torchmill.plan.cell_choice import running_python
from torchmill.plan.package_draft import compose
from torchmill.plan.package_draft.compose import DryRuns, ReadSource
from torchmill.plan.package_draft.draft_text import draft_as_toml
from torchmill.plan.package_draft.summary import DraftReport, summarize
from torchmill.plan.package_request import (
    GivenTorch,
    by_canonical_name,
    torch_of_path,
    torch_on_pypi,
)

OWN_FACTS = "TORCHMILL_OWN_CONFIGS"  # the folder of a project's facts, if torchmill is installed
_CAPABILITY = "9.0"  # of the GPU that dry runs are made for


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What a user says of the package to add."""

    source: str  # a name on the index, a folder, an archive or its URL
    name: str = ""  # of the package; "": its source tells it
    force: bool = False  # write over a file of the user
    prints: bool = False  # the file is printed, and nothing is written, planned or compiled


def add_package(
    facts: Facts,
    layout: Layout,
    *,
    source: str,
    tag: str = "",
    name: str = "",
    force: bool = False,
    print_: bool = False,
    options: Options = NO_OPTIONS,
) -> CommandOutput:
    """Draft the file of a package, write it, and try it.

    The source's setup.py is run dry in any case. With `print_`, the output is the draft, and
    nothing is written, planned or compiled. `tag` names the release of torch to try it with, unless
    `options` name a torch; "" for the one that `invoke build` would choose. The exit code is 3 if
    no build of the package can be planned.

    Raises the errors of `locate_package` and `unpack_package`, and of `compose` for a package that
    needs no draft; ConfigError if a package with facts has its name, or if its file exists (not
    with `print_`). With `force`, the file is written over, and its own facts are no obstacle.
    """
    request = AddRequest(source, name, force, print_)
    names, _ = _taken_names(list(facts.packages.values()))
    project = named_project(source)
    if project in names and not (force or name):
        raise compose.package_has_facts(names[project])
    located = locate_package(source, _names(facts))
    host = survey_machine(facts, layout)
    options = with_active_torch(facts, options, os.environ)
    torch = _given_torch(facts, layout, host, tag, options)
    with tempfile.TemporaryDirectory(prefix="torchmill-add-") as text:
        folder = Path(text)
        with console.show_progress() as progress:
            bar = progress.start_bar(source)
            package = unpack_package(located, folder, bar)
            bar.close()
        return _draft_in(facts, layout, request, package, host, torch, options, folder)


def _draft_in(  # noqa: PLR0917
    facts: Facts,
    layout: Layout,
    request: AddRequest,
    package: UnpackedPackage,
    host: Host,
    torch: GivenTorch,
    options: Options,
    folder: Path,
) -> CommandOutput:
    """Draft a package whose source is unpacked below `folder`, in which all trials are made."""
    read = read_unpacked(package)
    others = _other_packages(facts, request, read)
    compose.refuse_without_run(read)
    environment = _environment(facts, host, torch, options, folder)
    runs = _run_dry(read, package.tree, environment, layout)
    compose.refuse_after_runs(read, runs)
    sessions = [other.session for other in others]
    draft = compose.compose_draft(read, runs, name=request.name, sessions=sessions)
    compose.refuse_taken_names(draft, *_taken_names(others))
    text = draft_as_toml(draft)
    if request.prints:
        return CommandOutput(text.rstrip("\n"))
    file = _own_folder(facts) / "packages" / draft.file_name
    if file.exists() and not request.force:
        raise ConfigError(
            f"{file} exists: `--force` writes over it, `--print` prints the draft instead",
            code="draft-exists",
        )
    drafted = draft_trial.facts_with_draft(facts, draft, text, folder)
    write_atomically(file, text)
    print_now(format_for_user(f"wrote {file}"))
    trial = draft_trial.try_draft(drafted, draft, package.tree, environment, host, torch, options)
    report = DraftReport(
        draft=draft,
        file=str(file),
        torch=str(torch),
        trial=trial,
        source="" if package.on_index else request.source,
    )
    return CommandOutput(summarize(report), exit_code=0 if trial.cell else 3)


def _names(facts: Facts) -> list[str]:
    """Return the names of the packages with facts, as PyPI spells them."""
    return [canonicalize_name(package.name) for package in facts.packages.values()]


def _other_packages(facts: Facts, request: AddRequest, read: ReadSource) -> list[Package]:
    """Return the packages with facts, without the one whose own file may be written over.

    Raises ConfigError early if the source has the name of one of them: the runs take a while.
    """
    name = request.name or (read.metadata.name.text if read.metadata.name else "")
    canonical = canonicalize_name(name)
    packages = list(facts.packages.values())
    if request.force and (_own_folder(facts) / "packages" / f"{canonical}.toml").exists():
        packages = [package for package in packages if canonicalize_name(package.name) != canonical]
    names, _ = _taken_names(packages)
    if canonical in names:
        raise compose.package_has_facts(names[canonical])
    return packages


def _taken_names(packages: Sequence[Package]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of packages in PyPI's normal form, and their modules, each with the package."""
    names = {name: package.name for name, package in by_canonical_name(packages).items()}
    return names, {package.import_name: package.name for package in packages}


def _own_folder(facts: Facts) -> Path:
    """Return the folder of the user's facts: the project's, or that of the checkout."""
    return Path(os.environ.get(OWN_FACTS) or facts.folder)


def _given_torch(
    facts: Facts, layout: Layout, host: Host, tag: str, options: Options
) -> GivenTorch:
    """Return the torch that the package is tried with, chosen as `invoke build NAME` chooses it."""
    if options.torch not in {None, PYPI}:
        return torch_of_path(facts, options)
    selected = selection.selected_release(facts, layout, tag)
    python = running_python()
    if selected is not None and python not in selected.pythons:
        selected = None
    return torch_on_pypi(facts, [], host.arch, python, selected)


def _environment(
    facts: Facts, host: Host, torch: GivenTorch, options: Options, folder: Path
) -> DryEnvironment:
    """Return the environment for dry runs, with the toolkit that fits the torch."""
    cuda = _toolkit_version(facts, torch)
    interpreter = resolve_interpreter(torch.python)
    title = f"torch {torch.release.version}"
    if options.torch_installed:
        packages = options.torch_installed[0].dist_info.parent
        dry_torch = DryTorch(title, interpreter, folder=packages)
    elif options.torch_wheel is not None:
        dry_torch = DryTorch(title, interpreter, wheel=options.torch_wheel)
    else:
        dry_torch = DryTorch(
            f"a stand-in for {title}", interpreter, version=torch.release.version, cuda=cuda
        )
    home, version = _near_toolkit(host, cuda)
    return DryEnvironment(
        folder=folder,
        torch=dry_torch,
        sandbox=find_sandbox(),
        cuda=version or cuda,
        toolkit=home,
        capability=_CAPABILITY,
    )


def _toolkit_version(facts: Facts, torch: GivenTorch) -> str:
    """Return the CUDA that a build with CUDA against a torch would have: "13.0"."""
    toolkit = facts.toolkit_of_variant(torch.variant)
    if toolkit is not None:
        return toolkit.version
    versions = [torch.release.cuda.pypi, *torch.release.cuda.official]
    return next(filter(None, versions), facts.toolkits[-1].version)


def _near_toolkit(host: Host, cuda: str) -> tuple[Path | None, str]:
    """Return a toolkit of this machine with the major version of `cuda`, and its version.

    torch's extension builder refuses another major version.
    """
    homes: Mapping[str, str] = host.toolkits.homes
    major = cuda.partition(".")[0]
    fitting = [version for version in homes if version.partition(".")[0] == major]
    if cuda in homes:
        return Path(homes[cuda]), cuda
    if fitting:
        return Path(homes[fitting[-1]]), fitting[-1]
    return None, ""


def _run_dry(read: ReadSource, tree: Path, environment: DryEnvironment, layout: Layout) -> DryRuns:
    """Return the dry runs of a source; none if another backend than setuptools builds it."""
    title = environment.torch.title
    if not compose.drafts_can_run(read):
        backend = read.metadata.backend.text if read.metadata.backend else "its backend"
        return DryRuns(torch=title, refusal=f"{backend} has no setup.py to run")
    if not hasattr(os, "fork"):
        return DryRuns(torch=title, refusal=f"no dry run on {sys.platform}")
    print_now(format_for_user(f"running setup.py of {read.subject} dry, with {title}"))
    requirements = compose.dry_run_requirements(read)
    problem = environment.provide(layout.environments, requirements)
    runs = run_dry(read, tree, environment)
    if problem:
        doubts = (f"not all requirements could be installed for the dry run: {problem}",)
        runs = replace(runs, doubts=(*doubts, *runs.doubts))
    return runs
