"""The toolkit and NVIDIA's libraries, where a build looks for them and where it does not."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from torchwright import lookup, matrix, plan
from torchwright.doctor import cuda
from torchwright.doctor.finding import Finding, Question
from torchwright.model import Cuda, Facts, Host, Options, Rule, When

LINUX = Host(
    "x86_64", "linux", 4, 2**34, complete=True, manager="dnf", toolkits={"11.8": "/usr/local/cuda-11.8"}
)
OFFICIAL = {
    "10.2": Cuda(cudnn="7.6.5.32"),
    "11.8": Cuda(cudnn="8.7.0.84", magma="2.6.1"),
    "12.4": Cuda(cudnn="9.1.0"),
}


def found(
    known: Facts, host: Host, identifier: str = "wheel-3.10-cu118", **settings: str
) -> Mapping[str, Finding]:
    cell = lookup.find(known, identifier, "x86_64", matrix.find_release(known, "base", "v1.0.0"))
    cell = replace(cell, release=replace(cell.release, cuda_official=OFFICIAL))
    computed = plan.compute(known, cell, host, Options(settings=settings))
    return {one.subject: one for one in cuda.check(Question(known, cell, host, computed))}


def test_a_toolkit_that_is_missing_is_named_with_what_is_there(known: Facts) -> None:
    assert found(known, LINUX)["CUDA toolkit"].verdict == "ok"
    other = found(known, LINUX, "wheel-3.10-cu102")["CUDA toolkit"]
    assert (other.verdict, other.found) == ("failure", "CUDA 11.8")
    assert other.cure == "dnf install --assumeyes cuda-toolkit-10-2"
    conda = found(known, replace(LINUX, toolkits={}, manager="conda"))["CUDA toolkit"]
    assert (conda.verdict, conda.found) == ("failure", "none")
    assert conda.cure.endswith("cuda-toolkit=11.8")
    assert found(known, replace(LINUX, toolkits={}, complete=False))["CUDA toolkit"].verdict == "unknown"


def test_cudnn_is_looked_for_where_the_build_looks(known: Facts) -> None:
    missing = found(known, LINUX)["cuDNN"]
    assert (missing.verdict, missing.cure) == ("failure", "dnf install --assumeyes libcudnn8-devel")
    assert "--set USE_CUDNN=0" in missing.because
    inside = replace(LINUX, libraries={"cudnn@11.8": "8.6.0", "cudnn": "9.1.0"})
    assert found(known, inside)["cuDNN"].found == "8.6.0"
    elsewhere = replace(LINUX, libraries={"cudnn@12.4": "8.6.0"})
    assert found(known, elsewhere)["cuDNN"].verdict == "failure"
    mute = replace(LINUX, libraries={"cudnn": ""})
    assert found(known, mute)["cuDNN"].found == "there, of an unknown version"
    assert "cuDNN" not in found(known, LINUX, USE_CUDNN="0")


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
    cell = lookup.find(known, f"wheel-3.10-{variant}", "x86_64", matrix.find_release(known, "base", tag))
    cell = replace(cell, release=replace(cell.release, cuda_official=OFFICIAL))
    host = replace(LINUX, manager=manager)
    question = Question(known, cell, host, plan.compute(known, cell, host, Options()))
    cures = {one.subject: one.cure for one in cuda.check(question)}
    assert cures["cuDNN"].endswith(f" {package}")


def test_a_folder_that_only_the_shell_knows_must_be_given_to_the_build(known: Facts) -> None:
    host = replace(LINUX, libraries={"cudnn@/opt/cudnn": "8.7.0"})
    hidden = found(known, host)["cuDNN"]
    assert (hidden.verdict, hidden.found) == ("failure", "only in /opt/cudnn")
    assert hidden.cure == "nox -s wheel-3.10-cu118 -- --set CUDNN_ROOT=/opt/cudnn"
    given = found(known, host, CUDNN_ROOT="/opt/cudnn")["cuDNN"]
    assert (given.verdict, given.found) == ("ok", "8.7.0")


def test_another_major_version_is_a_warning_unless_a_rule_says_more(known: Facts) -> None:
    host = replace(LINUX, libraries={"cudnn": "9.1.0"})
    assert found(known, host)["cuDNN"].verdict == "warning"
    package = known.packages["base"]
    rule = Rule("rule 9", When(), "it calls what 9 removed", needs={"cudnn": SpecifierSet("<9")})
    ruled = replace(
        known, packages={**known.packages, "base": replace(package, rules=(*package.rules, rule))}
    )
    refused = found(ruled, host)["cuDNN"]
    assert (refused.verdict, refused.because) == ("failure", "it calls what 9 removed")
    assert refused.needed == "<9, the official build has 8.7.0.84"


def test_nccl_is_the_releases_own_unless_the_plan_says_otherwise(known: Facts) -> None:
    assert found(known, LINUX)["NCCL"].verdict == "ok"
    system = found(known, LINUX, USE_SYSTEM_NCCL="1")["NCCL"]
    assert (system.verdict, system.cure) == ("failure", "nox -s wheel-3.10-cu118 -- --set USE_SYSTEM_NCCL=0")
    there = found(known, replace(LINUX, libraries={"nccl": "2.14.3"}), USE_SYSTEM_NCCL="1")["NCCL"]
    assert (there.verdict, there.found) == ("ok", "2.14.3")
    assert "NCCL" not in found(known, LINUX, USE_NCCL="OFF")


def test_magma_is_missed_where_the_official_build_has_it(known: Facts) -> None:
    assert found(known, LINUX)["MAGMA"].verdict == "warning"
    assert found(known, replace(LINUX, libraries={"magma": "2.6.1"}))["MAGMA"].verdict == "ok"
    assert "MAGMA" not in found(known, LINUX, "wheel-3.10-cu102")


def test_a_dependent_package_has_no_cudnn_of_its_own(known: Facts) -> None:
    cell = lookup.find(known, "vision-3.10-cu118", "x86_64", matrix.find_release(known, "base", "v1.0.0"))
    computed = plan.compute(known, cell, LINUX, Options())
    assert [one.subject for one in cuda.check(Question(known, cell, LINUX, computed))] == ["CUDA toolkit"]
