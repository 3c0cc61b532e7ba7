"""Find GPUs by the names that people and drivers give them, and tell their capabilities."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations

from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, DeviceMaker, Gpu
from torchmill.core.errors import ConfigError

# Words that may be missing in one of two names of the same GPU.
BRANDS = {"nvidia", "geforce", "quadro", "tesla", "gpu", "laptop", "generation", "nvgpu"}
_BETWEEN_GPUS = re.compile(r"[,;+&/]|\band\b")
# A virtual GPU is named by its board, letters for the board's memory, the size of its profile in GB
# and its series: "GRID A100D-80C" (https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/).
_VIRTUAL = re.compile(
    r"(?:nvidia |grid )*(rtx ?(\d+)|[a-z]{0,2}\d+)[a-z]*-(?:\d+-)?\d+[abcq](?:\d|me)?",
    re.IGNORECASE,
)
_SUGGESTIONS = 3  # names that a message suggests


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU that a name may mean, or all GPUs of a compute capability."""

    name: str  # "GeForce RTX 3090"; of all GPUs of a capability "8.6"
    capability: Capability


def split_names(text: str) -> list[str]:
    """Return the names in a list of GPUs such as "K80, GTX 960" or "K80 and GTX 960".

    There is always one: a text of nothing but separators is taken for a name.
    """
    names = [name.strip() for name in _BETWEEN_GPUS.split(text)]
    return [name for name in names if name] or [text]


def find_gpus(facts: Facts, name: str) -> tuple[NamedGpu, ...]:
    """Return the GPUs that a name may mean: "RTX 3090", "3090", "NVIDIA A100-SXM4-40GB", "8.6".

    For a list of names, "K80, GTX 960", these are the GPUs of all of them. The name of a virtual
    GPU means that of its board, and "Jetson" may be left out. Raises ConfigError, with near
    matches, if no GPU has that name, or for a device of another maker.
    """
    names = split_names(name)
    if len(names) > 1:
        gpus: list[NamedGpu] = []
        for single_name in names:
            gpus.extend(find_gpus(facts, single_name))
        return tuple(gpus)

    capability = facts.capability(name.strip())
    if capability is not None:
        return (NamedGpu(capability.name, capability),)
    gpus = _known_gpus(facts)
    # A full name counts before similar ones: "Quadro RTX 4000" does not mean the RTX 4000 Ada.
    full_name = name.strip().lower()
    spellings = {full_name, full_name.removeprefix("nvidia ")}
    exact = tuple(gpu for gpu in gpus if gpu.name.lower() in spellings)
    if exact:
        return exact
    virtual = _VIRTUAL.fullmatch(name.strip())
    if virtual:
        board = f"Quadro RTX {virtual[2]}" if virtual[2] else virtual[1]
        return find_gpus(facts, board)
    words = _words(name)
    # A device of another maker must not be taken for a GPU with similar words in its name.
    _refuse_other_maker(facts, name, [gpu.name for gpu in gpus if _words(gpu.name) == words])
    similar = _similar_gpus(gpus, words) if words else []
    if words and not similar:
        # People leave that word out: "Orin Nano Super", "AGX Orin 64GB".
        similar = _similar_gpus(gpus, ["jetson", *words])
    if not similar:
        raise _unknown_gpu(gpus, name)
    return tuple(similar)


def _known_gpus(facts: Facts) -> list[NamedGpu]:
    """Return all GPUs of the facts."""
    gpus: list[NamedGpu] = []
    for capability in facts.gpus.capabilities:
        gpus.extend(NamedGpu(gpu, capability) for gpu in capability.gpus)
    return gpus


