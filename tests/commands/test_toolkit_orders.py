"""What may be said to `invoke toolkit`."""

from dataclasses import replace

import pytest

from tests.support.made_up_providers import source
from torchmill.commands.toolkit import (
    GIVEN,
    ToolkitOptions,
    ordered_providers,
    provider_sources,
    requested_items,
)
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.fetch.toolkit.request import ToolkitRequest

SOURCES = (
    source("conda", "toolkit", "11.3", "11.8"),
    source("debian", "toolkit", "11.8"),
    source("debian", "compiler", "gcc-9", "gcc-11"),
)


def test_what_is_asked_for_is_wanted_in_order(known: Facts) -> None:
    assert requested_items(ToolkitOptions(), known, "x86_64") == ()
    assert requested_items(ToolkitOptions(listing=True), known, "x86_64") == ()
    assert requested_items(ToolkitOptions(complete="11.8"), known, "x86_64") == ()
    said = ToolkitOptions(cuda="11.8", libraries=("cudnn=8.5.0.96", "nccl-cu12"), compiler="gcc-11")
    assert requested_items(said, known, "aarch64") == (
        ToolkitRequest("toolkit", "11.8", None, "aarch64"),
        ToolkitRequest("cudnn", "8.5.0.96", "11", "aarch64"),
        ToolkitRequest("nccl", "", "12", "aarch64"),
        ToolkitRequest("compiler", "gcc-11", None, "aarch64"),
    )


def test_a_major_version_beside_libraries_only_says_what_they_are_for(known: Facts) -> None:
    said = ToolkitOptions(cuda="11", libraries=("cudnn=8.5.0.96",))
    assert requested_items(said, known, "x86_64") == (ToolkitRequest("cudnn", "8.5.0.96", "11", "x86_64"),)
    with pytest.raises(ConfigError, match="--cuda 11: no such toolkit is known"):
        requested_items(ToolkitOptions(cuda="11"), known, "x86_64")


def test_magma_goes_with_one_toolkit(known: Facts) -> None:
    for said in (
        ToolkitOptions(libraries=("magma-cu118=2.6.1",), arch_list="8.6 7.0+PTX"),
        ToolkitOptions(libraries=("magma=2.6.1",), cuda="11.8", arch_list="7.0+PTX;8.6"),
    ):
        magma = ToolkitRequest("magma", "2.6.1", "11.8", "x86_64", "7.0+PTX;8.6")
        assert requested_items(said, known, "x86_64")[-1] == magma
        assert magma.name == "magma-2.6.1-cu118"


def test_what_is_wanted_has_a_name_to_be_kept_under() -> None:
    names = [
        one.name
        for one in (
            ToolkitRequest("toolkit", "11.8", None, "x86_64"),
            ToolkitRequest("nccl", "2.1", "12", "x86_64"),
        )
    ]
    assert names == ["11.8", "nccl-2.1-cu12"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ToolkitOptions(listing=True, cuda="11.8"), "--list only shows"),
        (ToolkitOptions(provider="debian"), "say what shall be brought"),
        (ToolkitOptions(channel="https://a.b/c"), "say what shall be brought"),
        (ToolkitOptions(complete="11.8", cuda="11.8"), "--complete stands alone"),
        (ToolkitOptions(complete="11.8", listing=True), "--complete stands alone"),
        (
            ToolkitOptions(complete="11.9"),
            r"--complete 11\.9: no such toolkit is known; near it there is .*11\.8",
        ),
        (ToolkitOptions(complete="10.2"), "--complete 10.2: NVIDIA makes it for x86_64, not for aarch64"),
        (ToolkitOptions(cuda="11.9"), r"--cuda 11\.9: no such toolkit is known; near it there is .*11\.8"),
        (ToolkitOptions(cuda="cu118"), r"near it there is .*11\.8"),
        (ToolkitOptions(cuda="nonsense"), r"near it there is 10\.2 to 12\.4"),
        (ToolkitOptions(cuda="10.2"), "NVIDIA makes it for x86_64, not for aarch64"),
        (ToolkitOptions(libraries=("cublas-cu11",)), "NAME is one of cudnn, nccl"),
        (ToolkitOptions(libraries=("cudnn-cu11==8.5",)), "write it as NAME-cuMAJOR=VERSION"),
        (ToolkitOptions(libraries=("cudnn=8.5",)), r"say for which CUDA: cudnn-cu11=8\.5, or give --cuda"),
        (ToolkitOptions(compiler="g++-11"), "there is gcc-9, gcc-11"),
        (ToolkitOptions(libraries=("magma",)), "MAGMA goes with one toolkit: write which, as in magma-cu118"),
        (ToolkitOptions(libraries=("magma",), cuda="11"), "MAGMA goes with one toolkit"),
        (ToolkitOptions(libraries=("magma-cu999",)), "MAGMA goes with one toolkit"),
        (
            ToolkitOptions(libraries=("cudnn-cu11",), arch_list="7.0"),
            "--arch-list says what MAGMA's code must be for",
        ),
    ],
)
def test_what_has_no_sense_is_refused(known: Facts, said: ToolkitOptions, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        requested_items(said, replace(known, toolkit_sources=SOURCES), "aarch64")


def test_capabilities_that_the_toolkit_does_not_know_are_refused(known: Facts) -> None:
    with pytest.raises(ImpossibleBuildError, match=r"10\.0: "):
        requested_items(ToolkitOptions(libraries=("magma-cu118",), arch_list="7.0;10.0"), known, "x86_64")


def test_one_provider_can_be_asked_alone(known: Facts) -> None:
    facts = replace(known, toolkit_sources=SOURCES)
    assert list(ordered_providers(ToolkitOptions())) == ["conda", "debian", "pypi"]
    assert list(ordered_providers(ToolkitOptions(provider="debian"))) == ["debian"]
    assert list(ordered_providers(ToolkitOptions(channel="file:///here"))) == ["conda"]
    assert [one.where for one in provider_sources(ToolkitOptions(channel="file:///here"), facts)] == [
        ("file:///here",)
    ]
    assert provider_sources(ToolkitOptions(), facts) == (*SOURCES, GIVEN)
    assert list(ordered_providers(ToolkitOptions(provider="/opt/magma", libraries=("magma-cu118",)))) == [
        "given"
    ]
    with pytest.raises(ConfigError, match="a folder or an archive can only provide MAGMA"):
        ordered_providers(ToolkitOptions(provider="/opt/cudnn", libraries=("cudnn-cu11",)))
    with pytest.raises(ConfigError, match="no such provider; it is one of conda, debian, pypi"):
        ordered_providers(ToolkitOptions(provider="nvidia"))
    with pytest.raises(ConfigError, match="which --from debian does not ask"):
        ordered_providers(ToolkitOptions(provider="debian", channel="file:///here"))
