"""Lists of compute capabilities: read them as PyTorch does, and write them.

A target is one entry of such a list: a capability to compile for, with or without PTX. A name of an
architecture, such as "Ampere", stands for several targets.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.release_lookup import newest_release
from torchmill.config.versions import is_within
from torchmill.core.package_data import read_table_beside

SEPARATORS = re.compile(r"[;,\s]+")
NUMBER = re.compile(r"(\d+\.\d)([af]?)")
# How nvcc ("sm_86", "compute_86") and CMake ("86-real") write a capability.
UNDOTTED = re.compile(
    # the major is lazy, so that 86 is 8 and 6, and 120 is 12 and 0
    r"(?P<kind>sm_?|compute_?|lto_?)?(?P<major>\d{1,2}?)(?P<minor>\d?)(?P<suffix>[af]?)"
    r"(?P<code>-real|-virtual)?",
    re.IGNORECASE,
)
# Words that PyTorch accepts and we refuse, in lower case -> the end of the error's sentence.
REFUSED_WORDS: dict[str, str] = read_table_beside(__file__, "not_capabilities.toml")
_PTX = "+PTX"


@dataclass(frozen=True, slots=True)
class ArchTarget:
    """One entry of a list of compute capabilities."""

    capability: str  # "9.0"
    suffix: str = ""  # "a": code for this capability alone; "f": for its family
    ptx: bool = False  # with PTX, too, which drivers compile for later GPUs

    @property
    def name(self) -> str:
        """Return "9.0a", as CUDA toolkits list it."""
        return self.capability + self.suffix

    def __str__(self) -> str:
        """Return "9.0a+PTX", as PyTorch reads it."""
        return self.name + _PTX if self.ptx else self.name


class UnreadableArchError(ValueError):
    """A word of the list that cannot be read; the message is the rest of a sentence about it."""


def capability_key(capability: str) -> tuple[int, int]:
    """Return a key that orders "9.0" before "10.0"."""
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def target_key(target: ArchTarget) -> tuple[tuple[int, int], str]:
    """Return a key that orders targets from the oldest capability to the newest."""
    return capability_key(target.capability), target.suffix


def is_plain_target(name: str) -> bool:
    """Tell whether a target's name is a plain capability, without "a" or "f" at its end."""
    return name[-1].isdigit()


