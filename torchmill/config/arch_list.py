"""Lists of compute capabilities: read them as PyTorch does, and write them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.release_lookup import newest_release
from torchmill.config.versions import is_within
from torchmill.core.package_data import read_table_beside

SEPARATORS = re.compile(r"[;,\s]+")
NUMBER = re.compile(r"(\d+\.\d)([af]?)")
# How nvcc ("sm_86", "compute_86") and CMake ("86-real") write it.
UNDOTTED = re.compile(
    r"(sm_?|compute_?|lto_?)?(\d{1,2}?)(\d?)([af]?)(-real|-virtual)?", re.IGNORECASE
)
WHOLES: dict[str, str] = read_table_beside(__file__, "not_capabilities.toml")


def capability_key(capability: str) -> tuple[int, int]:
    """Return a capability in an order that people expect: "9.0" before "10.0"."""
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class ArchTarget:
    """One entry of a list of compute capabilities."""

    capability: str  # "9.0"
    suffix: str = ""  # "a": code for this capability alone; "f": for its family
    ptx: bool = False  # PTX too, which drivers compile for later GPUs

    @property
    def name(self) -> str:
        """Return "9.0a": what toolkits list."""
        return self.capability + self.suffix

    def __str__(self) -> str:
        """Return "9.0a+PTX": what PyTorch reads."""
        return self.name + "+PTX" * self.ptx


def target_key(target: ArchTarget) -> tuple[tuple[int, int], str]:
    """Order targets from the oldest capability to the newest."""
    return capability_key(target.capability), target.suffix


def is_plain_target(name: str) -> bool:
    """Tell whether a target's name is that of a capability, without "a" or "f"."""
    return name[-1].isdigit()


def format_arch_list(targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "8.0;8.6+PTX": each target once, the oldest first."""
    each_once = {
        one.name: one for one in sorted(targets, key=lambda one: one.ptx)
    }  # with PTX, if one has it
    return ";".join(map(str, sorted(each_once.values(), key=target_key)))


class UnreadableArchError(ValueError):
    """A word of the list that cannot be read; the message says what to write."""


def parse_arch_list(
    facts: Facts, text: str, torch: str, gpus: Iterable[Gpu] = ()
) -> tuple[list[ArchTarget], list[str]]:
    """Return the targets of a list, in its order, and what is wrong with each word that is none.

    `torch` is the release that the names are read for; `gpus` are those that "native" stands for.
    """
    found: list[ArchTarget] = []
    problems: list[str] = []
    for word in filter(None, SEPARATORS.split(text.strip("'\" "))):
        try:
            found.extend(_targets(facts, word, torch, tuple(gpus)))
        except UnreadableArchError as error:
            problems.append(f"'{word}' {error}")
    if not found and not problems:
        problems.append("it names no compute capability; write one, such as 8.6")
    return found, problems


def _targets(facts: Facts, word: str, torch: str, gpus: tuple[Gpu, ...]) -> Iterator[ArchTarget]:
    """Yield what a word stands for; PTX of a name, or of native, is that of the newest."""
    ptx = word.lower().endswith("+ptx")
    name = word[: -len("+PTX")] if ptx else word
    if written := NUMBER.fullmatch(name):
        yield ArchTarget(written[1], written[2], ptx)
        return
    if name.lower() in WHOLES:
        raise UnreadableArchError(WHOLES[name.lower()])
    known = _native(gpus) if name.lower() == "native" else _named(facts, name, torch)
    for capability in known:
        yield ArchTarget(capability, ptx=ptx and capability == known[-1])


def _native(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    if not gpus:
        raise UnreadableArchError(
            "stands for the GPUs of this machine, and none was found; `invoke arch --gpu NAME` shows the "
            "capability of a GPU"
        )
    if silent := [gpu.name for gpu in gpus if gpu.capability is None]:
        raise UnreadableArchError(
            f"stands for the GPUs of this machine, and the driver does not report the capability of "
            f"{', '.join(silent)}; `invoke arch --gpu NAME` does"
        )
    return tuple(sorted({gpu.capability for gpu in gpus if gpu.capability}, key=capability_key))


def _named(facts: Facts, name: str, torch: str) -> tuple[str, ...]:
    """Return the capabilities behind an architecture's name, however its letters are cased."""
    known = {
        one.name.casefold(): one.means for one in facts.arch_names if is_within(one.release, torch)
    }
    if name.casefold() in known:
        return known[name.casefold()]
    for one in facts.arch_names:
        if one.name.casefold() == name.casefold():
            raise UnreadableArchError(
                f"is not a name that torch {torch} knows; write {';'.join(one.means)}"
            )
    raise UnreadableArchError(_advice(name, known))


def _advice(name: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return what to write instead of a word that is neither a capability nor a name."""
    if (code := UNDOTTED.fullmatch(name)) and (code[2] or code[3]):
        virtual = (code[1] or "").lower().startswith("compute") or (
            code[5] or ""
        ).lower() == "-virtual"
        whole = f"{code[2]}.{code[3] or 0}{code[4]}"
        return f"is not how PyTorch writes it: write {whole}{'+PTX' * virtual}"
    if before := re.match(r"\d+\.\d(?=\()", name):
        return f"asks for code made from another capability's PTX: write {before[0]}"
    if near := get_close_matches(name.casefold(), known, 1):
        return f"is not an architecture; did you mean {near[0].title().replace('ptx', 'PTX')}?"
    return "is neither a compute capability, such as 8.6 or 9.0a+PTX, nor an architecture's name"


def listed_capabilities(facts: Facts, listed: str) -> list[Capability]:
    """Return the capabilities of a list, as far as they are known."""
    known = (facts.capability(target.capability) for target in parse_targets(facts, listed))
    return [one for one in known if one is not None]


def parse_targets(facts: Facts, listed: str) -> list[ArchTarget]:
    """Return what a list that can be read says; nothing of an empty one."""
    return parse_arch_list(facts, listed, newest_release(facts).torch_version)[0]
