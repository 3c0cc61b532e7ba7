"""The doctor's findings on compilers, with small facts and rules made for each test."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.toolkit import ToolkitSource
from torchmill.host.host import Compiler, Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import compiler
from torchmill.plan.doctor.finding import CheckContext, Finding

LINUX = Host(
    "x86_64", "linux", HostResources(4, 2**34), platform=HostPlatform(glibc="2.36"), complete=True
)


def with_rule(facts: Facts, **terms: Mapping[str, SpecifierSet]) -> Facts:
    """Return the facts with one more rule: `needs` or `advises` of some compilers."""
    package = facts.packages["base"]
    rule = Rule("base.toml: rule 9", When(), "newer ones reject its templates", **terms)  # type: ignore[arg-type]
    changed = replace(package, rules=(*package.rules, rule))
    return replace(facts, packages={**facts.packages, "base": changed})


def make_context(facts: Facts, host: Host, identifier: str = "wheel-3.10-cpu") -> CheckContext:
    release = find_release(facts, "base", "v1.0.0")
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", release)
    plan = build_plan.compute_plan(facts, cell, host, Options())
    return CheckContext(facts, cell, host, plan)


def with_gccs(*versions: str) -> Host:
    """Return a machine with some gccs, the default one first."""
    compilers = {
        f"g++-{version.partition('.')[0]}": Compiler("gcc", version) for version in versions
    }
    default = Compiler("gcc", versions[0])
    return change_host(LINUX, compilers={"default": default, "by_command": compilers})


def only_finding(facts: Facts, host: Host) -> Finding:
    """Return the finding of a build without CUDA."""
    (finding,) = compiler.check_compiler(make_context(facts, host))
    return finding


def cuda_findings(facts: Facts, host: Host) -> tuple[Finding, Finding]:
    """Return the findings of a build with CUDA 11.8: on its compiler, and on that of nvcc."""
    of_release, of_nvcc = compiler.check_compiler(make_context(facts, host, "wheel-3.10-cu118"))
    return of_release, of_nvcc


def test_a_compiler_out_of_the_needed_bounds_is_a_failure(small_facts: Facts) -> None:
    facts = with_rule(small_facts, needs={"gcc": SpecifierSet(">=7,<12")})
    assert only_finding(facts, with_gccs("11.4.0")).verdict == "ok"
    finding = only_finding(facts, with_gccs("12.2.0", "9.5.0", "11.4.0"))
    assert (finding.verdict, finding.needed) == ("failure", "gcc >=7,<12, a C++ compiler")
    assert finding.because == "base 1.0.0: newer ones reject its templates"
    assert finding.cure == "CC=gcc-11 CXX=g++-11 nox -s wheel-3.10-cpu"


def test_a_compiler_out_of_the_advised_bounds_is_a_warning(small_facts: Facts) -> None:
    facts = with_rule(small_facts, advises={"gcc": SpecifierSet("<12")})
    finding = only_finding(facts, with_gccs("13.2.0", "11.4.0"))
    assert finding.verdict == "warning"
    assert finding.cure == "CC=gcc-11 CXX=g++-11 nox -s wheel-3.10-cpu"


def test_a_libstdcxx_that_is_not_the_systems_is_a_warning(small_facts: Facts) -> None:
    libraries = {"libstdc++": "/apps/gcc/11.2.0/lib64/libstdc++.so.6.0.29"}
    host = change_host(with_gccs("11.2.0"), toolkits={"libraries": libraries})
    findings = compiler.check_compiler(make_context(small_facts, host))
    verdicts = {finding.subject: finding.verdict for finding in findings}
    assert verdicts == {"C++ compiler": "ok", "C++ library": "warning"}


def test_an_untried_compiler_is_no_cure_for_another(small_facts: Facts) -> None:
    facts = with_rule(small_facts, advises={"gcc": SpecifierSet(">=9")})
    finding = only_finding(facts, with_gccs("8.5.0", "7.5.0"))
    assert finding.verdict == "warning"
    assert finding.cure == "install gcc 9, and name it in CC and CXX"


def test_an_advised_compiler_goes_before_one_that_merely_fits(small_facts: Facts) -> None:
    bounds = {"needs": {"gcc": SpecifierSet("<14")}, "advises": {"gcc": SpecifierSet("<12")}}
    facts = with_rule(small_facts, **bounds)
    assert "CXX=g++-9 " in only_finding(facts, with_gccs("14.1.0", "13.2.0", "9.5.0")).cure
    assert "CXX=g++-13 " in only_finding(facts, with_gccs("14.1.0", "13.2.0")).cure


def test_a_toolset_older_than_what_the_release_takes_is_not_offered(small_facts: Facts) -> None:
    """gcc-toolset-9 of RHEL 8 is gcc 9.2.1: https://github.com/pytorch/pytorch/issues/130278."""
    facts = with_rule(small_facts, needs={"gcc": SpecifierSet(">=9.3")})
    host = change_host(
        with_gccs("8.5.0"),
        platform={"distribution": LinuxDistribution("rocky", "8.10")},
        packages={"manager": "dnf"},
    )
    assert "gcc-toolset-10-gcc-c++" in only_finding(facts, host).cure


