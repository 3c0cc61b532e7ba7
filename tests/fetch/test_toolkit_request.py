"""Which provider may have what is requested, and the message if none has."""

from tests.support.made_up_providers import source, wanted
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.fetch.toolkit.request import (
    ProviderRefusal,
    ToolkitRequest,
    candidate_sources,
    find_part_packages,
    refusal_message,
    version_begins,
)

DEBIAN = source("debian", "toolkit", "11.8")
CUDNN_11, CUDNN_12 = source("pypi", "cudnn", cuda="11"), source("pypi", "cudnn", cuda="12")
NCCL = source("pypi", "nccl", "2.14.3", "2.21.5", cuda="11")
KNOWN = (DEBIAN, CUDNN_11, CUDNN_12, NCCL)


def sentence(answer: tuple[ToolkitSource, ...] | ProviderRefusal) -> str:
    assert isinstance(answer, ProviderRefusal)
    return answer.reason


def test_sources_that_may_have_it_are_candidates() -> None:
    assert candidate_sources(wanted(), "debian", KNOWN) == (DEBIAN,)
    assert candidate_sources(wanted("8.5", "cudnn", "11"), "pypi", KNOWN) == (CUDNN_11,)
    assert candidate_sources(wanted("", "nccl", "11"), "pypi", KNOWN) == (NCCL,)
    assert candidate_sources(wanted("2.99", "nccl", "11"), "pypi", KNOWN) == (NCCL,), (
        "it may be new"
    )


def test_the_facts_refuse_what_a_provider_lacks() -> None:
    assert candidate_sources(wanted("11.7"), "debian", KNOWN) == ProviderRefusal(
        "debian", "it has CUDA 11.8", ("11.8",)
    )
    assert sentence(candidate_sources(wanted(), "pypi", KNOWN)) == "it has no toolkit"
    assert (
        sentence(candidate_sources(wanted("9", "cudnn", "13"), "pypi", KNOWN))
        == "it has no cudnn for CUDA 13"
    )
    other = ToolkitRequest("toolkit", "11.8", None, "aarch64")
    assert sentence(candidate_sources(other, "debian", KNOWN)) == "it has no toolkit for aarch64"


def test_parts_are_supplied_by_packages_of_that_toolkit() -> None:
    cublas, nvrtc, cccl = (
        ToolkitPart(name, name, f"nvidia-{name}", (), (), None, "", "")
        for name in ("cublas", "cuda-nvrtc", "cccl")
    )
    twelve = ("nvidia-cublas-cu12==12.4", "nvidia-cuda-nvrtc-cu12==12.4", "nvidia-npp-cu12==12")
    thirteen = ("nvidia-cublas==13.1",)
    known = [
        ToolkitSource("pypi", "parts", (version,), packages, ("x86_64",), (), None, "")
        for version, packages in {"12.4": twelve, "13.0": thirteen}.items()
    ]
    assert find_part_packages("12.4", "x86_64", (cublas, nvrtc), known) == (twelve[:2], ())
    assert find_part_packages("12.4", "x86_64", (cccl, nvrtc), known) == (twelve[1:2], (cccl,))
    assert find_part_packages("13.0", "x86_64", (cublas,), known) == (thirteen, ())
    assert find_part_packages("12.4", "aarch64", (cublas,), known) == ((), (cublas,))
    assert find_part_packages("11.8", "x86_64", (cublas,), known) == ((), (cublas,))


def test_a_version_begins_with_whole_numbers() -> None:
    assert version_begins("8.5.0.96", "8.5")
    assert version_begins("8.5.0.96", "")
    assert not version_begins("8.50", "8.5")
    assert not version_begins("8.5", "8.5.0")


def test_the_refusal_lists_every_reason_and_what_to_do() -> None:
    said = refusal_message(
        wanted("11.7"),
        [
            ProviderRefusal("conda", "no connection"),
            ProviderRefusal("debian", "it has CUDA 11.8", ("11.8",)),
        ],
    )
    assert said.splitlines() == [
        "CUDA 11.7 is not available for x86_64:",
        "  conda: no connection",
        "  debian: it has CUDA 11.8",
        (
            "  install a newer one of the same major version (`invoke toolkit --cuda 11.8`) and build with "
            "it (`-- --toolkit 11.8`), or install it by other means, and set CUDA_HOME to its folder"
        ),
    ]
    lacking = [
        ProviderRefusal("pypi", "it has CUDA 13.0", ("13.0",)),
        ProviderRefusal("debian", "it has CUDA 12.4", ("12.4",)),
    ]
    assert (
        refusal_message(wanted("12.6"), lacking).splitlines()[-1]
        == "  install it by other means, and set CUDA_HOME to its folder"
    )
    compiler = refusal_message(
        wanted("gcc-9", "compiler"),
        [ProviderRefusal("debian", "it has gcc-11", ("gcc-11", "gcc-12"))],
    )
    assert "CUDAHOSTCXX" in compiler
    library = refusal_message(wanted("8.5", "cudnn", "11"), [ProviderRefusal("pypi", "no")])
    assert library.startswith("cudnn 8.5 for CUDA 11 is not available")
    assert "`invoke toolkit --library cudnn-cu11=VERSION`" in library
