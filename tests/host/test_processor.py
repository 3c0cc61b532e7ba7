"""The processor that a build is for: the real compiler's flags, and who may run the wheel."""

from pathlib import Path

import pytest

from tests.support.hosts import change_host
from tests.support.plans import options_of
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
from torchmill.plan.options import format_options
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
    host = measure_basic_host(StatCache(tmp_path_factory.mktemp("cache") / "stat-cache.json"))
    if not KNOWN or host.compilers.default is None or host.compilers.default.family != "gcc":
        pytest.skip("needs gcc on Linux")
    return host


def make_plan(facts: Facts, options: Options, host: Host = OLD) -> Plan:
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cpu", host.arch, find_release(facts, "torch", "v1.13.1")
    )
    return build_plan.compute_plan(facts, cell, host, options)


def resolved_flags(facts: Facts, host: Host, name: str) -> tuple[str, ...]:
    processor = resolve_processor(facts, NATIVE, host, name, {})
    assert processor is not None
    return processor.flags


def test_an_unknown_processor_is_refused_with_the_nearest_name(shipped: Facts, host: Host) -> None:
    with refused("unknown-processor") as caught:
        resolve_processor(shipped, NATIVE, host, f"{KNOWN}x", {})
    assert KNOWN in str(caught.value)
    msvc = change_host(host, compilers={"default": Compiler("msvc", "14.3")})
    with refused("processor-not-told"):
        resolve_processor(shipped, NATIVE, msvc, KNOWN, {})


def test_native_is_the_processor_of_this_machine(shipped: Facts, host: Host) -> None:
    processor = resolve_processor(shipped, NATIVE, host, "native", {})
    assert processor is not None
    assert processor.name.startswith("native.")
    assert f"{shipped.arches[NATIVE].cpu_option}=native" not in processor.flags
    assert processor.needs
    assert processor_problems(processor.needs, processor_flags()) == ()


def test_a_level_needs_its_features(shipped: Facts, host: Host) -> None:
    if NATIVE != "x86_64":
        pytest.skip("a level of x86-64")
    processor = resolve_processor(shipped, NATIVE, host, "x86-64-v3", {})
    assert processor is not None
    assert {"avx2", "fma", "bmi2"} <= set(processor.needs)
    assert "avx512f" not in processor.needs


def test_the_extra_flag_of_a_processor_is_spelled_for_the_compiler(
    shipped: Facts, host: Host, tmp_path: Path
) -> None:
    if NATIVE != "x86_64":
        pytest.skip("processors of x86-64")
    gnu, clang = shipped.arches[NATIVE].cpu_wants["cascadelake"]
    flags = resolved_flags(shipped, host, "cascadelake")
    assert flags == ("-march=cascadelake", gnu)
    assert resolved_flags(shipped, host, "icelake-server") == ("-march=icelake-server",)
    for refused_flags, expected in (((gnu,), (clang,)), ((gnu, clang), ())):
        script = tmp_path / f"c++{len(refused_flags)}"  # a compiler without these flags
        script.write_text(
            "#!/bin/sh\n"
            f'for each; do case " {" ".join(refused_flags)} " in *" $each "*) exit 1;; esac; done\n'
            f'case " $* " in *" {clang} "*) exit 0;; esac\n'
            f'exec {host.programs.paths["c++"]} "$@"\n'
        )
        script.chmod(0o755)
        older = change_host(host, programs={"paths": {**host.programs.paths, "c++": str(script)}})
        assert resolved_flags(shipped, older, "cascadelake") == ("-march=cascadelake", *expected)


def test_the_processor_is_in_the_label_and_the_flags(shipped: Facts) -> None:
    plan = make_plan(shipped, Options(cpu="x86-64-v4", processor=AVX512, settings={"CFLAGS": "-g"}))
    assert plan.wheel.version == "1.13.1+cpu.x86.64.v4"
    assert plan.wheel.file_name.startswith("torch-1.13.1+cpu.x86.64.v4-cp310")
    assert plan.variables["CFLAGS"] == "-march=x86-64-v4 -g"
    assert plan.variables["CXXFLAGS"].endswith("-march=x86-64-v4")
    assert (
        make_plan(shipped, Options(cpu="neoverse-v1", label="none")).wheel.version
        == "1.13.1+neoverse.v1"
    )


