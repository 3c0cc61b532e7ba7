"""The toolkit and NVIDIA's libraries, where a build looks for them and where it does not."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.hosts import change_host
from tests.support.machines import file
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release import Cuda
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.host.host import Host, HostPackages, HostPlatform, HostResources, HostToolkits
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import cuda, examination
from torchmill.plan.doctor.finding import CheckContext, Finding

LINUX = Host(
    "x86_64",
    "linux",
    HostResources(4, 2**34),
    platform=HostPlatform(
        glibc="2.34", distribution=LinuxDistribution("rocky", "9.4", ("rhel", "centos", "fedora"))
    ),
    packages=HostPackages(manager="dnf"),
    toolkits=HostToolkits(homes={"11.8": "/usr/local/cuda-11.8"}),
    complete=True,
)
OFFICIAL = {
    "10.2": Cuda(cudnn="7.6.5.32"),
    "11.8": Cuda(cudnn="8.7.0.84", magma="2.6.1"),
    "12.4": Cuda(cudnn="9.1.0"),
}


def findings(
    known: Facts, host: Host, identifier: str = "wheel-3.10-cu118", **settings: str
) -> Mapping[str, Finding]:
    cell = cell_lookup.find_cell(known, identifier, "x86_64", find_release(known, "base", "v1.0.0"))
    cell = replace(cell, release=replace(cell.release, cuda_official=OFFICIAL))
    computed = build_plan.compute_plan(known, cell, host, Options(settings=settings))
    return {one.subject: one for one in cuda.check_cuda(CheckContext(known, cell, host, computed))}


def test_a_toolkit_that_is_missing_is_named_with_what_is_there(known: Facts) -> None:
    assert findings(known, LINUX)["CUDA toolkit"].verdict == "ok"
    other = findings(known, LINUX, "wheel-3.10-cu102")["CUDA toolkit"]
    assert (other.verdict, other.state) == ("failure", "CUDA 11.8")
    assert other.cure == (
        "look for it as cuda-toolkit-10-2 in NVIDIA's archive for rocky 9.4, "
        "or take the installer of https://developer.nvidia.com/cuda-toolkit-archive"
    )
    none = findings(known, change_host(LINUX, toolkits={"homes": {}}))["CUDA toolkit"]
    assert (none.verdict, none.state) == ("failure", "none")
    assert (
        findings(known, change_host(LINUX, toolkits={"homes": {}}, complete=False))[
            "CUDA toolkit"
        ].verdict
        == "unknown"
    )


def test_cudnn_is_looked_for_where_the_build_looks(known: Facts) -> None:
    missing = findings(known, LINUX)["cuDNN"]
    assert missing.verdict == "failure"
    assert missing.cure.startswith(
        "look for it as libcudnn8-devel in NVIDIA's archive for rocky 9.4"
    )
    assert "--set USE_CUDNN=0" in missing.because
    inside = change_host(LINUX, toolkits={"libraries": {"cudnn@11.8": "8.6.0", "cudnn": "9.1.0"}})
    assert findings(known, inside)["cuDNN"].state == "8.6.0"
    elsewhere = change_host(LINUX, toolkits={"libraries": {"cudnn@12.4": "8.6.0"}})
    assert findings(known, elsewhere)["cuDNN"].verdict == "failure"
    mute = change_host(LINUX, toolkits={"libraries": {"cudnn": ""}})
    assert findings(known, mute)["cuDNN"].state == "there, of an unknown version"
    assert "cuDNN" not in findings(known, LINUX, USE_CUDNN="0")


@pytest.mark.parametrize(
    ("manager", "tag", "package"),
    [
        ("apt", "v1.0.0", "libcudnn8-dev"),
        ("apt", "v2.0.0", "libcudnn9-dev-cuda-12"),
        ("dnf", "v2.0.0", "libcudnn9-devel-cuda-12"),
        ("conda", "v2.0.0", "cudnn=9"),
    ],
)
def test_cudnn_is_installed_as_the_official_build_has_it(
    known: Facts, manager: str, tag: str, package: str
) -> None:
    variant = "cu118" if tag == "v1.0.0" else "cu124"
    cell = cell_lookup.find_cell(
        known, f"wheel-3.10-{variant}", "x86_64", find_release(known, "base", tag)
    )
    cell = replace(cell, release=replace(cell.release, cuda_official=OFFICIAL))
    place = LinuxDistribution("debian", "12") if manager == "apt" else LINUX.platform.distribution
    host = change_host(LINUX, platform={"distribution": place}, packages={"manager": manager})
    context = CheckContext(known, cell, host, build_plan.compute_plan(known, cell, host, Options()))
    cures = {one.subject: one.cure for one in cuda.check_cuda(context)}
    assert re.search(rf" {re.escape(package)}(?: in NVIDIA's archive|$)", cures["cuDNN"])


def test_a_folder_that_only_the_shell_knows_must_be_given_to_the_build(known: Facts) -> None:
    host = change_host(LINUX, toolkits={"libraries": {"cudnn@/opt/cudnn": "8.7.0"}})
    hidden = findings(known, host)["cuDNN"]
    assert (hidden.verdict, hidden.state) == ("failure", "only in /opt/cudnn")
    assert hidden.cure == "nox -s wheel-3.10-cu118 -- --set CUDNN_ROOT=/opt/cudnn"
    given = findings(known, host, CUDNN_ROOT="/opt/cudnn")["cuDNN"]
    assert (given.verdict, given.state) == ("ok", "8.7.0")


def test_another_major_version_is_a_warning_unless_a_rule_says_more(known: Facts) -> None:
    host = change_host(LINUX, toolkits={"libraries": {"cudnn": "9.1.0"}})
    assert findings(known, host)["cuDNN"].verdict == "warning"
    package = known.packages["base"]
    rule = Rule("rule 9", When(), "it calls what 9 removed", needs={"cudnn": SpecifierSet("<9")})
    ruled = replace(
        known, packages={**known.packages, "base": replace(package, rules=(*package.rules, rule))}
    )
    refused = findings(ruled, host)["cuDNN"]
    assert (refused.verdict, refused.because) == ("failure", "it calls what 9 removed")
    assert refused.needed == "<9, the official build has 8.7.0.84"


def test_nccl_is_the_releases_own_unless_the_plan_says_otherwise(known: Facts) -> None:
    assert findings(known, LINUX)["NCCL"].verdict == "ok"
    system = findings(known, LINUX, USE_SYSTEM_NCCL="1")["NCCL"]
    assert (system.verdict, system.cure) == (
        "failure",
        "nox -s wheel-3.10-cu118 -- --set USE_SYSTEM_NCCL=0",
    )
    there = findings(
        known, change_host(LINUX, toolkits={"libraries": {"nccl": "2.14.3"}}), USE_SYSTEM_NCCL="1"
    )["NCCL"]
    assert (there.verdict, there.state) == ("ok", "2.14.3")
    assert "NCCL" not in findings(known, LINUX, USE_NCCL="OFF")


def test_magma_is_missed_where_the_official_build_has_it(known: Facts) -> None:
    assert findings(known, LINUX)["MAGMA"].verdict == "warning"
    assert (
        findings(known, change_host(LINUX, toolkits={"libraries": {"magma": "2.6.1"}}))[
            "MAGMA"
        ].verdict
        == "ok"
    )
    assert "MAGMA" not in findings(known, LINUX, "wheel-3.10-cu102")


def test_a_dependent_package_has_no_cudnn_of_its_own(known: Facts) -> None:
    cell = cell_lookup.find_cell(
        known, "vision-3.10-cu118", "x86_64", find_release(known, "base", "v1.0.0")
    )
    computed = build_plan.compute_plan(known, cell, LINUX, Options())
    assert [one.subject for one in cuda.check_cuda(CheckContext(known, cell, LINUX, computed))] == [
        "CUDA toolkit"
    ]


SOURCES = (
    ToolkitSource(
        "conda", "toolkit", ("11.8",), ("cuda-toolkit",), ("x86_64",), ("nvidia",), None, "test"
    ),
    ToolkitSource(
        "pypi", "cudnn", ("8.7.0.84",), ("nvidia-cudnn-cu11",), ("x86_64",), (), "11", "test"
    ),
    ToolkitSource(
        "pypi", "nccl", ("2.16.5",), ("nvidia-nccl-cu11",), ("x86_64",), (), "11", "test"
    ),
)


def keeping(known: Facts) -> Facts:
    """Return the facts, with kept libraries for the package and providers for them."""
    package = known.packages["base"]
    taking = tuple(Rule(name, When(kept=(name,)), name) for name in ("cudnn", "nccl"))
    switched = Rule("magma", When(lacking=("magma",)), "magma", set={"USE_MAGMA": "0"})
    based = replace(package, rules=(*package.rules, *taking, switched))
    return replace(known, packages={**known.packages, "base": based}, toolkit_sources=SOURCES)


def test_what_is_missing_is_brought_by_the_suite_where_a_provider_has_it(known: Facts) -> None:
    facts, bare = keeping(known), change_host(LINUX, toolkits={"homes": {}})
    toolkit = findings(facts, bare)["CUDA toolkit"]
    assert (toolkit.verdict, toolkit.cure) == ("failure", "invoke toolkit --cuda 11.8")
    assert findings(facts, bare, "wheel-3.10-cu102")["CUDA toolkit"].cure.startswith(
        "look for it as cuda-toolkit-10-2"
    )
    cudnn = findings(facts, LINUX)["cuDNN"]
    assert (cudnn.verdict, cudnn.needed) == ("failure", "8.7.0.84")
    assert cudnn.cure == "invoke toolkit --library cudnn-cu11=8.7.0.84"
    assert "--set USE_CUDNN=0` builds without it" in cudnn.because


def test_libraries_that_were_brought_are_told_with_their_place(known: Facts) -> None:
    kept = {"cudnn-8.7.0.84-cu11": "/k/cudnn", "nccl-2.16.5-cu11": "/k/nccl"}
    there = findings(keeping(known), change_host(LINUX, toolkits={"provisioned": kept}))["cuDNN"]
    assert (there.verdict, there.state) == ("ok", "8.7.0.84 in /k/cudnn")


def test_two_cudnn_in_sight_are_one_too_many(known: Facts) -> None:
    kept = {"cudnn-8.7.0.84-cu11": "/k/cudnn"}
    both = change_host(LINUX, toolkits={"provisioned": kept, "libraries": {"cudnn@11.8": "9.1.0"}})
    told = findings(keeping(known), both)["cuDNN"]
    assert (told.verdict, told.state) == ("warning", "8.7.0.84 in /k/cudnn")
    assert told.because == "the toolkit has 9.1.0 too, whose headers may be read in its place"
    assert told.cure == "take cudnn*.h out of /usr/local/cuda-11.8/include"


def test_a_cudnn_without_code_for_the_gpus_is_told(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.6.0")
    cell = cell_lookup.find_cell(shipped, "wheel-3.11-cu118", "x86_64", release)
    host = change_host(LINUX, toolkits={"provisioned": {"cudnn-9.1.0.70-cu11": "/k/cudnn"}})

    def told(arch_list: str, **settings: str) -> list[Finding]:
        computed = build_plan.compute_plan(
            shipped, cell, host, Options(arch_list=arch_list, settings=settings)
        )
        context = CheckContext(shipped, cell, host, computed)
        return [one for one in cuda.check_cuda(context) if one.subject == "cuDNN's code"]

    [finding] = told("3.7;8.6")
    assert (finding.verdict, finding.state) == ("warning", "none for 3.7 in 9.1.0.70")
    assert finding.cure == "nox -s wheel-3.11-cu118 -- --set USE_CUDNN=0"
    assert [one.verdict for one in told("3.7")] == ["failure"]
    assert told("5.0;8.6") == told("3.7", USE_CUDNN="0") == []


def test_a_build_without_magma_is_told_what_it_loses(known: Facts) -> None:
    magma = findings(keeping(known), LINUX)["MAGMA"]
    assert (magma.verdict, magma.state) == ("warning", "left out")
    assert magma.because == "without it, parts of torch.linalg do not run on the GPU"


def magma(
    shipped: Facts, kept: Mapping[str, str], listed: str, host: Host = LINUX, **settings: str
) -> Finding:
    """Return the finding on MAGMA for torch 2.1.0 with CUDA 11.8."""
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cu118", "x86_64", find_release(shipped, "torch", "v2.1.0")
    )
    there = change_host(host, toolkits={"provisioned": kept})
    computed = build_plan.compute_plan(
        shipped, cell, there, Options(arch_list=listed, settings=settings)
    )
    findings = cuda.check_cuda(CheckContext(shipped, cell, there, computed))
    return next(one for one in findings if one.subject == "MAGMA")


def test_a_magma_that_serves_the_build_is_told_or_how_to_bring_one(shipped: Facts) -> None:
    kept = {"magma-2.6.1-cu118-7.0": "/k/magma"}
    there = magma(shipped, kept, "7.0")
    assert (there.verdict, there.state, there.cure) == ("ok", "2.6.1 in /k/magma", "")
    missing = magma(shipped, {}, "8.6")
    cure = "invoke toolkit --library magma-cu118 --arch-list '8.6'"
    assert (missing.verdict, missing.cure) == ("warning", cure)
    unwanted = magma(shipped, {}, "8.6", USE_MAGMA="0")
    assert (unwanted.verdict, unwanted.state, unwanted.cure) == ("warning", "left out", "")
    other = magma(shipped, kept, "8.6")
    assert (other.verdict, other.cure) == (missing.verdict, missing.cure)
    assert other.because.endswith("; the 2.6.1 of the cache has code for 7.0 and none for 8.6")
    nobody = magma(shipped, {}, "3.5")
    assert nobody.cure == (
        "nox -s wheel-3.10-cu118 -- --set MAGMA_HOME=FOLDER, where FOLDER has a 2.6.1 compiled for 3.5"
    )
    assert magma(shipped, {}, "7.0", replace(LINUX, complete=False)).verdict == "unknown"


def torch_findings(shipped: Facts, identifier: str, options: Options) -> Mapping[str, Finding]:
    """Return the findings of a build of torch 1.13.1."""
    cell = cell_lookup.find_cell(
        shipped, identifier, "x86_64", find_release(shipped, "torch", "v1.13.1")
    )
    context = CheckContext(
        shipped, cell, LINUX, build_plan.compute_plan(shipped, cell, LINUX, options)
    )
    return {one.subject: one for one in cuda.check_cuda(context)}


def test_a_newer_toolkit_that_is_here_is_offered_not_taken(shipped: Facts) -> None:
    told = torch_findings(shipped, "wheel-3.10-cu117", Options())["CUDA toolkit"]
    assert (told.verdict, told.state, told.needed) == ("failure", "CUDA 11.8", "11.7")
    assert told.because == "on request 11.8 compiles it: nox -s wheel-3.10-cu117 -- --toolkit 11.8"
    given = torch_findings(shipped, "wheel-3.10-cu117", Options(toolkit="11.8"))["CUDA toolkit"]
    assert (given.verdict, given.needed) == ("ok", "11.8, asked for in place of 11.7")


def test_capabilities_that_end_with_a_later_toolkit_are_named(shipped: Facts) -> None:
    told = torch_findings(shipped, "wheel-3.10-cu118", Options(arch_list="3.7;8.6+PTX"))[
        "compute capabilities"
    ]
    assert (told.verdict, told.state) == ("ok", "3.7;8.6+PTX")
    assert told.because == "CUDA 11.8 warns about 3.7, which a later toolkit drops"
    spaced = Options(settings={"TORCH_CUDA_ARCH_LIST": "3.7 8.6+PTX"})
    assert (
        torch_findings(shipped, "wheel-3.10-cu118", spaced)["compute capabilities"].because
        == told.because
    )
    assert "compute capabilities" not in torch_findings(
        shipped, "wheel-3.10-cu118", Options(arch_list="8.6")
    )


def test_a_link_that_would_overflow_is_refused_with_what_helps(shipped: Facts) -> None:
    every = "3.5+PTX;3.7+PTX;5.0+PTX;5.2+PTX;6.0+PTX;6.1+PTX;7.0+PTX;7.5+PTX;8.0+PTX;8.6+PTX;8.9+PTX;9.0+PTX"
    large = Options(arch_list=every, settings={"TORCH_NVCC_FLAGS": ""})
    told = torch_findings(shipped, "wheel-3.10-cu118", large)["libtorch_cuda"]
    assert told.verdict == "failure"
    assert "relocation truncated to fit" in told.because
    assert "BUILD_SPLIT_CUDA=ON" in told.cure
    assert "-compress-all" in told.cure
    assert "libtorch_cuda" not in torch_findings(
        shipped, "wheel-3.10-cu118", Options(arch_list="8.6")
    )


HOME = "/usr/local/cuda-11.8"
LINUX_WITH_TOOLKIT = Host(
    "x86_64",
    "linux",
    HostResources(4, 2**34),
    platform=HostPlatform(glibc="2.34"),
    toolkits=HostToolkits(homes={"11.8": HOME}),
    complete=True,
)
CUBLAS = ToolkitPart("cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), (), None, "", "")
CCCL = ToolkitPart("cccl", "CCCL", "nvidia-cuda-cccl", ("thrust/version.h",), (), None, "", "")
CUPTI = ToolkitPart(
    "cupti", "CUPTI", "nvidia-cuda-cupti", ("cupti.h",), (), None, "", "the profiler sees no GPU"
)
PARTS_SOURCES = (
    ToolkitSource(
        "pypi", "parts", ("11.8",), ("nvidia-cublas-cu11==11.11",), ("x86_64",), (), None, ""
    ),
    ToolkitSource("conda", "toolkit", ("11.8",), ("all",), ("x86_64",), ("nvidia",), None, ""),
)


def parts_finding(known: Facts, lacking: Mapping[str, str], home: str = HOME) -> Finding | None:
    facts = replace(known, toolkit_parts=(CUBLAS, CCCL, CUPTI), toolkit_sources=PARTS_SOURCES)
    host = change_host(
        LINUX_WITH_TOOLKIT, toolkits={"lacking_parts": lacking, "homes": {"11.8": home}}
    )
    cell = cell_lookup.find_cell(
        known, "wheel-3.10-cu118", "x86_64", find_release(known, "base", "v1.0.0")
    )
    computed = build_plan.compute_plan(known, cell, host, Options())
    return next(cuda.check_toolkit_parts(CheckContext(facts, cell, host, computed)), None)


def test_a_whole_toolkit_is_not_spoken_of(known: Facts) -> None:
    assert parts_finding(known, {}) is None
    assert parts_finding(known, {"12.4": "cublas"}) is None, "another's"


def test_what_is_lacking_is_named_with_the_command_that_completes(known: Facts) -> None:
    finding = parts_finding(known, {"11.8": "cublas, cupti"})
    assert finding is not None
    assert (finding.verdict, finding.cure) == ("failure", "invoke toolkit --complete 11.8")
    assert finding.state == f"no cuBLAS, CUPTI in {HOME}"


@pytest.mark.parametrize(("lacking", "home"), [("cublas, cccl", HOME), ("cublas", "/usr")])
def test_one_that_cannot_be_completed_is_to_be_brought(
    lacking: str, home: str, known: Facts
) -> None:
    finding = parts_finding(known, {"11.8": lacking}, home)
    assert finding is not None
    assert finding.cure == "invoke toolkit --cuda 11.8"


def test_what_a_build_can_go_without_is_a_warning(known: Facts) -> None:
    finding = parts_finding(known, {"11.8": "cupti"})
    assert finding is not None
    assert (finding.verdict, finding.because) == ("warning", "the profiler sees no GPU")


def test_what_stops_newer_releases_alone_is_a_failure_for_those(shipped: Facts) -> None:
    nvml = next(one for one in shipped.toolkit_parts if one.name == "nvml")
    assert nvml.vital is not None
    assert (nvml.vital.contains("2.0.1"), nvml.vital.contains("2.1.0")) == (False, True)
    for tag, verdict in (("v1.13.1", "warning"), ("v2.1.0", "failure")):
        cell = cell_lookup.find_cell(
            shipped, "wheel-3.10-cu118", "x86_64", find_release(shipped, "torch", "v2.1.0")
        )
        cell = replace(cell, release=find_release(shipped, "torch", tag))
        host = change_host(LINUX_WITH_TOOLKIT, toolkits={"lacking_parts": {"11.8": "nvml"}})
        computed = build_plan.compute_plan(shipped, cell, host, Options())
        [found] = cuda.check_toolkit_parts(CheckContext(shipped, cell, host, computed))
        assert (found.verdict, found.state) == (verdict, f"no NVML in {HOME}")


def test_what_a_toolkit_lacks_that_is_not_there_is_nothing(known: Facts) -> None:
    host = change_host(LINUX_WITH_TOOLKIT, toolkits={"lacking_parts": {"12.1": "nvml"}})
    assert not cuda.lacking_parts(replace(known, toolkit_parts=(CUBLAS,)), host, "12.1")


def test_a_machine_is_told_what_its_toolkits_lack(known: Facts) -> None:
    facts = replace(known, toolkit_parts=(CUBLAS, CCCL))
    host = change_host(LINUX_WITH_TOOLKIT, toolkits={"lacking_parts": {"11.8": "cccl"}})
    (told,) = (
        one for one in examination.examine_machine(facts, host, None) if one.state == "no CCCL"
    )
    assert (told.subject, told.verdict, told.cure) == (
        "CUDA 11.8",
        "warning",
        "invoke toolkit --complete 11.8",
    )


def test_the_survey_of_a_machine_tells_what_toolkits_lack(known: Facts, tmp_path: Path) -> None:
    file(tmp_path / "include/cublas_v2.h")
    facts = replace(known, toolkit_parts=(CUBLAS, CCCL, CUPTI))
    host = change_host(LINUX_WITH_TOOLKIT, toolkits={"homes": {"11.8": str(tmp_path)}})
    assert examination.survey_host(facts, host, {"PATH": ""}).toolkits.lacking_parts == {
        "11.8": "cccl, cupti"
    }
    assert examination.survey_host(known, host, {"PATH": ""}).toolkits.lacking_parts == {}
