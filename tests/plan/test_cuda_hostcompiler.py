"""The compiler of a build with CUDA: nvcc has a say in it, and a user has the last word."""

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from torchmill.config import cell_lookup, matrix
from torchmill.config.model import Compiler, Facts, Host, Rule, When
from torchmill.plan import cuda_toolkit
from torchmill.plan.constraints import CellConstraints

KEPT = "/cache/toolkits/gcc-11-x86_64/bin/g++-11"


def gcc(version: str) -> Compiler:
    return Compiler("gcc", version)


def having(*versions: str, **others: Compiler) -> Host:
    """Return a machine with these gccs, of which the first is the usual one."""
    every = {f"g++-{version.partition('.')[0]}": gcc(version) for version in versions}
    usual = next(iter(every.values()), None)
    return Host("x86_64", "linux", 4, 2**34, complete=True, compiler=usual, compilers=every | others)


def asked(facts: Facts, identifier: str = "wheel-3.10-cu118") -> CellConstraints:
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", matrix.find_release(facts, "base", "v1.0.0"))
    return CellConstraints(facts, cell)


def test_the_usual_compiler_stays_where_nvcc_takes_it(known: Facts) -> None:
    assert cuda_toolkit.choose_host_compiler(asked(known), having("11.4.0", "9.5.0"), {}) == (
        gcc("11.4.0"),
        {},
    )


def test_the_newest_that_nvcc_takes_compiles_everything(known: Facts) -> None:
    compiler, variables = cuda_toolkit.choose_host_compiler(
        asked(known), having("12.2.0", "9.5.0", "11.4.0"), {}
    )
    assert compiler == gcc("11.4.0")
    assert variables == {"CC": "gcc-11", "CXX": "g++-11", "CUDAHOSTCXX": "g++-11"}


def test_one_that_was_brought_is_taken_by_its_place(known: Facts) -> None:
    host = having("12.2.0", **{KEPT: gcc("11.3.0")})
    compiler, variables = cuda_toolkit.choose_host_compiler(asked(known), host, {})
    assert compiler == gcc("11.3.0")
    assert variables["CC"] == "/cache/toolkits/gcc-11-x86_64/bin/gcc-11"
    alone = replace(host, compiler=None)
    assert cuda_toolkit.choose_host_compiler(asked(known), alone, {})[1]["CXX"] == KEPT


def test_the_release_has_a_say_too(known: Facts) -> None:
    package = known.packages["base"]
    rule = Rule("base.toml: rule 9", When(), "it is old", needs={"gcc": SpecifierSet("<10")})
    packages = {**known.packages, "base": replace(package, rules=(*package.rules, rule))}
    host = having("11.4.0", "9.5.0")
    assert cuda_toolkit.choose_host_compiler(asked(replace(known, packages=packages)), host, {})[0] == gcc(
        "9.5.0"
    )


def test_nothing_is_chosen_where_nothing_fits(known: Facts) -> None:
    assert cuda_toolkit.choose_host_compiler(asked(known), having("13.2.0", "12.2.0"), {}) == (
        gcc("13.2.0"),
        {},
    )


def test_a_build_without_cuda_has_the_usual_one(known: Facts) -> None:
    host = having("12.2.0", "11.4.0")
    assert cuda_toolkit.choose_host_compiler(asked(known, "wheel-3.10-cpu"), host, {}) == (gcc("12.2.0"), {})


@pytest.mark.parametrize("name", cuda_toolkit.COMPILER_VARIABLES)
def test_a_compiler_that_the_build_is_given_stays(known: Facts, name: str) -> None:
    host = having("12.2.0", "11.4.0")
    assert cuda_toolkit.choose_host_compiler(asked(known), host, {name: "g++-12"}) == (gcc("12.2.0"), {})


def test_a_compiler_that_the_shell_names_stays(known: Facts) -> None:
    host = having("12.2.0", "11.4.0")
    named = replace(host, tools={"c++": "g++-12"})
    assert cuda_toolkit.choose_host_compiler(asked(known), named, {})[1] == {}
    for_nvcc = replace(host, cuda_compiler=gcc("11.4.0"))
    assert cuda_toolkit.choose_host_compiler(asked(known), for_nvcc, {})[1] == {}
    usual = replace(host, tools={"c++": "c++"})
    assert cuda_toolkit.choose_host_compiler(asked(known), usual, {})[1]["CXX"] == "g++-11"


def test_a_clang_of_which_nothing_is_known_stays(known: Facts) -> None:
    clang = Compiler("clang", "14.0.6")
    host = replace(having("11.4.0"), compiler=clang)
    assert cuda_toolkit.choose_host_compiler(asked(known), host, {}) == (clang, {})