def _words(name: str) -> list[str]:
    """Return the words of a name by which GPUs differ: "NVIDIA A100-SXM4" has "a100", "sxm4"."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return [word for word in words if word not in BRANDS]


def _similar_gpus(gpus: Sequence[NamedGpu], words: Sequence[str]) -> list[NamedGpu]:
    """Return the GPUs whose names are similar to a user's, which consists of `words`.

    These are the GPUs whose names contain the user's name: "GeForce RTX 3090" contains "3090". If
    there are none, they are those whose names the user's name contains: "NVIDIA A100-SXM4-40GB"
    contains "A100". Of several that it contains, only the longest counts: in "RTX 3090 Ti x2" that
    is "RTX 3090 Ti", not "RTX 3090".
    """
    text = "".join(words)
    containing = [gpu for gpu in gpus if any(_find_spans(text, _words(gpu.name)))]
    if containing:
        return containing
    contained: list[tuple[NamedGpu, frozenset[int]]] = []  # a GPU, and where `words` has its name
    for gpu in gpus:
        gpu_text = "".join(_words(gpu.name))
        contained.extend((gpu, span) for span in _find_spans(gpu_text, words))
    longest = []
    for gpu, span in contained:
        is_part_of_longer = any(span < other_span for _, other_span in contained)
        if not is_part_of_longer:
            longest.append(gpu)
    return longest


def _find_spans(text: str, words: Sequence[str]) -> Iterator[frozenset[int]]:
    """Yield where `words` has a text, each time as the indexes of successive words.

    "GeForce RTX 3090" has the text "rtx3090" in its words 1 and 2.
    """
    for start, end in combinations(range(len(words) + 1), 2):
        if "".join(words[start:end]) == text:
            yield frozenset(range(start, end))


def _refuse_other_maker(facts: Facts, name: str, same_name: Sequence[str]) -> None:
    """Raise ConfigError if a name is, or may be, that of a device that is not NVIDIA's.

    `same_name` are the names of NVIDIA's GPUs that have the same words: then it only may be.
    """
    maker = _other_maker(facts, name)
    if maker is None:
        return
    if same_name:
        raise ConfigError(
            f"'{name}' may be a device of {maker.maker}, or NVIDIA's {', '.join(same_name)}: "
            "write the whole name",
            code="unknown-gpu",
        )
    unbuilt = f", and torchmill builds nothing for {maker.platform}" if maker.platform else ""
    raise ConfigError(
        f"'{name}' is a device of {maker.maker}, which has no CUDA{unbuilt}: {maker.alternative}",
        code="gpu-of-another-maker",
    )


def _other_maker(facts: Facts, name: str) -> DeviceMaker | None:
    """Return the maker of a device by its name; None if it is no maker of makers.toml."""
    for maker in facts.gpus.device_makers:
        if any(re.search(pattern, name, re.IGNORECASE) for pattern in maker.names):
            return maker
    return None


def _unknown_gpu(gpus: Sequence[NamedGpu], name: str) -> ConfigError:
    """Return the error for a name that no GPU has, with the most similar ones."""
    names = {" ".join(_words(gpu.name)): gpu.name for gpu in gpus}
    similar = [names[key] for key in get_close_matches(" ".join(_words(name)), names, _SUGGESTIONS)]
    hint = f"; near it are {', '.join(similar)}" if similar else ""
    return ConfigError(
        f"no GPU called '{name}' is known{hint}; `nvidia-smi --query-gpu=name,compute_cap "
        "--format=csv` on that machine shows the compute capability, which can be given in place "
        "of the name",
        code="unknown-gpu",
    )


def gpus_of_host(
    facts: Facts, gpus: Iterable[Gpu], unknown_reason: str = ""
) -> tuple[NamedGpu, ...]:
    """Return the GPUs of a machine with their capabilities.

    An old driver reports only the name of a GPU: then the capability is that of the first GPU in
    the facts which the name may mean. If nobody can tell which GPUs the machine has,
    `unknown_reason` says why. Raises ConfigError if `gpus` is empty, or the capability of a GPU is
    unknown.
    """
    named_gpus: list[NamedGpu] = []
    for gpu in gpus:
        if gpu.capability is None:
            capability: Capability | None = find_gpus(facts, gpu.name)[0].capability
        else:
            capability = facts.capability(gpu.capability)
        if capability is None:
            raise ConfigError(
                f"{gpu.name} has compute capability {gpu.capability}, which gpus.toml lacks",
                code="unknown-capability",
            )
        named_gpus.append(NamedGpu(gpu.name, capability))
    if not named_gpus and unknown_reason:
        raise ConfigError(
            f"cannot tell which GPUs are here ({unknown_reason}): name one, as in --gpu 8.6",
            code="no-gpu",
        )
    if not named_gpus:
        raise ConfigError("no GPU was found here: name one, as in --gpu 'RTX 3090'", code="no-gpu")
    return tuple(named_gpus)


def gpu_capability(facts: Facts, gpu: Gpu) -> Capability | None:
    """Return a GPU's compute capability as its driver reports it, or else as its name tells.

    A capability that the facts lack has nothing but its number. None if only the name is known, and
    the facts lack it.
    """
    try:
        return gpus_of_host(facts, (gpu,))[0].capability
    except ConfigError:
        return Capability(gpu.capability, "", ()) if gpu.capability else None


def known_capabilities(facts: Facts, gpus: Iterable[Gpu]) -> list[Capability]:
    """Return the compute capabilities of some GPUs, one for each GPU of which it is known."""
    capabilities = [gpu_capability(facts, gpu) for gpu in gpus]
    return [capability for capability in capabilities if capability is not None]
