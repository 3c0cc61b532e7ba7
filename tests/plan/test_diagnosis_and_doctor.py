"""The diagnosis and the doctor go by the same rules, so they never contradict each other."""

import pytest

from tests.plan.test_doctor_cuda import LINUX, make_context
from tests.support.hosts import change_host
from torchmill.config import facts_reader
from torchmill.config.versions import is_within
from torchmill.core.paths import CHECKOUT
from torchmill.host.description import load_host
from torchmill.host.host import Compiler, Host
from torchmill.plan import causes
from torchmill.plan.diagnosis.host_facts import host_facts
from torchmill.plan.diagnosis.rule_facts import add_rule_facts
from torchmill.plan.diagnosis.situation import Fact, Situation, make_situation
from torchmill.plan.doctor import examination
from torchmill.plan.drivers import driver_runs
from torchmill.plan.host_compiler import nvcc_takes

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


def failing_subjects(host: Host, identifier: str, tag: str) -> set[str]:
    context = make_context(FACTS, host, identifier, tag)
    findings = examination.examine_build(context)
    return {finding.subject for finding in findings if finding.verdict in {"failure", "warning"}}


WITH_GCC = change_host(LINUX, compilers={"default": Compiler("gcc", "11.2.1")})
# A cause that is a matter of the machine: its line, a machine on which the doctor foresees it, one
# on which it does not, and the subject of the doctor's finding.
FORESEEN = {
    "compiler-too-new-for-cuda": (
        "host_config.h:1:2: error: #error -- unsupported GNU version!",
        change_host(WITH_GCC, compilers={"default": Compiler("gcc", "14.2.0")}),
        "host compiler of nvcc",
    ),
    "glibc-too-new-for-nvcc": (
        'math_functions.h(2557): error: exception specification is incompatible with that of previous function "cospi"',
        change_host(WITH_GCC, platform={"glibc": "2.41"}),
        "glibc and CUDA",
    ),
    "compiler-missing": (
        "error: command 'gcc' failed: No such file or directory",
        change_host(WITH_GCC, compilers={"default": None, "by_command": {}}),
        "C++ compiler",
    ),
    "nvcc-missing": (
        "OSError: CUDA_HOME environment variable is not set.",
        change_host(WITH_GCC, toolkits={"homes": {}}),
        "CUDA toolkit",
    ),
    "driver-too-old": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 9010).",
        change_host(WITH_GCC, gpus={"driver": "390.46"}),
        "GPU driver",
    ),
}


@pytest.mark.parametrize("name", FORESEEN)
def test_the_doctor_foresees_what_the_diagnosis_explains(name: str) -> None:
    line, machine, subject = FORESEEN[name]
    match = causes.diagnose(FACTS.causes, [line], rules=FACTS).match
    assert match is not None
    assert match.cause.name == name
    assert subject in failing_subjects(machine, "wheel-3.10-cu118", "v2.4.1")
    assert subject not in failing_subjects(WITH_GCC, "wheel-3.10-cu118", "v2.4.1")


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
