"""The machine that the output of a collect_env describes: torch's, detectron2's or mmcv's.

People paste it into every thread. It says which compiler, toolkit, GPU, driver and Python a machine
has, and neither its memory nor, in older ones, its cores: these are assumed, and the notes say so.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchmill.config.distributions import usual_managers
from torchmill.config.gpu import Gpu
from torchmill.core.errors import ConfigError
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostGpus,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostResources,
    HostToolkits,
)
from torchmill.plan.diagnosis.compiler_choice import parse_distribution
from torchmill.plan.diagnosis.log_facts import FactCollector
from torchmill.plan.log_lines import plain_lines

# Lines that only the output of a collect_env has, at least two of which must be there.
_MARKS = re.compile(
    r"^\s*(?:PyTorch version:|CUDA used to build PyTorch:|GCC version:|CUDA runtime version:|"
    r"Python platform:|sys\.platform:? |CUDA_HOME:? |PyTorch compiling details|PyTorch:? +\d|"
    r"CUDA (?:compiler|available):? |GPU 0)"
)
_FEWEST_MARKS = 2
_CORES = re.compile(r"^\s*CPU\(s\): +(?P<value>\d{1,6})\s*$", re.ASCII)
_FLAGS = re.compile(r"^\s*Flags: +(?P<value>.+)")
_GPU = re.compile(r"^\s*GPU (?P<numbers>[\d, ]+):? +(?P<name>[^(\n]+?)(?: \(.*)?$")
_ASSUMED_CORES = 8
_ASSUMED_MEMORY = 16 << 30
_ARCHES = {"windows": "amd64", "macos": "arm64"}


@dataclass(frozen=True, slots=True)
class CollectedHost:
    """A described machine, and sentences on what its description does not say."""

    host: Host
    notes: tuple[str, ...] = ()


def read_collected_host(lines: Iterable[str], name: str) -> CollectedHost:
    """Return the machine that a collect_env describes; `name` is that of the file.

    Raises ConfigError if the text is not the output of one.
    """
    texts = [line.text for line in plain_lines(lines)]
    if sum(_MARKS.match(text) is not None for text in texts) < _FEWEST_MARKS:
        raise ConfigError(
            f"{name} is not what `python -m torch.utils.collect_env` prints: give the file that "
            "has its output, or --host for a host file",
            code="no-collect-env",
        )
    values = _read_values(texts)
    system = values.get("system", "linux")
    arch = _ARCHES.get(system) or values.get("arch", "x86_64")
    cores = _read_cores(texts)
    notes = [f"{name} does not say how much memory the machine has: 16 GiB are assumed"]
    if cores is None:
        notes.append(f"{name} does not say how many cores the machine has: 8 are assumed")
    distribution = parse_distribution(values.get("distribution"))
    if system != "linux":
        distribution = None
    managers = usual_managers(distribution)
    host = Host(
        arch=arch,
        system=system,
        resources=HostResources(cores or _ASSUMED_CORES, _ASSUMED_MEMORY),
        platform=HostPlatform(
            glibc=values.get("glibc") if system == "linux" else None,
            distribution=distribution,
            processor_features=tuple((_first(_FLAGS, texts) or "").split()),
        ),
        compilers=_read_compilers(values),
        packages=HostPackages(manager=managers[0] if managers else None),
        toolkits=_read_toolkits(values),
        interpreters=_read_interpreters(values),
        gpus=HostGpus(devices=_read_gpus(texts, values), driver=values.get("driver")),
    )
    return CollectedHost(host, tuple(notes))


def _read_cores(texts: Sequence[str]) -> int | None:
    """Return the number of processors; None if the texts have none that a machine can have."""
    text = _first(_CORES, texts)
    return int(text) if text and int(text) else None


def _read_values(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of the facts that the lines show."""
    collector = FactCollector()
    for line in plain_lines(texts):
        collector.see(line)
    return {fact.name: fact.value for fact in collector.facts() if not fact.is_stated}


def _first(pattern: re.Pattern[str], texts: Sequence[str]) -> str | None:
    """Return the value of a pattern in the first text that it matches; None if there is none."""
    for text in texts:
        match = pattern.match(text)
        if match:
            return match["value"]
    return None


def _read_compilers(values: dict[str, str]) -> HostCompilers:
    """Return the compilers: the gcc goes before a clang, which few builds use."""
    if "gcc" in values:
        compiler = Compiler("gcc", values["gcc"])
        return HostCompilers(default=compiler, by_command={"g++": compiler})
    if "clang" in values:
        compiler = Compiler("clang", values["clang"])
        return HostCompilers(default=compiler, by_command={"clang++": compiler})
    return HostCompilers()


def _read_toolkits(values: dict[str, str]) -> HostToolkits:
    """Return the toolkit of nvcc, in the folder of CUDA_HOME or the usual one."""
    cuda = values.get("cuda")
    if cuda is None:
        return HostToolkits()
    return HostToolkits(homes={cuda: values.get("cuda_home", f"/usr/local/cuda-{cuda}")})


def _read_interpreters(values: dict[str, str]) -> HostInterpreters:
    """Return the Python that ran the collect_env."""
    python = values.get("python")
    return HostInterpreters(paths={python: f"python{python}"} if python else {})


def _read_gpus(texts: Sequence[str], values: dict[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs; detectron2 prints several of a kind on one line, "GPU 0,1"."""
    gpus: list[Gpu] = []
    for text in texts:
        match = _GPU.match(text.removeprefix("GPU models and configuration: "))
        if match:
            name = match["name"].strip().removeprefix("NVIDIA ")
            count = len(re.findall(r"\d+", match["numbers"]))
            gpus += [Gpu(name, values.get("gpu_capability"))] * count
    return tuple(gpus)