@pytest.mark.parametrize(
    ("distribution", "manager", "cure"),
    [
        (
            LinuxDistribution("ubuntu", "24.04"),
            "apt",
            (
                "apt-get install --yes --no-install-recommends gcc-11 g++-11 && "
                "CC=gcc-11 CXX=g++-11 nox -s wheel-3.10-cpu"
            ),
        ),
        (
            LinuxDistribution("rocky", "8.10"),
            "dnf",
            (
                "dnf install --assumeyes gcc-toolset-11-gcc-c++ && "
                "CC=/opt/rh/gcc-toolset-11/root/usr/bin/gcc "
                "CXX=/opt/rh/gcc-toolset-11/root/usr/bin/g++ nox -s wheel-3.10-cpu"
            ),
        ),
        (
            LinuxDistribution("fedora", "42"),
            "conda",
            (
                "conda install --yes --channel conda-forge gxx=11 && "
                "CC=gcc CXX=g++ nox -s wheel-3.10-cpu"
            ),
        ),
        (
            LinuxDistribution("fedora", "42"),
            "dnf",
            (
                "fedora 42 is not known to have a gcc that fits, such as gcc 11: with conda, "
                "conda-forge has gxx=11; with docker or podman, "
                "`invoke build wheel-3.10-cpu-x86_64` builds in a container"
            ),
        ),
        (
            None,
            "apt",
            "look for it as gcc-11 and g++-11 among the packages of apt, and name it in CC and CXX",
        ),
        (None, None, "install gcc 11, and name it in CC and CXX"),
    ],
)
def test_a_compiler_is_installed_only_from_packages_that_are_recorded(
    small_facts: Facts, distribution: LinuxDistribution | None, manager: str | None, cure: str
) -> None:
    facts = with_rule(small_facts, needs={"gcc": SpecifierSet("<12")})
    host = change_host(
        with_gccs("13.2.0"),
        platform={"distribution": distribution},
        packages={"manager": manager},
    )
    assert only_finding(facts, host).cure == cure


def test_the_nearest_version_is_installed(small_facts: Facts) -> None:
    facts = with_rule(small_facts, needs={"gcc": SpecifierSet(">=9.4")})
    assert "install gcc 9, " in only_finding(facts, with_gccs("7.5.0")).cure


def test_there_is_no_cure_if_no_version_fits(small_facts: Facts) -> None:
    facts = with_rule(small_facts, needs={"gcc": SpecifierSet("<3")})
    assert only_finding(facts, with_gccs("13.2.0")).cure == ""


