"""Builds that are crossed: what their plans have, and what the doctor asks of a machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.examinations import examine, finding_on
from tests.support.plans import plan_torch
from tests.support.refusals import refused
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostCrossing,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostPrograms,
    HostResources,
    HostToolkits,
)
from torchmill.host.installed_packages import EnvironmentPackage
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.crossing import building_host, is_crossed
from torchmill.plan.cuda_toolkit import cuda_placeholders
from torchmill.plan.script import refuse_crossed

GIB = 2**30
GCC_12 = Compiler("gcc", "12.2.0")
NAME = "scatter-3.11-cu130-aarch64"
MEANS = HostCrossing(
    compilers={"aarch64-linux-gnu-g++-12": GCC_12},
    glibc="2.36",
    toolkits={"13.0": "/cache/13.0-crossing-1-aarch64"},
    emulator="/usr/bin/qemu-aarch64-static",
    system="/usr/aarch64-linux-gnu",
    interpreters={"3.11": "/root/usr/bin/python3.11"},
)
HOST = Host(
    "x86_64",
    "linux",
    HostResources(cores=4, memory=32 * GIB, free_disk=200 * GIB),
    platform=HostPlatform(glibc="2.36", distribution=LinuxDistribution("debian", "12")),
    compilers=HostCompilers(default=GCC_12, by_command={"g++": GCC_12}),
    programs=HostPrograms(paths={"git": "/usr/bin/git", "c++": "c++"}, versions={"git": "2.39.5"}),
    packages=HostPackages(
        manager="apt", managers=("apt",), archives=("debian",), may_use_root=True
    ),
    toolkits=HostToolkits(homes={"13.0": "/usr/local/cuda"}),
    interpreters=HostInterpreters(paths={"3.11": "/usr/bin/python3.11"}),
    complete=True,
    crossings={"aarch64": MEANS},
)
ON_PYPI = Options(torch=PYPI, arch_list="8.7;9.0;11.0;12.1")


def host_with(means: HostCrossing) -> Host:
    return replace(HOST, crossings={"aarch64": means})


def build_of(package: str, session: str, arch: str = "aarch64") -> Build:
    return Build(package, session, "3.11", "cpu", arch)


def test_extensions_are_crossed_and_everything_else_is_not(shipped: Facts) -> None:
    scatter = build_of("torch-scatter", "scatter")
    assert is_crossed(shipped, scatter, "x86_64")
    assert not is_crossed(shipped, scatter, "aarch64"), "it is native there"
    assert not is_crossed(shipped, scatter, "arm64"), "a Mac has no such compilers"
    assert not is_crossed(shipped, build_of("torch-scatter", "scatter", "arm64"), "x86_64")
    assert not is_crossed(shipped, build_of("torch", "wheel"), "x86_64")
    assert not is_crossed(shipped, build_of("torchvision", "vision"), "x86_64")
    assert not is_crossed(shipped, build_of("natten", "natten"), "x86_64"), "it starts CMake"


def test_a_host_is_seen_by_a_build_once(shipped: Facts) -> None:
    view = building_host(shipped, build_of("torch-scatter", "scatter"), HOST)
    assert view.crosses == "aarch64"
    assert building_host(shipped, build_of("torch-scatter", "scatter"), view) is view
    assert building_host(shipped, build_of("torch", "wheel"), HOST) is HOST


def test_the_plan_names_compilers_and_folders_of_the_target(shipped: Facts) -> None:
    plan = plan_torch(shipped, NAME, "v2.13.0", HOST, options=ON_PYPI)
    assert plan.identifier == NAME
    assert plan.is_crossed
    assert plan.target_torch == "torch===2.13.0"
    assert "torch===2.13.0" in plan.requirements, "for setup.py, on this machine"
    variables = plan.variables
    assert variables["CC"] == "aarch64-linux-gnu-gcc-12"
    assert variables["CXX"] == variables["CUDAHOSTCXX"] == "aarch64-linux-gnu-g++-12"
    assert variables["_PYTHON_HOST_PLATFORM"] == "linux-aarch64"
    assert variables["TORCHMILL_TARGET_PACKAGES"] == "${target}"
    assert variables["TORCH_CUDA_ARCH_LIST"] == "8.7;9.0;11.0;12.1"
    assert plan.wheel.file_name.endswith("-cp311-cp311-manylinux_2_36_aarch64.whl")
    view = building_host(shipped, plan.build, HOST)
    assert cuda_placeholders(plan, view)["cuda_home"] == "/cache/13.0-crossing-1-aarch64"


def test_a_native_plan_knows_no_target(shipped: Facts) -> None:
    plan = plan_torch(shipped, "scatter-3.11-cu130", "v2.13.0", HOST, options=ON_PYPI)
    assert not plan.is_crossed
    assert "PYTHONPATH" not in plan.variables
    assert "TORCHMILL_TARGET_MACHINE" not in plan.variables


def test_the_torch_of_this_machine_may_be_lent(shipped: Facts) -> None:
    """An environment of this machine has the torch that setup.py imports."""
    tags = ("cp311-cp311-manylinux_2_28_x86_64",)
    package = EnvironmentPackage(Path("/env/torch-2.13.0.dist-info"), tags, cuda="13.0")
    options = replace(ON_PYPI, torch="/env", torch_installed=(package,))
    plan = plan_torch(shipped, NAME, "v2.13.0", HOST, options=options)
    assert plan.wheel.torch_folder == Path("/env")
    assert plan.target_torch == "torch===2.13.0"
    assert not any(line.startswith("torch=") for line in plan.requirements)


def test_a_wheel_of_torch_is_that_of_the_target(shipped: Facts) -> None:
    wheel = "/given/torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_aarch64.whl"
    plan = plan_torch(shipped, NAME, "v2.13.0", HOST, options=replace(ON_PYPI, torch=wheel))
    assert plan.target_torch == wheel
    assert "torch===2.13.0" in plan.requirements
    assert wheel not in plan.requirements


def test_a_torch_for_another_cuda_is_refused(shipped: Facts) -> None:
    wheel = "/given/torch-2.13.0+cu126-cp311-cp311-manylinux_2_28_aarch64.whl"
    with refused("torch-cuda-mismatch"):
        plan_torch(shipped, NAME, "v2.13.0", HOST, options=replace(ON_PYPI, torch=wheel))


@pytest.mark.parametrize(
    ("versions", "command"),
    [
        (("12.2.0", "14.2.0"), "aarch64-linux-gnu-g++-14"),
        (("12.2.0", "17.1.0"), "aarch64-linux-gnu-g++-12"),
        (("17.1.0",), "aarch64-linux-gnu-g++-17"),
    ],
)
def test_the_newest_cross_compiler_that_nvcc_takes_compiles(
    shipped: Facts, versions: tuple[str, ...], command: str
) -> None:
    compilers = {}
    for version in versions:
        name = f"aarch64-linux-gnu-g++-{version.partition('.')[0]}"
        compilers[name] = Compiler("gcc", version)
    host = host_with(replace(MEANS, compilers=compilers))
    plan = plan_torch(shipped, NAME, "v2.13.0", host, options=ON_PYPI)
    assert plan.variables["CXX"] == command


def test_no_script_builds_it(shipped: Facts) -> None:
    """Python reads files of torchmill's as it starts."""
    plan = plan_torch(shipped, NAME, "v2.13.0", HOST, options=ON_PYPI)
    with refused("crossed-in-script"):
        refuse_crossed(plan)
    refuse_crossed(plan_torch(shipped, "scatter-3.11-cu130", "v2.13.0", HOST, options=ON_PYPI))


