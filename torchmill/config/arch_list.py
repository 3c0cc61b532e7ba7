"""Lists of compute capabilities: parse them, find GPUs by name, tell which GPUs a list serves."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from torchmill.config.matrix import is_within, newest_release
from torchmill.config.model import Capability, Facts, Gpu
from torchmill.core.dataclass import dataclass
from torchmill.core.errors import ConfigError

BRANDS = {"nvidia", "geforce", "quadro", "tesla", "gpu", "laptop", "generation"}


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU that a name may mean."""

    gpu: str
    capability: Capability


def find_gpus(facts: Facts, name: str) -> tuple[NamedGpu, ...]:
    """Return the GPUs that a name may mean: "RTX 3090", "rtx3090", "3090", "NVIDIA A100-SXM4-40GB".

    Raises ConfigError, with near matches, when no GPU is called so.
    """
    asked = _words(name)
    everything = [NamedGpu(gpu, one) for one in facts.capabilities for gpu in one.gpus]
    found = [one for one in everything if _runs("".join(asked), _words(one.gpu))]
    if not found:
        inside = [one for one in everything if _runs("".join(_words(one.gpu)), asked)]
        longest = max((len(_words(one.gpu)) for one in inside), default=0)
        found = [one for one in inside if len(_words(one.gpu)) == longest]
    if asked and found:
        return tuple(found)
    known = {" ".join(_words(one.gpu)): one.gpu for one in everything}
    near = get_close_matches(" ".join(asked), known, 3)
    hint = f"; near it are {', '.join(known[one] for one in near)}" if near else ""
    raise ConfigError(
        f"no GPU called '{name}' is known{hint}; `nvidia-smi --query-gpu=name,compute_cap --format=csv` on "
        "its machine tells the compute capability",
        code="unknown-gpu",
    )


def gpus_of_host(facts: Facts, gpus: Iterable[Gpu]) -> tuple[NamedGpu, ...]:
    """Return the GPUs of a machine with their capabilities; an old driver tells only the name.

    Raises ConfigError when there is none, or the capability of one is not known.
    """
    known = {one.name: one for one in facts.capabilities}
    found: list[NamedGpu] = []
    for gpu in gpus:
        if gpu.capability is None:
            found.append(NamedGpu(gpu.name, find_gpus(facts, gpu.name)[0].capability))
        elif gpu.capability in known:
            found.append(NamedGpu(gpu.name, known[gpu.capability]))
        else:
            raise ConfigError(
                f"{gpu.name} has compute capability {gpu.capability}, which gpus.toml lacks",
                code="unknown-capability",
            )
    if not found:
        raise ConfigError("no GPU was found here: name one with `invoke arch --gpu NAME`", code="no-gpu")
    return tuple(found)


def gpu_capability(facts: Facts, gpu: Gpu) -> Capability | None:
    """Return a GPU's compute capability: what the driver says, else what the facts say of its name."""
    try:
        return gpus_of_host(facts, (gpu,))[0].capability
    except ConfigError:  # newer than the facts, or a name that they lack
        return Capability(gpu.capability, "", ()) if gpu.capability else None


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in BRANDS]


def _runs(text: str, words: Sequence[str]) -> bool:
    """Tell whether words that follow each other make up a text."""
    return any(
        "".join(words[start:end]) == text for start in range(len(words)) for end in range(start + 1, len(words) + 1)
    )


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
    ptx: dict[tuple[str, str], bool] = {}
    for one in targets:
        key = one.capability, one.suffix
        ptx[key] = ptx.get(key, False) or one.ptx
    return ";".join(map(str, sorted((ArchTarget(*key, wanted) for key, wanted in ptx.items()), key=target_key)))


def is_chip(facts: Facts, capability: str) -> bool:
    """Tell whether a capability is that of systems on a chip, such as Jetson's."""
    known = facts.capability(capability)
    return known is not None and known.tegra


def code_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a target's code runs on GPUs of a capability: on the same, or a later minor of its major.

    NVIDIA does not promise the second for systems on a chip, nor between them and graphics cards.
    """
    if target.capability == gpu.name:
        return True
    if target.suffix == "a" or gpu.tegra or is_chip(facts, target.capability):
        return False
    (major, minor), (gpu_major, gpu_minor) = capability_key(target.capability), capability_key(gpu.name)
    return major == gpu_major and minor < gpu_minor


def ptx_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a driver compiles a target's PTX for GPUs of a capability: for every later one."""
    if target.suffix:
        return target.ptx and code_runs(facts, target, gpu)
    return target.ptx and capability_key(target.capability) <= capability_key(gpu.name)


