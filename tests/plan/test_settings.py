"""The settings of --set: some are refused, some add to a build, some need programs or libraries."""

from dataclasses import replace

import pytest

from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.host import Host, HostPackages, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, estimate_report, settings
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.settings import check_settings
from torchmill.plan.plan import Plan

HOST = Host(
    "x86_64",
    "linux",
    HostResources(cores=4, memory=2**35),
    platform=HostPlatform(glibc="2.36"),
    packages=HostPackages(manager="apt"),
    complete=True,
)


def find_cell(facts: Facts) -> Cell:
    release = find_release(facts, "torch", "v1.13.1")
    return cell_lookup.find_cell(facts, "wheel-3.10-cpu", "x86_64", release)


def make_plan(facts: Facts, **variables: str) -> Plan:
    return build_plan.compute_plan(facts, find_cell(facts), HOST, Options(settings=variables))


def examine(facts: Facts, host: Host, **variables: str) -> list[Finding]:
    plan = make_plan(facts, **variables)
    return list(check_settings(CheckContext(facts, find_cell(facts), host, plan)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("USE_ROCM", "1"), ("USE_ROCM", "on"), ("PYTORCH_ROCM_ARCH", "gfx1100"), ("USE_XPU", "1")],
)
def test_a_setting_for_gpus_of_another_maker_is_refused_with_a_way_out(
    shipped: Facts, name: str, value: str
) -> None:
    with refused("setting-of-another-device") as caught:
        make_plan(shipped, **{name: value})
    assert "https://" in str(caught.value)


def test_a_setting_that_leaves_out_such_gpus_is_accepted(shipped: Facts) -> None:
    assert make_plan(shipped, USE_XPU="0").variables["USE_XPU"] == "0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CFLAGS", "-O2 -march=native"),
        ("CXXFLAGS", "-mavx2"),
        ("CMAKE_CXX_FLAGS_RELEASE", "-mcpu=neoverse-v1"),
        ("TORCH_NVCC_FLAGS", "-Xcompiler=-march=native"),
        ("TORCH_NVCC_FLAGS", "-Xcompiler -O2,-mfma"),
        ("CXXFLAGS", "-msse4.2"),
    ],
)
def test_a_flag_for_one_processor_is_refused(shipped: Facts, name: str, value: str) -> None:
    with refused("processor-by-flag"):
        make_plan(shipped, **{name: value})


@pytest.mark.parametrize(
    "value",
    ["-O3 -mtune=native", "-g", "-fno-omit-frame-pointer", "-Wno-error=march", "-mcmodel=large"],
)
def test_other_flags_are_accepted(shipped: Facts, value: str) -> None:
    assert value in make_plan(shipped, CXXFLAGS=value).variables["CXXFLAGS"]


def test_the_name_of_a_wheel_tells_of_a_heavier_build(shipped: Facts) -> None:
    plan = make_plan(shipped, DEBUG="1", BUILD_TEST="ON")
    assert plan.wheel.version == "1.13.1+cpu.debug"
    assert plan.wheel.file_name.startswith("torch-1.13.1+cpu.debug-cp310-")
    assert make_plan(shipped, DEBUG="0").wheel.version == "1.13.1+cpu"


def test_the_estimate_of_a_heavier_build_names_its_settings(shipped: Facts) -> None:
    plan = make_plan(shipped, DEBUG="1", BUILD_TEST="ON")
    duration = estimate_report.expected_duration(shipped, plan)
    assert "and more with BUILD_TEST, DEBUG, which nobody measured" in duration
    (finding,) = examine(shipped, HOST, DEBUG="1", BUILD_TEST="ON")
    assert (finding.subject, finding.verdict) == ("settings", "warning")
    assert examine(shipped, HOST, DEBUG="0", USE_MKLDNN="0") == []


def test_the_machine_needs_a_linker_that_a_flag_names(shipped: Facts) -> None:
    flags = "-Wl,-O1 -fuse-ld=mold"
    (finding,) = examine(shipped, HOST, LDFLAGS=flags)
    assert (finding.needed, finding.verdict) == ("ld.mold", "failure")
    (finding,) = examine(shipped, replace(HOST, complete=False), LDFLAGS=flags)
    assert finding.verdict == "unknown"
    with_mold = change_host(HOST, programs={"paths": {"ld.mold": "/usr/bin/ld.mold"}})
    (finding,) = examine(shipped, with_mold, LDFLAGS=flags)
    assert finding.verdict == "ok"


def examine_system_libraries(facts: Facts, host: Host) -> Finding:
    (finding,) = examine(facts, host, **{settings.SYSTEM_LIBRARIES: "1"})
    return finding


@pytest.mark.parametrize(("version", "verdict"), [("", "failure"), ("1", "ok")])
def test_a_build_with_system_libraries_needs_all_of_their_packages(
    shipped: Facts, version: str, verdict: str
) -> None:
    names: set[str] = set()
    for rule in shipped.packages["torch"].rules:
        names.update(rule.system_packages.get("apt", ()))
    installed = dict.fromkeys(names, version)
    host = change_host(HOST, packages={"installed": installed})
    finding = examine_system_libraries(shipped, host)
    assert finding.verdict == verdict
    assert ("libprotobuf-dev" in finding.state) == (verdict == "failure")


def test_packages_that_nobody_looked_for_are_unknown(shipped: Facts) -> None:
    assert examine_system_libraries(shipped, HOST).verdict == "unknown"


def test_packages_of_other_managers_than_apt_are_unknown(shipped: Facts) -> None:
    host = change_host(HOST, packages={"manager": "dnf"})
    finding = examine_system_libraries(shipped, host)
    assert (finding.state, finding.verdict) == ("cannot tell", "unknown")
