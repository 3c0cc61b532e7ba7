"""Compilers against what rules need and advise, with small facts."""

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


def ruled(known: Facts, **terms: Mapping[str, SpecifierSet]) -> Facts:
    """Return the facts with one more rule."""
    package = known.packages["base"]
    rule = Rule("base.toml: rule 9", When(), "newer ones reject its templates", **terms)  # type: ignore[arg-type]
    return replace(
        known,
        packages=dict(known.packages) | {"base": replace(package, rules=(*package.rules, rule))},
    )


def build_context(
    known: Facts, host: Host, identifier: str = "wheel-3.10-cpu", tag: str = "v1.0.0"
) -> CheckContext:
    cell = cell_lookup.find_cell(known, identifier, "x86_64", find_release(known, "base", tag))
    return CheckContext(known, cell, host, build_plan.compute_plan(known, cell, host, Options()))


def having(*versions: str) -> Host:
    """Return a machine with these gccs, of which the first is the one that is used."""
    every = {f"g++-{version.partition('.')[0]}": Compiler("gcc", version) for version in versions}
    return change_host(
        LINUX, compilers={"default": next(iter(every.values())), "by_command": every}
    )


def only(asked: CheckContext) -> Finding:
    (finding,) = compiler.check_compiler(asked)
    return finding


def test_outside_a_need_is_a_failure_with_the_reason(known: Facts) -> None:
    facts = ruled(known, needs={"gcc": SpecifierSet(">=7,<12")})
    assert only(build_context(facts, having("11.4.0"))).verdict == "ok"
    finding = only(build_context(facts, having("12.2.0", "9.5.0", "11.4.0")))
    assert (finding.verdict, finding.needed) == ("failure", "gcc >=7,<12, a C++ compiler")
    assert finding.because == "base 1.0.0: newer ones reject its templates"
    assert finding.cure == "CC=gcc-11 CXX=g++-11 nox -s wheel-3.10-cpu"


def test_outside_advice_is_a_warning(known: Facts) -> None:
    facts = ruled(known, advises={"gcc": SpecifierSet("<12")})
    finding = only(build_context(facts, having("13.2.0", "11.4.0")))
    assert (finding.verdict, finding.cure) == (
        "warning",
        "CC=gcc-11 CXX=g++-11 nox -s wheel-3.10-cpu",
    )


def test_a_libstdcxx_beside_the_systems_is_told(known: Facts) -> None:
    module = change_host(
        having("11.2.0"),
        toolkits={"libraries": {"libstdc++": "/apps/gcc/11.2.0/lib64/libstdc++.so.6.0.29"}},
    )
    found = {
        one.subject: one.verdict for one in compiler.check_compiler(build_context(known, module))
    }
    assert found == {"C++ compiler": "ok", "C++ library": "warning"}


def test_an_untried_compiler_is_no_cure_for_another(known: Facts) -> None:
    facts = ruled(known, advises={"gcc": SpecifierSet(">=9")})
    finding = only(build_context(facts, having("8.5.0", "7.5.0")))
    assert (finding.verdict, finding.cure) == (
        "warning",
        "install gcc 9, and name it in CC and CXX",
    )


def test_what_is_advised_is_preferred_to_what_merely_fits(known: Facts) -> None:
    facts = ruled(known, needs={"gcc": SpecifierSet("<14")}, advises={"gcc": SpecifierSet("<12")})
    assert "CXX=g++-9 " in only(build_context(facts, having("14.1.0", "13.2.0", "9.5.0"))).cure
    assert "CXX=g++-13 " in only(build_context(facts, having("14.1.0", "13.2.0"))).cure


