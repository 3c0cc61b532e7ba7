"""Whether code for some compute capabilities is enough for the GPUs that a list names."""

from torchmill.capabilities.reading import read
from torchmill.capabilities.targets import Target, serves
from torchmill.matrix import newest
from torchmill.model import Facts


def unserved(facts: Facts, code: str, listed: str) -> list[str]:
    """Return the capabilities of a list whose GPUs some code does not run on, nor a driver's PTX of it.

    Both are written as TORCH_CUDA_ARCH_LIST is: "7.0;8.6+PTX". PTX that the list asks for is not missed.
    """
    there, wanted = targets(facts, code), targets(facts, listed)
    known = {one.capability: facts.capability(one.capability) for one in wanted}
    return [name for name, gpu in known.items() if gpu is None or serves(facts, there, gpu) is None]


def targets(facts: Facts, listed: str) -> list[Target]:
    """Return what a list that can be read says; nothing of an empty one."""
    return read(facts, listed, newest(facts).torch_version)[0] if listed else []
