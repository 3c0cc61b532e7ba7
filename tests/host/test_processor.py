"""The processor that a build is for: what the real compiler makes of its name, and who may run the wheel."""

from pathlib import Path

import pytest

from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.config.build import Processor
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.stat_cache import StatCache
from torchmill.host.host import Compiler, Host, HostCompilers, HostPlatform, HostResources
from torchmill.host.measurement import measure_basic_host
from torchmill.host.native import native_arch, processor_flags
from torchmill.host.processor import (
    processor_needs,
    processor_problems,
    resolve_processor,
    unknown_name_hint,
)
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.options import format_options, parse_options
from torchmill.plan.plan import Plan

NATIVE = native_arch()
KNOWN = {"x86_64": "x86-64", "aarch64": "cortex-a53"}.get(NATIVE, "")
AVX512 = Processor("x86-64-v4", ("-march=x86-64-v4",), ("avx2", "avx512f"))
OLD = Host(
    "x86_64",
    "linux",
    HostResources(cores=8, memory=2**35),
    platform=HostPlatform(glibc="2.36", processor_features=("avx2",)),
    compilers=HostCompilers(default=Compiler("gcc", "12.2.0")),
)


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    found = measure_basic_host(StatCache(tmp_path_factory.mktemp("cache") / "recall.json"))
    if not KNOWN or found.compilers.default is None or found.compilers.default.family != "gcc":
        pytest.skip("needs gcc on Linux")
    return found


def planned(facts: Facts, options: Options, host: Host = OLD) -> Plan:
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cpu", host.arch, find_release(facts, "torch", "v1.13.1")
    )
    return build_plan.compute_plan(facts, cell, host, options)


def resolved_flags(facts: Facts, host: Host, name: str) -> tuple[str, ...]:
    found = resolve_processor(facts, NATIVE, host, name, {})
    assert found is not None
    return found.flags


def test_a_name_that_no_compiler_knows_is_refused_with_the_nearest(
    shipped: Facts, host: Host
) -> None:
    with refused("unknown-processor") as caught:
        resolve_processor(shipped, NATIVE, host, f"{KNOWN}x", {})
    assert KNOWN in str(caught.value)
    msvc = change_host(host, compilers={"default": Compiler("msvc", "14.3")})
    with refused("processor-not-told"):
        resolve_processor(shipped, NATIVE, msvc, KNOWN, {})


def test_native_is_what_this_machine_is(shipped: Facts, host: Host) -> None:
    found = resolve_processor(shipped, NATIVE, host, "native", {})
    assert found is not None
    assert found.name.startswith("native.")
    assert f"{shipped.arches[NATIVE].cpu_option}=native" not in found.flags
    assert found.needs
    assert processor_problems(found.needs, processor_flags()) == ()


def test_a_level_needs_what_it_stands_for(shipped: Facts, host: Host) -> None:
    if NATIVE != "x86_64":
        pytest.skip("a level of x86-64")
    found = resolve_processor(shipped, NATIVE, host, "x86-64-v3", {})
    assert found is not None
    assert {"avx2", "fma", "bmi2"} <= set(found.needs)
    assert "avx512f" not in found.needs


def test_a_processor_gets_the_flag_it_wants_in_the_spelling_that_its_compiler_takes(
    shipped: Facts, host: Host, tmp_path: Path
) -> None:
    if NATIVE != "x86_64":
        pytest.skip("processors of x86-64")
    gnu, own = shipped.arches[NATIVE].cpu_wants["cascadelake"]
    flags = resolved_flags(shipped, host, "cascadelake")
    assert flags == ("-march=cascadelake", gnu)
    assert resolved_flags(shipped, host, "icelake-server") == ("-march=icelake-server",)
    for refused_flags, expected in (((gnu,), (own,)), ((gnu, own), ())):
        script = tmp_path / f"c++{len(refused_flags)}"  # another compiler: one that lacks these
        script.write_text(
            "#!/bin/sh\n"
            f'for each; do case " {" ".join(refused_flags)} " in *" $each "*) exit 1;; esac; done\n'
            f'case " $* " in *" {own} "*) exit 0;; esac\n'
            f'exec {host.programs.paths["c++"]} "$@"\n'
        )
        script.chmod(0o755)
        older = change_host(host, programs={"paths": {**host.programs.paths, "c++": str(script)}})
        assert resolved_flags(shipped, older, "cascadelake") == ("-march=cascadelake", *expected)


