"""The requirements of wheels in conda's form, which conda's own library reads."""

from dataclasses import replace

import pytest

from tests.support.refusals import refused
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.deliver.conda import requirements

CPU = Build("torch", "wheel", "3.10", "cpu", "x86_64")
CUDA = replace(CPU, variant="cu117")


def conda_spec(facts: Facts, line: str, build: Build = CPU) -> str:
    (spec,) = requirements.wheel_requirements(facts, [line], build)
    return spec


@pytest.mark.parametrize(
    ("required", "spec"),
    [
        ("typing-extensions", "typing_extensions"),
        ("requests", "requests"),
        ("pillow!=8.3.*,>=5.3.0", "pillow >=5.3.0,!=8.3.*"),
        ("sympy==1.13.1", "sympy 1.13.1"),
        ("jinja2 (>=3)", "jinja2 >=3"),
        ("triton==2.0.0", "triton 2.0.0"),
        ("nvidia-cuda-runtime-cu11==11.7.99", "cudatoolkit >=11.7,<11.8.0a0"),
        ("nvidia-cublas-cu11==11.10.3.66", "cudatoolkit"),
        ("nvidia-cudnn-cu11==8.5.0.96", "cudnn >=8.5.0.96,<9.0a0"),
        ("nvidia-cublas-cu12==12.1.3.1", "libcublas >=12.1.3.1,<13.0a0"),
        ("nvidia-cublas<=13.1.1.3,>=13.1.0.3", "libcublas >=13.1.0.3,<=13.1.1.3"),
        ("cuda-toolkit[cublas,cudart]==13.0.2", "cuda-libraries >=13.0.2,<14.0a0"),
        ("nvidia-cusparselt-cu12==0.6.2", "cusparselt 0.6.2"),
    ],
)
def test_requirements_have_condas_names_and_bounds(
    shipped: Facts, required: str, spec: str
) -> None:
    assert conda_spec(shipped, required) == spec


def test_an_extension_requires_the_variant_that_it_is_built_against(shipped: Facts) -> None:
    assert conda_spec(shipped, "torch==1.13.1+cpu") == "pytorch 1.13.1 py3.10_cpu_*"
    assert conda_spec(shipped, "torch==1.13.1+cu117", CUDA) == "pytorch 1.13.1 py3.10_cuda11.7_*"
    assert (
        conda_spec(shipped, "torch==1.13.1+git49444c3") == "pytorch 1.13.1 py3.10_cpu_*git49444c3_*"
    )
    assert conda_spec(shipped, "torch==1.13.1") == "pytorch 1.13.1"


def test_markers_are_evaluated_for_the_python_of_the_package(shipped: Facts) -> None:
    lines = [
        "dataclasses; python_version < '3.7'",
        "setuptools; python_version >= '3.12'",
        "opt-einsum>=3.3; extra == 'opt-einsum'",
        "nvidia-cudnn-cu11==8.5.0.96; platform_system == 'Linux'",
    ]
    assert list(requirements.wheel_requirements(shipped, lines, CPU)) == ["cudnn >=8.5.0.96,<9.0a0"]
    of_mac = replace(CPU, python="3.6", arch="arm64")
    assert list(requirements.wheel_requirements(shipped, lines, of_mac)) == ["dataclasses"]
    without_gil = replace(CPU, python="3.13t")
    assert "setuptools" in requirements.wheel_requirements(shipped, lines, without_gil)


def test_every_package_of_nvidias_that_a_release_requires_has_a_name(shipped: Facts) -> None:
    for release in shipped.releases["torch"]:
        for cuda in release.cuda.official.values():
            assert all(requirements.wheel_requirements(shipped, cuda.requires, CUDA))


def test_a_requirement_without_a_conda_name_is_refused(shipped: Facts) -> None:
    with refused("no-conda-name"):
        conda_spec(shipped, "nvidia-novel-cu14==1.0")
    with refused("invalid-requirement"):
        conda_spec(shipped, "numpy >>1")


def test_python_is_bound_to_its_minor_version_and_its_abi() -> None:
    assert requirements.python_requirement(CPU) == "python >=3.10,<3.11.0a0"
    assert requirements.abi_requirement(CPU) == "python_abi 3.10.* *_cp310"
    assert (
        requirements.abi_requirement(replace(CPU, python="3.13t")) == "python_abi 3.13.* *_cp313t"
    )
    assert requirements.abi_requirement(replace(CPU, python="3.7")) == "python_abi 3.7.* *_cp37m"


@pytest.mark.parametrize(
    ("tags", "specs"),
    [
        ({"manylinux_2_36_x86_64"}, ["__glibc >=2.36,<3.0.a0"]),
        ({"manylinux_2_17_x86_64", "manylinux2014_x86_64"}, ["__glibc >=2.17,<3.0.a0"]),
        ({"manylinux2014_aarch64"}, ["__glibc >=2.17,<3.0.a0"]),
        ({"macosx_11_0_arm64"}, ["__osx >=11.0"]),
        ({"linux_x86_64"}, []),
    ],
)
def test_platform_tags_ask_for_a_system(tags: set[str], specs: list[str]) -> None:
    assert list(requirements.platform_requirements(tags)) == specs


