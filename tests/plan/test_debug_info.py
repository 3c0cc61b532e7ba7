"""A build with debug information: which variables get the flag, and which builds cannot have it."""

import pytest

from tests.support.plans import plan_torch
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.plan.build_options import Options
from torchmill.plan.debug_info import asks_for_debug_info, debug_rule

CMAKE = "CMAKE_CXX_FLAGS_RELEASE"


@pytest.mark.parametrize(("level", "flag"), [("full", "-g"), ("lines", "-g1")])
@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("torch", ["CMAKE_C_FLAGS_RELEASE", CMAKE, "CPPFLAGS"]),
        ("torch-scatter", ["CFLAGS", "CXXFLAGS"]),
    ],
)
def test_each_variable_of_the_package_gets_the_flag(
    shipped: Facts, package: str, names: list[str], level: str, flag: str
) -> None:
    options = Options(debug_info=level)
    rule = debug_rule(shipped.packages[package], "a session", "linux", options, names)
    assert list(rule.append) == names
    for flags in rule.append.values():
        assert flags.split()[0] == flag
        assert "-fdebug-prefix-map=${source}=." in flags.split()


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_other_systems_have_no_elf_files(shipped: Facts, system: str) -> None:
    with refused("debug-info-impossible"):
        debug_rule(
            shipped.packages["torch-scatter"],
            "scatter-3.12-cpu",
            system,
            Options(debug_info="full"),
            (),
        )


def test_a_flag_alone_would_take_the_optimization_of_cmake_away(shipped: Facts) -> None:
    with refused("debug-info-impossible"):
        debug_rule(
            shipped.packages["torch"], "wheel-3.7-cpu", "linux", Options(debug_info="full"), ()
        )


def test_the_flag_comes_behind_those_of_other_rules(shipped: Facts) -> None:
    """Of -g0, which torchvision has, and -g, compilers follow the last."""
    plan = plan_torch(shipped, "vision-3.12-cpu", "v2.4.1", options=Options(debug_info="full"))
    assert plan.variables["CXXFLAGS"].split()[0] == "-g0"
    assert "-g" in plan.variables["CXXFLAGS"].split()[1:]
    usual = plan_torch(shipped, "vision-3.12-cpu", "v2.4.1")
    assert plan.wheel == usual.wheel


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ""),
        ({"CFLAGS": "-O2 -g0", "DEBUG": "0"}, ""),
        ({"CFLAGS": "-O2 -ggdb"}, "CFLAGS=-O2 -ggdb"),
        ({"CXXFLAGS": "-g"}, "CXXFLAGS=-g"),
        ({"DEBUG": "1"}, "DEBUG=1"),
        ({"REL_WITH_DEB_INFO": "on"}, "REL_WITH_DEB_INFO=on"),
    ],
)
def test_a_user_may_have_debug_information_in_the_wheel(
    shipped: Facts, settings: dict[str, str], expected: str
) -> None:
    assert asks_for_debug_info(settings) == expected
    if expected:
        options = Options(settings=settings, debug_info="full")
        with refused("contradictory-options"):
            plan_torch(shipped, "vision-3.12-cpu", "v2.4.1", options=options)