@pytest.mark.parametrize(
    ("distribution", "manager", "cure"),
    [
        (
            LinuxDistribution("ubuntu", "24.04"),
            "apt",
            "apt-get install --yes --no-install-recommends gcc-11 g++-11 && CC=gcc-11 CXX=g++-11 nox -s wheel-3.10-cpu",
        ),
        (
            LinuxDistribution("rocky", "8.10"),
            "dnf",
            (
                "dnf install --assumeyes gcc-toolset-11-gcc-c++ && CC=/opt/rh/gcc-toolset-11/root/usr/bin/gcc "
                "CXX=/opt/rh/gcc-toolset-11/root/usr/bin/g++ nox -s wheel-3.10-cpu"
            ),
        ),
        (
            LinuxDistribution("fedora", "42"),
            "conda",
            "conda install --yes --channel conda-forge gxx=11 && CC=gcc CXX=g++ nox -s wheel-3.10-cpu",
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
def test_a_compiler_is_installed_only_from_where_it_is_known_to_be(
    known: Facts, distribution: LinuxDistribution | None, manager: str | None, cure: str
) -> None:
    facts = ruled(known, needs={"gcc": SpecifierSet("<12")})
    host = change_host(
        having("13.2.0"), platform={"distribution": distribution}, packages={"manager": manager}
    )
    assert only(build_context(facts, host)).cure == cure


def test_the_nearest_version_is_installed(known: Facts) -> None:
    facts = ruled(known, needs={"gcc": SpecifierSet(">=9.4")})
    assert "install gcc 9, " in only(build_context(facts, having("7.5.0"))).cure


def test_no_cure_is_promised_where_nothing_fits(known: Facts) -> None:
    facts = ruled(known, needs={"gcc": SpecifierSet("<3")})
    assert only(build_context(facts, having("13.2.0"))).cure == ""


def test_nvcc_is_driven_by_the_compiler_that_is_named_for_it(known: Facts) -> None:
    host = change_host(having("12.2.0", "11.4.0"), compilers={"cuda": Compiler("gcc", "11.4.0")})
    verdicts = {
        one.subject: one.verdict
        for one in compiler.check_compiler(build_context(known, host, "wheel-3.10-cu118"))
    }
    assert verdicts == {"C++ compiler": "ok", "host compiler of nvcc": "ok"}
    named = change_host(host, compilers={"cuda": None}, programs={"paths": {"c++": "g++-12"}})
    _, driven = compiler.check_compiler(build_context(known, named, "wheel-3.10-cu118"))
    assert driven.verdict == "failure"
    assert driven.cure == "CC=gcc-11 CXX=g++-11 CUDAHOSTCXX=g++-11 nox -s wheel-3.10-cu118"
    clang = change_host(host, compilers={"cuda": Compiler("clang", "14.0.6")})
    assert [
        one.verdict
        for one in compiler.check_compiler(build_context(known, clang, "wheel-3.10-cu118"))
    ][1] == "unknown"


def test_a_compiler_that_the_plan_chose_is_the_one_that_is_judged(known: Facts) -> None:
    host = having("12.2.0", "11.4.0")
    own, driven = compiler.check_compiler(build_context(known, host, "wheel-3.10-cu118"))
    assert (own.verdict, own.state) == ("ok", "gcc 11.4.0")
    assert (driven.verdict, driven.state, driven.needed) == ("ok", "gcc 11.4.0", "gcc >=6,<12")
    assert (
        driven.because == "g++-11 compiles everything, because CUDA 11.8 does not take gcc 12.2.0"
    )
    usual = compiler.check_compiler(
        build_context(known, having("11.4.0", "9.5.0"), "wheel-3.10-cu118")
    )
    assert [one.because for one in usual] == ["", ""]


def test_one_that_nvcc_takes_is_brought_where_there_is_none(known: Facts) -> None:
    host = change_host(
        having("13.2.0"),
        platform={"distribution": LinuxDistribution("ubuntu", "24.04"), "glibc": "2.39"},
        packages={"manager": "apt"},
    )
    packages = "apt-get install --yes --no-install-recommends gcc-11 g++-11 && CC=gcc-11 "
    _, driven = compiler.check_compiler(build_context(known, host, "wheel-3.10-cu118"))
    assert driven.cure.startswith(packages)
    source = ToolkitSource(
        "debian",
        "compiler",
        ("gcc-11",),
        ("g++-11",),
        ("x86_64",),
        ("ubuntu/noble/main",),
        None,
        "",
    )
    brought = replace(known, toolkit_sources=(source,))
    _, driven = compiler.check_compiler(build_context(brought, host, "wheel-3.10-cu118"))
    assert (driven.verdict, driven.cure) == ("failure", "invoke toolkit --compiler gcc-11")
    assert driven.other_cures[0].startswith(packages)
    without_cuda = ruled(brought, needs={"gcc": SpecifierSet("<12")})
    found = only(build_context(without_cuda, host))
    assert (found.cure.startswith(packages), found.other_cures) == (
        True,
        ("invoke toolkit --compiler gcc-11",),
    )
    rootless = only(
        build_context(without_cuda, change_host(host, packages={"may_use_root": False}))
    )
    assert rootless.cure == "invoke toolkit --compiler gcc-11"
    assert rootless.other_cures[0].startswith(
        "ask whoever administers this machine to run `apt-get install"
    )


def test_a_missing_compiler_is_a_failure_only_where_it_is_sure(known: Facts) -> None:
    assert only(build_context(known, LINUX)).verdict == "failure"
    assert only(build_context(known, replace(LINUX, complete=False))).verdict == "unknown"
    assert only(build_context(known, replace(LINUX, system="windows"))).verdict == "unknown"
    silent = only(build_context(known, change_host(LINUX, programs={"paths": {"c++": "icpx"}})))
    assert (silent.verdict, silent.state) == ("unknown", "icpx, which does not say what it is")


def test_a_clang_is_held_against_its_own_bounds(known: Facts) -> None:
    facts = ruled(known, needs={"clang": SpecifierSet("<16"), "gcc": SpecifierSet("<5")})
    host = change_host(
        LINUX,
        compilers={
            "default": Compiler("clang", "17.0.6"),
            "by_command": {"clang++-15": Compiler("clang", "15.0.7")},
        },
    )
    finding = only(build_context(facts, host))
    assert (finding.verdict, finding.cure) == (
        "failure",
        "CC=clang-15 CXX=clang++-15 nox -s wheel-3.10-cpu",
    )


def _against_nvcc(known: Facts, msvc: str, takes: SpecifierSet | None) -> Finding:
    host = change_host(
        LINUX,
        compilers={"default": Compiler("msvc", msvc), "by_command": {"cl": Compiler("msvc", msvc)}},
    )
    asked = build_context(known, host, "wheel-3.10-cu118")
    toolkits = tuple(replace(one, msvc=takes) for one in known.toolkits)
    (_, finding) = compiler.check_compiler(replace(asked, facts=replace(known, toolkits=toolkits)))
    return finding


def test_a_visual_studio_that_nvcc_refuses_gets_an_older_toolset(known: Facts) -> None:
    takes = SpecifierSet(">=19.10,<19.30")
    finding = _against_nvcc(known, "19.33", takes)
    assert (finding.verdict, finding.needed) == ("failure", "msvc >=19.10,<19.30")
    assert finding.cure is not None
    assert "`vcvarsall.bat x64 -vcvars_ver=14.29`" in finding.cure
    assert "19.2x is Visual Studio 2019" in finding.because
    assert _against_nvcc(known, "19.29", takes).verdict == "ok"
    assert _against_nvcc(known, "19.0", takes).cure == "", "no older one fits"
    assert _against_nvcc(known, "19.33", None).verdict == "unknown"


def test_what_toolkits_take_of_visual_studio_is_known_from_their_headers(shipped: Facts) -> None:
    takes = {one.version: one.msvc and str(one.msvc) for one in shipped.toolkits}
    assert takes["11.3"] == "<19.30,>=19.10"
    assert (takes["12.3"], takes["12.4"]) == ("<19.40,>=19.10", "<19.50,>=19.10")
    assert (takes["13.1"], takes["13.2"]) == ("<19.50,>=19.20", "<19.60,>=19.20")
    assert takes["10.2"] is None
