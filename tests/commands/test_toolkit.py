"""`invoke toolkit`: its options and its output."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.documents import assert_output_fits
from tests.support.made_up_providers import source
from tests.support.refusals import refused, without_code
from torchmill.commands.toolkit import (
    ToolkitOptions,
    describe_installed,
    list_toolkits,
    ordered_providers,
    provider_sources,
    requested_items,
)
from torchmill.config.facts import Facts
from torchmill.config.toolkit import ToolkitPart
from torchmill.core.errors import ConfigError
from torchmill.fetch.toolkit.request import ToolkitRequest
from torchmill.host.cuda_toolkits import FoundToolkit
from torchmill.host.provisioned import ProvisionedFolder, ProvisionRecord

SOURCES = (
    source("conda", "toolkit", "11.3", "11.8"),
    source("debian", "toolkit", "11.8"),
    source("debian", "compiler", "gcc-9", "gcc-11"),
)


def test_requests_are_in_the_order_of_the_options(small_facts: Facts) -> None:
    assert requested_items(ToolkitOptions(), small_facts, "x86_64") == ()
    assert requested_items(ToolkitOptions(listing=True), small_facts, "x86_64") == ()
    assert requested_items(ToolkitOptions(complete="11.8"), small_facts, "x86_64") == ()
    options = ToolkitOptions(
        cuda="11.8", libraries=("cudnn=8.5.0.96", "nccl-cu12"), compiler="gcc-11"
    )
    assert requested_items(options, small_facts, "aarch64") == (
        ToolkitRequest("toolkit", "11.8", None, "aarch64"),
        ToolkitRequest("cudnn", "8.5.0.96", "11", "aarch64"),
        ToolkitRequest("nccl", "", "12", "aarch64"),
        ToolkitRequest("compiler", "gcc-11", None, "aarch64"),
    )


def test_a_major_version_with_libraries_is_theirs_and_installs_no_toolkit(
    small_facts: Facts,
) -> None:
    options = ToolkitOptions(cuda="11", libraries=("cudnn=8.5.0.96",))
    assert requested_items(options, small_facts, "x86_64") == (
        ToolkitRequest("cudnn", "8.5.0.96", "11", "x86_64"),
    )
    with refused("unknown-toolkit"):
        requested_items(ToolkitOptions(cuda="11"), small_facts, "x86_64")


def test_magma_goes_with_one_toolkit(small_facts: Facts) -> None:
    for options in (
        ToolkitOptions(libraries=("magma-cu118=2.6.1",), arch_list="8.6 7.0+PTX"),
        ToolkitOptions(libraries=("magma=2.6.1",), cuda="11.8", arch_list="7.0+PTX;8.6"),
        ToolkitOptions(libraries=("magma=2.6.1",), cuda="cu118", arch_list="7.0+PTX;8.6"),
    ):
        magma = ToolkitRequest("magma", "2.6.1", "11.8", "x86_64", "7.0+PTX;8.6")
        assert requested_items(options, small_facts, "x86_64")[-1] == magma
        assert magma.name == "magma-2.6.1-cu118"


def test_a_request_has_the_name_of_its_folder() -> None:
    names = [
        request.name
        for request in (
            ToolkitRequest("toolkit", "11.8", None, "x86_64"),
            ToolkitRequest("nccl", "2.1", "12", "x86_64"),
        )
    ]
    assert names == ["11.8", "nccl-2.1-cu12"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (ToolkitOptions(listing=True, cuda="11.8"), "contradictory-options"),
        (ToolkitOptions(provider="debian"), "contradictory-options"),
        (ToolkitOptions(channel="https://a.b/c"), "contradictory-options"),
        (ToolkitOptions(complete="11.8", cuda="11.8"), "contradictory-options"),
        (ToolkitOptions(complete="11.8", listing=True), "contradictory-options"),
        (ToolkitOptions(libraries=("cudnn-cu11",), arch_list="7.0"), "contradictory-options"),
        (ToolkitOptions(complete="11.8", arch_list="7.0"), "contradictory-options"),
        (ToolkitOptions(complete="11.9"), "unknown-toolkit"),
        (ToolkitOptions(cuda="11.9"), "unknown-toolkit"),
        (ToolkitOptions(cuda="nonsense"), "unknown-toolkit"),
        (ToolkitOptions(complete="10.2"), "no-such-toolkit-for-arch"),
        (ToolkitOptions(cuda="10.2"), "no-such-toolkit-for-arch"),
        (ToolkitOptions(libraries=("cublas-cu11",)), "invalid-library"),
        (ToolkitOptions(libraries=("cudnn-cu11==8.5",)), "invalid-library"),
        (ToolkitOptions(libraries=("cudnn=8.5",)), "library-without-cuda"),
        (ToolkitOptions(libraries=("magma",)), "library-without-cuda"),
        (ToolkitOptions(libraries=("magma",), cuda="11"), "library-without-cuda"),
        (ToolkitOptions(libraries=("magma-cu999",)), "library-without-cuda"),
        (ToolkitOptions(libraries=("magma-cu102",)), "no-such-toolkit-for-arch"),
        (ToolkitOptions(libraries=("cudnn-cu118=8.5",)), "library-without-cuda"),
        (ToolkitOptions(libraries=("cudnn",), cuda="118"), "library-without-cuda"),
        (ToolkitOptions(compiler="g++-11"), "unknown-compiler"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    small_facts: Facts, options: ToolkitOptions, code: str
) -> None:
    with refused(code):
        requested_items(options, replace(small_facts, toolkit_sources=SOURCES), "aarch64")


def test_similar_toolkits_and_known_compilers_are_named(small_facts: Facts) -> None:
    facts = replace(small_facts, toolkit_sources=SOURCES)
    for options, names in (
        (ToolkitOptions(cuda="11.9"), ".*11.8"),
        (ToolkitOptions(cuda="nonsense"), "10.2, 11.8, 12.4"),
        (ToolkitOptions(compiler="g++-11"), "gcc-9, gcc-11"),
    ):
        with pytest.raises(ConfigError, match=names):
            requested_items(options, facts, "x86_64")


def test_capabilities_that_the_toolkit_does_not_know_are_refused(small_facts: Facts) -> None:
    with refused("arch-list-impossible"):
        requested_items(
            ToolkitOptions(libraries=("magma-cu118",), arch_list="7.0;10.0"), small_facts, "x86_64"
        )


def test_one_provider_can_be_asked_alone(small_facts: Facts) -> None:
    facts = replace(small_facts, toolkit_sources=SOURCES)
    assert list(ordered_providers(ToolkitOptions())) == ["conda", "debian", "pypi"]
    assert list(ordered_providers(ToolkitOptions(provider="debian"))) == ["debian"]
    assert list(ordered_providers(ToolkitOptions(channel="file:///here"))) == ["conda"]
    assert [
        provided.places
        for provided in provider_sources(ToolkitOptions(channel="file:///here"), facts)
    ] == [("file:///here",)]
    assert provider_sources(ToolkitOptions(), facts) == SOURCES
    for options, code in (
        (ToolkitOptions(provider="/opt/cudnn", libraries=("cudnn-cu11",)), "unknown-provider"),
        (ToolkitOptions(provider="nvidia"), "unknown-provider"),
        (ToolkitOptions(provider="debian", channel="file:///here"), "contradictory-options"),
    ):
        with refused(code):
            ordered_providers(options)


CUDNN = ProvisionedFolder(
    "cudnn-8.5.0.96-cu11",
    "x86_64",
    Path("/cache/cudnn-8.5.0.96-cu11-x86_64"),
    ProvisionRecord("cudnn", "8.5.0.96", "8.5.0.96", "pypi", ()),
)


def test_the_list_has_installed_toolkits_and_the_offers_of_providers() -> None:
    toolkits = {FoundToolkit("11.8", Path("/cache/11.8-x86_64"), "brought from debian"): ()}
    sources = [
        source("conda", "toolkit", "11.3"),
        source("conda", "toolkit", "11.8"),
        source("debian", "compiler", "gcc-9", "gcc-11"),
        source("debian", "compiler", "gcc-11", "gcc-10"),
        source("pypi", "cudnn", cuda="11"),
        source("pypi", "nccl", *(f"2.{minor}" for minor in range(30)), cuda="11"),
        source("pypi", "toolkit", "13.0"),
    ]
    output = list_toolkits(toolkits, [CUDNN], sources, "x86_64")
    assert output.text.splitlines() == [
        "CUDA  found by             folder",
        "11.8  brought from debian  /cache/11.8-x86_64",
        "",
        "library or compiler  from  folder",
        "cudnn-8.5.0.96-cu11  pypi  /cache/cudnn-8.5.0.96-cu11-x86_64",
        "",
        "available   provider  versions",
        "toolkit     conda     11.3, 11.8",
        "toolkit     pypi      13.0",
        "compiler    debian    gcc-9, gcc-10, gcc-11",
        "cudnn-cu11  pypi      any",
        "nccl-cu11   pypi      2.0 to 2.29 (30 versions)",
    ]
    assert output.data["available"][0] == {
        "what": "toolkit",
        "provider": "conda",
        "versions": ["11.3", "11.8"],
    }


def test_the_list_of_an_empty_machine_is_a_sentence() -> None:
    assert list_toolkits({}, [], [source("debian")], "arm64").text.splitlines() == [
        "no CUDA toolkit was found on this machine",
        "",
        "no provider is known to have anything for arm64",
    ]


def test_missing_parts_are_named_for_the_toolkit_that_builds_take() -> None:
    part = ToolkitPart("cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), (), None, "", "")
    used, shadowed = (
        FoundToolkit("11.8", Path("/opt/cuda"), "CUDA_HOME"),
        FoundToolkit("11.8", Path("/cuda"), "system"),
    )
    output = list_toolkits({used: (part,), shadowed: (part,)}, [], [], "x86_64")
    assert output.text.count("has no") == 1
    assert "/opt/cuda has no cuBLAS: `invoke toolkit --complete 11.8`" in output.text.splitlines()
    assert [toolkit["lacks"] for toolkit in output.data["toolkits"]] == [["cublas"], ["cublas"]]
    assert_output_fits(output.data, "toolkit")
    assert "has no" not in list_toolkits({used: (), shadowed: (part,)}, [], [], "x86_64").text


def test_installed_libraries_are_named_with_their_folders() -> None:
    output = describe_installed([CUDNN])
    folder = "/cache/cudnn-8.5.0.96-cu11-x86_64"
    assert output.text == f"cudnn-8.5.0.96-cu11 is in {folder} (8.5.0.96 from pypi)"
    assert output.data["kept"][0]["home"] == folder
    assert_output_fits(output.data, "toolkit")


def test_the_real_command_lists_and_refuses(tmp_path: Path) -> None:
    output = run("invoke", "toolkit", "--list", "--json", home=tmp_path)
    assert output.returncode == 0, output.stderr
    assert json.loads(output.stdout)["kept"] == []
    complete = run("invoke", "toolkit", "--complete", "cu123", home=tmp_path)
    assert "--complete 12.3: no toolkit of that version is installed" in complete.stderr
    unknown = run("invoke", "toolkit", "--cuda", "11.9", home=tmp_path)
    assert unknown.returncode == 2
    assert without_code(unknown.stderr).startswith("error: unknown --cuda '11.9': choose from ")
    missing = run("invoke", "toolkit", "--complete", "12.3", home=tmp_path)
    assert missing.returncode == 7
    assert "--complete 12.3: no toolkit of that version is installed" in missing.stderr
