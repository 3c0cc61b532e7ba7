"""Put a draft together from the texts of a source and from dry runs of its setup.py.

It also decides that a package needs no draft: because there is nothing to compile, because it is for
AMD's GPUs alone, or because its setup.py needs a network.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchmill.config.field_types import no_entries
from torchmill.core.errors import (
    ConfigError,
    ImpossibleBuildError,
    NothingToCompileError,
    SetupNetworkError,
    SourceError,
)
from torchmill.plan.package_draft import draft as drafts
from torchmill.plan.package_draft.draft import Bindings, PackageDraft, SourceOrigin
from torchmill.plan.package_draft.edits import Edit
from torchmill.plan.package_draft.findings import (
    SourceFinding,
    compiles_something,
    find_in_texts,
    is_built_by_cmake,
    is_rocm_alone,
    uses_torch,
)
from torchmill.plan.package_draft.metadata import Metadata, parse_requirement, read_metadata
from torchmill.plan.package_draft.scenarios import Scenario, choose_scenario, usual_failure
from torchmill.plan.package_draft.setup_run import SetupRun
from torchmill.plan.package_draft.setup_script import SetupScript, read_setup_script
from torchmill.plan.package_draft.source_texts import CUDA_SUFFIX, CXX_SUFFIXES, SourceTexts

TriedScenarios = Sequence[tuple[Scenario, SetupRun]]
_ROCM = re.compile(r"\b(rocm\w*|hip|hipcc)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ReadSource:
    """A source whose texts have been read."""

    archive: SourceOrigin
    texts: SourceTexts
    script: SetupScript
    metadata: Metadata
    bindings: Bindings

    @property
    def subject(self) -> str:
        """Return the package's name for messages."""
        return self.metadata.name.text if self.metadata.name else self.archive.origin


def read_source(archive: SourceOrigin, texts: SourceTexts, bindings: Bindings) -> ReadSource:
    """Return a source with what its texts show."""
    script = read_setup_script(texts)
    return ReadSource(archive, texts, script, read_metadata(texts, script), bindings)


@dataclass(frozen=True, slots=True)
class DryRuns:
    """The dry runs of a setup.py."""

    tried: TriedScenarios = ()
    torch: str = ""  # that they were made with: "torch 2.15.0", "a stand-in for torch 2.15.0"
    edits: tuple[Edit, ...] = ()  # that a run in an edited copy has confirmed
    missing: Mapping[str, str] = no_entries()  # modules that were installed -> their projects
    backend_requires: tuple[str, ...] = ()  # of a wheel, as a backend of the source itself tells
    refusal: str = ""  # why there are no runs
    doubts: tuple[str, ...] = ()

    @property
    def runs(self) -> list[SetupRun]:
        """Return the runs alone."""
        return [run for _, run in self.tried]


def refuse_without_run(source: ReadSource) -> None:
    """Raise an error if the texts alone show that there is nothing to draft.

    Raises ImpossibleBuildError for a package for AMD's GPUs alone, NothingToCompileError for one
    that compiles nothing.
    """
    if is_rocm_alone(source.texts):
        raise _rocm_error(source)
    texts = source.texts
    script = source.script
    metadata = source.metadata
    if metadata.problem or script.problem:
        return
    if drafts_can_run(source):
        return
    compiles = compiles_something(texts, script, metadata)
    if compiles and _needs_torch(source):
        return
    if compiles or texts.with_suffix(*CXX_SUFFIXES, CUDA_SUFFIX):
        raise _foreign_error(source)
    raise _pure_error(source, "")


def drafts_can_run(source: ReadSource) -> bool:
    """Tell whether setuptools builds a source, so that its setup.py can be run dry."""
    return source.metadata.uses_setuptools


