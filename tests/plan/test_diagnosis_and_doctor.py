"""The diagnosis and the doctor go by the same rules, so they never contradict each other."""

from functools import cache

import pytest

from tests.plan.test_doctor_cuda import LINUX
from tests.support.hosts import change_host
from torchmill.config import facts_reader
from torchmill.config.versions import is_within
from torchmill.core.paths import CHECKOUT
from torchmill.host.description import load_host
from torchmill.host.host import Compiler, Host
from torchmill.plan import build_plan, matrix
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.diagnosis.host_facts import host_facts
from torchmill.plan.diagnosis.rule_facts import add_rule_facts
from torchmill.plan.diagnosis.situation import Fact, Situation, make_situation
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.drivers import driver_runs
from torchmill.plan.host_compiler import nvcc_takes
from torchmill.plan.plan import Plan

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
HOSTS = sorted((CHECKOUT / "tests/golden/hosts").glob("*.toml"))
# Machines of the tests, and those with a compiler, a C library and a driver of any age.
GCCS = ("4.8.5", "5.4.0", "6.3.0", "7.5.0", "9.4.0", "11.1.0", "11.4.0", "13.2.0", "15.1.0")
GLIBCS = ("2.17", "2.31", "2.36", "2.40", "2.41", "2.42")
DRIVERS = ("390.46", "450.80.02", "470.199.02", "525.85.12", "580.65.06")


def described_machines() -> list[Host]:
    machines = [load_host(path) for path in HOSTS]
    for gcc in GCCS:
        machines.append(change_host(LINUX, compilers={"default": Compiler("gcc", gcc)}))
    machines += [change_host(LINUX, platform={"glibc": glibc}) for glibc in GLIBCS]
    machines += [change_host(LINUX, gpus={"driver": driver}) for driver in DRIVERS]
    return machines


def situation_of(host: Host, cuda: str) -> Situation:
    """Return what a diagnosis knows of a machine whose nvcc, and whose torch, are of a CUDA."""
    facts_of_host = [fact for fact in host_facts(host, "host") if fact.name != "cuda"]
    facts_of_host += [Fact("cuda", cuda, "host"), Fact("torch_cuda", cuda, "host")]
    return add_rule_facts(FACTS, make_situation(facts_of_host))


def test_the_diagnosis_contradicts_the_doctors_rules_on_no_machine() -> None:
    compared = 0
    for host in described_machines():
        for toolkit in FACTS.toolkits:
            situation = situation_of(host, toolkit.version)
            compiler = host.compilers.default
            if compiler is not None and compiler.family == "gcc":
                takes = nvcc_takes(toolkit, compiler)
                assert (situation.value("gcc_for_cuda") == "fits") == takes, (host, toolkit.version)
                compared += 1
            if host.platform.glibc:
                fits = is_within(toolkit.glibc, host.platform.glibc)
                assert (situation.value("glibc_fit") == "fits") == fits, (host, toolkit.version)
                compared += 1
            distribution = host.platform.distribution
            is_board = distribution is not None and distribution.l4t is not None
            if situation.value("driver_fit") and not is_board:
                fits = driver_runs(toolkit, host)
                assert (situation.value("driver_fit") == "fits") == fits, (host, toolkit.version)
                compared += 1
    assert compared > 500


# A rule as a fact of the diagnosis, the value that allows a build, and the doctor's finding on it.
COMPARED = (
    ("gcc_for_cuda", "fits", "host compiler of nvcc"),
    ("glibc_fit", "fits", "glibc and CUDA"),
    ("driver_fit", "fits", "GPU driver"),
)


def test_the_doctors_findings_agree_with_the_diagnosis_on_all_stored_machines() -> None:
    contradictions: list[str] = []
    compared = 0
    for path in HOSTS:
        host = load_host(path)
        for cell in cells_by_toolkit(host.arch):
            toolkit = str(cell.build.cuda)
            plan = build_plan.compute_plan(FACTS, cell, host, Options(guard=False))
            findings = examination.examine_build(CheckContext(FACTS, cell, host, plan))
            alarms = {
                finding.subject for finding in findings if finding.verdict in {"failure", "warning"}
            }
            subjects = {finding.subject for finding in findings}
            situation = situation_of(planned_host(host, plan), toolkit)
            for fact, good, subject in COMPARED:
                value = situation.value(fact)
                # A board's driver is judged by its JetPack, and a bridged one by its libraries.
                is_own_driver = subject == "GPU driver" and (
                    (host.platform.distribution and host.platform.distribution.l4t)
                    or host.gpus.compat_folders
                )
                is_judged = subject in subjects or subject == "glibc and CUDA"
                if value is None or not is_judged or is_own_driver:
                    continue
                compared += 1
                if (value == good) == (subject in alarms):
                    contradictions.append(f"{path.stem}, CUDA {toolkit}: {fact} {value}, {subject}")
    assert contradictions == []
    assert compared > 100


@cache
def cells_by_toolkit(arch: str) -> list[Cell]:
    """Return a buildable cell of torch for each toolkit that has one on an arch, the newest."""
    by_toolkit: dict[str, Cell] = {}
    for release in FACTS.releases["torch"]:
        for cell in matrix.buildable_cells(FACTS, release, arch):
            if cell.build.cuda:
                by_toolkit[cell.build.cuda] = cell
    return list(by_toolkit.values())


def planned_host(host: Host, plan: Plan) -> Host:
    """Return a machine whose usual compiler is the one that nvcc gets by the plan."""
    command = plan.variables.get("CUDAHOSTCXX") or plan.variables.get("CXX", "")
    return change_host(host, compilers={"default": host.compilers.of_command(command)})


@pytest.mark.parametrize(
    ("cuda", "digits", "target"),
    [
        ("11.1", "89", "8.6"),
        ("11.8", "120", None),  # it makes no code for 12.x
        ("12.9", "88", None),  # a board's GPU runs no code for another
        ("11.1", "87", None),
    ],
)
def test_code_for_an_older_gpu_is_offered_only_to_cards(
    cuda: str, digits: str, target: str | None
) -> None:
    situation = add_rule_facts(FACTS, make_situation([Fact("cuda", cuda, "log", 1)]), digits)
    assert situation.value("older_target") == target