def test_it_is_in_the_label_and_the_flags_behind_those_of_the_facts(shipped: Facts) -> None:
    made = planned(shipped, Options(cpu="x86-64-v4", processor=AVX512, settings={"CFLAGS": "-g"}))
    assert made.wheel.version == "1.13.1+cpu.x86.64.v4"
    assert made.wheel.file_name.startswith("torch-1.13.1+cpu.x86.64.v4-cp310")
    assert made.variables["CFLAGS"] == "-march=x86-64-v4 -g"
    assert made.variables["CXXFLAGS"].endswith("-march=x86-64-v4")
    assert (
        planned(shipped, Options(cpu="neoverse-v1", label="none")).wheel.version
        == "1.13.1+neoverse.v1"
    )


def test_the_base_of_a_package_is_for_the_same_processor(shipped: Facts) -> None:
    options = parse_options(["--cpu=x86-64-v4"], "test")
    assert format_options(options) == ["--cpu=x86-64-v4"]
    cell = cell_lookup.find_cell(
        shipped, "vision-3.10-cpu", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )
    assert (
        build_plan.compute_plan(shipped, cell, OLD, options).wheel.torch
        == "torch==1.13.1+cpu.x86.64.v4"
    )


def test_the_doctor_refuses_what_this_processor_cannot_run(shipped: Facts) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cpu", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )

    def verdict(host: Host) -> str:
        findings = examination.examine_build(
            CheckContext(shipped, cell, host, planned(shipped, Options(processor=AVX512)))
        )
        return next(one.verdict for one in findings if one.subject == "processor x86-64-v4")

    assert verdict(OLD) == "failure"
    assert verdict(change_host(OLD, platform={"processor_features": ("avx2", "avx512f")})) == "ok"
    assert verdict(change_host(OLD, platform={"processor_features": ()})) == "unknown"
    assert processor_problems(AVX512.needs, OLD.platform.processor_features) == (
        "this machine's processor has no avx512f",
    )


@pytest.mark.parametrize(
    ("name", "flags", "verdict", "said"),
    [
        ("x86-64-v4", ("avx2",), "failure", "avx512f"),
        ("knl", ("avx2",), "failure", "avx512cd"),
        ("x86-64-v3", processor_needs("x86_64", "x86-64-v3"), "ok", ""),
        ("haswel", ("avx2",), "warning", "did you mean haswell"),
        ("yes", ("avx2",), "warning", "no processor of this name"),
        ("znver5", ("avx2",), "unknown", ""),  # which gcc 14 knows, and whose macros were not read
        ("native", ("avx2",), "unknown", ""),
    ],
)
def test_a_name_is_judged_without_the_compiler_of_the_machine(
    shipped: Facts, name: str, flags: tuple[str, ...], verdict: str, said: str
) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cpu", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )
    machine = change_host(OLD, platform={"processor_features": flags})
    findings = examination.examine_build(
        CheckContext(shipped, cell, machine, planned(shipped, Options(cpu=name), machine))
    )
    (found,) = [one for one in findings if one.subject == f"processor {name}"]
    assert found.verdict == verdict
    assert said in found.because
    assert bool(found.cure) == (verdict in {"failure", "warning"})


def test_the_table_agrees_with_the_compiler_of_this_machine(shipped: Facts, host: Host) -> None:
    names = {
        "x86_64": ("x86-64", "x86-64-v3", "knl", "znver2"),
        "aarch64": ("cortex-a72", "neoverse-n1"),
    }[NATIVE]
    for name in names:
        found = resolve_processor(shipped, NATIVE, host, name, {})
        assert found is not None
        assert set(found.needs) == set(processor_needs(NATIVE, name))


def test_names_of_other_machines_are_known_too() -> None:
    assert "sve" in processor_needs("aarch64", "neoverse-v1")
    assert unknown_name_hint("aarch64", "neoverse-v1+nosve") is None
    assert "neoverse-v1" in str(unknown_name_hint("aarch64", "neoverse_v1"))
    assert unknown_name_hint("arm64", "anything") is None, "of which there is no table"


def test_a_quote_that_is_left_open_is_told(shipped: Facts) -> None:
    with refused("invalid-command"):
        resolve_processor(shipped, "x86_64", OLD, "native", {"CXX": 'g++ "-m64'})
