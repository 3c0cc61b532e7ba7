"""How conda calls machines, packages and builds."""

import pytest

from tests.support.refusals import refused
from torchmill.config.model import Facts
from torchmill.deliver.conda import requirements

CUDNN = "8.0.5.39"


def string(facts: Facts, python: str, variant: str, label: str | None, cudnn: str | None = None) -> str:
    return requirements.build_string(facts, python, variant, label, cudnn=cudnn, number=0)


def test_build_strings_are_those_of_the_channel_of_pytorch(shipped: Facts) -> None:
    assert string(shipped, "3.8", "cu110", "cu110", CUDNN) == "py3.8_cuda11.0.221_cudnn8.0.5_0"
    assert string(shipped, "3.10", "cpu", "cpu") == "py3.10_cpu_0"
    assert string(shipped, "3.10", "cu117", "cu117", "8.5.0.96") == "py3.10_cuda11.7_cudnn8.5.0_0"
    assert string(shipped, "3.13t", "cpu", None) == "py3.13t_cpu_0"


def test_what_a_label_says_beside_the_variant_is_told(shipped: Facts) -> None:
    assert string(shipped, "3.10", "cpu", "git49444c3") == "py3.10_cpu_git49444c3_0"
    assert string(shipped, "3.10", "cu130", "cu130.torch2.11.0") == "py3.10_cuda13.0_torch2.11.0_0"
    assert requirements.build_string(shipped, "3.10", "cpu", "cpu", cudnn=None, number=2) == "py3.10_cpu_2"


def test_a_variant_that_is_no_toolkit_is_refused(shipped: Facts) -> None:
    with refused("no-conda-variant"):
        string(shipped, "3.10", "rocm5.2", "rocm5.2")


@pytest.mark.parametrize(
    ("arch", "subdir"), [("x86_64", "linux-64"), ("aarch64", "linux-aarch64"), ("arm64", "osx-arm64")]
)
def test_each_machine_has_its_folder(shipped: Facts, arch: str, subdir: str) -> None:
    conda = requirements.conda_facts(shipped)
    assert requirements.conda_subdir(conda, arch, {}) == subdir
    assert requirements.conda_subdir(conda, arch, {"CONDA_SUBDIR": subdir}) == subdir


def test_a_machine_without_a_folder_and_another_conda_subdir_are_refused(shipped: Facts) -> None:
    conda = requirements.conda_facts(shipped)
    with refused("no-conda-platform"):
        requirements.conda_subdir(conda, "amd64", {})
    with refused("conda-subdir-differs"):
        requirements.conda_subdir(conda, "arm64", {"CONDA_SUBDIR": "osx-64"})


def test_facts_without_conda_say_so(known: Facts) -> None:
    with refused("no-conda-facts"):
        requirements.conda_facts(known)


def test_torch_is_pytorch_and_others_keep_their_name(shipped: Facts) -> None:
    conda = requirements.conda_facts(shipped)
    names = [
        requirements.conda_package_name(conda, one)
        for one in ("torch", "torchvision", "torch_scatter", "typing-extensions")
    ]
    assert names == ["pytorch", "torchvision", "torch-scatter", "typing_extensions"]
