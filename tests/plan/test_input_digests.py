"""What makes a tree, an environment or a compile stale, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.plans import plan_base
from torchmill.config.facts import Facts
from torchmill.fetch.source.source import Source
from torchmill.plan.build_options import Options
from torchmill.plan.input_digests import (
    compile_key,
    describe_changed_inputs,
    environment_key,
    tree_inputs,
    tree_key,
)
from torchmill.plan.plan import Command, Plan

SOURCE = Source("base", "1.0.0", "v1.0.0", "git", "here", "1" * 40, Path("source"), verified=True)
MACHINE = {"g++": "12.2"}


@pytest.fixture
def plan(small_facts: Facts) -> Plan:
    return plan_base(small_facts)


def tree_key_of(
    plan: Plan,
    source: Source = SOURCE,
    machine_inputs: dict[str, str] = MACHINE,
) -> str:
    return tree_key(tree_inputs(plan, source, {}, machine_inputs))


def test_a_tree_serves_every_interpreter_at_any_speed(small_facts: Facts, plan: Plan) -> None:
    key = tree_key_of(plan)
    for options in (Options(jobs=1), Options(memory=2**30)):
        slower = plan_base(small_facts, options=options)
        assert slower.jobs < plan.jobs
        assert tree_key_of(slower) == key
    assert tree_key_of(plan_base(small_facts, "wheel-3.9-cpu")) == key
    assert tree_key_of(replace(plan, requirements=("numpy<3",))) == key


def test_a_tree_follows_machine_source_settings_and_preparation(
    small_facts: Facts, plan: Plan
) -> None:
    keys = {
        tree_key_of(plan),
        tree_key_of(plan, machine_inputs={"g++": "13.1"}),
        tree_key_of(plan, replace(SOURCE, commit="2" * 40)),
        tree_key_of(plan, replace(SOURCE, submodules={"a": "3"})),
        tree_key_of(plan_base(small_facts, options=Options(settings={"USE_X": "1"}))),
        tree_key_of(replace(plan, tree=replace(plan.tree, kit=("cmake<4",)))),
        tree_key_of(replace(plan, tree=replace(plan.tree, preparation=(Command("a", ("a",)),)))),
    }
    assert len(keys) == 7


def test_what_is_compiled_follows_the_interpreter_and_its_requirements(
    small_facts: Facts, plan: Plan
) -> None:
    def compile_key_of(plan: Plan, tree: str = "tree", python: str = "3.10.13") -> str:
        environment = environment_key(plan, {"python": python, "base": ""})
        return compile_key(tree, environment, plan)

    keys = {
        compile_key_of(plan),
        compile_key_of(plan, tree="other"),
        compile_key_of(plan, python="3.10.14"),
        compile_key_of(replace(plan, requirements=("numpy<3",))),
        compile_key_of(replace(plan, commands=())),
        compile_key_of(plan_base(small_facts, "wheel-3.9-cpu")),
    }
    assert len(keys) == 6


def test_a_tree_follows_the_bytes_of_a_patch(plan: Plan) -> None:
    patched = replace(plan, tree=replace(plan.tree, patches=("base/a.patch",)))
    contents = (
        b"one",
        b"two",
        b"one\n",
        b"one\r\n",
        b"caf\xe9",
        b"caf\xe8",
        "caf\u00e9".encode(),
        b"\xff\xfe\0",
    )
    keys = set()
    for content in contents:
        inputs = tree_inputs(patched, SOURCE, {"base/a.patch": content}, MACHINE)
        keys.add(tree_key(inputs))
    assert len(keys) == len(contents)


def test_changes_since_another_tree_are_described_without_digests(plan: Plan) -> None:
    machine = {"compiler": "gcc 12.2.0", "C++: cc1plus": "a" * 64, "old": ""}
    before = tree_inputs(plan, SOURCE, {}, machine)
    switched = replace(plan, variables={**plan.variables, "USE_MPI": "1"})
    machine = {"compiler": "gcc 13.1.0", "C++: cc1plus": "b" * 64}
    after = tree_inputs(switched, SOURCE, {}, machine)
    assert describe_changed_inputs(before, after) == [
        "machine's C++: cc1plus",
        "machine's compiler (gcc 13.1.0, was gcc 12.2.0)",
        "machine's old (gone)",
        "setting USE_MPI (new)",
    ]
    assert describe_changed_inputs(after, after) == []
