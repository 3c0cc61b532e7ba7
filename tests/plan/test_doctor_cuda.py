"""The doctor's findings on CUDA toolkits: version, parts, capabilities, and size of the link."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.host.host import Host, HostPackages, HostPlatform, HostResources, HostToolkits
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import cuda, examination
from torchmill.plan.doctor.finding import CheckContext, Finding

HOME = "/usr/local/cuda-11.8"
LINUX = Host(
    "x86_64",
    "linux",
    HostResources(4, 2**34),
    platform=HostPlatform(
        glibc="2.34", distribution=LinuxDistribution("rocky", "9.4", ("rhel", "centos", "fedora"))
    ),
    packages=HostPackages(manager="dnf"),
    toolkits=HostToolkits(homes={"11.8": HOME}),
    complete=True,
)
WITHOUT_TOOLKIT = change_host(LINUX, toolkits={"homes": {}})


def make_context(
    facts: Facts, host: Host, identifier: str, tag: str, options: Options | None = None
) -> CheckContext:
    """Return the context of a build of the package "base" of the small facts, or of torch."""
    package = "base" if "base" in facts.packages else "torch"
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", find_release(facts, package, tag))
    plan = build_plan.compute_plan(facts, cell, host, options or Options())
    return CheckContext(facts, cell, host, plan)


def check_cuda(context: CheckContext) -> dict[str, Finding]:
    """Return the findings by subject."""
    return {finding.subject: finding for finding in cuda.check_cuda(context)}


def toolkit_finding(facts: Facts, host: Host, identifier: str = "wheel-3.10-cu118") -> Finding:
    return check_cuda(make_context(facts, host, identifier, "v1.0.0"))["CUDA toolkit"]


def test_a_toolkit_that_is_missing_is_named_with_those_that_are_there(small_facts: Facts) -> None:
    assert toolkit_finding(small_facts, LINUX).verdict == "ok"
    finding = toolkit_finding(small_facts, LINUX, "wheel-3.10-cu102")
    assert (finding.verdict, finding.state) == ("failure", "CUDA 11.8")
    assert finding.cure == (
        "look for it as cuda-toolkit-10-2 in NVIDIA's archive for rocky 9.4, "
        "or take the installer of https://developer.nvidia.com/cuda-toolkit-archive"
    )


def test_a_missing_toolkit_is_a_failure_only_if_it_is_sure_to_be_missing(
    small_facts: Facts,
) -> None:
    finding = toolkit_finding(small_facts, WITHOUT_TOOLKIT)
    assert (finding.verdict, finding.state) == ("failure", "none")
    assert (
        toolkit_finding(small_facts, replace(WITHOUT_TOOLKIT, complete=False)).verdict == "unknown"
    )


CONDA_TOOLKIT = ToolkitSource(
    "conda", "toolkit", ("11.8",), ("all",), ("x86_64",), ("nvidia",), None, ""
)


def test_a_toolkit_that_a_provider_has_is_provisioned(small_facts: Facts) -> None:
    facts = replace(small_facts, toolkit_sources=(CONDA_TOOLKIT,))
    finding = toolkit_finding(facts, WITHOUT_TOOLKIT)
    assert (finding.verdict, finding.cure) == ("failure", "invoke toolkit --cuda 11.8")
    older = toolkit_finding(facts, WITHOUT_TOOLKIT, "wheel-3.10-cu102")
    assert older.cure.startswith("look for it as cuda-toolkit-10-2")


def test_a_dependent_package_links_no_libraries_of_cuda(small_facts: Facts) -> None:
    context = make_context(small_facts, LINUX, "vision-3.10-cu118", "v1.0.0")
    assert list(check_cuda(context)) == ["CUDA toolkit"]


def check_torch(facts: Facts, identifier: str, options: Options) -> dict[str, Finding]:
    """Return the findings of a build of torch 1.13.1."""
    return check_cuda(make_context(facts, LINUX, identifier, "v1.13.1", options))


def test_a_newer_toolkit_of_the_machine_is_offered_but_not_chosen(shipped: Facts) -> None:
    finding = check_torch(shipped, "wheel-3.10-cu117", Options())["CUDA toolkit"]
    assert (finding.verdict, finding.state) == ("failure", "CUDA 11.8")
    assert finding.needed == "11.7"
    offer = "on request 11.8 compiles it: nox -s wheel-3.10-cu117 -- --toolkit 11.8"
    assert finding.because == offer
    finding = check_torch(shipped, "wheel-3.10-cu117", Options(toolkit="11.8"))["CUDA toolkit"]
    assert (finding.verdict, finding.needed) == ("ok", "11.8, asked for in place of 11.7")


@pytest.mark.parametrize(
    "options",
    [
        Options(arch_list="3.7;8.6+PTX"),
        Options(settings={"TORCH_CUDA_ARCH_LIST": "3.7 8.6+PTX"}),
    ],
)
def test_capabilities_that_a_later_toolkit_drops_are_named(
    shipped: Facts, options: Options
) -> None:
    finding = check_torch(shipped, "wheel-3.10-cu118", options)["compute capabilities"]
    assert finding.verdict == "ok"
    assert finding.because == "CUDA 11.8 warns about 3.7, which a later toolkit drops"


def test_capabilities_of_later_toolkits_are_not_mentioned(shipped: Facts) -> None:
    findings = check_torch(shipped, "wheel-3.10-cu118", Options(arch_list="8.6"))
    assert "compute capabilities" not in findings


def test_a_link_that_would_overflow_is_refused_with_its_cures(shipped: Facts) -> None:
    capabilities = [
        "3.5",
        "3.7",
        "5.0",
        "5.2",
        "6.0",
        "6.1",
        "7.0",
        "7.5",
        "8.0",
        "8.6",
        "8.9",
        "9.0",
    ]
    listed = ";".join(f"{capability}+PTX" for capability in capabilities)
    large = Options(arch_list=listed, settings={"TORCH_NVCC_FLAGS": ""})
    finding = check_torch(shipped, "wheel-3.10-cu118", large)["libtorch_cuda"]
    assert finding.verdict == "failure"
    assert "relocation truncated to fit" in finding.because
    assert "BUILD_SPLIT_CUDA=ON" in finding.cure
    assert "-compress-all" in finding.cure
    small = Options(arch_list="8.6")
    assert "libtorch_cuda" not in check_torch(shipped, "wheel-3.10-cu118", small)


# Parts of toolkits

CUBLAS = ToolkitPart("cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), (), None, "", "")
CCCL = ToolkitPart("cccl", "CCCL", "nvidia-cuda-cccl", ("thrust/version.h",), (), None, "", "")
CUPTI = ToolkitPart(
    "cupti", "CUPTI", "nvidia-cuda-cupti", ("cupti.h",), (), None, "", "the profiler sees no GPU"
)
CUBLAS_PACKAGES = ToolkitSource(
    "pypi", "parts", ("11.8",), ("nvidia-cublas-cu11==11.11",), ("x86_64",), (), None, ""
)


def parts_finding(
    facts: Facts, missing_parts: Mapping[str, str], home: str = HOME
) -> Finding | None:
    """Return the finding on a toolkit of a machine, whose toolkits lack some parts."""
    facts = replace(
        facts,
        toolkit_parts=(CUBLAS, CCCL, CUPTI),
        toolkit_sources=(CUBLAS_PACKAGES, CONDA_TOOLKIT),
    )
    host = change_host(LINUX, toolkits={"lacking_parts": missing_parts, "homes": {"11.8": home}})
    context = make_context(facts, host, "wheel-3.10-cu118", "v1.0.0")
    return next(cuda.check_toolkit_parts(context), None)


def test_there_is_no_finding_on_a_toolkit_that_lacks_nothing(small_facts: Facts) -> None:
    assert parts_finding(small_facts, {}) is None
    assert parts_finding(small_facts, {"12.4": "cublas"}) is None  # not the toolkit of the build


def test_parts_that_a_toolkit_lacks_are_named_with_the_command_that_completes_it(
    small_facts: Facts,
) -> None:
    finding = parts_finding(small_facts, {"11.8": "cublas, cupti"})
    assert finding is not None
    assert (finding.verdict, finding.cure) == ("failure", "invoke toolkit --complete 11.8")
    assert finding.state == f"no cuBLAS, CUPTI in {HOME}"


@pytest.mark.parametrize(
    ("part_names", "home"),
    [
        ("cublas, cccl", HOME),  # no package has CCCL
        ("cublas", "/usr"),  # its files lie among those of the system
    ],
)
def test_a_toolkit_that_cannot_be_completed_is_replaced(
    part_names: str, home: str, small_facts: Facts
) -> None:
    finding = parts_finding(small_facts, {"11.8": part_names}, home)
    assert finding is not None
    assert finding.cure == "invoke toolkit --cuda 11.8"


def test_a_part_that_a_build_can_do_without_is_a_warning(small_facts: Facts) -> None:
    finding = parts_finding(small_facts, {"11.8": "cupti"})
    assert finding is not None
    assert (finding.verdict, finding.because) == ("warning", "the profiler sees no GPU")


@pytest.mark.parametrize(("tag", "verdict"), [("v1.13.1", "warning"), ("v2.1.0", "failure")])
def test_a_part_may_be_vital_for_newer_releases_only(
    shipped: Facts, tag: str, verdict: str
) -> None:
    host = change_host(LINUX, toolkits={"lacking_parts": {"11.8": "nvml"}})
    context = make_context(shipped, host, "wheel-3.10-cu118", "v2.1.0")
    cell = replace(context.cell, release=find_release(shipped, "torch", tag))
    (finding,) = cuda.check_toolkit_parts(replace(context, cell=cell))
    assert (finding.verdict, finding.state) == (verdict, f"no NVML in {HOME}")


def test_a_toolkit_that_is_not_there_lacks_no_parts(small_facts: Facts) -> None:
    host = change_host(LINUX, toolkits={"lacking_parts": {"12.1": "nvml"}})
    assert not cuda.missing_parts(replace(small_facts, toolkit_parts=(CUBLAS,)), host, "12.1")


def test_the_findings_on_a_machine_name_the_parts_that_its_toolkits_lack(
    small_facts: Facts,
) -> None:
    facts = replace(small_facts, toolkit_parts=(CUBLAS, CCCL))
    host = change_host(LINUX, toolkits={"lacking_parts": {"11.8": "cccl"}})
    findings = examination.examine_machine(facts, host, None)
    (finding,) = [finding for finding in findings if finding.state == "no CCCL"]
    assert (finding.subject, finding.verdict) == ("CUDA 11.8", "warning")
    assert finding.cure == "invoke toolkit --complete 11.8"


def test_a_c_library_that_the_toolkit_cannot_be_read_with_stops_the_build(shipped: Facts) -> None:
    new_glibc = change_host(LINUX, platform={"glibc": "2.41"})
    context = make_context(shipped, new_glibc, "wheel-3.10-cu118", "v2.4.1")
    finding = check_cuda(context)["glibc and CUDA"]
    assert (finding.verdict, finding.state, finding.needed) == (
        "failure",
        "glibc 2.41",
        "glibc <2.41",
    )
    older = make_context(shipped, LINUX, "wheel-3.10-cu118", "v2.4.1")
    assert "glibc and CUDA" not in check_cuda(older)
    newer_toolkit = make_context(shipped, new_glibc, "wheel-3.12-cu130", "v2.10.0")
    assert "glibc and CUDA" not in check_cuda(newer_toolkit)