def refuse_after_runs(source: ReadSource, dry_runs: DryRuns) -> None:
    """Raise an error if the dry runs show that there is nothing to draft.

    Raises SetupNetworkError if no run compiles anything and the usual one failed after a download
    was tried, ImpossibleBuildError for a package for AMD's GPUs alone, NothingToCompileError for
    one that compiles nothing, or nothing against torch, SourceError for an archive without the
    files that are compiled. Without runs, nothing is refused.
    """
    runs = dry_runs.runs
    if not runs:
        return
    if any(run.has_cuda or run.has_cpu for run in runs):
        if not any(run.is_of_torch for run in runs) and not _needs_torch(source):
            raise _foreign_error(source)
        _refuse_absent_sources(source, runs)
        return
    failure = usual_failure(dry_runs.tried)
    if failure is not None and failure.error is not None:
        if failure.needs_network:
            server = failure.network[0]
            raise SetupNetworkError(
                f"setup.py of {source.subject} needs a network: it asks for {server}, and a build has "
                "none. Unpack the source, put there what it downloads, and run "
                "`invoke add FOLDER`",
                code="setup-needs-network",
            )
        text = failure.error.text
        if _ROCM.search(text) and "cuda" not in text.lower():
            raise _rocm_error(source)
        if compiles_something(source.texts, source.script, source.metadata):
            return  # the draft is made from the texts alone
    raise _pure_error(source, _opt_in(dry_runs) if failure is None else "")


def _refuse_absent_sources(source: ReadSource, runs: Sequence[SetupRun]) -> None:
    """Raise SourceError if no file that setup.py compiles is in the source.

    Some archives of PyPI were made without the files of C++ and CUDA.
    """
    absent = absent_sources(source.texts, runs)
    compiled: set[str] = set()
    for run in runs:
        for extension in run.extensions:
            compiled.update(extension.sources)
    if absent and len(absent) == len(compiled):
        raise SourceError(
            f"{source.archive.origin} lacks what its setup.py compiles, such as {absent[0]}: nothing "
            "can be built from it; give a folder or an archive of its repository",
            code="sources-absent",
        )


def absent_sources(texts: SourceTexts, runs: Sequence[SetupRun]) -> list[str]:
    """Return the files that setup.py compiles and that are not in the source."""
    absent: dict[str, None] = {}
    for run in runs:
        for extension in run.extensions:
            for name in extension.sources:
                if not texts.has_file(posixpath.normpath(name)):
                    absent[name] = None
    return list(absent)


def _needs_torch(source: ReadSource) -> bool:
    """Tell whether the texts show that torch is used: by the build, or by the wheel."""
    requirements = [value.text for value in source.metadata.requires]
    names = {
        requirement.name for requirement in map(parse_requirement, requirements) if requirement
    }
    return "torch" in names or uses_torch(source.texts, source.script, source.metadata)


def _opt_in(dry_runs: DryRuns) -> str:
    """Return a sentence on a variable that a run with nothing to compile has failed for; or ""."""
    for scenario, run in dry_runs.tried:
        if scenario.variables and run.error is not None:
            (name,) = scenario.variables
            return f" (with {name}={scenario.variables[name]}, setup.py says: {run.error.text})"
    return ""


def _pure_error(source: ReadSource, remark: str) -> NothingToCompileError:
    """Return the error for a package that compiles nothing."""
    return NothingToCompileError(
        f"{source.subject} compiles nothing{remark}: `pip install {source.subject}` is the way to "
        "install it",
        code="nothing-to-compile",
    )


def _foreign_error(source: ReadSource) -> NothingToCompileError:
    """Return the error for a package that may be compiled, but not against torch."""
    return NothingToCompileError(
        f"nothing shows that {source.subject} is compiled against torch: `pip install "
        f"{source.subject}` is the way to build or install it",
        code="no-extension-of-torch",
    )


def _rocm_error(source: ReadSource) -> ImpossibleBuildError:
    """Return the error for a package that is for AMD's GPUs alone."""
    return ImpossibleBuildError(
        f"{source.subject} has code for AMD's GPUs (ROCm) alone, for which torchmill builds nothing: "
        "ask its authors for wheels",
        code="rocm-alone",
    )