def format_arch_list(targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "8.0;8.6+PTX": each target once, the oldest first.

    A target that is there with and without PTX gets PTX.
    """
    by_name: dict[str, ArchTarget] = {}
    for target in targets:
        # Of two entries for the same code, the one with PTX counts.
        if target.name not in by_name or target.ptx:
            by_name[target.name] = target
    return ";".join(str(target) for target in sorted(by_name.values(), key=target_key))


def parse_arch_list(
    facts: Facts, text: str, torch: str, gpus: Iterable[Gpu] = ()
) -> tuple[list[ArchTarget], list[str]]:
    """Return the targets of a list, in its order, and a problem for each word that cannot be read.

    A problem is a sentence; a list without a word is one, too. Whether any toolkit makes code for a
    target is not asked. `torch` is a version of torch: releases differ in the names of
    architectures that they know. `gpus` are the GPUs that the word "native" stands for.
    """
    native_gpus = tuple(gpus)
    targets: list[ArchTarget] = []
    problems: list[str] = []
    for word in SEPARATORS.split(text.strip("'\" ")):
        if not word:
            continue
        try:
            targets.extend(_parse_word(facts, word, torch, native_gpus))
        except UnreadableArchError as error:
            problems.append(f"'{word}' {error}")
    if not targets and not problems:
        problems.append("it names no compute capability; write one, such as 8.6")
    return targets, problems


def parse_checked_arch_list(facts: Facts, listed: str) -> list[ArchTarget]:
    """Return the targets of a list that was checked before, in its order; [] for an empty list.

    Names of architectures mean what they mean to the newest torch. A word that cannot be read, such
    as "native", has no targets.
    """
    targets, _ = parse_arch_list(facts, listed, newest_release(facts).torch_version)
    return targets


def listed_capabilities(facts: Facts, listed: str) -> list[Capability]:
    """Return the capabilities of a list that was checked before, without those that facts lack.

    They are in the order of the list; one that is listed twice, as "9.0;9.0a", is here twice.
    """
    capabilities: list[Capability] = []
    for target in parse_checked_arch_list(facts, listed):
        capability = facts.capability(target.capability)
        if capability is not None:
            capabilities.append(capability)
    return capabilities


def _parse_word(facts: Facts, word: str, torch: str, gpus: tuple[Gpu, ...]) -> Iterator[ArchTarget]:
    """Yield the targets that a word stands for. Raises UnreadableArchError."""
    has_ptx = word.upper().endswith(_PTX)
    name = word[: -len(_PTX)] if has_ptx else word
    number = NUMBER.fullmatch(name)
    if number:
        yield ArchTarget(number[1], number[2], has_ptx)
        return
    if name.lower() in REFUSED_WORDS:
        raise UnreadableArchError(REFUSED_WORDS[name.lower()])
    if name.lower() == "native":
        capabilities = _native_capabilities(gpus)
    else:
        capabilities = _architecture_capabilities(facts, name, torch, has_ptx=has_ptx)
    for capability in capabilities:
        # Only the newest, which is last, gets PTX: PTX serves GPUs that come later.
        yield ArchTarget(capability, ptx=has_ptx and capability == capabilities[-1])


def _native_capabilities(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Return the capabilities that the word "native" stands for, each once, the oldest first.

    Raises UnreadableArchError if there are no GPUs, or the capability of one is unknown.
    """
    if not gpus:
        raise UnreadableArchError(
            "stands for the GPUs of this machine, and none was found; `invoke arch --gpu NAME` "
            "shows the capability of a GPU"
        )
    unreported = [gpu.name for gpu in gpus if gpu.capability is None]
    if unreported:
        raise UnreadableArchError(
            "stands for the GPUs of this machine, and the driver does not report the capability "
            f"of {', '.join(unreported)}; `invoke arch --gpu NAME` shows it"
        )
    capabilities = {gpu.capability for gpu in gpus if gpu.capability}
    return tuple(sorted(capabilities, key=capability_key))


def _architecture_capabilities(
    facts: Facts, name: str, torch: str, *, has_ptx: bool
) -> tuple[str, ...]:
    """Return the capabilities that an architecture's name stands for in a release of torch.

    Case is ignored. `has_ptx` tells whether "+PTX" followed the name; the error's advice then has
    it, too. Raises UnreadableArchError, with advice, if the release does not know the name.
    """
    folded = name.casefold()
    by_name: dict[str, tuple[str, ...]] = {}
    for arch_name in facts.gpus.arch_names:
        if is_within(arch_name.release, torch):
            by_name[arch_name.name.casefold()] = arch_name.means
    if folded in by_name:
        return by_name[folded]
    for arch_name in facts.gpus.arch_names:
        if arch_name.name.casefold() == folded:
            capabilities = ";".join(arch_name.means)
            raise UnreadableArchError(
                f"is not a name that torch {torch} knows; write {capabilities}"
            )
    raise UnreadableArchError(_advise_on_word(name, by_name, ending=_PTX if has_ptx else ""))


def _advise_on_word(name: str, architectures: Iterable[str], *, ending: str) -> str:
    """Return advice on a word that is neither a capability nor a name, as the end of a sentence.

    `architectures` are names in lower case. `ending` is "+PTX" if that followed the name, else "".
    """
    undotted = UNDOTTED.fullmatch(name)
    if undotted:
        kind = (undotted["kind"] or "").lower()
        code = (undotted["code"] or "").lower()
        target = f"{undotted['major']}.{undotted['minor'] or 0}{undotted['suffix']}"
        # nvcc's "compute_86" and CMake's "86-virtual" are PTX.
        if ending or kind.startswith("compute") or code == "-virtual":
            target += _PTX
        return f"is not how PyTorch writes it: write {target}"
    # "2.1(2.0)" is code for 2.1 from the PTX of 2.0, as select_compute_arch.cmake of FindCUDA reads
    # it.
    number = re.match(r"\d+\.\d(?=\()", name)
    if number:
        return f"asks for code made from another capability's PTX: write {number[0]}{ending}"
    similar = get_close_matches(name.casefold(), list(architectures), 1)
    if similar:
        return f"is not an architecture; did you mean {similar[0].title()}{ending}?"
    return "is neither a compute capability, such as 8.6 or 9.0a+PTX, nor an architecture's name"
