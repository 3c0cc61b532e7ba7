"""Who may have what is wanted, and what is said where nobody has it."""

from made_up_providers import source, wanted

from torchmill.model import Part, ToolkitSource
from torchmill.toolkit.choosing import begins, candidates, refusal, supply
from torchmill.toolkit.wanted import Lacking, Wanted

DEBIAN = source("debian", "toolkit", "11.8")
CUDNN_11, CUDNN_12 = source("pypi", "cudnn", cuda="11"), source("pypi", "cudnn", cuda="12")
NCCL = source("pypi", "nccl", "2.14.3", "2.21.5", cuda="11")
KNOWN = (DEBIAN, CUDNN_11, CUDNN_12, NCCL)


def sentence(answer: tuple[ToolkitSource, ...] | Lacking) -> str:
    assert isinstance(answer, Lacking)
    return answer.sentence


def test_those_that_may_have_it_are_asked() -> None:
    assert candidates(wanted(), "debian", KNOWN) == (DEBIAN,)
    assert candidates(wanted("8.5", "cudnn", "11"), "pypi", KNOWN) == (CUDNN_11,)
    assert candidates(wanted("", "nccl", "11"), "pypi", KNOWN) == (NCCL,)
    assert candidates(wanted("2.99", "nccl", "11"), "pypi", KNOWN) == (NCCL,), "it may be new"


def test_what_is_known_not_to_be_there_is_not_asked_for() -> None:
    assert candidates(wanted("11.7"), "debian", KNOWN) == Lacking("debian", "it has CUDA 11.8", ("11.8",))
    assert sentence(candidates(wanted(), "pypi", KNOWN)) == "it has no toolkit"
    assert sentence(candidates(wanted("9", "cudnn", "13"), "pypi", KNOWN)) == "it has no cudnn for CUDA 13"
    other = Wanted("toolkit", "11.8", None, "aarch64")
    assert sentence(candidates(other, "debian", KNOWN)) == "it has no toolkit for aarch64"


def test_parts_are_supplied_by_packages_of_that_toolkit() -> None:
    cublas, nvrtc, cccl = (
        Part(name, name, f"nvidia-{name}", (), (), None, "", "") for name in ("cublas", "cuda-nvrtc", "cccl")
    )
    twelve = ("nvidia-cublas-cu12==12.4", "nvidia-cuda-nvrtc-cu12==12.4", "nvidia-npp-cu12==12")
    thirteen = ("nvidia-cublas==13.1",)
    known = [
        ToolkitSource("pypi", "parts", (version,), packages, ("x86_64",), (), None, "")
        for version, packages in {"12.4": twelve, "13.0": thirteen}.items()
    ]
    assert supply("12.4", "x86_64", (cublas, nvrtc), known) == (twelve[:2], ())
    assert supply("12.4", "x86_64", (cccl, nvrtc), known) == (twelve[1:2], (cccl,))
    assert supply("13.0", "x86_64", (cublas,), known) == (thirteen, ())
    assert supply("12.4", "aarch64", (cublas,), known) == ((), (cublas,))
    assert supply("11.8", "x86_64", (cublas,), known) == ((), (cublas,))


def test_a_version_begins_with_whole_numbers() -> None:
    assert begins("8.5.0.96", "8.5")
    assert begins("8.5.0.96", "")
    assert not begins("8.50", "8.5")
    assert not begins("8.5", "8.5.0")


def test_the_refusal_lists_every_reason_and_what_to_do() -> None:
    said = refusal(
        wanted("11.7"),
        [Lacking("conda", "no connection"), Lacking("debian", "it has CUDA 11.8", ("11.8",))],
    )
    assert said.splitlines() == [
        "CUDA 11.7 cannot be had for x86_64:",
        "  conda: no connection",
        "  debian: it has CUDA 11.8",
        (
            "  bring a newer one of the same major version (`invoke toolkit --cuda 11.8`) and build with it "
            "(`-- --toolkit 11.8`), or install it, and name its folder in CUDA_HOME"
        ),
    ]
    lacking = [
        Lacking("pypi", "it has CUDA 13.0", ("13.0",)),
        Lacking("debian", "it has CUDA 12.4", ("12.4",)),
    ]
    assert (
        refusal(wanted("12.6"), lacking).splitlines()[-1] == "  install it, and name its folder in CUDA_HOME"
    )
    compiler = refusal(
        wanted("gcc-9", "compiler"), [Lacking("debian", "it has gcc-11", ("gcc-11", "gcc-12"))]
    )
    assert "CUDAHOSTCXX" in compiler
    library = refusal(wanted("8.5", "cudnn", "11"), [Lacking("pypi", "no")])
    assert library.startswith("cudnn 8.5 for CUDA 11 cannot be had")
    assert "`invoke toolkit --library cudnn-cu11=VERSION`" in library
