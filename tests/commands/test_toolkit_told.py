"""What `invoke toolkit` answers."""

import json
from pathlib import Path

from tests.support.commands import run
from tests.support.made_up_providers import source
from torchmill.commands.toolkit import describe_brought, list_toolkits
from torchmill.config.delivery_model import ToolkitPart
from torchmill.host.cuda_toolkits import FoundToolkit
from torchmill.host.provisioned import ProvisionedFolder, ProvisionRecord

CUDNN = ProvisionedFolder(
    "cudnn-8.5.0.96-cu11",
    "x86_64",
    Path("/cache/cudnn-8.5.0.96-cu11-x86_64"),
    ProvisionRecord("cudnn", "8.5.0.96", "8.5.0.96", "pypi", ()),
)


def test_the_list_shows_what_is_here_and_what_can_be_had() -> None:
    here = {FoundToolkit("11.8", Path("/cache/11.8-x86_64"), "brought from debian"): ()}
    known = [
        source("conda", "toolkit", "11.3"),
        source("conda", "toolkit", "11.8"),
        source("debian", "compiler", "gcc-9", "gcc-11"),
        source("debian", "compiler", "gcc-11", "gcc-10"),
        source("pypi", "cudnn", cuda="11"),
        source("pypi", "nccl", *(f"2.{minor}" for minor in range(30)), cuda="11"),
        source("pypi", "toolkit", "13.0"),
    ]
    found = list_toolkits(here, [CUDNN], known, "x86_64")
    assert found.text.splitlines() == [
        "CUDA  found by             folder",
        "11.8  brought from debian  /cache/11.8-x86_64",
        "",
        "library or compiler  from  folder",
        "cudnn-8.5.0.96-cu11  pypi  /cache/cudnn-8.5.0.96-cu11-x86_64",
        "",
        "can be had  from    versions",
        "toolkit     conda   11.3, 11.8",
        "toolkit     pypi    13.0",
        "compiler    debian  gcc-9, gcc-10, gcc-11",
        "cudnn-cu11  pypi    any",
        "nccl-cu11   pypi    2.0 to 2.29 (30 versions)",
    ]
    assert found.data["available"][0] == {
        "what": "toolkit",
        "provider": "conda",
        "versions": ["11.3", "11.8"],
    }


def test_an_empty_machine_is_told_of_in_words() -> None:
    assert list_toolkits({}, [], [source("debian")], "arm64").text.splitlines() == [
        "no CUDA toolkit was found on this machine",
        "",
        "no provider is known to have anything for arm64",
    ]


def test_what_a_toolkit_lacks_is_told_of_the_one_that_builds_take() -> None:
    part = ToolkitPart("cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), (), None, "", "")
    own, other = (
        FoundToolkit("11.8", Path("/opt/cuda"), "CUDA_HOME"),
        FoundToolkit("11.8", Path("/cuda"), "system"),
    )
    shown = list_toolkits({own: (part,), other: (part,)}, [], [], "x86_64")
    assert shown.text.count("has no") == 1
    assert "/opt/cuda has no cuBLAS: `invoke toolkit --complete 11.8`" in shown.text.splitlines()
    assert [one["lacks"] for one in shown.data["toolkits"]] == [["cublas"], ["cublas"]]
    assert "has no" not in list_toolkits({own: (), other: (part,)}, [], [], "x86_64").text


def test_what_was_brought_is_named_with_its_folder() -> None:
    said = describe_brought([CUDNN])
    folder = "/cache/cudnn-8.5.0.96-cu11-x86_64"
    assert said.text == f"cudnn-8.5.0.96-cu11 is in {folder} (8.5.0.96 from pypi)"
    assert said.data["kept"][0]["home"] == folder


def test_the_real_command_lists_and_refuses(tmp_path: Path) -> None:
    shown = run("invoke", "toolkit", "--list", "--json", home=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["kept"] == []
    refused = run("invoke", "toolkit", "--cuda", "11.9", home=tmp_path)
    assert refused.returncode == 2
    assert "no such toolkit is known; near it there is" in refused.stderr
    assert "Traceback" not in refused.stderr
    nothing = run("invoke", "toolkit", "--complete", "12.3", home=tmp_path)
    assert nothing.returncode == 7
    assert "--complete 12.3: no toolkit of that version is installed" in nothing.stderr
