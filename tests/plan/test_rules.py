"""Rules against builds; and that the shipped ones leave no release without an answer."""

from collections import Counter
from dataclasses import replace
from string import Template
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.rule import Rule, When
from torchmill.config.versions import is_within
from torchmill.host.host import Compiler
from torchmill.plan import matrix
from torchmill.plan.rules import Case, axis_conditions, make_case, rule_matches

GCC = Compiler("gcc", "12.2.0")


def of(compiler: Compiler | None = None, cuda: str | None = None) -> Case:
    variant = "cu118" if cuda else "cpu"
    return Case(
        Build("base", "wheel", "3.13t", variant, "x86_64", cuda), "1.5.0", "linux", "git", compiler
    )


@pytest.mark.parametrize(
    ("when", "known", "expected"),
    [
        (When(), of(), True),
        (When(release=SpecifierSet(">=1.5,<2")), of(), True),
        (When(python=SpecifierSet("==3.13")), of(), True),
        (When(cuda=SpecifierSet(">=0")), of(), False),
        (When(cuda=SpecifierSet(">=0")), of(cuda="11.8"), True),
        (When(arch=("aarch64", "arm64")), of(), False),
        (When(system=("linux",), provider=("git", "path")), of(), True),
        (When(gcc=SpecifierSet(">=12")), of(GCC), True),
        (When(gcc=SpecifierSet(">=12")), of(), False),
        (When(gcc=SpecifierSet(">=12")), of(Compiler("clang", "14.0.0")), False),
        (When(clang=SpecifierSet(">=12")), of(Compiler("clang", "14.0.0")), True),
        (When(clang=SpecifierSet(">=12")), of(Compiler("apple-clang", "14.0.0")), False),
        (When(release=SpecifierSet("<1.5"), gcc=SpecifierSet(">=12")), of(GCC), False),
    ],
)
def test_a_when_holds_where_all_of_its_conditions_do(
    when: When, known: Case, *, expected: bool
) -> None:
    assert rule_matches(when, known) is expected


@pytest.mark.parametrize(
    ("when", "here"),
    [
        (When(kept=("cudnn",)), {"kept": frozenset({"cudnn", "nccl"})}),
        (When(lacking=("magma",)), {"lacking": frozenset({"magma"})}),
        (When(another_toolkit=True), {"another_toolkit": True}),
    ],
)
def test_what_a_machine_has_is_no_axis(when: When, here: dict[str, Any]) -> None:
    assert rule_matches(when, replace(of(cuda="11.8"), **here))
    assert not rule_matches(when, of(cuda="11.8"))
    assert rule_matches(axis_conditions(when), of(cuda="11.8"))


def test_every_library_that_a_rule_names_must_be_kept() -> None:
    both = When(kept=("cudnn", "nccl"))
    assert not rule_matches(both, replace(of(cuda="11.8"), kept=frozenset({"cudnn"})))


def test_no_version_is_within_bounds() -> None:
    assert is_within(None, None)
    assert not is_within(SpecifierSet(">=0"), None)


@pytest.fixture(scope="module")
def shaped(shipped: Facts) -> dict[str, list[Rule]]:
    """Return, for each possible torch build without CUDA and one with it, the rules that shape it."""
    package = shipped.packages["torch"]
    found = {}
    for release in shipped.releases["torch"]:
        for arch in release.arches:
            cells = list(matrix.possible_cells(shipped, release, arch))
            without = [one for one in cells if one.build.cuda is None]
            for cell in (*without, *[one for one in cells if one.build.cuda][-1:]):
                known = make_case(shipped, cell.build, release, "git")
                name = f"{cell.build.identifier('')} of {release.tag}"
                found[name] = [rule for rule in package.rules if rule_matches(rule.when, known)]
    return found


def test_every_build_has_one_front_end_one_standard_and_a_compiler(
    shaped: dict[str, list[Rule]],
) -> None:
    for name, rules in shaped.items():
        assert Counter(rule.front_end for rule in rules)[None] == len(rules) - 1, name
        assert len([rule for rule in rules if rule.cxx]) == 1, name
        assert any("gcc" in rule.needs for rule in rules), name


def test_every_build_with_cuda_has_bounds_of_cudnn(shaped: dict[str, list[Rule]]) -> None:
    with_cuda = {name: rules for name, rules in shaped.items() if "-cu" in name}
    assert len(with_cuda) > 100
    assert [
        name
        for name, rules in with_cuda.items()
        if not any("cudnn" in rule.needs for rule in rules)
    ] == []


def test_every_build_has_its_tools_in_bounds(shaped: dict[str, list[Rule]]) -> None:
    for name, rules in shaped.items():
        bounds: dict[str, SpecifierSet] = {}
        for text in (text for rule in rules for text in rule.requires):
            wanted = Requirement(text)
            bounds[wanted.name] = bounds.get(wanted.name, SpecifierSet()) & wanted.specifier
        assert bounds.keys() >= {"cmake", "ninja", "numpy", "pyyaml"}, name
        assert any(one.operator == ">=" for one in bounds["cmake"]), name
        assert len(bounds["numpy"]) > 0, name
        assert (
            any(one.operator == "<" for one in bounds.get("setuptools", ())) or "build" in bounds
        ), name


def test_what_shipped_rules_leave_to_the_build_is_what_it_knows(shipped: Facts) -> None:
    known = {"tree", "source", "raw", "kit", "venv", "python", "patches", "PATH"}
    for rule in (rule for package in shipped.packages.values() for rule in package.rules):
        words = [
            *rule.set.values(),
            *rule.append.values(),
            *(word for argv in rule.prepare for word in argv),
        ]
        for match in (
            match
            for word in words
            for match in Template.pattern.finditer(word)
            if not match["escaped"]
        ):
            name = match["braced"] or match["named"] or ""
            assert name in known or name.endswith("_home"), (rule.name, match.group())