def test_nvcc_gets_the_compiler_that_is_named_for_it(small_facts: Facts) -> None:
    host = change_host(with_gccs("12.2.0", "11.4.0"), compilers={"cuda": Compiler("gcc", "11.4.0")})
    of_release, of_nvcc = cuda_findings(small_facts, host)
    assert (of_release.subject, of_release.verdict) == ("C++ compiler", "ok")
    assert (of_nvcc.subject, of_nvcc.verdict) == ("host compiler of nvcc", "ok")
    with_clang = change_host(host, compilers={"cuda": Compiler("clang", "14.0.6")})
    assert cuda_findings(small_facts, with_clang)[1].verdict == "unknown"


@pytest.mark.parametrize(("command", "verdict"), [("g++-11", "ok"), ("g++-12", "failure")])
def test_the_setting_cudahostcxx_names_the_compiler_of_nvcc(
    small_facts: Facts, command: str, verdict: str
) -> None:
    context = make_context(small_facts, with_gccs("12.2.0", "11.4.0"), "wheel-3.10-cu118")
    plan = replace(context.plan, variables={"CUDAHOSTCXX": command})
    _, of_nvcc = compiler.check_compiler(replace(context, plan=plan))
    assert (of_nvcc.subject, of_nvcc.verdict) == ("host compiler of nvcc", verdict)


def test_a_compiler_that_the_user_names_is_judged_also_for_nvcc(small_facts: Facts) -> None:
    host = change_host(with_gccs("12.2.0", "11.4.0"), programs={"paths": {"c++": "g++-12"}})
    _, of_nvcc = cuda_findings(small_facts, host)
    assert of_nvcc.verdict == "failure"
    cure = "CC=gcc-11 CXX=g++-11 CUDAHOSTCXX=g++-11 nox -s wheel-3.10-cu118"
    assert of_nvcc.cure == cure


def test_the_compiler_that_the_plan_chooses_is_judged(small_facts: Facts) -> None:
    of_release, of_nvcc = cuda_findings(small_facts, with_gccs("12.2.0", "11.4.0"))
    assert (of_release.verdict, of_release.state) == ("ok", "gcc 11.4.0")
    assert (of_nvcc.verdict, of_nvcc.state) == ("ok", "gcc 11.4.0")
    assert of_nvcc.needed == "gcc >=6,<12"
    reason = "g++-11 compiles everything, because CUDA 11.8 does not take gcc 12.2.0"
    assert of_nvcc.because == reason
    for finding in cuda_findings(small_facts, with_gccs("11.4.0", "9.5.0")):
        assert finding.because == ""


NOBLE = change_host(
    with_gccs("13.2.0"),
    platform={"distribution": LinuxDistribution("ubuntu", "24.04"), "glibc": "2.39"},
    packages={"manager": "apt"},
)
INSTALL_GCC_11 = "apt-get install --yes --no-install-recommends gcc-11 g++-11"
GCC_11_SOURCE = ToolkitSource(
    "debian", "compiler", ("gcc-11",), ("g++-11",), ("x86_64",), ("ubuntu/noble/main",), None, ""
)


def test_packages_bring_a_compiler_that_nvcc_takes(small_facts: Facts) -> None:
    _, of_nvcc = cuda_findings(small_facts, NOBLE)
    assert of_nvcc.cure.startswith(f"{INSTALL_GCC_11} && CC=gcc-11 ")


def test_with_cuda_a_compiler_in_the_cache_goes_before_packages(small_facts: Facts) -> None:
    _, of_nvcc = cuda_findings(replace(small_facts, toolkit_sources=(GCC_11_SOURCE,)), NOBLE)
    assert (of_nvcc.verdict, of_nvcc.cure) == ("failure", "invoke toolkit --compiler gcc-11")
    assert of_nvcc.other_cures[0].startswith(f"{INSTALL_GCC_11} && CC=gcc-11 ")


