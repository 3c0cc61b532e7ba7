"""Find GPUs by the names that people and drivers give them, and tell their compute capabilities."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations

from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.core.errors import ConfigError

BRANDS = {"nvidia", "geforce", "quadro", "tesla", "gpu", "laptop", "generation", "nvgpu"}
_BETWEEN_GPUS = re.compile(r"[,;+&/]|\band\b")
# A virtual GPU is called by its board, letters for the board's memory, the profile's size in GB and its series:
# "GRID A100D-80C" (https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/).
_VIRTUAL = re.compile(
    r"(?:nvidia |grid )*(rtx ?(\d+)|[a-z]{0,2}\d+)[a-z]*-(?:\d+-)?\d+[abcq](?:\d|me)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU that a name may mean."""

    gpu: str
    capability: Capability


def gpu_names(text: str) -> list[str]:
    """Return the names in a text: "K80, GTX 960", "K80 and GTX 960"; the text itself where it is no list."""
    return list(filter(None, map(str.strip, _BETWEEN_GPUS.split(text)))) or [text]


def find_gpus(facts: Facts, name: str) -> tuple[NamedGpu, ...]:
    """Return the GPUs that a name may mean: "RTX 3090", "rtx3090", "3090", "NVIDIA A100-SXM4-40GB", "8.6".

    Of several names, "K80, GTX 960", those of each. Raises ConfigError, with near matches, when no GPU is called so.
    """
    if len(names := gpu_names(name)) > 1:
        return tuple(one for each in names for one in find_gpus(facts, each))
    if (number := facts.capability(name.strip())) is not None:
        return (NamedGpu(number.name, number),)
    whole = name.strip().lower()  # "Quadro RTX 4000" is no RTX 4000 Ada
    everything = [NamedGpu(gpu, one) for one in facts.capabilities for gpu in one.gpus]
    if found := [
        one for one in everything if one.gpu.lower() in {whole, whole.removeprefix("nvidia ")}
    ]:
        return tuple(found)
    if virtual := _VIRTUAL.fullmatch(name.strip()):
        return find_gpus(facts, f"Quadro RTX {virtual[2]}" if virtual[2] else virtual[1])
    asked = _words(name)
    _refuse_other_maker(facts, name, [one.gpu for one in everything if _words(one.gpu) == asked])
    if asked and (found := _similar_gpus(everything, asked)):
        return tuple(found)
    known = {" ".join(_words(one.gpu)): one.gpu for one in everything}
    near = get_close_matches(" ".join(asked), known, 3)
    hint = f"; near it are {', '.join(known[one] for one in near)}" if near else ""
    raise ConfigError(
        f"no GPU called '{name}' is known{hint}; `nvidia-smi --query-gpu=name,compute_cap --format=csv` on "
        "that machine shows the compute capability, which can be given in place of the name",
        code="unknown-gpu",
    )


def _similar_gpus(everything: Sequence[NamedGpu], asked: Sequence[str]) -> list[NamedGpu]:
    """Return the GPUs whose names have the words that are asked for, or else those whose names are among these."""
    if found := [one for one in everything if any(_spans("".join(asked), _words(one.gpu)))]:
        return found
    inside = [(one, span) for one in everything for span in _spans("".join(_words(one.gpu)), asked)]
    return [one for one, span in inside if not any(span < other for _, other in inside)]


def _refuse_other_maker(facts: Facts, name: str, alike: Sequence[str]) -> None:
    """Raise ConfigError for the name of a device that is not NVIDIA's; `alike` are GPUs of NVIDIA's with that name."""
    maker = next(
        (
            one
            for one in facts.makers
            if any(re.search(each, name, re.IGNORECASE) for each in one.names)
        ),
        None,
    )
    if maker is None:
        return
    if alike:
        raise ConfigError(
            f"'{name}' may be a device of {maker.maker}, or NVIDIA's {', '.join(alike)}: write the whole name",
            code="unknown-gpu",
        )
    unbuilt = f", and torchmill builds nothing for {maker.platform}" if maker.platform else ""
    raise ConfigError(
        f"'{name}' is a device of {maker.maker}, which has no CUDA{unbuilt}: {maker.instead}",
        code="gpu-of-another-maker",
    )


def gpus_of_host(facts: Facts, gpus: Iterable[Gpu], unknown: str = "") -> tuple[NamedGpu, ...]:
    """Return the GPUs of a machine with their capabilities; an old driver tells only the name.

    `unknown` is why it is not known which GPUs there are, if it is not. Raises ConfigError when there is none, or
    the capability of one is not known.
    """
    found: list[NamedGpu] = []
    for gpu in gpus:
        said = gpu.capability
        known = find_gpus(facts, gpu.name)[0].capability if said is None else facts.capability(said)
        if known is None:
            raise ConfigError(
                f"{gpu.name} has compute capability {gpu.capability}, which gpus.toml lacks",
                code="unknown-capability",
            )
        found.append(NamedGpu(gpu.name, known))
    if not found and unknown:
        raise ConfigError(
            f"cannot tell which GPUs are here ({unknown}): name one, as in --gpu 8.6", code="no-gpu"
        )
    if not found:
        raise ConfigError("no GPU was found here: name one, as in --gpu 'RTX 3090'", code="no-gpu")
    return tuple(found)


def gpu_capability(facts: Facts, gpu: Gpu) -> Capability | None:
    """Return a GPU's compute capability: what the driver says, else what the facts say of its name."""
    try:
        return gpus_of_host(facts, (gpu,))[0].capability
    except ConfigError:  # newer than the facts, or a name that they lack
        return Capability(gpu.capability, "", ()) if gpu.capability else None


def known_capabilities(facts: Facts, gpus: Iterable[Gpu]) -> list[Capability]:
    """Return the compute capabilities of some GPUs, as far as they are known."""
    return [capability for gpu in gpus if (capability := gpu_capability(facts, gpu))]


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in BRANDS]


def _spans(text: str, words: Sequence[str]) -> Iterator[frozenset[int]]:
    """Yield the places of words that follow each other and make up a text."""
    for start, end in combinations(range(len(words) + 1), 2):
        if "".join(words[start:end]) == text:
            yield frozenset(range(start, end))
