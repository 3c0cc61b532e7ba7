"""Answer `invoke arch`: what is known of a list, of the GPUs of a name, or of those of a machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torchmill.capabilities import report
from torchmill.capabilities.choosing import judged
from torchmill.capabilities.gpus import Named, find, of_host
from torchmill.capabilities.judging import builds_with, judge
from torchmill.capabilities.targets import Target, canonical, fewest
from torchmill.errors import ConfigError
from torchmill.estimate import report as costs
from torchmill.matrix import base_package, find_release, supported
from torchmill.model import Facts, Host, Options, Plan, Release, Toolkit
from torchmill.plan import compute

HELP = {
    "list_": "compute capabilities, such as '8.6' or '8.0;8.6+PTX'; without them, all that fit, in short",
    "gpu": "a GPU by its name, such as 'RTX 3090'; may be repeated",
    "local": "the GPUs of this machine",
    "cuda": "the toolkit that must make code for the list, such as 11.8",
    "tag": "the release that must read it",
    "json": "print JSON",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; what is empty is not asked."""

    text: str = ""  # a list of compute capabilities
    names: tuple[str, ...] = ()  # of GPUs
    local: bool = False  # the GPUs of this machine
    cuda: str = ""  # the toolkit that must make code for it
    tag: str = ""  # the release of torch that must read it


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known, for people and for programs."""

    text: str
    data: dict[str, Any]


def answer(facts: Facts, question: Question, host: Host) -> Answer:
    """Return what is known of a list or of GPUs; asked for nothing, of all that fit in short.

    With a toolkit and a release it says what the list costs on `host`. Raises ConfigError for what is not
    known or cannot be read, ImpossibleBuildError for a list that the toolkit or the release does not take.
    """
    toolkit = _toolkit(facts, question.cuda) if question.cuda else None
    release = find_release(facts, base_package(facts).name, question.tag) if question.tag else None
    named = [one for name in question.names for one in find(facts, name)]
    named += of_host(facts, host.gpus) if question.local else ()
    asked = question.text or ";".join(dict.fromkeys(one.capability.name for one in named))
    if not asked:
        fitting = [
            one for one in facts.capabilities if not any(judge(facts, [Target(one.name)], toolkit, release))
        ]
        everything = [report.as_data(facts, one) for one in fitting]
        return Answer(report.overview(facts, fitting), {"capabilities": everything})
    targets = judged(facts, asked, toolkit, release, host.gpus)
    known = [report.capability(facts, one) for one in dict.fromkeys(each.capability for each in targets)]
    planned = _planned(facts, targets, toolkit, release, host)
    text = [
        *_named(facts, named),
        *(report.as_text(facts, one) for one in known),
        report.list_as_text(facts, targets),
        *_remarks(facts, targets, toolkit, release),
        *([costs.as_text(facts, planned, host.memory)] if planned else ()),
    ]
    data = {
        "gpus": {one.gpu: one.capability.name for one in named},
        "capabilities": [report.as_data(facts, one) for one in known],
        **report.list_as_data(facts, targets),
        **(costs.as_data(facts, planned) if planned else {"estimate": None, "overflow": None}),
    }
    return Answer("\n".join(text), data)


def _named(facts: Facts, named: Sequence[Named]) -> Iterator[str]:
    """Yield each GPU's capability, and a shorter list that serves them all, if there is one."""
    capabilities = {one.capability.name: one.capability for one in named}
    for one in named:
        yield f"{one.gpu}: {one.capability.name}"
    shortest = fewest(facts, capabilities.values())
    if len(shortest) < len(capabilities):
        yield f"{canonical(shortest)} would do: its code runs on all of them"


def _remarks(
    facts: Facts, targets: Sequence[Target], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield what to know before a list is built with a toolkit."""
    if toolkit is None:
        return
    if warned := [one.name for one in targets if one.name in toolkit.deprecated]:
        yield f"  CUDA {toolkit.version} warns about {', '.join(warned)}: a later toolkit drops them"
    if any(one.ptx for one in targets) and toolkit.driver_ptx:
        yield f"  PTX made by CUDA {toolkit.version} is sure to run with Linux driver {toolkit.driver_ptx}"
    if release and not builds_with(facts, release, toolkit):
        yield f"  {release} does not build with CUDA {toolkit.version}"


def _planned(
    facts: Facts, targets: Sequence[Target], toolkit: Toolkit | None, release: Release | None, host: Host
) -> Plan | None:
    """Return the plan of a build with such a list, for the newest Python; None where none is possible."""
    if toolkit is None or release is None:
        return None
    cells = [
        cell
        for cell in supported(facts, release, host.arch)
        if cell.possible and cell.build.cuda == toolkit.version
    ]
    return compute(facts, cells[-1], host, Options(arch_list=canonical(targets))) if cells else None


def _toolkit(facts: Facts, version: str) -> Toolkit:
    known = [one.version for one in facts.toolkits]
    wanted = version.removeprefix("cu")
    for one in facts.toolkits:
        if wanted in {one.version, one.variant.removeprefix("cu")}:
            return one
    near = get_close_matches(version, known, 3) or known
    raise ConfigError(f"no CUDA toolkit {version} is known; there is {', '.join(near)}")
