"""Choose how a setup.py is run dry, and what makes it build with CUDA and without.

Which variable switches CUDA on is not known by a list of names: each one that setup.py asks for is
set, and the run shows whether files for CUDA appear. The same is done with two things that a build
can give it: nvcc on PATH, and `torch.cuda.is_available()` that is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchmill.config.field_types import no_entries
from torchmill.plan.package_draft.setup_run import SetupRun
from torchmill.plan.package_draft.setup_script import ReadVariable

_MOST_SWITCHES = 24  # variables that are tried
# Variables that mean a folder, a program, flags or a number, and switch nothing on.
_NO_SWITCH = re.compile(
    r"HOME|PATH|PWD|USER|SHELL|TMPDIR|TEMP|CC|CXX|CUDACXX|.*FLAGS|.*_(HOME|DIR|PATH|ROOT|URL|URI)"
    r"|.*ARCH(S|ES|_LIST)?|.*JOBS|.*THREADS|.*WORKERS|.*VERSION(_\w+)?|.*SUFFIX|CONDA_\w+|LD_\w+"
    r"|GITHUB_\w+|CI|VIRTUAL_ENV|CUDA_VISIBLE_DEVICES|.*DEBUG\w*|.*PROFILE\w*|SLURM_\w+"
)
_TELLING_NAME = re.compile("CUDA|CPU|BUILD|FORCE|GPU")
# The opposite of a default, in the spelling of the default.
_OPPOSITES = {
    "0": "1",
    "": "1",
    "1": "0",
    "FALSE": "TRUE",
    "False": "True",
    "false": "true",
    "TRUE": "FALSE",
    "True": "False",
    "true": "false",
    "OFF": "ON",
    "off": "on",
    "ON": "OFF",
    "on": "off",
    "NO": "YES",
    "no": "yes",
    "N": "Y",
    "Y": "N",
    "YES": "NO",
    "yes": "no",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """An environment in which a setup.py is run."""

    cuda: bool  # it has a toolkit, and a list of compute capabilities
    variables: Mapping[str, str] = no_entries()
    nvcc_on_path: bool = False
    gpu: bool = False  # torch.cuda.is_available() is true
    edited: bool = False  # in the copy of the source to which the draft's edits were made
    constant: str = ""  # the line of setup.py that was changed for it: "CPU_ONLY = True"

    @property
    def is_usual(self) -> bool:
        """Tell whether nothing is switched; CUDA and the draft's edits are no switches."""
        return not (self.variables or self.nvcc_on_path or self.gpu or self.constant)


WITHOUT_CUDA = Scenario(cuda=False)
WITH_CUDA = Scenario(cuda=True)


def switch_candidates(*runs: SetupRun) -> list[dict[str, str]]:
    """Return the variables that may switch something, each with the opposite of its default.

    The likeliest are first, and at most `_MOST_SWITCHES` are returned. Variables whose default is
    no known switch, such as "auto", are left out.
    """
    variables: dict[str, ReadVariable] = {}
    for run in runs:
        for variable in run.variables:
            variables.setdefault(variable.name, variable)
    candidates: list[dict[str, str]] = []
    for name, variable in variables.items():
        if _NO_SWITCH.fullmatch(name):
            continue
        value = _OPPOSITES.get(variable.default or "")
        if value is not None:
            candidates.append({name: value})
    # Those whose name speaks of CUDA or of a build first, if there are too many to try.
    candidates.sort(key=lambda candidate: not _TELLING_NAME.search(str(candidate)))
    return candidates[:_MOST_SWITCHES]


def further_scenarios(
    without: SetupRun, with_cuda: SetupRun, *, has_cuda_files: bool = True
) -> list[Scenario]:
    """Return the scenarios to try after the two first ones; none if those show both builds.

    Without files for CUDA in the source, no build with CUDA is looked for, unless there is none
    without it either.
    """
    scenarios: list[Scenario] = []
    candidates = switch_candidates(without, with_cuda)
    if not with_cuda.has_cuda and (has_cuda_files or not without.has_cpu):
        for variables in candidates:
            scenarios.append(Scenario(cuda=True, variables=variables))
        scenarios.append(Scenario(cuda=True, nvcc_on_path=True))
        scenarios.append(Scenario(cuda=True, gpu=True))
        scenarios.append(Scenario(cuda=True, gpu=True, nvcc_on_path=True))
    if not without.has_cpu:
        for variables in candidates:
            scenarios.append(Scenario(cuda=False, variables=variables))
    return scenarios


def paired_scenarios(without: SetupRun, with_cuda: SetupRun) -> list[Scenario]:
    """Return scenarios with CUDA, a variable and a GPU, for a setup.py that asks for both.

    Each is there without nvcc on PATH and with it.
    """
    scenarios: list[Scenario] = []
    for variables in switch_candidates(without, with_cuda):
        for nvcc_on_path in (False, True):
            scenarios.append(Scenario(True, variables, nvcc_on_path, gpu=True))
    return scenarios


def choose_scenario(
    tried: Sequence[tuple[Scenario, SetupRun]], *, cuda: bool
) -> tuple[Scenario, SetupRun] | None:
    """Return the best way to a build with CUDA or without; None if no scenario leads to it.

    A scenario without any change wins; then one with a variable, with nvcc on PATH, with a GPU,
    with a changed constant of setup.py. Of several variables that wins which compiles most, then
    one whose name speaks of CUDA (or CPU). Runs in the copy with the draft's edits do not count.
    """
    fitting: list[tuple[Scenario, SetupRun]] = []
    for scenario, run in tried:
        if scenario.cuda != cuda or scenario.edited:
            continue
        if run.has_cuda if cuda else run.has_cpu:
            fitting.append((scenario, run))
    if not fitting:
        return None
    word = "CUDA" if cuda else "CPU"

    def rank(item: tuple[Scenario, SetupRun]) -> tuple[object, ...]:
        scenario, run = item
        name = next(iter(scenario.variables), "")
        return (
            bool(scenario.constant),
            scenario.gpu,
            scenario.nvcc_on_path,
            bool(scenario.variables),
            -run.source_count,
            word not in name,
            len(name),
        )

    return min(fitting, key=rank)


def usual_failure(tried: Iterable[tuple[Scenario, SetupRun]]) -> SetupRun | None:
    """Return the first run that failed without any switch; None if there is none.

    A switch may merely ask for what is not there.
    """
    for scenario, run in tried:
        if scenario.is_usual and run.error is not None:
            return run
    return None
