"""Where the toolkit of a log is, whose package it is, and what installs the parts that it lacks."""

import re
from collections.abc import Iterator

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.plan.diagnosis.situation import Fact, Situation

_CONDA_FOLDER = re.compile(r"conda|mamba|miniforge|/envs/")
_DISTRIBUTION_FOLDERS = ("/usr/bin/", "/usr/lib/")
# Toolsets of Visual Studio 2017, 2019, 2022 and 2026 that its installer has as single components.
_TOOLSETS_OF = {
    "2017": range(10, 17),
    "2019": range(20, 30),
    "2022": range(30, 45),
    "2026": range(50, 51),
}
_TOOLSETS = tuple(number for numbers in _TOOLSETS_OF.values() for number in numbers)
# NVIDIA's channel has a label for each toolkit from here on, and nothing older:
# https://anaconda.org/nvidia/cuda-libraries-dev/files
_FIRST_CONDA_LABEL = Version("11.3")
# Prints "11-8" of CUDA 11.8, as NVIDIA's packages are called.
_READ_RELEASE = r"nvcc --version | sed -nE 's/.*release ([0-9]+)\.([0-9]+).*/\1-\2/p'"
_DNF_LIKE = frozenset({"dnf", "yum", "zypper"})


def toolkit_place_facts(situation: Situation) -> Iterator[Fact]:
    """Yield the folder of the toolkit that the log shows, and who made its package.

    The folder is that of nvcc, else CUDA_HOME, else the usual one of the release that nvcc printed.
    """
    nvcc = situation.value("nvcc_path")
    home = situation.value("cuda_home")
    cuda = situation.facts.get("cuda")
    if nvcc:
        yield situation.computed("cuda_root", nvcc.removesuffix("/bin/nvcc"), "nvcc_path")
    elif home and ":" not in home.removeprefix("C:"):
        yield situation.computed("cuda_root", home, "cuda_home")
    elif cuda is not None and not cuda.is_stated:
        yield situation.computed("cuda_root", f"/usr/local/cuda-{cuda.value}", "cuda")
    path = nvcc or home
    if path:
        basis = "nvcc_path" if nvcc else "cuda_home"
        yield situation.computed("toolkit_maker", _maker(path), basis)


def _maker(path: str) -> str:
    """Return who made the package of a toolkit, by the path of its nvcc or its folder."""
    if _CONDA_FOLDER.search(path):
        return "conda"
    if path.startswith(_DISTRIBUTION_FOLDERS):
        return "the distribution"
    return "NVIDIA"


def toolkit_parts_facts(situation: Situation) -> Iterator[Fact]:
    """Yield the command that installs headers and libraries of the toolkit that nvcc belongs to."""
    cuda = situation.value("cuda") or situation.value("torch_cuda")
    maker = situation.value("toolkit_maker")
    basis = ("nvcc_path", "cuda_home", "cuda", "torch_cuda", "distribution")
    if maker == "conda" or (maker is None and situation.value("conda") is not None):
        command = "conda install -c nvidia cuda-libraries-dev cuda-cudart-dev"
        if cuda and Version(cuda) >= _FIRST_CONDA_LABEL:
            label = f"nvidia/label/cuda-{cuda}.0"
            command = f"conda install -c {label} cuda-libraries-dev cuda-cudart-dev"
        yield situation.computed("toolkit_parts", command, *basis)
    elif maker == "the distribution":
        command = "sudo apt-get install nvidia-cuda-dev"
        yield situation.computed("toolkit_parts", command, *basis)
    elif maker == "NVIDIA" and situation.value("system") != "windows":
        manager = situation.value("manager") or "apt-get"
        manager = "apt-get" if manager == "apt" else manager
        package = "cuda-libraries-devel" if manager in _DNF_LIKE else "cuda-libraries-dev"
        if cuda:
            command = f"sudo {manager} install {package}-{cuda.replace('.', '-')}"
        else:
            reading = f"CUDA=$({situation.value('cuda_root')}/bin/{_READ_RELEASE})"
            command = f"{reading} && sudo {manager} install {package}-$CUDA"
        yield situation.computed("toolkit_parts", command, *basis)


def toolset_facts(facts: Facts, situation: Situation, toolkit: Toolkit | None) -> Iterator[Fact]:
    """Yield the newest toolset of Visual Studio whose compiler a toolkit takes: "14.39".

    Of a toolkit whose bound is not known, nvcc says itself which Visual Studio is the newest: then it
    is the toolset that all toolkits take of which that is true.
    """
    newest = _newest_toolset(toolkit)
    if newest is not None:
        yield situation.computed("toolset", f"14.{newest}", "cuda")
        return
    year = situation.value("visual_studio_limit")
    toolsets: list[int] = []
    for other in facts.toolkits:
        number = _newest_toolset(other)
        if number is not None and number in _TOOLSETS_OF.get(year or "", ()):
            toolsets.append(number)
    if toolsets:
        yield situation.computed("toolset", f"14.{min(toolsets)}", "visual_studio_limit")


def _newest_toolset(toolkit: Toolkit | None) -> int | None:
    """Return the number of the newest toolset that a toolkit takes, 39 for 14.39; None if unknown."""
    if toolkit is None or toolkit.msvc is None:
        return None
    toolsets = [number for number in _TOOLSETS if is_within(toolkit.msvc, f"19.{number}")]
    return toolsets[-1] if toolsets else None