def compose_draft(
    source: ReadSource, dry_runs: DryRuns, *, name: str, sessions: Collection[str]
) -> PackageDraft:
    """Return the draft of a package.

    `name` is the user's, or "" for that of the source; `sessions` are the words that other packages
    have in the names of their cells. Raises ConfigError if name or version cannot be told.
    """
    runs = [run for run in dry_runs.runs if run.error is None]
    chosen_cuda = choose_scenario(dry_runs.tried, cuda=True)
    chosen_cpu = choose_scenario(dry_runs.tried, cuda=False)
    metadata = source.metadata
    draft_name, version = _name_and_version(source, runs, name)
    chosen = [item for item in (chosen_cuda, chosen_cpu) if item is not None]
    extensions = chosen[0][1].extensions if chosen else ()
    everywhere = {extension.name for extension in extensions}  # libraries that each build has
    for _, run in chosen:
        everywhere &= {extension.name for extension in run.extensions}
    import_name = drafts.import_name_of(
        draft_name, [run for _, run in chosen] or runs, source.texts
    )
    torch, _ = drafts.torch_range(metadata, runs)
    capabilities: dict[str, None] = {}
    for extension in extensions:
        capabilities.update(dict.fromkeys(extension.capabilities))
    proof = f"its texts ({dry_runs.refusal})" if dry_runs.refusal else "its texts"
    if chosen:
        proof = f"dry run of setup.py of {version} with {dry_runs.torch}"
    uses_cmake = _calls_cmake(source, runs)
    settings = drafts.force_build_settings(source.script, runs)
    settings |= drafts.jobs_settings(runs, source.script)
    missing = {text: text for text in dry_runs.backend_requires} | dict(dry_runs.missing)
    if uses_cmake:
        missing["cmake"] = "cmake"
    if not metadata.is_setuptools and _kind_of(metadata) != drafts.TORCH_CMAKE:
        missing["build"] = "build"  # the front end of any other backend
    requirements = drafts.build_requirements(metadata, runs, missing)
    return PackageDraft(
        name=canonicalize_name(draft_name),
        version=version,
        session=drafts.session_of(draft_name, sessions),
        import_name=import_name,
        archive=source.archive,
        proof=proof,
        kind=_kind_of(metadata),
        torch=torch,
        requires_python=_python_bounds(metadata, runs),
        requirements=requirements,
        extensions=extensions,
        cpu=chosen_cpu[0] if chosen_cpu else None,
        cuda=chosen_cuda[0] if chosen_cuda else None,
        cpu_failure=_failure_of(dry_runs.tried, cuda=False),
        cuda_failure=_failure_of(dry_runs.tried, cuda=True),
        capabilities=tuple(capabilities),
        edits=dry_runs.edits,
        settings=settings,
        smoke=drafts.smoke_lines(import_name, extensions, everywhere, source.bindings),
        wheel_tag=chosen[0][1].wheel_tag if chosen else "",
        pep517=not metadata.is_setuptools or not source.texts.has_file("setup.py"),
        has_cuda_files=bool(source.texts.with_suffix(CUDA_SUFFIX)),
        doubts=tuple(_doubts(source, dry_runs, chosen)),
        findings=tuple(_findings(source, chosen)),
    )


def _name_and_version(source: ReadSource, runs: Sequence[SetupRun], name: str) -> tuple[str, str]:
    """Return the name and the version of a draft. Raises ConfigError if one of them cannot be told."""
    metadata = source.metadata
    draft_name = name or _first(
        [metadata.name.text if metadata.name else None, *(run.name for run in runs)]
    )
    version = _first(
        [metadata.version.text if metadata.version else None, *(run.version for run in runs)]
    ).partition("+")[0]
    if not draft_name or not version:
        missing = "name" if not draft_name else "version"
        raise ConfigError(
            f"nothing in {source.archive.origin} tells the {missing} of the package: give an archive "
            "of PyPI, or --name",
            code="nameless-source",
        )
    return draft_name, version


def _doubts(source: ReadSource, dry_runs: DryRuns, chosen: TriedScenarios) -> Iterator[str]:
    """Yield sentences on what the runs leave open, the gravest first."""
    failure = usual_failure(dry_runs.tried)
    if not chosen and failure is not None and failure.error is not None:
        place = f" ({failure.error.place})" if failure.error.place else ""
        yield f"setup.py could not be run: {failure.error.text}{place}"
    absent = absent_sources(source.texts, [run for _, run in chosen])
    if absent:
        yield f"{len(absent)} of the files to compile are not there, such as {absent[0]}"
    runs = [run for run in dry_runs.runs if run.error is None]
    yield from dry_runs.doubts
    _, torch_doubt = drafts.torch_range(source.metadata, runs)
    if torch_doubt:
        yield torch_doubt
    yield from drafts.thread_doubts(runs)
    yield from drafts.open_doubts(runs, uses_cmake=_calls_cmake(source, runs))


