"""cuDNN, NCCL and MAGMA of a build: the machine's, or provisioned ones."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.changed_facts import change_groups
from tests.support.hosts import change_host
from tests.support.plans import find_torch_cell, plan_torch
from torchmill.config.facts import Facts
from torchmill.config.release import OfficialCuda
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.served_gpus import unserved_capabilities
from torchmill.config.toolkit import ToolkitKind, ToolkitSource
from torchmill.host import provisioned
from torchmill.host.host import Host, HostPlatform, HostResources, HostToolkits
from torchmill.plan import cell_lookup, cuda_libraries
from torchmill.plan.build_options import Options
from torchmill.plan.cuda_toolkit import cuda_placeholders
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.plan import Plan
from torchmill.plan.rules import CellConstraints

LINUX = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
# The libraries of official builds, by toolkit.
OFFICIAL = {
    "10.2": OfficialCuda(cudnn="7.6.5.32", nccl="2.7.8"),
    "11.7": OfficialCuda(cudnn="8.5.0.96", magma="2.6.1"),
    "12.4": OfficialCuda(cudnn="9.1.0.70", nccl="2.20.5", magma="2.7.2"),
}


def toolkit_source(kind: ToolkitKind, *versions: str, cuda: str = "11") -> ToolkitSource:
    return ToolkitSource("pypi", kind, versions, (f"nvidia-{kind}",), ("x86_64",), (), cuda, "test")


def with_libraries(
    small_facts: Facts, *rules: Rule, official: Mapping[str, OfficialCuda] = OFFICIAL
) -> Facts:
    """Return facts in which a package takes provisioned cuDNN and NCCL, and a provider has some."""
    package = small_facts.packages["base"]
    library_rules = [
        Rule("cudnn", When(cuda=SpecifierSet(">=11"), provisioned_libraries=("cudnn",)), "cudnn"),
        Rule("nccl", When(cuda=SpecifierSet(">=11"), provisioned_libraries=("nccl",)), "nccl"),
        Rule("magma", When(cuda=SpecifierSet(">=0"), absent_libraries=("magma",)), "magma"),
    ]
    package = replace(package, rules=(*package.rules, *library_rules, *rules))
    releases = [
        change_groups(release, cuda={"official": official})
        for release in small_facts.releases["base"]
    ]
    sources = (
        toolkit_source("cudnn", "8.5.0.96", "8.9.5.29", "9.1.0.70"),
        toolkit_source("nccl", "2.14.3", "2.21.5"),
    )
    return replace(
        small_facts,
        packages={**small_facts.packages, "base": package},
        releases={**small_facts.releases, "base": tuple(releases)},
        toolkit_sources=sources,
    )


def constraints_of(facts: Facts, identifier: str = "wheel-3.10-cu118") -> CellConstraints:
    release = find_release(facts, "base", "v1.0.0")
    return CellConstraints(facts, cell_lookup.find_cell(facts, identifier, "x86_64", release))


def choose_libraries(
    facts: Facts,
    host: Host = LINUX,
    settings: Mapping[str, str] | None = None,
    identifier: str = "wheel-3.10-cu118",
) -> dict[str, str]:
    constraints = constraints_of(facts, identifier)
    return cuda_libraries.choose_libraries(constraints, host, settings or {}, "")


def host_with_library(place: str, version: str) -> Host:
    return change_host(LINUX, toolkits={"libraries": {place: version}})


def host_with_provisioned(host: Host, *names: str) -> Host:
    folders = {name: f"/k/{name}" for name in names}
    return change_host(host, toolkits={"provisioned": folders})


def test_the_version_of_the_official_build_is_taken(small_facts: Facts) -> None:
    exact = {**OFFICIAL, "11.8": OfficialCuda(cudnn="8.5.0.96", nccl="2.14.3")}
    libraries = choose_libraries(with_libraries(small_facts, official=exact))
    assert libraries == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}


def test_libraries_of_which_no_rule_speaks_are_not_provisioned(small_facts: Facts) -> None:
    facts = with_libraries(small_facts)
    assert choose_libraries(facts, identifier="wheel-3.10-cu102") == {}
    assert choose_libraries(facts, identifier="wheel-3.10-cpu") == {}
    assert choose_libraries(small_facts) == {}


@pytest.mark.parametrize(
    ("cuda", "versions"),
    [
        ("11.8", ("8.5.0.96", "2.7.8", "2.6.1")),  # NCCL is known of no CUDA 11
        ("11.0", ("8.5.0.96", "2.7.8", "2.6.1")),  # all of CUDA 11 are newer
        ("10.1", ("7.6.5.32", "2.7.8", None)),  # nothing older is known
        ("13.0", ("9.1.0.70", "2.20.5", "2.7.2")),
    ],
)
def test_the_nearest_toolkit_of_the_same_major_version_tells_the_official_version(
    small_facts: Facts, cuda: str, versions: tuple[str | None, ...]
) -> None:
    constraints = constraints_of(with_libraries(small_facts))
    build = replace(constraints.cell.build, cuda=cuda)
    constraints = CellConstraints(small_facts, replace(constraints.cell, build=build))
    names = ("cudnn", "nccl", "magma")
    official = [cuda_libraries.official_version(constraints, name) for name in names]
    assert official == list(versions)


def test_another_of_the_same_major_version_replaces_one_that_nobody_offers(
    small_facts: Facts,
) -> None:
    facts = with_libraries(small_facts, official={"11.8": OfficialCuda(cudnn="8.0.5.39")})
    assert choose_libraries(facts) == {"cudnn": "8.5.0.96"}, "the next of its major version"
    newer = host_with_provisioned(LINUX, "cudnn-8.6.0.1-cu11", "cudnn-8.7.0.1-cu12", "gcc-11")
    assert choose_libraries(facts, newer) == {"cudnn": "8.6.0.1"}
    official = host_with_provisioned(LINUX, "cudnn-8.0.5.39-cu11")
    assert choose_libraries(facts, official) == {"cudnn": "8.0.5.39"}


def choose_cudnn(
    shipped: Facts, identifier: str, tag: str, arch_list: str = "", host: Host = LINUX
) -> str:
    constraints = CellConstraints(shipped, find_torch_cell(shipped, identifier, tag))
    return cuda_libraries.choose_libraries(constraints, host, {}, arch_list)["cudnn"]


def test_it_is_the_next_one_which_still_knows_the_gpus_of_its_time(shipped: Facts) -> None:
    # The official build has 8.3.2.44, which PyPI does not have.
    assert choose_cudnn(shipped, "wheel-3.9-cu114", "v1.13.1") == "8.5.0.96"


@pytest.mark.parametrize(
    ("tag", "identifier", "arch_list", "version"),
    [
        ("v2.11.0", "wheel-3.12-cu128", "8.6", "9.17.1.4"),
        # 9.11 left out Maxwell, Pascal and Volta.
        ("v2.11.0", "wheel-3.12-cu128", "6.1;8.6", "9.10.2.21"),
        ("v2.3.1", "wheel-3.11-cu118", "3.7", "8.7.0.84"),
        # No cuDNN 9 has code for Kepler.
        ("v2.6.0", "wheel-3.11-cu118", "3.7", "9.1.0.70"),
    ],
)
def test_it_is_one_with_code_for_the_gpus_of_the_list(
    shipped: Facts, tag: str, identifier: str, arch_list: str, version: str
) -> None:
    for host in (LINUX, host_with_provisioned(LINUX, "cudnn-9.17.1.4-cu12")):
        assert choose_cudnn(shipped, identifier, tag, arch_list, host) == version


def test_nccl_of_another_version_is_no_reason_to_leave_torchs_own_source(
    small_facts: Facts,
) -> None:
    official = {"11.8": OfficialCuda(cudnn="8.5.0.96", nccl="2.10.3")}
    assert "nccl" not in choose_libraries(with_libraries(small_facts, official=official))


def test_nothing_is_taken_that_nobody_offers(small_facts: Facts) -> None:
    sources = (toolkit_source("cudnn", "8.5.0.96", cuda="12"),)
    facts = replace(with_libraries(small_facts), toolkit_sources=sources)
    assert choose_libraries(facts) == {}


@pytest.mark.parametrize("place", ["cudnn", "cudnn@11.8"])
def test_one_of_the_machine_that_fits_goes_first(small_facts: Facts, place: str) -> None:
    facts = with_libraries(small_facts)
    assert "cudnn" not in choose_libraries(facts, host_with_library(place, "8.9.7"))
    assert "cudnn" not in choose_libraries(facts, host_with_library(place, ""))
    assert choose_libraries(facts, host_with_library(place, "9.1.0"))["cudnn"] == "8.5.0.96"


def test_one_of_another_toolkit_does_not_count(small_facts: Facts) -> None:
    libraries = choose_libraries(
        with_libraries(small_facts), host_with_library("cudnn@12.4", "8.9.7")
    )
    assert libraries["cudnn"] == "8.5.0.96"


def test_a_rule_decides_which_versions_fit(small_facts: Facts) -> None:
    rule = Rule("old", When(), "its headers changed", needs={"cudnn": SpecifierSet("<8.7")})
    libraries = choose_libraries(
        with_libraries(small_facts, rule), host_with_library("cudnn", "8.9.7")
    )
    assert libraries["cudnn"] == "8.5.0.96"


@pytest.mark.parametrize(
    ("name", "value"), [("CUDNN_ROOT", "0"), ("USE_CUDNN", "0"), ("USE_STATIC_CUDNN", "1")]
)
def test_a_library_that_the_user_configures_is_not_provisioned(
    small_facts: Facts, name: str, value: str
) -> None:
    assert "cudnn" not in choose_libraries(with_libraries(small_facts), settings={name: value})


@pytest.mark.parametrize("off", ["0", "OFF"])
def test_a_shared_library_that_the_user_asks_for_is_provisioned(
    small_facts: Facts, off: str
) -> None:
    settings = {"USE_STATIC_CUDNN": off}
    assert "cudnn" in choose_libraries(with_libraries(small_facts), settings=settings)


def test_lacking_libraries_are_known_of_a_complete_host_only(small_facts: Facts) -> None:
    constraints = constraints_of(with_libraries(small_facts))

    def lacking_libraries_of(host: Host, settings: dict[str, str] | None = None) -> frozenset[str]:
        return cuda_libraries.lacking_libraries(constraints, host, settings or {})

    assert lacking_libraries_of(LINUX) == {"magma"}
    assert lacking_libraries_of(replace(LINUX, complete=False)) == frozenset()
    assert lacking_libraries_of(host_with_library("magma", "2.6.1")) == frozenset()
    assert lacking_libraries_of(LINUX, {"MAGMA_HOME": "/opt/magma"}) == frozenset()


def test_a_wheel_requires_what_the_official_one_of_the_same_toolkit_does(
    small_facts: Facts,
) -> None:
    requires = (
        "nvidia-cudnn-cu11==8.5.0.96",
        "nvidia-cublas-cu11==11.10.3.66",
        "nvidia-cusparselt-cu11==0.4",
    )

    def required_packages(toolkit: str, **libraries: str) -> tuple[str, ...]:
        official = {toolkit: OfficialCuda(cudnn="8.5.0.96", requires=requires)}
        constraints = constraints_of(with_libraries(small_facts, official=official))
        return cuda_libraries.required_nvidia_packages(constraints, libraries)

    assert required_packages("11.8", cudnn="8.5.0.96") == requires[:2]
    assert required_packages("11.8", cudnn="8.5.0.96", cusparselt="0.4") == requires
    assert required_packages("11.8", cudnn="8.9.5.29") == (), (
        "it was compiled against another cuDNN"
    )
    assert required_packages("11.8") == ()
    assert required_packages("11.7", cudnn="8.5.0.96") == (), (
        "the official wheel has another toolkit"
    )


def test_the_shipped_rules_provision_libraries_for_torch_on_linux(shipped: Facts) -> None:
    def libraries(identifier: str, host: Host) -> dict[str, str]:
        cell = find_torch_cell(shipped, identifier, "v1.13.1", host.arch)
        return cuda_libraries.choose_libraries(CellConstraints(shipped, cell), host, {}, "")

    assert libraries("wheel-3.10-cu117", LINUX) == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}
    assert libraries("vision-3.10-cu117", LINUX) == {}
    windows = replace(LINUX, arch="amd64", system="windows")
    assert libraries("wheel-3.10-cu117", windows) == {}


HOST = Host(
    "x86_64",
    "linux",
    HostResources(8, 2**35),
    platform=HostPlatform(glibc="2.36"),
    toolkits=HostToolkits(homes={"11.8": "/k/11.8"}),
    complete=True,
)
MAGMA_70 = "magma-2.6.1-cu118-7.0"
MAGMA_70_86 = "magma-2.6.1-cu118-7.0_8.6+PTX"


def plan_with_magma(
    shipped: Facts,
    *names: str,
    arch_list: str = "7.0",
    host: Host = HOST,
    settings: dict[str, str] | None = None,
) -> Plan:
    """Return the plan of a build on a machine with some provisioned MAGMA."""
    options = Options(arch_list=arch_list, settings=settings or {})
    equipped = host_with_provisioned(host, *names)
    return plan_torch(shipped, "wheel-3.10-cu118", "v2.1.0", equipped, options=options)


@pytest.mark.parametrize(
    ("code", "arch_list", "unserved"),
    [
        ("7.0;8.6", "7.0;8.6+PTX", []),
        ("7.0;8.6", "7.5;8.9", []),  # code of a lower minor version runs
        ("7.0;8.6", "8.0;9.0;9.0a", ["8.0", "9.0"]),
        ("7.0+PTX", "8.0;12.0", []),  # a driver compiles it
        ("7.0", "8.7", ["8.7"]),
        ("8.0", "8.7", ["8.7"]),  # a system on a chip
        ("7.0", "", []),
    ],
)
def test_code_serves_the_gpus_that_run_it(
    shipped: Facts, code: str, arch_list: str, unserved: list[str]
) -> None:
    assert unserved_capabilities(shipped, code, arch_list) == unserved


def test_the_name_of_a_magma_tells_its_code() -> None:
    names = (MAGMA_70_86, "cudnn-8.5.0.96-cu11", "magma-2.6.1-cu121-9.0", "magma-2.6.1-cu118")
    (magma,) = provisioned.provisioned_magma(names, "11.8")
    assert magma.version == "2.6.1"
    assert magma.code == "7.0;8.6+PTX"


def test_a_provisioned_magma_that_serves_the_list_is_taken(shipped: Facts) -> None:
    names = (MAGMA_70, MAGMA_70_86, "magma-2.6.1-cu121-8.6")
    plan = plan_with_magma(shipped, *names, arch_list="7.0;8.6")
    assert plan.variables["USE_MAGMA"] == "1"
    assert plan.variables["MAGMA_HOME"] == "${magma_home}"
    assert plan.cuda.libraries["magma"] == "2.6.1"
    assert plan.cuda.provisioned["magma"] == MAGMA_70_86
    placeholders = cuda_placeholders(plan, host_with_provisioned(HOST, MAGMA_70_86))
    assert placeholders["magma_home"] == f"/k/{MAGMA_70_86}"
    assert not any("torch.linalg" in reason for reason in plan.reasons)


@pytest.mark.parametrize(
    "names", [(), (MAGMA_70,), ("magma-2.6.1-cu121-8.6",), ("magma-2.6.1-cu118",)]
)
def test_without_a_magma_that_serves_it_is_switched_off_with_the_reason(
    shipped: Facts, names: tuple[str, ...]
) -> None:
    plan = plan_with_magma(shipped, *names, arch_list="8.6")
    assert plan.variables["USE_MAGMA"] == "0"
    assert "MAGMA_HOME" not in plan.variables
    assert "magma" not in plan.cuda.libraries
    (reason,) = (reason for reason in plan.reasons if "torch.linalg" in reason)
    assert "`invoke toolkit --library magma-cuXYZ` brings one" in reason


def test_settings_and_the_magma_of_the_machine_go_first(shipped: Facts) -> None:
    switched_off = plan_with_magma(shipped, MAGMA_70, settings={"USE_MAGMA": "0"})
    assert "magma" not in switched_off.cuda.libraries
    configured = plan_with_magma(shipped, MAGMA_70, settings={"MAGMA_HOME": "/opt/magma"})
    assert configured.variables["MAGMA_HOME"] == "/opt/magma"
    host = change_host(HOST, toolkits={"libraries": {"magma": "2.5.4"}})
    of_machine = plan_with_magma(shipped, MAGMA_70, host=host)
    assert "magma" not in of_machine.cuda.libraries
    assert "USE_MAGMA" not in of_machine.variables


@pytest.mark.parametrize(
    ("official", "version"), [("2.6.1", "2.6.1"), ("2.5.2", "2.10.0"), (None, "2.10.0")]
)
def test_the_official_version_goes_before_newer_ones(
    shipped: Facts, official: str | None, version: str
) -> None:
    names = ["magma-2.7.2-cu118-7.0", MAGMA_70, "magma-2.10.0-cu118-7.0"]
    best = cuda_libraries.best_magma(shipped, names, "11.8", "7.0", official)
    assert best is not None
    assert best.version == version


def test_an_older_release_has_no_switch_for_magma(shipped: Facts) -> None:
    host = host_with_provisioned(HOST, "magma-2.5.2-cu102-3.7_7.0")
    options = Options(arch_list="7.0")
    plan = plan_torch(shipped, "wheel-3.7-cu102", "v1.9.0", host, options=options)
    assert plan.variables["MAGMA_HOME"] == "${magma_home}"
    assert "USE_MAGMA" not in plan.variables


def plan_with_cufile(
    shipped: Facts, homes: dict[str, str], libraries: dict[str, str], settings: dict[str, str]
) -> Plan:
    host = change_host(HOST, toolkits={"homes": homes, "libraries": libraries})
    options = Options(arch_list="8.0", settings=settings)
    return plan_torch(shipped, "wheel-3.12-cu128", "v2.9.1", host, options=options)


@pytest.mark.parametrize(
    ("libraries", "settings", "switch"),
    [
        ({}, {}, "0"),
        ({"cufile@12.4": ""}, {}, "0"),  # of another toolkit
        ({"cufile@12.8": ""}, {}, None),
        ({"cufile": ""}, {}, None),  # of the system, as Debian's
        ({}, {"USE_CUFILE": "1"}, "1"),
    ],
)
def test_cufile_is_switched_off_if_the_toolkit_has_none(
    shipped: Facts, libraries: dict[str, str], settings: dict[str, str], switch: str | None
) -> None:
    plan = plan_with_cufile(shipped, {"12.8": "/k/12.8"}, libraries, settings)
    assert plan.variables.get("USE_CUFILE") == switch
    costs = [shortfall.cost for shortfall in plan.official.shortfalls]
    assert any("torch.cuda.gds" in cost for cost in costs) == (switch == "0")


def test_a_toolkit_that_is_fetched_brings_its_own_cufile(shipped: Facts) -> None:
    assert "USE_CUFILE" not in plan_with_cufile(shipped, {}, {}, {}).variables


def test_cusparselt_of_the_official_version_is_taken_and_reported_if_it_is_missing(
    shipped: Facts,
) -> None:
    plan = plan_torch(shipped, "wheel-3.12-cu126", "v2.7.0", HOST)
    assert plan.cuda.libraries["cusparselt"] == "0.6.3"
    assert plan.variables["USE_CUSPARSELT"] == "1"
    cell = find_torch_cell(shipped, "wheel-3.12-cu126", "v2.7.0")
    findings = examination.examine_build(CheckContext(shipped, cell, HOST, plan))
    (finding,) = (finding for finding in findings if finding.subject == "cuSPARSELt")
    assert finding.verdict == "failure"
    assert finding.cure == "invoke toolkit --library cusparselt-cu12=0.6.3"


def test_cusparselt_that_is_switched_off_is_a_shortfall(shipped: Facts) -> None:
    options = Options(settings={"USE_CUSPARSELT": "0"})
    plan = plan_torch(shipped, "wheel-3.12-cu126", "v2.7.0", HOST, options=options)
    assert "cusparselt" not in plan.cuda.libraries
    assert "cuSPARSELt" in {shortfall.part for shortfall in plan.official.shortfalls}


@pytest.mark.parametrize(
    ("arch", "variant", "required"),
    [("x86_64", "cu126", False), ("x86_64", "cu130", True), ("aarch64", "cu130", True)],
)
def test_nvshmem_of_the_official_version_is_taken(
    shipped: Facts, arch: str, variant: str, required: bool
) -> None:
    host = replace(HOST, arch=arch)
    plan = plan_torch(shipped, f"wheel-3.12-{variant}", "v2.12.0", host)
    assert plan.cuda.libraries["nvshmem"] == "3.4.5"
    assert plan.variables["NVSHMEM_HOME"] == "${nvshmem_home}"
    requirements = plan.variables["PYTORCH_EXTRA_INSTALL_REQUIREMENTS"].split("|")
    assert ("nvidia-nvshmem-cu13==3.4.5" in requirements) is required