def test_the_base_of_a_package_is_for_the_same_processor(shipped: Facts) -> None:
    options = options_of("--cpu=x86-64-v4")
    assert format_options(options) == ["--cpu=x86-64-v4"]
    cell = cell_lookup.find_cell(
        shipped, "vision-3.10-cpu", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )
    assert (
        build_plan.compute_plan(shipped, cell, OLD, options).wheel.torch
        == "torch==1.13.1+cpu.x86.64.v4"
    )


def test_the_doctor_refuses_features_that_this_processor_lacks(shipped: Facts) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cpu", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )

    def verdict(host: Host) -> str:
        findings = examination.examine_build(
            CheckContext(shipped, cell, host, make_plan(shipped, Options(processor=AVX512)))
        )
        return next(
            finding.verdict for finding in findings if finding.subject == "processor x86-64-v4"
        )

    assert verdict(OLD) == "failure"
    assert verdict(change_host(OLD, platform={"processor_features": ("avx2", "avx512f")})) == "ok"
    assert verdict(change_host(OLD, platform={"processor_features": ()})) == "unknown"
    assert processor_problems(AVX512.needs, OLD.platform.processor_features) == (
        "this machine's processor has no avx512f",
    )


@pytest.mark.parametrize(
    ("name", "flags", "verdict", "reason"),
    [
        ("x86-64-v4", ("avx2",), "failure", "avx512f"),
        ("knl", ("avx2",), "failure", "avx512cd"),
        ("x86-64-v3", processor_needs("x86_64", "x86-64-v3"), "ok", ""),
        ("haswel", ("avx2",), "warning", "did you mean haswell"),
        ("yes", ("avx2",), "warning", "no processor of this name"),
        ("znver5", ("avx2",), "unknown", ""),  # gcc 14 knows it, but its macros are not recorded
        ("native", ("avx2",), "unknown", ""),
    ],
)
def test_a_name_is_judged_without_the_compiler_of_the_machine(
    shipped: Facts, name: str, flags: tuple[str, ...], verdict: str, reason: str
) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cpu", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )
    machine = change_host(OLD, platform={"processor_features": flags})
    findings = examination.examine_build(
        CheckContext(shipped, cell, machine, make_plan(shipped, Options(cpu=name), machine))
    )
    (finding,) = [judgement for judgement in findings if judgement.subject == f"processor {name}"]
    assert finding.verdict == verdict
    assert reason in finding.because
    assert bool(finding.cure) == (verdict in {"failure", "warning"})


def test_the_table_agrees_with_the_compiler_of_this_machine(shipped: Facts, host: Host) -> None:
    names = {
        "x86_64": ("x86-64", "x86-64-v3", "knl", "znver2"),
        "aarch64": ("cortex-a72", "neoverse-n1"),
    }[NATIVE]
    for name in names:
        processor = resolve_processor(shipped, NATIVE, host, name, {})
        assert processor is not None
        assert set(processor.needs) == set(processor_needs(NATIVE, name))


def test_names_of_other_machines_are_known_too() -> None:
    assert "sve" in processor_needs("aarch64", "neoverse-v1")
    assert unknown_name_hint("aarch64", "neoverse-v1+nosve") is None
    assert "neoverse-v1" in str(unknown_name_hint("aarch64", "neoverse_v1"))
    assert unknown_name_hint("arm64", "anything") is None, "there is no table of its processors"


def test_an_open_quote_is_refused(shipped: Facts) -> None:
    with refused("invalid-command"):
        resolve_processor(shipped, "x86_64", OLD, "native", {"CXX": 'g++ "-m64'})
