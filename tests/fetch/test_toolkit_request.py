"""Which providers may serve a request, and the message if none does."""

from tests.support.made_up_providers import source, toolkit_request
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.fetch.toolkit.request import (
    ProviderRefusal,
    ToolkitRequest,
    candidate_sources,
    find_part_packages,
    refusal_message,
    remedy,
    version_begins,
)

DEBIAN = source("debian", "toolkit", "11.8")
CUDNN_11 = source("pypi", "cudnn", cuda="11")
CUDNN_12 = source("pypi", "cudnn", cuda="12")
NCCL = source("pypi", "nccl", "2.14.3", "2.21.5", cuda="11")
KNOWN = (DEBIAN, CUDNN_11, CUDNN_12, NCCL)


def reason(answer: tuple[ToolkitSource, ...] | ProviderRefusal) -> str:
    assert isinstance(answer, ProviderRefusal)
    return answer.reason


def test_sources_that_may_serve_are_candidates() -> None:
    assert candidate_sources(toolkit_request(), "debian", KNOWN) == (DEBIAN,)
    assert candidate_sources(toolkit_request("8.5", "cudnn", "11"), "pypi", KNOWN) == (CUDNN_11,)
    assert candidate_sources(toolkit_request("", "nccl", "11"), "pypi", KNOWN) == (NCCL,)
    assert candidate_sources(toolkit_request("2.99", "nccl", "11"), "pypi", KNOWN) == (NCCL,), (
        "it may be new"
    )


def test_the_facts_refuse_missing_versions() -> None:
    assert candidate_sources(toolkit_request("11.7"), "debian", KNOWN) == ProviderRefusal(
        "debian", "it has CUDA 11.8", ("11.8",)
    )
    assert reason(candidate_sources(toolkit_request(), "pypi", KNOWN)) == "it has no toolkit"
    assert (
        reason(candidate_sources(toolkit_request("9", "cudnn", "13"), "pypi", KNOWN))
        == "it has no cudnn for CUDA 13"
    )
    other = ToolkitRequest("toolkit", "11.8", None, "aarch64")
    assert reason(candidate_sources(other, "debian", KNOWN)) == "it has no toolkit for aarch64"


def test_parts_are_found_in_packages_of_their_toolkit() -> None:
    cublas, nvrtc, cccl = (
        ToolkitPart(name, name, f"nvidia-{name}", (), (), None, "", "")
        for name in ("cublas", "cuda-nvrtc", "cccl")
    )
    twelve = ("nvidia-cublas-cu12==12.4", "nvidia-cuda-nvrtc-cu12==12.4", "nvidia-npp-cu12==12")
    thirteen = ("nvidia-cublas==13.1",)
    sources = [
        ToolkitSource("pypi", "parts", (version,), packages, ("x86_64",), (), None, "")
        for version, packages in {"12.4": twelve, "13.0": thirteen}.items()
    ]
    assert find_part_packages("12.4", "x86_64", (cublas, nvrtc), sources) == (twelve[:2], ())
    assert find_part_packages("12.4", "x86_64", (cccl, nvrtc), sources) == (twelve[1:2], (cccl,))
    assert find_part_packages("13.0", "x86_64", (cublas,), sources) == (thirteen, ())
    assert find_part_packages("12.4", "aarch64", (cublas,), sources) == ((), (cublas,))
    assert find_part_packages("11.8", "x86_64", (cublas,), sources) == ((), (cublas,))


def test_a_version_begins_with_whole_numbers() -> None:
    assert version_begins("8.5.0.96", "8.5")
    assert version_begins("8.5.0.96", "")
    assert not version_begins("8.50", "8.5")
    assert not version_begins("8.5", "8.5.0")


def test_the_oldest_newer_version_is_advised_however_the_versions_are_sorted() -> None:
    advice = remedy(toolkit_request("12.3"), ["12.10", "12.4", "12.1", "13.0"])
    assert "--cuda 12.4`" in advice


def test_the_refusal_lists_reasons_and_a_remedy() -> None:
    message = refusal_message(
        toolkit_request("11.7"),
        [
            ProviderRefusal("conda", "no connection"),
            ProviderRefusal("debian", "it has CUDA 11.8", ("11.8",)),
        ],
    )
    assert message.splitlines() == [
        "CUDA 11.7 is not available for x86_64:",
        "  conda: no connection",
        "  debian: it has CUDA 11.8",
        (
            "  install a newer one of the same major version (`invoke toolkit --cuda 11.8`) and "
            "build with it (`-- --toolkit 11.8`), or install it by other means, and set CUDA_HOME "
            "to its folder"
        ),
    ]
    refusals = [
        ProviderRefusal("pypi", "it has CUDA 13.0", ("13.0",)),
        ProviderRefusal("debian", "it has CUDA 12.4", ("12.4",)),
    ]
    assert (
        refusal_message(toolkit_request("12.6"), refusals).splitlines()[-1]
        == "  install it by other means, and set CUDA_HOME to its folder"
    )
    compiler = refusal_message(
        toolkit_request("gcc-9", "compiler"),
        [ProviderRefusal("debian", "it has gcc-11", ("gcc-11", "gcc-12"))],
    )
    assert "CUDAHOSTCXX" in compiler
    library = refusal_message(
        toolkit_request("8.5", "cudnn", "11"), [ProviderRefusal("pypi", "no")]
    )
    assert library.startswith("cudnn 8.5 for CUDA 11 is not available")
    assert "`invoke toolkit --library cudnn-cu11=VERSION`" in library
