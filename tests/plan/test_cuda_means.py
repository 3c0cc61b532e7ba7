"""Toolkit, compiler and libraries together, and what follows for rules and folders."""

from dataclasses import replace

from torchmill.config import cell_lookup, matrix
from torchmill.config.model import Compiler, Facts, Host, Options, Plan
from torchmill.plan import build_plan, cuda_selection

KEPT = {"cudnn-8.5.0.96-cu11": "/k/cudnn", "nccl-2.14.3-cu11": "/k/nccl", "gcc-11": "/k/gcc"}
HOST = Host(
    "x86_64",
    "linux",
    8,
    2**35,
    glibc="2.36",
    complete=True,
    compiler=Compiler("gcc", "12.2.0"),
    compilers={"g++": Compiler("gcc", "12.2.0"), "/k/gcc/bin/g++-11": Compiler("gcc", "11.3.0")},
    toolkits={"11.8": "/k/11.8"},
    kept=KEPT,
)


def planned(facts: Facts, identifier: str, **options: str) -> Plan:
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", matrix.find_release(facts, "torch", "v1.13.1"))
    return build_plan.compute_plan(facts, cell, HOST, Options(**options))  # type: ignore[arg-type]


def test_a_plan_with_another_toolkit_is_of_that_toolkit(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.10-cu117", toolkit="11.8")
    assert (made.toolkit, made.build.cuda, made.version) == ("11.8", "11.7", "1.13.1+cu117")
    assert made.libraries == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}
    assert made.set["CXX"] == "/k/gcc/bin/g++-11"
    assert (made.set["USE_STATIC_CUDNN"], made.set["USE_SYSTEM_NCCL"]) == ("0", "1")
    assert made.set["CUDNN_ROOT"] == "${cudnn_home}"
    assert "PYTORCH_EXTRA_INSTALL_REQUIREMENTS" not in made.set  # its objects are not 11.7's
    assert made.set["USE_MAGMA"] == "0"


def test_the_same_toolkit_as_the_official_builds_requires_what_they_require(shipped: Facts) -> None:
    required = planned(shipped, "wheel-3.10-cu117").set["PYTORCH_EXTRA_INSTALL_REQUIREMENTS"]
    assert required.split("|")[1] == "nvidia-cudnn-cu11==8.5.0.96"


def test_the_folders_are_those_of_the_toolkit_and_of_the_kept_libraries(shipped: Facts) -> None:
    homes = cuda_selection.cuda_placeholders(planned(shipped, "wheel-3.10-cu117", toolkit="11.8"), HOST)
    assert homes == {"cuda_home": "/k/11.8", "cudnn_home": "/k/cudnn", "nccl_home": "/k/nccl"}
    assert cuda_selection.cuda_placeholders(planned(shipped, "wheel-3.10-cu117"), HOST).keys() == {
        "cudnn_home",
        "nccl_home",
    }
    bare = replace(HOST, toolkits={}, kept={})
    assert cuda_selection.cuda_placeholders(planned(shipped, "wheel-3.10-cu117", toolkit="11.8"), bare) == {}
    assert cuda_selection.cuda_placeholders(planned(shipped, "wheel-3.10-cpu"), HOST) == {}


def test_a_dependent_package_is_let_in_by_a_torch_of_another_minor_version(shipped: Facts) -> None:
    same = planned(shipped, "vision-3.10-cu117", torch="PyPI")
    other = planned(shipped, "vision-3.10-cu117", torch="PyPI", toolkit="11.8")
    assert not any("t_minor" in word for command in same.prepare for word in command.argv)
    assert any("t_minor" in word for command in other.prepare for word in command.argv)
    audio = planned(shipped, "audio-3.10-cu117", toolkit="11.8")
    assert any("ta_version" in word for command in audio.prepare for word in command.argv)


def test_capabilities_are_judged_by_the_toolkit_that_compiles(shipped: Facts) -> None:
    assert (
        planned(shipped, "wheel-3.10-cu117", toolkit="11.8", arch_list="8.9").set["TORCH_CUDA_ARCH_LIST"]
        == "8.9"
    )
