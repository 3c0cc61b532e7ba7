"""The doctor's findings on cuDNN, NCCL and MAGMA, as builds look for them."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.changed_facts import change_groups
from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release import OfficialCuda
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.toolkit import ToolkitSource
from torchmill.host.host import Host, HostPackages, HostPlatform, HostResources, HostToolkits
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import libraries
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
    "10.2": OfficialCuda(cudnn="7.6.5.32"),
    "11.8": OfficialCuda(cudnn="8.7.0.84", magma="2.6.1"),
    "12.4": OfficialCuda(cudnn="9.1.0"),
}


def check_base(
    facts: Facts,
    host: Host,
    identifier: str = "wheel-3.10-cu118",
    tag: str = "v1.0.0",
    **settings: str,
) -> dict[str, Finding]:
    """Return the findings of a build of "base", of the small facts, by subject."""
    release = find_release(facts, "base", tag)
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", release)
    cell = replace(cell, release=change_groups(cell.release, cuda={"official": OFFICIAL}))
    plan = build_plan.compute_plan(facts, cell, host, Options(settings=settings))
    findings = libraries.check_libraries(CheckContext(facts, cell, host, plan))
    return {finding.subject: finding for finding in findings}


def with_libraries(**versions: str) -> Host:
    """Return a machine that has libraries in its system."""
    return change_host(LINUX, toolkits={"libraries": versions})


def with_rules(facts: Facts, *rules: Rule) -> Facts:
    """Return the facts with further rules for "base"."""
    package = facts.packages["base"]
    changed = replace(package, rules=(*package.rules, *rules))
    return replace(facts, packages={**facts.packages, "base": changed})


def test_a_missing_cudnn_is_a_failure_that_a_switch_avoids(small_facts: Facts) -> None:
    finding = check_base(small_facts, LINUX)["cuDNN"]
    assert finding.verdict == "failure"
    assert "--set USE_CUDNN=0" in finding.because
    assert "cuDNN" not in check_base(small_facts, LINUX, USE_CUDNN="0")


def test_the_cudnn_in_the_toolkit_of_the_build_goes_before_the_systems(small_facts: Facts) -> None:
    versions = {"cudnn@11.8": "8.6.0", "cudnn": "9.1.0"}
    host = change_host(LINUX, toolkits={"libraries": versions})
    assert check_base(small_facts, host)["cuDNN"].state == "8.6.0"
    in_other_toolkit = change_host(LINUX, toolkits={"libraries": {"cudnn@12.4": "8.6.0"}})
    assert check_base(small_facts, in_other_toolkit)["cuDNN"].verdict == "failure"


def test_a_cudnn_that_does_not_tell_its_version_is_accepted(small_facts: Facts) -> None:
    finding = check_base(small_facts, with_libraries(cudnn=""))["cuDNN"]
    assert finding.state == "there, of an unknown version"


@pytest.mark.parametrize(
    ("manager", "tag", "package"),
    [
        ("apt", "v1.0.0", "libcudnn8-dev"),
        ("apt", "v2.0.0", "libcudnn9-dev-cuda-12"),
        ("dnf", "v2.0.0", "libcudnn9-devel-cuda-12"),
        ("conda", "v2.0.0", "cudnn=9"),
    ],
)
def test_the_major_version_of_cudnn_to_install_is_that_of_the_official_build(
    small_facts: Facts, manager: str, tag: str, package: str
) -> None:
    identifier = "wheel-3.10-cu118" if tag == "v1.0.0" else "wheel-3.10-cu124"
    distribution = LINUX.platform.distribution
    if manager == "apt":
        distribution = LinuxDistribution("debian", "12")
    host = change_host(
        LINUX, platform={"distribution": distribution}, packages={"manager": manager}
    )
    cure = check_base(small_facts, host, identifier, tag)["cuDNN"].cure
    assert re.search(rf" {re.escape(package)}(?: in NVIDIA's archive|$)", cure)


def test_a_folder_that_only_the_shell_names_has_to_be_an_option(small_facts: Facts) -> None:
    host = change_host(LINUX, toolkits={"libraries": {"cudnn@/opt/cudnn": "8.7.0"}})
    finding = check_base(small_facts, host)["cuDNN"]
    assert (finding.verdict, finding.state) == ("failure", "only in /opt/cudnn")
    assert finding.cure == "nox -s wheel-3.10-cu118 -- --set CUDNN_ROOT=/opt/cudnn"
    finding = check_base(small_facts, host, CUDNN_ROOT="/opt/cudnn")["cuDNN"]
    assert (finding.verdict, finding.state) == ("ok", "8.7.0")


def test_another_major_version_of_cudnn_is_a_warning(small_facts: Facts) -> None:
    assert check_base(small_facts, with_libraries(cudnn="9.1.0"))["cuDNN"].verdict == "warning"


def test_a_rule_may_make_another_version_of_cudnn_a_failure(small_facts: Facts) -> None:
    rule = Rule("rule 9", When(), "it calls what 9 removed", needs={"cudnn": SpecifierSet("<9")})
    host = with_libraries(cudnn="9.1.0")
    finding = check_base(with_rules(small_facts, rule), host)["cuDNN"]
    assert (finding.verdict, finding.because) == ("failure", "it calls what 9 removed")
    assert finding.needed == "<9, the official build has 8.7.0.84"


def test_nccl_is_built_from_the_releases_source_by_default(small_facts: Facts) -> None:
    assert check_base(small_facts, LINUX)["NCCL"].verdict == "ok"
    assert "NCCL" not in check_base(small_facts, LINUX, USE_NCCL="OFF")


def test_the_nccl_of_the_system_has_to_be_there_if_it_is_asked_for(small_facts: Facts) -> None:
    finding = check_base(small_facts, LINUX, USE_SYSTEM_NCCL="1")["NCCL"]
    assert finding.verdict == "failure"
    assert finding.cure == "nox -s wheel-3.10-cu118 -- --set USE_SYSTEM_NCCL=0"
    finding = check_base(small_facts, with_libraries(nccl="2.14.3"), USE_SYSTEM_NCCL="1")["NCCL"]
    assert (finding.verdict, finding.state) == ("ok", "2.14.3")


def test_a_missing_magma_is_a_warning_if_the_official_build_has_it(small_facts: Facts) -> None:
    assert check_base(small_facts, LINUX)["MAGMA"].verdict == "warning"
    assert check_base(small_facts, with_libraries(magma="2.6.1"))["MAGMA"].verdict == "ok"
    assert "MAGMA" not in check_base(small_facts, LINUX, "wheel-3.10-cu102")


# Libraries in torchmill's cache


def with_providers(facts: Facts) -> Facts:
    """Return the facts with rules that take libraries from the cache, and providers for these."""
    cudnn = ToolkitSource(
        "pypi", "cudnn", ("8.7.0.84",), ("nvidia-cudnn-cu11",), ("x86_64",), (), "11", "test"
    )
    nccl = ToolkitSource(
        "pypi", "nccl", ("2.16.5",), ("nvidia-nccl-cu11",), ("x86_64",), (), "11", "test"
    )
    rules = (
        Rule("cudnn", When(provisioned_libraries=("cudnn",)), "cudnn"),
        Rule("nccl", When(provisioned_libraries=("nccl",)), "nccl"),
        Rule("magma", When(absent_libraries=("magma",)), "magma", set={"USE_MAGMA": "0"}),
    )
    return replace(with_rules(facts, *rules), toolkit_sources=(cudnn, nccl))


def test_a_library_that_a_provider_has_is_provisioned(small_facts: Facts) -> None:
    finding = check_base(with_providers(small_facts), LINUX)["cuDNN"]
    assert (finding.verdict, finding.needed) == ("failure", "8.7.0.84")
    assert finding.cure == "invoke toolkit --library cudnn-cu11=8.7.0.84"
    assert "--set USE_CUDNN=0` builds without it" in finding.because


def test_a_provisioned_library_is_named_with_its_folder(small_facts: Facts) -> None:
    provisioned = {"cudnn-8.7.0.84-cu11": "/k/cudnn", "nccl-2.16.5-cu11": "/k/nccl"}
    host = change_host(LINUX, toolkits={"provisioned": provisioned})
    finding = check_base(with_providers(small_facts), host)["cuDNN"]
    assert (finding.verdict, finding.state) == ("ok", "8.7.0.84 in /k/cudnn")


def test_a_second_cudnn_in_the_toolkit_is_a_warning(small_facts: Facts) -> None:
    toolkits = {
        "provisioned": {"cudnn-8.7.0.84-cu11": "/k/cudnn"},
        "libraries": {"cudnn@11.8": "9.1.0"},
    }
    finding = check_base(with_providers(small_facts), change_host(LINUX, toolkits=toolkits))[
        "cuDNN"
    ]
    assert (finding.verdict, finding.state) == ("warning", "8.7.0.84 in /k/cudnn")
    assert finding.because == "the toolkit has 9.1.0 too, whose headers may be read in its place"
    assert finding.cure == "take cudnn*.h out of /usr/local/cuda-11.8/include"


def test_a_build_without_magma_is_warned_of_its_loss(small_facts: Facts) -> None:
    finding = check_base(with_providers(small_facts), LINUX)["MAGMA"]
    assert (finding.verdict, finding.state) == ("warning", "left out")
    assert finding.because == "without it, parts of torch.linalg do not run on the GPU"


# Device code of cuDNN and MAGMA


def check_torch(
    facts: Facts, host: Host, identifier: str, tag: str, listed: str, **settings: str
) -> list[Finding]:
    """Return the findings of a build of torch for some capabilities."""
    release = find_release(facts, "torch", tag)
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", release)
    options = Options(arch_list=listed, settings=settings)
    plan = build_plan.compute_plan(facts, cell, host, options)
    return list(libraries.check_libraries(CheckContext(facts, cell, host, plan)))


def cudnn_code_findings(facts: Facts, listed: str, **settings: str) -> list[Finding]:
    provisioned = {"cudnn-9.1.0.70-cu11": "/k/cudnn"}
    host = change_host(LINUX, toolkits={"provisioned": provisioned})
    findings = check_torch(facts, host, "wheel-3.11-cu118", "v2.6.0", listed, **settings)
    return [finding for finding in findings if finding.subject == "cuDNN's code"]


def test_a_cudnn_without_code_for_some_gpus_is_a_warning(shipped: Facts) -> None:
    (finding,) = cudnn_code_findings(shipped, "3.7;8.6")
    assert (finding.verdict, finding.state) == ("warning", "none for 3.7 in 9.1.0.70")
    assert finding.cure == "nox -s wheel-3.11-cu118 -- --set USE_CUDNN=0"
    assert cudnn_code_findings(shipped, "5.0;8.6") == []


def test_a_cudnn_without_code_for_any_gpu_is_a_failure(shipped: Facts) -> None:
    (finding,) = cudnn_code_findings(shipped, "3.7")
    assert finding.verdict == "failure"
    assert cudnn_code_findings(shipped, "3.7", USE_CUDNN="0") == []


def magma_finding(
    facts: Facts,
    provisioned: Mapping[str, str],
    listed: str,
    host: Host = LINUX,
    **settings: str,
) -> Finding:
    host = change_host(host, toolkits={"provisioned": provisioned})
    findings = check_torch(facts, host, "wheel-3.10-cu118", "v2.1.0", listed, **settings)
    return next(finding for finding in findings if finding.subject == "MAGMA")


PROVISIONED_MAGMA = {"magma-2.6.1-cu118-7.0": "/k/magma"}


def test_a_provisioned_magma_that_serves_the_list_is_ok(shipped: Facts) -> None:
    finding = magma_finding(shipped, PROVISIONED_MAGMA, "7.0")
    assert (finding.verdict, finding.state, finding.cure) == ("ok", "2.6.1 in /k/magma", "")


def test_a_missing_magma_is_provisioned_for_the_list(shipped: Facts) -> None:
    cure = "invoke toolkit --library magma-cu118 --arch-list '8.6'"
    finding = magma_finding(shipped, {}, "8.6")
    assert (finding.verdict, finding.cure) == ("warning", cure)
    finding = magma_finding(shipped, PROVISIONED_MAGMA, "8.6")
    assert (finding.verdict, finding.cure) == ("warning", cure)
    clause = "; the 2.6.1 of the cache has code for 7.0 and none for 8.6"
    assert finding.because.endswith(clause)


def test_a_magma_that_the_user_turned_off_has_no_cure(shipped: Facts) -> None:
    finding = magma_finding(shipped, {}, "8.6", USE_MAGMA="0")
    assert (finding.verdict, finding.state, finding.cure) == ("warning", "left out", "")


def test_a_magma_that_no_provider_has_is_for_the_user_to_name(shipped: Facts) -> None:
    assert magma_finding(shipped, {}, "3.5").cure == (
        "nox -s wheel-3.10-cu118 -- --set MAGMA_HOME=FOLDER, "
        "where FOLDER has a 2.6.1 compiled for 3.5"
    )


def test_the_magma_of_a_machine_that_is_not_wholly_described_is_unknown(shipped: Facts) -> None:
    host = replace(LINUX, complete=False)
    assert magma_finding(shipped, {}, "7.0", host).verdict == "unknown"
