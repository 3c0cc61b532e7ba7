"""Builds with CUDA: which toolkit compiles them, and the rules that follow from it."""

from dataclasses import replace

import pytest
from packaging.requirements import Requirement

from tests.support.hosts import change_host
from tests.support.plans import find_torch_cell, plan_torch
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostPlatform,
    HostResources,
    HostToolkits,
)
from torchmill.plan import build_plan, cuda_toolkit, matrix
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import Options
from torchmill.plan.cuda_toolkit import cuda_placeholders
from torchmill.plan.plan import Plan

# A machine with CUDA 11.8 and provisioned libraries, whose usual gcc is too new for it.
HOST = Host(
    "x86_64",
    "linux",
    HostResources(8, 2**35),
    platform=HostPlatform(glibc="2.36"),
    compilers=HostCompilers(
        default=Compiler("gcc", "12.2.0"),
        by_command={
            "g++": Compiler("gcc", "12.2.0"),
            "/k/gcc/bin/g++-11": Compiler("gcc", "11.3.0"),
        },
    ),
    toolkits=HostToolkits(
        homes={"11.8": "/k/11.8"},
        provisioned={
            "cudnn-8.5.0.96-cu11": "/k/cudnn",
            "nccl-2.14.3-cu11": "/k/nccl",
            "gcc-11": "/k/gcc",
        },
    ),
    complete=True,
)


def choose_toolkit(
    shipped: Facts, identifier: str, requested: str | None, tag: str = "v1.13.1"
) -> str | None:
    cell = find_torch_cell(shipped, identifier, tag)
    return cuda_toolkit.choose_toolkit(shipped, cell, requested, identifier)


def test_a_cell_takes_the_toolkit_of_its_variant(shipped: Facts) -> None:
    assert choose_toolkit(shipped, "wheel-3.10-cu117", None) == "11.7"
    assert choose_toolkit(shipped, "wheel-3.10-cu117", "11.7") == "11.7"
    assert choose_toolkit(shipped, "wheel-3.10-cpu", None) is None


def test_a_newer_one_of_the_same_major_version_replaces_it_on_request(shipped: Facts) -> None:
    assert choose_toolkit(shipped, "wheel-3.10-cu117", "11.8") == "11.8"
    assert choose_toolkit(shipped, "vision-3.10-cu117", "11.8") == "11.8"


@pytest.mark.parametrize("requested", ["11.6", "10.2", "12.1"])
def test_an_older_one_or_another_major_version_does_not(shipped: Facts, requested: str) -> None:
    with refused("toolkit-cannot-replace"):
        choose_toolkit(shipped, "wheel-3.10-cu117", requested)


def test_an_unknown_toolkit_is_refused_with_the_nearest(shipped: Facts) -> None:
    with refused("unknown-toolkit") as caught:
        choose_toolkit(shipped, "wheel-3.10-cu117", "11.88")
    assert "11.8" in str(caught.value)
    without_toolkits = replace(shipped, toolkits=())  # as the facts of the sample
    with refused("unknown-toolkit"):
        find_toolkit(without_toolkits, "--cuda", "11.8")


def test_a_build_without_cuda_has_no_toolkit_to_choose(shipped: Facts) -> None:
    with refused("toolkit-without-cuda"):
        choose_toolkit(shipped, "wheel-3.10-cpu", "11.8")


def test_a_release_that_does_not_build_with_it_is_refused_with_the_reason(shipped: Facts) -> None:
    with refused("toolkit-impossible") as caught:
        choose_toolkit(shipped, "wheel-3.12-cu130", "13.3", "v2.13.0")
    assert "arch_id" in str(caught.value)


def test_installed_toolkits_that_could_replace_it_are_named(shipped: Facts) -> None:
    cell = find_torch_cell(shipped, "wheel-3.10-cu117", "v1.13.1")
    installed = ["13.0", "11.8", "11.6", "11.7"]
    assert cuda_toolkit.usable_toolkits(shipped, cell, installed) == ["11.8"]
    assert cuda_toolkit.usable_toolkits(shipped, cell, []) == []
    without_cuda = find_torch_cell(shipped, "wheel-3.10-cpu", "v1.13.1")
    assert cuda_toolkit.usable_toolkits(shipped, without_cuda, installed) == []


def plan_on_host(shipped: Facts, identifier: str, options: Options | None = None) -> Plan:
    return plan_torch(shipped, identifier, "v1.13.1", HOST, options=options or Options())


def test_a_plan_with_another_toolkit_is_of_that_toolkit(shipped: Facts) -> None:
    plan = plan_on_host(shipped, "wheel-3.10-cu117", Options(toolkit="11.8"))
    assert plan.cuda.toolkit == "11.8"
    assert plan.build.cuda == "11.7"
    assert plan.wheel.version == "1.13.1+cu117"
    assert plan.cuda.libraries == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}
    assert plan.variables["CXX"] == "/k/gcc/bin/g++-11"
    assert plan.variables["USE_STATIC_CUDNN"] == "0"
    assert plan.variables["USE_SYSTEM_NCCL"] == "1"
    assert plan.variables["CUDNN_ROOT"] == "${cudnn_home}"
    assert plan.variables["USE_MAGMA"] == "0"
    assert "PYTORCH_EXTRA_INSTALL_REQUIREMENTS" not in plan.variables, "its objects are not 11.7's"


