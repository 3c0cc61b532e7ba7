"""The compiler of a build: the usual one, or another that release and nvcc take."""

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.host.host import Compiler, Host, HostCompilers, HostResources
from torchmill.plan import cell_lookup, host_compiler
from torchmill.plan.rules import CellConstraints

PROVISIONED_GCC = "/cache/toolkits/gcc-11-x86_64/bin/g++-11"


def gcc(version: str) -> Compiler:
    return Compiler("gcc", version)


def host_with_gcc(*versions: str, **further_compilers: Compiler) -> Host:
    """Return a machine with some versions of gcc, of which the first is the usual one.

    `others` are more of its compilers, by command.
    """
    compilers = {f"g++-{version.partition('.')[0]}": gcc(version) for version in versions}
    usual = gcc(versions[0])
    return Host(
        "x86_64",
        "linux",
        HostResources(4, 2**34),
        compilers=HostCompilers(default=usual, by_command=compilers | further_compilers),
        complete=True,
    )


def choose_compiler(
    small_facts: Facts,
    host: Host,
    identifier: str = "wheel-3.10-cu118",
    settings: dict[str, str] | None = None,
) -> tuple[Compiler | None, dict[str, str]]:
    release = find_release(small_facts, "base", "v1.0.0")
    cell = cell_lookup.find_cell(small_facts, identifier, "x86_64", release)
    constraints = CellConstraints(small_facts, cell)
    return host_compiler.choose_host_compiler(constraints, host, settings or {})


def test_the_usual_compiler_stays_if_nvcc_takes_it(small_facts: Facts) -> None:
    host = host_with_gcc("11.4.0", "9.5.0")
    assert choose_compiler(small_facts, host) == (gcc("11.4.0"), {})


def test_the_newest_that_nvcc_takes_compiles_everything(small_facts: Facts) -> None:
    compiler, variables = choose_compiler(small_facts, host_with_gcc("12.2.0", "9.5.0", "11.4.0"))
    assert compiler == gcc("11.4.0")
    assert variables == {"CC": "gcc-11", "CXX": "g++-11", "CUDAHOSTCXX": "g++-11"}


def test_a_provisioned_compiler_is_named_by_its_path(small_facts: Facts) -> None:
    host = host_with_gcc("12.2.0", **{PROVISIONED_GCC: gcc("11.3.0")})
    compiler, variables = choose_compiler(small_facts, host)
    assert compiler == gcc("11.3.0")
    assert variables["CC"] == "/cache/toolkits/gcc-11-x86_64/bin/gcc-11"
    without_usual = change_host(host, compilers={"default": None})
    _, variables = choose_compiler(small_facts, without_usual)
    assert variables["CXX"] == PROVISIONED_GCC


def test_the_release_refuses_compilers_too(small_facts: Facts) -> None:
    package = small_facts.packages["base"]
    rule = Rule("base.toml: rule 9", When(), "it is old", needs={"gcc": SpecifierSet("<10")})
    package = replace(package, rules=(*package.rules, rule))
    facts = replace(small_facts, packages={**small_facts.packages, "base": package})
    compiler, _ = choose_compiler(facts, host_with_gcc("11.4.0", "9.5.0"))
    assert compiler == gcc("9.5.0")


def test_the_usual_compiler_stays_if_none_fits(small_facts: Facts) -> None:
    host = host_with_gcc("13.2.0", "12.2.0")
    assert choose_compiler(small_facts, host) == (gcc("13.2.0"), {})


def test_a_build_without_cuda_has_the_usual_one(small_facts: Facts) -> None:
    host = host_with_gcc("12.2.0", "11.4.0")
    assert choose_compiler(small_facts, host, "wheel-3.10-cpu") == (gcc("12.2.0"), {})


@pytest.mark.parametrize("name", host_compiler.COMPILER_VARIABLES)
def test_a_compiler_that_a_setting_names_stays(small_facts: Facts, name: str) -> None:
    host = host_with_gcc("12.2.0", "11.4.0")
    compiler, variables = choose_compiler(small_facts, host, settings={name: "g++-12"})
    assert compiler == gcc("12.2.0")
    assert variables == {}


def test_a_compiler_that_the_shell_names_stays(small_facts: Facts) -> None:
    host = host_with_gcc("12.2.0", "11.4.0")
    with_cxx = change_host(host, programs={"paths": {"c++": "g++-12"}})
    assert choose_compiler(small_facts, with_cxx)[1] == {}
    for_nvcc = change_host(host, compilers={"cuda": gcc("11.4.0")})
    assert choose_compiler(small_facts, for_nvcc)[1] == {}
    usual = change_host(host, programs={"paths": {"c++": "c++"}})
    assert choose_compiler(small_facts, usual)[1]["CXX"] == "g++-11"


@pytest.mark.parametrize("command", ["g++-11", "/usr/bin/g++-11"])
def test_a_compiler_is_known_by_its_path_too(small_facts: Facts, command: str) -> None:
    host = host_with_gcc("12.2.0", "11.4.0")
    compiler, _ = choose_compiler(small_facts, host, settings={"CXX": command})
    assert compiler == gcc("11.4.0")


def test_a_clang_of_which_nothing_is_known_stays(small_facts: Facts) -> None:
    clang = Compiler("clang", "14.0.6")
    host = change_host(host_with_gcc("11.4.0"), compilers={"default": clang})
    assert choose_compiler(small_facts, host) == (clang, {})
