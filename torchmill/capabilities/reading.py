"""Read a list of compute capabilities: what PyTorch takes, or else what to write instead."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from torchmill.capabilities.targets import Target, number
from torchmill.model import Facts, Gpu
from torchmill.rules import within

SEPARATORS = re.compile(r"[;,\s]+")
NUMBER = re.compile(r"(\d+\.\d)([af]?)")
# How nvcc ("sm_86", "compute_86") and CMake ("86-real") write it.
UNDOTTED = re.compile(r"(sm_?|compute_?|lto_?)?(\d{1,2}?)(\d?)([af]?)(-real|-virtual)?", re.IGNORECASE)
WHOLES = {
    "all": "stands for all that the CMake of a release has names for, whether nvcc takes it or not; "
    "leave the option out for the official list, or write the capabilities",
    "common": "stands for another list in every release; leave the option out for the official one, "
    "or write the capabilities",
    "auto": "builds for many GPUs without a word where it finds none; write native for those of this machine",
}


class UnreadableError(ValueError):
    """A word of the list that cannot be read; the message says what to write."""


def meanings(facts: Facts, torch: str) -> dict[str, tuple[str, ...]]:
    """Return what architectures' names stand for in a release of torch."""
    return {one.name: one.means for one in facts.arch_names if within(one.release, torch)}


def read(facts: Facts, text: str, torch: str, gpus: Iterable[Gpu] = ()) -> tuple[list[Target], list[str]]:
    """Return the targets of a list, in its order, and what is wrong with each word that is none.

    `torch` is the release that the names are read for; `gpus` are those that "native" stands for.
    """
    found: list[Target] = []
    problems: list[str] = []
    for word in filter(None, SEPARATORS.split(text.strip("'\" "))):
        try:
            found.extend(_targets(facts, word, torch, tuple(gpus)))
        except UnreadableError as error:
            problems.append(f"'{word}' {error}")
    if not found and not problems:
        problems.append("it names no compute capability; write one, such as 8.6")
    return found, problems


def _targets(facts: Facts, word: str, torch: str, gpus: tuple[Gpu, ...]) -> Iterator[Target]:
    """Yield what a word stands for; PTX of a name, or of native, is that of the newest."""
    ptx = word.lower().endswith("+ptx")
    name = word[: -len("+PTX")] if ptx else word
    if written := NUMBER.fullmatch(name):
        yield Target(written[1], written[2], ptx)
        return
    if name.lower() in WHOLES:
        raise UnreadableError(WHOLES[name.lower()])
    known = _native(gpus) if name.lower() == "native" else _named(facts, name, torch)
    for capability in known:
        yield Target(capability, ptx=ptx and capability == known[-1])


def _native(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    if not gpus:
        raise UnreadableError(
            "stands for the GPUs of this machine, and none was found; `invoke arch --gpu NAME` tells the "
            "capability of a GPU"
        )
    if silent := [gpu.name for gpu in gpus if gpu.capability is None]:
        raise UnreadableError(
            f"stands for the GPUs of this machine, and the driver does not tell the capability of "
            f"{', '.join(silent)}; `invoke arch --gpu NAME` does"
        )
    found = {gpu.capability for gpu in gpus if gpu.capability}
    return tuple(sorted(found, key=number))


def _named(facts: Facts, name: str, torch: str) -> tuple[str, ...]:
    """Return the capabilities behind an architecture's name, however its letters are cased."""
    known = {one.casefold(): means for one, means in meanings(facts, torch).items()}
    if name.casefold() in known:
        return known[name.casefold()]
    for one in facts.arch_names:
        if one.name.casefold() == name.casefold():
            raise UnreadableError(f"is no name that torch {torch} knows; write {';'.join(one.means)}")
    raise UnreadableError(_advice(name, known))


def _advice(name: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return what to write instead of a word that is neither a capability nor a name."""
    if (code := UNDOTTED.fullmatch(name)) and (code[2] or code[3]):
        virtual = (code[1] or "").lower().startswith("compute") or (code[5] or "").lower() == "-virtual"
        whole = f"{code[2]}.{code[3] or 0}{code[4]}"
        return f"is not how PyTorch writes it: write {whole}{'+PTX' * virtual}"
    if before := re.match(r"\d+\.\d(?=\()", name):
        return f"asks for code made from another capability's PTX: write {before[0]}"
    if near := get_close_matches(name.casefold(), known, 1):
        return f"is no architecture; did you mean {near[0].title().replace('ptx', 'PTX')}?"
    return "is neither a compute capability, such as 8.6 or 9.0a+PTX, nor an architecture's name"