def test_the_toolkit_of_the_official_build_requires_what_that_requires(shipped: Facts) -> None:
    variables = plan_on_host(shipped, "wheel-3.10-cu117").variables
    requirements = variables["PYTORCH_EXTRA_INSTALL_REQUIREMENTS"].split("|")
    assert requirements[1] == "nvidia-cudnn-cu11==8.5.0.96"


def test_placeholders_are_the_folders_of_toolkit_and_libraries(shipped: Facts) -> None:
    plan = plan_on_host(shipped, "wheel-3.10-cu117", Options(toolkit="11.8"))
    assert cuda_placeholders(plan, HOST) == {
        "cuda_home": "/k/11.8",
        "cudnn_home": "/k/cudnn",
        "nccl_home": "/k/nccl",
    }
    bare = change_host(HOST, toolkits={"homes": {}, "provisioned": {}})
    assert cuda_placeholders(plan, bare) == {}
    without_toolkit = cuda_placeholders(plan_on_host(shipped, "wheel-3.10-cu117"), HOST)
    assert without_toolkit.keys() == {"cudnn_home", "nccl_home"}
    assert cuda_placeholders(plan_on_host(shipped, "wheel-3.10-cpu"), HOST) == {}


def test_a_dependent_package_admits_a_torch_of_another_minor_version(shipped: Facts) -> None:
    def preparation(identifier: str, **options: str) -> str:
        plan = plan_on_host(shipped, identifier, Options(**options))  # type: ignore[arg-type]
        return " ".join(" ".join(command.argv) for command in plan.tree.preparation)

    assert "t_minor" not in preparation("vision-3.10-cu117", torch="PyPI")
    assert "t_minor" in preparation("vision-3.10-cu117", torch="PyPI", toolkit="11.8")
    assert "ta_version" in preparation("audio-3.10-cu117", toolkit="11.8")


def test_capabilities_are_judged_by_the_toolkit_that_compiles(shipped: Facts) -> None:
    options = Options(toolkit="11.8", arch_list="8.9")
    assert plan_on_host(shipped, "wheel-3.10-cu117", options).arch_list == "8.9"


X86 = 'platform_system == "Linux" and platform_machine == "x86_64"'
TRITON = {  # in METADATA of PyPI's wheels for Linux x86_64
    "v2.0.1": f"triton==2.0.0; {X86}",
    "v2.1.2": f"triton==2.1.0; {X86}",
    "v2.2.2": f'triton==2.2.0; {X86} and python_version < "3.12"',
    "v2.3.1": f'triton==2.3.1; {X86} and python_version < "3.12"',
    "v2.4.1": f'triton==3.0.0; {X86} and python_version < "3.13"',
    "v2.5.1": f'triton==3.1.0; {X86} and python_version < "3.13"',
    "v2.6.0": f"triton==3.2.0; {X86}",
    "v2.8.0": f"triton==3.4.0; {X86}",
    "v2.11.0": 'triton==3.6.0; platform_system == "Linux"',
    "v2.12.1": 'triton==3.7.1; platform_system == "Linux"',
    "v2.13.0": 'triton==3.7.1; platform_system == "Linux" and python_version < "3.15"',
    "v2.14.1": 'triton~=3.8.0; platform_system == "Linux" and python_version < "3.15"',
    "v2.15.0": 'triton~=3.9.0; platform_system == "Linux" and python_version < "3.16"',
}


def last_requirements(shipped: Facts, tag: str, arch: str, *, cuda: bool) -> list[str]:
    """Return the last requirement of every cell of a release, with CUDA or without; "" for none."""
    release = find_release(shipped, "torch", tag)
    requirements = []
    for cell in matrix.possible_cells(shipped, release, arch):
        if (cell.build.cuda is not None) == cuda:
            plan = build_plan.compute_plan(shipped, cell, replace(HOST, arch=arch), Options())
            text = plan.variables.get("PYTORCH_EXTRA_INSTALL_REQUIREMENTS", "")
            requirements.append(text.rpartition("|")[2])
    return requirements


@pytest.mark.parametrize("tag", TRITON)
def test_wheels_with_cuda_require_the_triton_of_the_official_ones(shipped: Facts, tag: str) -> None:
    expected = Requirement(TRITON[tag])
    for text in last_requirements(shipped, tag, "x86_64", cuda=True):
        assert Requirement(text) == expected
    for text in last_requirements(shipped, tag, "aarch64", cuda=True):
        if "x86_64" in TRITON[tag]:
            assert not text.startswith("triton")
        else:
            assert Requirement(text) == expected
    assert set(last_requirements(shipped, tag, "x86_64", cuda=False)) == {""}
