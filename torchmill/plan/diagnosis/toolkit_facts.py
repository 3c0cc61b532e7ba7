"""Where the toolkit of a log is, whose package it is, and what installs the parts that it lacks."""

import re
from collections.abc import Iterator

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.plan.diagnosis.situation import Fact, Situation

_NVCC = re.compile(r"(?P<root>.+)[/\\]bin[/\\]nvcc")
_CONDA_FOLDER = re.compile(r"conda|mamba|miniforge|/envs/")
_DISTRIBUTION_FOLDER = re.compile(r"/usr/+$|/usr/(?:bin|lib)/")
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

    The folder is the fact "cuda_root": that of nvcc, else CUDA_HOME, else the usual one of the
    release that nvcc printed. The maker is "toolkit_maker". What the log does not tell is left out.
    """
    nvcc = situation.value("nvcc_path")
    home = situation.value("cuda_home")
    cuda = situation.facts.get("cuda")
    nvcc_in_root = _NVCC.fullmatch(nvcc or "")
    if nvcc_in_root:
        yield situation.computed("cuda_root", nvcc_in_root["root"], "nvcc_path")
    elif home and ":" not in home.removeprefix("C:"):
        yield situation.computed("cuda_root", home, "cuda_home")
    elif cuda is not None and not cuda.is_stated:
        yield situation.computed("cuda_root", f"/usr/local/cuda-{cuda.value}", "cuda")
    if nvcc_in_root:
        yield situation.computed("toolkit_maker", _maker(nvcc_in_root["root"]), "nvcc_path")
    elif home:
        yield situation.computed("toolkit_maker", _maker(home), "cuda_home")


def _maker(folder: str) -> str:
    """Return who made the package of a toolkit, by its folder: "NVIDIA", if nothing tells another."""
    if _CONDA_FOLDER.search(f"{folder}/"):
        return "conda"
    if _DISTRIBUTION_FOLDER.match(f"{folder}/"):
        return "the distribution"
    return "NVIDIA"


def toolkit_parts_facts(situation: Situation) -> Iterator[Fact]:
    """Yield the command that installs headers and libraries of the toolkit that nvcc belongs to.

    It is the fact "toolkit_parts". Without the release of nvcc, that of torch's CUDA is taken.
    Yield nothing if the maker is not known, for NVIDIA's toolkit on Windows, and if the log tells
    neither a release nor the folder of an nvcc that would.
    """
    cuda = situation.value("cuda") or situation.value("torch_cuda")
    maker = situation.value("toolkit_maker")
    root = situation.value("cuda_root")
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
        elif root is not None:
            reading = f"CUDA=$({root}/bin/{_READ_RELEASE})"
            command = f"{reading} && sudo {manager} install {package}-$CUDA"
        else:
            return
        yield situation.computed("toolkit_parts", command, *basis)


def toolset_facts(facts: Facts, situation: Situation, toolkit: Toolkit | None) -> Iterator[Fact]:
    """Yield the newest toolset of Visual Studio whose compiler a toolkit takes: "14.39".

    If the toolkit or its bound is not known, nvcc may name in the log the year of the newest Visual
    Studio that it takes. Each toolkit whose newest toolset is of that year could be the one of the
    log: the fact is the toolset that all of them take. Without such a year, nothing is yielded.
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
