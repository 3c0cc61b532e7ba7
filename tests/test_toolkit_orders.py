"""What may be said to `invoke toolkit`."""

from dataclasses import replace

import pytest
from made_up_providers import source

from torchmill.errors import ConfigError, ImpossibleBuildError
from torchmill.model import Facts
from torchmill.toolkit.orders import GIVEN, Orders, providers, sources, wanted
from torchmill.toolkit.wanted import Wanted

SOURCES = (
    source("conda", "toolkit", "11.3", "11.8"),
    source("debian", "toolkit", "11.8"),
    source("debian", "compiler", "gcc-9", "gcc-11"),
)


def test_what_is_asked_for_is_wanted_in_order(known: Facts) -> None:
    assert wanted(Orders(), known, "x86_64") == ()
    assert wanted(Orders(listing=True), known, "x86_64") == ()
    assert wanted(Orders(complete="11.8"), known, "x86_64") == ()
    said = Orders(cuda="11.8", libraries=("cudnn=8.5.0.96", "nccl-cu12"), compiler="gcc-11")
    assert wanted(said, known, "aarch64") == (
        Wanted("toolkit", "11.8", None, "aarch64"),
        Wanted("cudnn", "8.5.0.96", "11", "aarch64"),
        Wanted("nccl", "", "12", "aarch64"),
        Wanted("compiler", "gcc-11", None, "aarch64"),
    )


def test_a_major_version_beside_libraries_only_says_what_they_are_for(known: Facts) -> None:
    said = Orders(cuda="11", libraries=("cudnn=8.5.0.96",))
    assert wanted(said, known, "x86_64") == (Wanted("cudnn", "8.5.0.96", "11", "x86_64"),)
    with pytest.raises(ConfigError, match="--cuda 11: no such toolkit is known"):
        wanted(Orders(cuda="11"), known, "x86_64")


def test_magma_goes_with_one_toolkit(known: Facts) -> None:
    for said in (
        Orders(libraries=("magma-cu118=2.6.1",), arch_list="8.6 7.0+PTX"),
        Orders(libraries=("magma=2.6.1",), cuda="11.8", arch_list="7.0+PTX;8.6"),
    ):
        magma = Wanted("magma", "2.6.1", "11.8", "x86_64", "7.0+PTX;8.6")
        assert wanted(said, known, "x86_64")[-1] == magma
        assert magma.name == "magma-2.6.1-cu118"


def test_what_is_wanted_has_a_name_to_be_kept_under() -> None:
    names = [
        one.name for one in (Wanted("toolkit", "11.8", None, "x86_64"), Wanted("nccl", "2.1", "12", "x86_64"))
    ]
    assert names == ["11.8", "nccl-2.1-cu12"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Orders(listing=True, cuda="11.8"), "--list only shows"),
        (Orders(provider="debian"), "say what shall be brought"),
        (Orders(channel="https://a.b/c"), "say what shall be brought"),
        (Orders(complete="11.8", cuda="11.8"), "--complete stands alone"),
        (Orders(complete="11.8", listing=True), "--complete stands alone"),
        (Orders(complete="11.9"), r"--complete 11\.9: no such toolkit is known; near it there is .*11\.8"),
        (Orders(complete="10.2"), "--complete 10.2: NVIDIA makes it for x86_64, not for aarch64"),
        (Orders(cuda="11.9"), r"--cuda 11\.9: no such toolkit is known; near it there is .*11\.8"),
        (Orders(cuda="cu118"), r"near it there is .*11\.8"),
        (Orders(cuda="nonsense"), r"near it there is 10\.2 to 12\.4"),
        (Orders(cuda="10.2"), "NVIDIA makes it for x86_64, not for aarch64"),
        (Orders(libraries=("cublas-cu11",)), "NAME is one of cudnn, nccl"),
        (Orders(libraries=("cudnn-cu11==8.5",)), "write it as NAME-cuMAJOR=VERSION"),
        (Orders(libraries=("cudnn=8.5",)), r"say for which CUDA: cudnn-cu11=8\.5, or give --cuda"),
        (Orders(compiler="g++-11"), "there is gcc-9, gcc-11"),
        (Orders(libraries=("magma",)), "MAGMA goes with one toolkit: write which, as in magma-cu118"),
        (Orders(libraries=("magma",), cuda="11"), "MAGMA goes with one toolkit"),
        (Orders(libraries=("magma-cu999",)), "MAGMA goes with one toolkit"),
        (
            Orders(libraries=("cudnn-cu11",), arch_list="7.0"),
            "--arch-list says what MAGMA's code must be for",
        ),
    ],
)
def test_what_has_no_sense_is_refused(known: Facts, said: Orders, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        wanted(said, replace(known, toolkit_sources=SOURCES), "aarch64")


def test_capabilities_that_the_toolkit_does_not_know_are_refused(known: Facts) -> None:
    with pytest.raises(ImpossibleBuildError, match=r"10\.0: "):
        wanted(Orders(libraries=("magma-cu118",), arch_list="7.0;10.0"), known, "x86_64")


def test_one_provider_can_be_asked_alone(known: Facts) -> None:
    facts = replace(known, toolkit_sources=SOURCES)
    assert list(providers(Orders())) == ["conda", "debian", "pypi"]
    assert list(providers(Orders(provider="debian"))) == ["debian"]
    assert list(providers(Orders(channel="file:///here"))) == ["conda"]
    assert [one.where for one in sources(Orders(channel="file:///here"), facts)] == [("file:///here",)]
    assert sources(Orders(), facts) == (*SOURCES, GIVEN)
    assert list(providers(Orders(provider="/opt/magma", libraries=("magma-cu118",)))) == ["given"]
    with pytest.raises(ConfigError, match="only MAGMA is taken from a folder or an archive"):
        providers(Orders(provider="/opt/cudnn", libraries=("cudnn-cu11",)))
    with pytest.raises(ConfigError, match="no such provider; it is one of conda, debian, pypi"):
        providers(Orders(provider="nvidia"))
    with pytest.raises(ConfigError, match="which --from debian does not ask"):
        providers(Orders(provider="debian", channel="file:///here"))