def test_without_cuda_packages_go_before_a_compiler_in_the_cache(small_facts: Facts) -> None:
    facts = with_rule(
        replace(small_facts, toolkit_sources=(GCC_11_SOURCE,)), needs={"gcc": SpecifierSet("<12")}
    )
    finding = only_finding(facts, NOBLE)
    assert finding.cure.startswith(f"{INSTALL_GCC_11} && CC=gcc-11 ")
    assert finding.other_cures == ("invoke toolkit --compiler gcc-11",)
    finding = only_finding(facts, change_host(NOBLE, packages={"may_use_root": False}))
    assert finding.cure == "invoke toolkit --compiler gcc-11"
    request = "ask whoever administers this machine to run `apt-get install"
    assert finding.other_cures[0].startswith(request)


def test_a_missing_compiler_is_a_failure_only_if_it_is_sure_to_be_missing(
    small_facts: Facts,
) -> None:
    assert only_finding(small_facts, LINUX).verdict == "failure"
    assert only_finding(small_facts, replace(LINUX, complete=False)).verdict == "unknown"
    assert only_finding(small_facts, replace(LINUX, system="windows")).verdict == "unknown"


def test_a_compiler_that_does_not_answer_is_unknown(small_facts: Facts) -> None:
    finding = only_finding(small_facts, change_host(LINUX, programs={"paths": {"c++": "icpx"}}))
    assert (finding.verdict, finding.state) == ("unknown", "icpx, which does not say what it is")


def test_a_clang_has_bounds_of_its_own(small_facts: Facts) -> None:
    facts = with_rule(small_facts, needs={"clang": SpecifierSet("<16"), "gcc": SpecifierSet("<5")})
    compilers = {
        "default": Compiler("clang", "17.0.6"),
        "by_command": {"clang++-15": Compiler("clang", "15.0.7")},
    }
    finding = only_finding(facts, change_host(LINUX, compilers=compilers))
    assert finding.verdict == "failure"
    assert finding.cure == "CC=clang-15 CXX=clang++-15 nox -s wheel-3.10-cpu"


def visual_studio_finding(facts: Facts, version: str, msvc_bounds: SpecifierSet | None) -> Finding:
    """Return the finding on a compiler of Visual Studio for an nvcc that takes some versions."""
    msvc = Compiler("msvc", version)
    host = change_host(LINUX, compilers={"default": msvc, "by_command": {"cl": msvc}})
    toolkits = tuple(replace(toolkit, msvc=msvc_bounds) for toolkit in facts.toolkits)
    context = make_context(facts, host, "wheel-3.10-cu118")
    context = replace(context, facts=replace(facts, toolkits=toolkits))
    _, of_nvcc = compiler.check_compiler(context)
    return of_nvcc


def test_a_visual_studio_that_nvcc_refuses_gets_an_older_toolset(small_facts: Facts) -> None:
    bounds = SpecifierSet(">=19.10,<19.30")
    finding = visual_studio_finding(small_facts, "19.33", bounds)
    assert (finding.verdict, finding.needed) == ("failure", "msvc >=19.10,<19.30")
    assert "`vcvarsall.bat x64 -vcvars_ver=14.29`" in finding.cure
    assert "19.2x is Visual Studio 2019" in finding.because
    assert visual_studio_finding(small_facts, "19.29", bounds).verdict == "ok"
    assert visual_studio_finding(small_facts, "19.0", bounds).cure == ""  # no older toolset fits
    assert visual_studio_finding(small_facts, "19.33", None).verdict == "unknown"


def test_the_versions_of_visual_studio_that_toolkits_take_are_in_their_headers(
    shipped: Facts,
) -> None:
    versions = {toolkit.version: toolkit.msvc for toolkit in shipped.toolkits}
    assert str(versions["11.3"]) == "<19.30,>=19.10"
    assert str(versions["12.3"]) == "<19.40,>=19.10"
    assert str(versions["12.4"]) == "<19.50,>=19.10"
    assert str(versions["13.1"]) == "<19.50,>=19.20"
    assert str(versions["13.2"]) == "<19.60,>=19.20"
    assert versions["10.2"] is None
