"""Rules against builds; and that the shipped ones leave no release without an answer."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from string import Template
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.rule import Rule, When
from torchmill.config.versions import format_bounds, is_within, narrow_bounds
from torchmill.host.host import Compiler
from torchmill.plan import matrix
from torchmill.plan.cell import Cell
from torchmill.plan.rules import Case, axis_conditions, make_case, rule_matches

GCC = Compiler("gcc", "12.2.0")
CLANG = Compiler("clang", "14.0.0")
APPLE_CLANG = Compiler("apple-clang", "14.0.0")


def case(compiler: Compiler | None = None, cuda: str | None = None) -> Case:
    variant = "cu118" if cuda else "cpu"
    build = Build("base", "wheel", "3.13t", variant, "x86_64", cuda)
    return Case(
        build=build,
        version="1.5.0",
        torch="2.13.0",
        system="linux",
        provider="git",
        compiler=compiler,
    )


@pytest.mark.parametrize(
    ("when", "build", "expected"),
    [
        (When(), case(), True),
        (When(release=SpecifierSet(">=1.5,<2")), case(), True),
        (When(torch=SpecifierSet("<2.14")), case(), True),
        (When(torch=SpecifierSet(">=2.14")), case(), False),
        (When(python=SpecifierSet("==3.13")), case(), True),
        (When(cuda=SpecifierSet(">=0")), case(), False),
        (When(cuda=SpecifierSet(">=0")), case(cuda="11.8"), True),
        (When(arch=("aarch64", "arm64")), case(), False),
        (When(system=("linux",), provider=("git", "path")), case(), True),
        (When(gcc=SpecifierSet(">=12")), case(GCC), True),
        (When(gcc=SpecifierSet(">=12")), case(), False),
        (When(gcc=SpecifierSet(">=12")), case(CLANG), False),
        (When(clang=SpecifierSet(">=12")), case(CLANG), True),
        (When(clang=SpecifierSet(">=12")), case(APPLE_CLANG), False),
        (When(release=SpecifierSet("<1.5"), gcc=SpecifierSet(">=12")), case(GCC), False),
    ],
)
def test_a_when_holds_if_all_of_its_conditions_do(
    when: When, build: Case, *, expected: bool
) -> None:
    assert rule_matches(when, build) is expected


@pytest.mark.parametrize(
    ("when", "machine"),
    [
        (
            When(provisioned_libraries=("cudnn",)),
            {"provisioned_libraries": frozenset({"cudnn", "nccl"})},
        ),
        (When(absent_libraries=("magma",)), {"absent_libraries": frozenset({"magma"})}),
        (When(another_toolkit=True), {"another_toolkit": True}),
    ],
)
def test_conditions_on_a_machine_are_no_axes(when: When, machine: dict[str, Any]) -> None:
    build = case(cuda="11.8")
    assert rule_matches(when, replace(build, **machine))
    assert not rule_matches(when, build)
    assert rule_matches(axis_conditions(when), build)


def test_every_library_that_a_rule_names_must_be_taken_from_the_cache() -> None:
    when = When(provisioned_libraries=("cudnn", "nccl"))
    assert not rule_matches(
        when, replace(case(cuda="11.8"), provisioned_libraries=frozenset({"cudnn"}))
    )


@pytest.mark.parametrize("order", list(permutations((">=2.0", ">=2", "<9.0", "<9", "!=3.*"))))
def test_bounds_are_written_the_same_whatever_their_order(order: tuple[str, ...]) -> None:
    narrow = narrow_bounds(SpecifierSet(",".join(order)))
    assert format_bounds(narrow) == ">=2.0,<9,!=3.*"


def test_no_version_is_within_bounds() -> None:
    assert is_within(None, None)
    assert not is_within(SpecifierSet(">=0"), None)


def cells_to_check(facts: Facts) -> Iterator[Cell]:
    """Yield every possible cell of torch without CUDA, and one with the newest toolkit of each."""
    for release in facts.releases["torch"]:
        for arch in release.arches:
            with_cuda: list[Cell] = []
            for cell in matrix.possible_cells(facts, release, arch):
                if cell.build.cuda is None:
                    yield cell
                else:
                    with_cuda.append(cell)
            yield from with_cuda[-1:]


@pytest.fixture(scope="module")
def rules_of_builds(shipped: Facts) -> dict[str, list[Rule]]:
    """Return the rules that hold for some builds of torch, by the names of these."""
    rules = shipped.packages["torch"].rules
    matching: dict[str, list[Rule]] = {}
    for cell in cells_to_check(shipped):
        build = make_case(shipped, cell.build, cell.release, "git")
        name = f"{cell.build.identifier('')} of {cell.release.tag}"
        matching[name] = [rule for rule in rules if rule_matches(rule.when, build)]
    return matching


def test_every_build_has_one_front_end_one_standard_and_a_compiler(
    rules_of_builds: dict[str, list[Rule]],
) -> None:
    for name, rules in rules_of_builds.items():
        assert Counter(rule.front_end for rule in rules)[None] == len(rules) - 1, name
        assert len([rule for rule in rules if rule.cxx]) == 1, name
        assert any("gcc" in rule.needs for rule in rules), name


def test_every_build_with_cuda_has_bounds_of_cudnn(rules_of_builds: dict[str, list[Rule]]) -> None:
    with_cuda = {name: rules for name, rules in rules_of_builds.items() if "-cu" in name}
    assert len(with_cuda) > 100
    for name, rules in with_cuda.items():
        assert any("cudnn" in rule.needs for rule in rules), name


def test_every_build_has_its_tools_in_bounds(rules_of_builds: dict[str, list[Rule]]) -> None:
    for name, rules in rules_of_builds.items():
        bounds: dict[str, SpecifierSet] = {}
        for rule in rules:
            for text in rule.requires:
                requirement = Requirement(text)
                bounds.setdefault(requirement.name, SpecifierSet())
                bounds[requirement.name] &= requirement.specifier
        assert bounds.keys() >= {"cmake", "ninja", "numpy", "pyyaml"}, name
        assert any(bound.operator == ">=" for bound in bounds["cmake"]), name
        assert len(bounds["numpy"]) > 0, name
        upper = [bound for bound in bounds.get("setuptools", ()) if bound.operator == "<"]
        assert upper or "build" in bounds, name


def words_of_rule(rule: Rule) -> Iterator[str]:
    """Yield the texts of a rule in which ${…} stands for a path."""
    yield from rule.set.values()
    yield from rule.append.values()
    for argv in rule.prepare:
        yield from argv


def test_shipped_rules_name_only_paths_that_a_build_has(shipped: Facts) -> None:
    paths = {"tree", "source", "raw", "kit", "venv", "python", "patches", "PATH"}
    for package in shipped.packages.values():
        for rule in package.rules:
            for word in words_of_rule(rule):
                for match in Template.pattern.finditer(word):
                    if match["escaped"]:
                        continue
                    name = match["braced"] or match["named"] or ""
                    if name == "torch_packages":
                        assert package.after, rule.name
                        continue
                    assert name in paths or name.endswith("_home"), (rule.name, match.group())
