"""What --set is weighed for: other makers' devices, processors, linkers, heavier builds, the system's libraries."""

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


def planned(facts: Facts, **chosen: str) -> Plan:
    return build_plan.compute_plan(facts, cell(facts), HOST, Options(settings=chosen))


def cell(facts: Facts) -> Cell:
    release = find_release(facts, "torch", "v1.13.1")
    return cell_lookup.find_cell(facts, "wheel-3.10-cpu", "x86_64", release)


def examined(facts: Facts, host: Host, **chosen: str) -> list[Finding]:
    return list(check_settings(CheckContext(facts, cell(facts), host, planned(facts, **chosen))))


@pytest.mark.parametrize(
    ("name", "value"),
    [("USE_ROCM", "1"), ("USE_ROCM", "on"), ("PYTORCH_ROCM_ARCH", "gfx1100"), ("USE_XPU", "1")],
)
def test_a_setting_for_another_makers_gpus_is_refused_with_a_way_out(
    shipped: Facts, name: str, value: str
) -> None:
    with refused("setting-of-another-device") as caught:
        planned(shipped, **{name: value})
    assert "https://" in str(caught.value)


def test_a_setting_that_leaves_such_a_device_out_is_taken(shipped: Facts) -> None:
    assert planned(shipped, USE_XPU="0").variables["USE_XPU"] == "0"


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
def test_flags_for_one_processor_are_given_by_cpu(shipped: Facts, name: str, value: str) -> None:
    with refused("processor-by-flag"):
        planned(shipped, **{name: value})


@pytest.mark.parametrize(
    "value",
    ["-O3 -mtune=native", "-g", "-fno-omit-frame-pointer", "-Wno-error=march", "-mcmodel=large"],
)
def test_other_flags_are_taken(shipped: Facts, value: str) -> None:
    assert value in planned(shipped, CXXFLAGS=value).variables["CXXFLAGS"]


def test_a_heavier_build_is_named_so_and_its_estimate_says_what_it_leaves_out(
    shipped: Facts,
) -> None:
    plan = planned(shipped, DEBUG="1", BUILD_TEST="ON")
    assert plan.wheel.version == "1.13.1+cpu.debug"
    assert plan.wheel.file_name.startswith("torch-1.13.1+cpu.debug-cp310-")
    assert (
        "and more with BUILD_TEST, DEBUG, which nobody measured"
        in estimate_report.expected_duration(shipped, plan)
    )
    (finding,) = examined(shipped, HOST, DEBUG="1", BUILD_TEST="ON")
    assert (finding.subject, finding.verdict) == ("settings", "warning")
    assert examined(shipped, HOST, DEBUG="0", USE_MKLDNN="0") == []
    assert planned(shipped, DEBUG="0").wheel.version == "1.13.1+cpu"


def test_a_linker_that_a_flag_names_has_to_be_there(shipped: Facts) -> None:
    flag = {"LDFLAGS": "-Wl,-O1 -fuse-ld=mold"}
    (finding,) = examined(shipped, HOST, **flag)
    assert (finding.needed, finding.verdict) == ("ld.mold", "failure")
    (finding,) = examined(shipped, replace(HOST, complete=False), **flag)
    assert finding.verdict == "unknown"
    (finding,) = examined(
        shipped, change_host(HOST, programs={"paths": {"ld.mold": "/usr/bin/ld.mold"}}), **flag
    )
    assert finding.verdict == "ok"


def test_a_build_of_the_systems_libraries_needs_all_of_them(shipped: Facts) -> None:
    switch = {settings.SYSTEM_LIBRARIES: "1"}
    (finding,) = examined(shipped, HOST, **switch)
    assert finding.verdict == "unknown", "nobody looked for the packages"
    rules = shipped.packages["torch"].rules
    names = {name for rule in rules for name in rule.system_packages.get("apt", ())}
    (finding,) = examined(
        shipped, change_host(HOST, packages={"installed": dict.fromkeys(names, "")}), **switch
    )
    assert finding.verdict == "failure"
    assert "libprotobuf-dev" in finding.state
    (finding,) = examined(
        shipped, change_host(HOST, packages={"installed": dict.fromkeys(names, "1")}), **switch
    )
    assert finding.verdict == "ok"
    (finding,) = examined(shipped, change_host(HOST, packages={"manager": "dnf"}), **switch)
    assert (finding.state, finding.verdict) == ("cannot tell", "unknown")