def how_served(facts: Facts, targets: Iterable[ArchTarget], gpu: Capability) -> str | None:
    """Return how a list serves GPUs of a capability: "code", "PTX", or None, not at all."""
    served = serving_target(facts, targets, gpu)
    return served[0] if served else None


def serving_target(facts: Facts, targets: Iterable[ArchTarget], gpu: Capability) -> tuple[str, ArchTarget] | None:
    """Return how a list serves GPUs of a capability, "code" or "PTX", and the entry that does; None: not at all."""
    newest_first = sorted(targets, key=target_key, reverse=True)
    for way, runs in (("code", code_runs), ("PTX", ptx_runs)):
        for one in newest_first:
            if runs(facts, one, gpu):
                return way, one
    return None


def shortest_arch_list(facts: Facts, gpus: Iterable[Capability]) -> tuple[ArchTarget, ...]:
    """Return the shortest list whose code, without PTX, runs on GPUs of each capability."""
    found: list[ArchTarget] = []
    for gpu in sorted(gpus, key=lambda one: capability_key(one.name)):
        if how_served(facts, found, gpu) is None:
            found.append(ArchTarget(gpu.name))
    return tuple(found)


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
            "stands for the GPUs of this machine, and none was found; `invoke arch --gpu NAME` tells the "
            "capability of a GPU"
        )
    if silent := [gpu.name for gpu in gpus if gpu.capability is None]:
        raise UnreadableArchError(
            f"stands for the GPUs of this machine, and the driver does not tell the capability of "
            f"{', '.join(silent)}; `invoke arch --gpu NAME` does"
        )
    found = {gpu.capability for gpu in gpus if gpu.capability}
    return tuple(sorted(found, key=capability_key))


def _named(facts: Facts, name: str, torch: str) -> tuple[str, ...]:
    """Return the capabilities behind an architecture's name, however its letters are cased."""
    known = {one.name.casefold(): one.means for one in facts.arch_names if is_within(one.release, torch)}
    if name.casefold() in known:
        return known[name.casefold()]
    for one in facts.arch_names:
        if one.name.casefold() == name.casefold():
            raise UnreadableArchError(f"is not a name that torch {torch} knows; write {';'.join(one.means)}")
    raise UnreadableArchError(_advice(name, known))


def _advice(name: str, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return what to write instead of a word that is neither a capability nor a name."""
    if (code := UNDOTTED.fullmatch(name)) and (code[2] or code[3]):
        virtual = (code[1] or "").lower().startswith("compute") or (code[5] or "").lower() == "-virtual"
        whole = f"{code[2]}.{code[3] or 0}{code[4]}"
        return f"is not how PyTorch writes it: write {whole}{'+PTX' * virtual}"
    if before := re.match(r"\d+\.\d(?=\()", name):
        return f"asks for code made from another capability's PTX: write {before[0]}"
    if near := get_close_matches(name.casefold(), known, 1):
        return f"is not an architecture; did you mean {near[0].title().replace('ptx', 'PTX')}?"
    return "is neither a compute capability, such as 8.6 or 9.0a+PTX, nor an architecture's name"


def unserved_capabilities(facts: Facts, code: str, listed: str) -> list[str]:
    """Return the capabilities of a list whose GPUs some code does not run on, nor a driver's PTX of it.

    Both are written as TORCH_CUDA_ARCH_LIST is: "7.0;8.6+PTX". PTX that the list asks for is not missed.
    """
    there, wanted = parse_targets(facts, code), parse_targets(facts, listed)
    known = {one.capability: facts.capability(one.capability) for one in wanted}
    return [name for name, gpu in known.items() if gpu is None or how_served(facts, there, gpu) is None]


def parse_targets(facts: Facts, listed: str) -> list[ArchTarget]:
    """Return what a list that can be read says; nothing of an empty one."""
    return parse_arch_list(facts, listed, newest_release(facts).torch_version)[0] if listed else []
