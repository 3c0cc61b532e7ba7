"""Find the compute capability of a GPU by the name that people, or drivers, give it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from torchmill.errors import ConfigError
from torchmill.model import Capability, Facts, Gpu

BRANDS = {"nvidia", "geforce", "quadro", "tesla", "gpu", "laptop", "generation"}


@dataclass(frozen=True, slots=True)
class Named:
    """A GPU that a name may mean."""

    gpu: str
    capability: Capability


def find(facts: Facts, name: str) -> tuple[Named, ...]:
    """Return the GPUs that a name may mean: "RTX 3090", "rtx3090", "3090", "NVIDIA A100-SXM4-40GB".

    Raises ConfigError, with near matches, when no GPU is called so.
    """
    asked = _words(name)
    everything = [Named(gpu, one) for one in facts.capabilities for gpu in one.gpus]
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
        "its machine tells the compute capability"
    )


def of_host(facts: Facts, gpus: Iterable[Gpu]) -> tuple[Named, ...]:
    """Return the GPUs of a machine with their capabilities; an old driver tells only the name.

    Raises ConfigError when there is none, or the capability of one is not known.
    """
    known = {one.name: one for one in facts.capabilities}
    found: list[Named] = []
    for gpu in gpus:
        if gpu.capability is None:
            found.append(Named(gpu.name, find(facts, gpu.name)[0].capability))
        elif gpu.capability in known:
            found.append(Named(gpu.name, known[gpu.capability]))
        else:
            raise ConfigError(f"{gpu.name} has compute capability {gpu.capability}, which gpus.toml lacks")
    if not found:
        raise ConfigError("no GPU was found here; `invoke arch --gpu NAME` tells of one by its name")
    return tuple(found)


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in BRANDS]


def _runs(text: str, words: Sequence[str]) -> bool:
    """Tell whether words that follow each other make up a text."""
    return any(
        "".join(words[start:end]) == text
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
    )