def _calls_cmake(source: ReadSource, runs: Sequence[SetupRun]) -> bool:
    """Tell whether a setup.py runs CMake: it says so, or leaves libraries open beside CMake's files."""
    if source.script.calls_cmake is not None:
        return True
    if not source.texts.with_suffix("CMakeLists.txt"):
        return False
    for run in runs:
        if any(extension.is_left_open for extension in run.extensions):
            return True
    return False


def _kind_of(metadata: Metadata) -> str:
    """Return the kind of packages that are built in the same way; "" if it is none of those known."""
    if metadata.uses_setuptools:
        return drafts.TORCH_EXTENSION
    return drafts.TORCH_CMAKE if is_built_by_cmake(metadata) else ""


def _findings(source: ReadSource, chosen: TriedScenarios) -> Iterator[SourceFinding]:
    """Yield what the files show, without the constants that the draft changes."""
    changed = {scenario.constant.partition(" ")[0] for scenario, _ in chosen}
    places = {item.place for item in source.script.constants if item.name in changed}
    for finding in find_in_texts(source.texts, source.script, source.metadata):
        if finding.subject != "constant" or finding.place not in places:
            yield finding


def _first(texts: Sequence[str | None]) -> str:
    """Return the first text that is not empty; "" if all are."""
    return next((text for text in texts if text), "")


def _python_bounds(metadata: Metadata, runs: Sequence[SetupRun]) -> str | None:
    """Return the bounds of Pythons; None if there are none, or they cannot be read."""
    text = metadata.requires_python.text if metadata.requires_python else ""
    text = text or _first([run.requires_python for run in runs])
    try:
        return str(SpecifierSet(text)) or None
    except InvalidSpecifier:
        return None


def _failure_of(tried: TriedScenarios, *, cuda: bool) -> str:
    """Return why the first run with CUDA, or without, led to no such build; "" if it did.

    If there was no such run, the text says that.
    """
    for scenario, run in tried:
        if scenario.cuda == cuda:
            return _shortcoming(run, cuda=cuda)
    return "it was not tried"


def _shortcoming(run: SetupRun, *, cuda: bool) -> str:
    """Return why a run with CUDA, or without, led to no such build; "" if it did."""
    if run.error is not None:
        place = f"{run.error.place}: " if run.error.place else ""
        return f"{place}{run.error.text}"
    if run.has_cuda:
        return "" if cuda else "every library is made of files for CUDA"
    if any(item.is_left_open for item in run.extensions) and cuda:
        return "setup.py leaves it to another program, such as CMake"
    if cuda:
        return "nothing that was tried brings files for CUDA"
    return "" if run.has_cpu else "without CUDA, setup.py compiles nothing"


def refuse_taken_names(
    draft: PackageDraft, names: Mapping[str, str], imports: Mapping[str, str]
) -> None:
    """Raise ConfigError if a package with facts has the name of a draft, or is imported by its name.

    `names` are the names of such packages (in PyPI's normal form), and `imports` their modules, each
    with the package.
    """
    canonical = canonicalize_name(draft.name)
    if canonical in names:
        raise package_has_facts(names[canonical])
    if draft.import_name in imports:
        raise ConfigError(
            f"{draft.name} is imported as {draft.import_name}, and so is {imports[draft.import_name]}, "
            "which has facts: the two cannot be installed together, and no check could tell them apart",
            code="import-name-taken",
        )


def package_has_facts(name: str) -> ConfigError:
    """Return the error for a package that has facts already."""
    return ConfigError(
        f"torchmill has facts about {name}: `invoke build {name}` builds it; `--force` drafts a file "
        "anew that you have written",
        code="package-has-facts",
    )


def dry_run_requirements(source: ReadSource) -> list[str]:
    """Return the build requirements of a source for its dry run: those of pyproject.toml but torch."""
    return list(drafts.build_requirements(source.metadata, (), {}))