def test_a_toolkit_asks_for_a_driver_of_its_major_version() -> None:
    assert requirements.driver_requirement("11.8") == "__cuda >=11"
    assert requirements.driver_requirement("11.0") == "__cuda >=11.0"
    assert requirements.toolkit_constraint("11.8") == "cuda-version >=11.8,<12.0a0"


def test_an_older_libstdcxx_than_that_of_the_compiler_is_excluded(shipped: Facts) -> None:
    conda = requirements.conda_facts(shipped)
    symbols = ["GLIBCXX_3.4", "GLIBCXX_3.4.21", "GLIBCXX_3.4.30", "CXXABI_1.3.13"]
    assert list(requirements.libstdcxx_requirements(conda, symbols)) == [
        "libstdcxx >=12.1",
        "libstdcxx-ng >=12.1",
    ]
    assert list(requirements.libstdcxx_requirements(conda, ["GLIBCXX_3.4.11"])) == []


def test_compiled_code_requires_its_numpy_or_a_newer_one(shipped: Facts) -> None:
    conda = requirements.conda_facts(shipped)

    def compiled(package: str, *pins: str) -> list[str]:
        manifest = {"requirements": list(pins)}
        return list(requirements.compiled_requirements(conda, package, manifest))

    assert compiled("torch", "cmake==3.27.9", "numpy==1.21.6") == ["numpy >=1.21,<2.0a0"]
    assert requirements.numpy_compatibility("2.1.0") == "numpy >=1.19,<3.0a0"
    assert compiled("torch", "cmake==3.27.9") == [], "it was built without NumPy"
    assert compiled("torchvision", "cmake==3.27.9", "numpy==1.21.6") == []
    unknown = requirements.compiled_requirements(conda, "torch", {})
    assert list(unknown) == ["numpy"], "nothing is known about the build"


def test_a_spec_without_bounds_is_dropped_if_another_has_some() -> None:
    specs = ["numpy", "cudatoolkit >=11.7", "numpy >=1.21,<2.0a0", "cudatoolkit", "numpy >=1.22"]
    assert requirements.merge_specs(specs) == (
        "cudatoolkit >=11.7",
        "numpy >=1.21,<2.0a0",
        "numpy >=1.22",
    )


def test_the_library_of_conda_reads_the_specs(shipped: Facts) -> None:
    rattler = pytest.importorskip("rattler", reason="needs py-rattler")

    def fits(text: str, name: str, version: str, build: str) -> bool:
        string = rattler.package.build_string.BuildString(build)
        record = rattler.PackageRecord(name, version, string, 0, "linux-64")
        return bool(rattler.MatchSpec(text).matches(record))

    spec = conda_spec(shipped, "torch==1.13.1+cu117", CUDA)
    builds = [
        "py3.10_cuda11.7_cudnn8.5.0_0",
        "py3.10_cuda11.7_0",
        "py3.10_cpu_0",
        "py3.11_cuda11.7_0",
    ]
    assert [build for build in builds if fits(spec, "pytorch", "1.13.1", build)] == builds[:2]
    assert fits(requirements.abi_requirement(CPU), "python_abi", "3.10", "8_cp310")
    assert not fits(requirements.abi_requirement(CPU), "python_abi", "3.10", "3_pp310")


CUDNN = "8.0.5.39"


def string(
    facts: Facts, python: str, variant: str, label: str | None, cudnn: str | None = None
) -> str:
    return requirements.build_string(facts, python, variant, label, cudnn=cudnn, number=0)


def test_build_strings_are_those_of_the_channel_of_pytorch(shipped: Facts) -> None:
    assert string(shipped, "3.8", "cu110", "cu110", CUDNN) == "py3.8_cuda11.0.221_cudnn8.0.5_0"
    assert string(shipped, "3.10", "cpu", "cpu") == "py3.10_cpu_0"
    assert string(shipped, "3.10", "cu117", "cu117", "8.5.0.96") == "py3.10_cuda11.7_cudnn8.5.0_0"
    assert string(shipped, "3.13t", "cpu", None) == "py3.13t_cpu_0"


def test_the_rest_of_a_label_becomes_a_part_of_the_build_string(shipped: Facts) -> None:
    assert string(shipped, "3.10", "cpu", "git49444c3") == "py3.10_cpu_git49444c3_0"
    assert string(shipped, "3.10", "cu130", "cu130.torch2.11.0") == "py3.10_cuda13.0_torch2.11.0_0"
    numbered = requirements.build_string(shipped, "3.10", "cpu", "cpu", cudnn=None, number=2)
    assert numbered == "py3.10_cpu_2"


@pytest.mark.parametrize(
    ("arch", "subdir"),
    [("x86_64", "linux-64"), ("aarch64", "linux-aarch64"), ("arm64", "osx-arm64")],
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


def test_facts_without_conda_are_refused(small_facts: Facts) -> None:
    with refused("no-conda-facts"):
        requirements.conda_facts(small_facts)


def test_torch_is_pytorch_and_others_keep_their_name(shipped: Facts) -> None:
    conda = requirements.conda_facts(shipped)
    projects = ("torch", "torchvision", "torch_scatter", "typing-extensions")
    names = [requirements.conda_package_name(conda, project) for project in projects]
    assert names == ["pytorch", "torchvision", "torch-scatter", "typing_extensions"]
