"""What a wheel finds where it runs: a torch and libraries with code for its GPUs, or without."""

import pytest

from tests.plan.test_arm_hosts import MACHINES, host_of
from tests.plan.test_crossing import HOST
from tests.support.plans import find_torch_cell, plan_torch
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.host.host import Host
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.crossing import building_host
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.target_libraries import check_target_libraries


def findings_on(
    facts: Facts, identifier: str, tag: str, host: Host, options: Options
) -> list[Finding]:
    plan = plan_torch(facts, identifier, tag, host, options=options)
    cell = find_torch_cell(facts, identifier, tag, host.arch)
    view = building_host(facts, plan.build, host)
    return list(check_target_libraries(CheckContext(facts, cell, view, plan)))


@pytest.mark.parametrize(
    ("torch", "listed", "names"),
    [
        (PYPI, "8.7", "8.7"),
        (PYPI, "8.7;9.0;11.0;12.1", "8.7"),
        (PYPI, "9.0;11.0;12.1", ""),
        # Whoever names a torch knows what it has code for.
        ("/given/torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_aarch64.whl", "8.7", ""),
    ],
)
def test_the_torch_of_pypi_is_none_for_an_orin(
    shipped: Facts, torch: str, listed: str, names: str
) -> None:
    options = Options(torch=torch, arch_list=listed)
    findings = findings_on(shipped, "scatter-3.11-cu130-aarch64", "v2.13.0", HOST, options)
    assert [finding.needed for finding in findings] == ([f"one for {names}"] if names else [])
    assert all(finding.verdict == "warning" for finding in findings)


@pytest.mark.parametrize(
    ("identifier", "tag", "listed", "warned"),
    [
        ("wheel-3.10-cu126-aarch64", "v2.8.0", "8.7", True),
        ("wheel-3.10-cu126-aarch64", "v2.8.0", "9.0", False),
        ("wheel-3.8-cu114-aarch64", "v2.1.0", "7.2", True),
        ("wheel-3.12-cu130-aarch64", "v2.11.0", "8.7", False),
    ],
)
def test_a_wheel_for_a_board_is_not_made_with_the_libraries_of_servers(
    shipped: Facts, identifier: str, tag: str, listed: str, warned: bool
) -> None:
    options = Options(arch_list=listed)
    findings = findings_on(shipped, identifier, tag, HOST, options)
    assert [finding.verdict for finding in findings] == (["warning"] if warned else [])


@pytest.mark.parametrize(
    ("name", "advice"),
    [("Jetson Orin Nano Super", ""), ("Jetson Orin Nano Super, JetPack 7.2", "CUDA 13.0 or newer")],
)
def test_a_board_has_its_own_libraries(shipped: Facts, name: str, advice: str) -> None:
    orin = next(machine for machine in MACHINES if machine["name"] == name)
    options = Options(arch_list="8.7")
    findings = findings_on(shipped, "wheel-3.10-cu126", "v2.8.0", host_of(orin), options)
    assert bool(findings) == bool(advice)
    assert all(advice in finding.because for finding in findings)


@pytest.mark.parametrize(
    ("identifier", "tag", "listed", "name"),
    [
        ("wheel-3.12-cu130", "v2.9.1", "10.1", "CUDA 13.0 calls it 11.0"),
        ("wheel-3.12-cu128", "v2.9.1", "11.0", "CUDA 12.8 calls it 10.1"),
    ],
)
def test_a_refusal_knows_both_names_of_the_capability_of_thor(
    shipped: Facts, identifier: str, tag: str, listed: str, name: str
) -> None:
    thor = next(machine for machine in MACHINES if machine["name"].startswith("Jetson AGX Thor"))
    with refused("arch-list-impossible") as caught:
        plan_torch(shipped, identifier, tag, host_of(thor), options=Options(arch_list=listed))
    assert name in str(caught.value)
