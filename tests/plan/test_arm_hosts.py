"""Sixty Arm machines, described as they are installed: what a build on each of them is."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.examinations import finding_on
from tests.support.gpu_builds import build_context
from torchmill.config import distributions
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostGpus,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostPrograms,
    HostResources,
    HostToolkits,
)
from torchmill.plan.build_options import SWITCHED_OFF
from torchmill.plan.cell_choice import BuildQuestion, choose_cells
from torchmill.plan.doctor import examination
from torchmill.plan.gpu_hosts import board_indexes
from torchmill.plan.providers import board_kind

GIB = 2**30
_TABLES = tomllib.loads(Path(__file__).with_name("arm_hosts.toml").read_text(encoding="utf-8"))
SYSTEMS: dict[str, dict[str, Any]] = _TABLES["system"]
MACHINES: list[dict[str, Any]] = _TABLES["machine"]
# What may be missing on a machine as it is installed, and `invoke build` brings.
_BROUGHT = {"BLAS", "NCCL", "cuSPARSELt", "NVSHMEM"}

every_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine["name"])


def host_of(machine: dict[str, Any]) -> Host:
    """Return a machine of the table with what its system installs, a C++ compiler and git."""
    system = SYSTEMS[machine["system"]]
    compiler = Compiler("gcc", system["gcc"])
    reported = machine["capability"] if machine.get("reported") else None
    toolkits = {system["cuda"]: f"/usr/local/cuda-{system['cuda']}"} if "cuda" in system else {}
    libraries = {"cudnn": system["cudnn"]} if "cudnn" in system else {}
    driver = system.get("gpu_driver")
    distribution = LinuxDistribution(
        system["id"], system["version"], tuple(system.get("like", ())), system.get("l4t")
    )
    return Host(
        "aarch64",
        "linux",
        HostResources(machine["cores"], machine["memory"] * GIB, free_disk=200 * GIB),
        platform=HostPlatform(glibc=system["glibc"], distribution=distribution),
        compilers=HostCompilers(default=compiler, by_command={"g++": compiler}),
        programs=HostPrograms(
            paths={"git": "/usr/bin/git", "c++": "c++", "sudo": "/usr/bin/sudo"},
            versions={"git": "2.39.0"},
        ),
        packages=HostPackages(
            manager="apt", managers=("apt",), archives=(system["id"],), may_use_root=True
        ),
        toolkits=HostToolkits(homes=toolkits, libraries=libraries),
        interpreters=HostInterpreters(
            paths={system["python"]: f"/usr/bin/python{system['python']}"}
        ),
        gpus=HostGpus(
            devices=tuple(Gpu(name, reported) for name in machine.get("gpus", ())),
            driver=driver,
            kernel_driver=driver,
        ),
        complete=True,
    )


def test_the_table_has_sixty_machines_with_their_sources() -> None:
    assert len({machine["name"] for machine in MACHINES}) == 60
    for machine in MACHINES:
        assert machine["source"].startswith("https://")
        capability = machine.get("capability")
        assert capability is None or capability in SYSTEMS[machine["system"]]["capabilities"]


@every_machine
def test_a_build_there_has_code_for_its_gpu_and_what_its_system_has(
    shipped: Facts, machine: dict[str, Any]
) -> None:
    system = SYSTEMS[machine["system"]]
    host = host_of(machine)
    context = build_context(shipped, system["build"], host)
    plan = context.plan
    assert plan.build.python == system["python"]
    assert plan.cuda.toolkit == system.get("cuda")
    assert plan.arch_list == machine.get("capability", "")
    assert plan.wheel.platform_tag == system["tag"]
    for switch in system.get("off", ()):
        assert plan.variables[switch] in SWITCHED_OFF, switch
    for switch in system.get("on", ()):
        assert plan.variables.get(switch) not in SWITCHED_OFF, switch
    if board_kind(host) == "own-cuda":
        assert not plan.cuda.libraries, "those of servers are not for it"


@every_machine
def test_nothing_is_missing_there_but_what_can_be_brought(
    shipped: Facts, machine: dict[str, Any]
) -> None:
    system = SYSTEMS[machine["system"]]
    host = host_of(machine)
    findings = examination.examine_build(build_context(shipped, system["build"], host))
    failures = {finding.subject for finding in findings if finding.verdict == "failure"}
    assert failures <= ({"BLAS"} if board_kind(host) == "own-cuda" else _BROUGHT)
    assert all(finding.runs_here for finding in findings)
    if system["driver"]:
        assert finding_on(findings, "GPU driver").verdict == system["driver"]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name.startswith("jetpack")])
def test_the_facts_on_a_jetpack_are_those_of_the_table(shipped: Facts, name: str) -> None:
    system = SYSTEMS[name]
    distribution = LinuxDistribution(system["id"], system["version"], (), system["l4t"])
    jetson = distributions.find_jetson(distribution)
    assert jetson is not None
    assert (jetson.ubuntu, jetson.glibc) == (system["version"], system["glibc"])
    assert (jetson.python, jetson.cuda) == (system["python"], system["cuda"])
    assert list(jetson.capabilities) == system["capabilities"]
    for number in jetson.capabilities:
        capability = shipped.capability(number)
        assert capability is not None
        urls = [
            index.url
            for index in board_indexes(shipped, [capability])
            if index.jetpack == str(distribution.jetpack)
        ]
        assert urls == [url for gpu, url in system["indexes"].items() if gpu == number]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name.startswith("jetpack")])
def test_a_jetson_gets_the_cuda_and_the_python_of_its_jetpack(shipped: Facts, name: str) -> None:
    system = SYSTEMS[name]
    machine = next(machine for machine in MACHINES if machine["system"] == name)
    capability = shipped.capability(machine["capability"])
    assert capability is not None
    release = find_release(shipped, "torch", system["build"].split()[1])
    question = BuildQuestion(gpus=[capability])
    (cell,) = choose_cells(shipped, question, host_of(machine), release)
    assert (cell.build.cuda, cell.build.python) == (system["cuda"], system["python"])


@pytest.mark.parametrize(
    ("l4t", "build", "verdict", "cure"),
    [
        # A toolkit that is newer than the board's JetPack, and one that is older.
        ("36.4.3", "wheel-3.10-cu128 v2.8.0", "unknown", ""),
        ("36.4.3", "wheel-3.12-cu130 v2.9.1", "warning", "install a newer JetPack"),
        ("36.3.0", "wheel-3.10-cu126 v2.8.0", "unknown", ""),
        ("35.4.1", "wheel-3.12-cu130 v2.9.1", "warning", "install a newer JetPack"),
        ("39.2.0", "wheel-3.10-cu126 v2.8.0", "ok", ""),
        # A JetPack that nobody recorded has no driver to compare with.
        ("41.0.0", "wheel-3.12-cu132 v2.13.0", "unknown", ""),
    ],
)
def test_a_toolkit_of_another_jetpack_is_judged_by_the_driver(
    shipped: Facts, l4t: str, build: str, verdict: str, cure: str
) -> None:
    orin = next(machine for machine in MACHINES if machine["name"] == "Jetson Orin Nano Super")
    host = host_of(orin)
    distribution = LinuxDistribution("ubuntu", "22.04", (), l4t)
    platform = HostPlatform(glibc="2.35", distribution=distribution)
    changed = Host(
        host.arch, host.system, host.resources, platform=platform, gpus=host.gpus, complete=True
    )
    findings = examination.examine_build(build_context(shipped, build, changed))
    finding = finding_on(findings, "GPU driver")
    assert finding.verdict == verdict
    if cure:
        assert cure in (finding.cure, *finding.other_cures)