def test_a_torch_is_necessary(shipped: Facts) -> None:
    with refused("crossed-without-torch"):
        plan_torch(shipped, NAME, "v2.13.0", HOST, options=Options(arch_list="9.0"))


def test_a_board_whose_cuda_is_not_that_of_servers_is_refused(shipped: Facts) -> None:
    name = "scatter-3.11-cu126-aarch64"
    toolkits = {"12.6": "/cache/12.6-crossing-1-aarch64"}
    host = host_with(replace(MEANS, toolkits=toolkits))
    torch = "/given/torch-2.9.1+cu126-cp311-cp311-manylinux_2_28_aarch64.whl"
    for_servers = Options(torch=torch, arch_list="9.0")
    assert plan_torch(shipped, name, "v2.9.1", host, options=for_servers).is_crossed
    with refused("board-needs-own-cuda") as caught:
        plan_torch(shipped, name, "v2.9.1", host, options=replace(for_servers, arch_list="8.7"))
    assert "8.7" in str(caught.value)


def doctor_of(facts: Facts, host: Host, identifier: str = NAME, *words: str):  # type: ignore[no-untyped-def] # noqa: ANN201
    build = Build("torch-scatter", "scatter", "3.11", "cu130", "aarch64")
    view = building_host(facts, build, host)
    return examine(facts, view, identifier, "v2.13.0", "--torch", "PyPI", *words)


def test_a_machine_that_has_everything_can_start(shipped: Facts) -> None:
    findings = doctor_of(shipped, HOST)
    assert [finding for finding in findings if finding.verdict == "failure"] == []
    assert finding_on(findings, "machine").state == "x86_64, crosses"
    assert finding_on(findings, "CUDA toolkit").state == "13.0 in /cache/13.0-crossing-1-aarch64"
    assert finding_on(findings, "emulator").verdict == "ok"


@pytest.mark.parametrize(
    ("means", "subject", "cure"),
    [
        (
            replace(MEANS, emulator=""),
            "emulator",
            "apt-get install --yes --no-install-recommends qemu-user-static",
        ),
        (
            replace(MEANS, interpreters={}),
            "Python of the target",
            "uv python install cpython-3.11-linux-aarch64-gnu",
        ),
        (
            replace(MEANS, compilers={}),
            "C++ compiler",
            "apt-get install --yes --no-install-recommends g++-aarch64-linux-gnu",
        ),
        (
            replace(MEANS, toolkits={}),
            "CUDA toolkit",
            "invoke toolkit --cuda 13.0 --arch aarch64",
        ),
        (
            replace(MEANS, system=""),
            "system of the target",
            "apt-get install --yes --no-install-recommends g++-aarch64-linux-gnu",
        ),
    ],
)
def test_what_is_missing_is_a_failure_with_a_cure(
    shipped: Facts, means: HostCrossing, subject: str, cure: str
) -> None:
    finding = finding_on(doctor_of(shipped, host_with(means)), subject)
    assert finding.verdict == "failure"
    assert finding.cure == cure


def test_a_cross_compiler_that_is_too_new_for_nvcc_is_refused(shipped: Facts) -> None:
    compilers = {"aarch64-linux-gnu-g++": Compiler("gcc", "17.1.0")}
    host = host_with(replace(MEANS, compilers=compilers))
    finding = finding_on(doctor_of(shipped, host), "host compiler of nvcc")
    assert (finding.verdict, finding.state) == ("failure", "gcc 17.1.0")
    assert finding.cure.endswith("g++-12-aarch64-linux-gnu"), "the newest that Debian 12 has"
