"""What the digests follow, and what leaves them alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from torchmill.config import cell_lookup
from torchmill.config.model import Facts, Host, Options, Plan, Source
from torchmill.plan import build_plan
from torchmill.plan.keys import compile_key, environment_key, tree_key

HOST = Host("x86_64", "linux", cores=4, memory=2**35, glibc="2.36")
SOURCE = Source("base", "1.0.0", "v1.0.0", "git", "here", "1" * 40, Path("source"), verified=True)
GROUND = {"g++": "12.2"}


@pytest.fixture
def base(known: Facts) -> Plan:
    """Return a plan."""
    return planned(known, Options())


def planned(known: Facts, options: Options, name: str = "wheel-3.10-cpu") -> Plan:
    cell = cell_lookup.find_cell(known, name, "x86_64", known.releases["base"][0])
    return build_plan.compute_plan(known, cell, HOST, options)


def test_the_tree_follows_everything_but_the_interpreter(known: Facts, base: Plan) -> None:
    def key(computed: Plan, source: Source = SOURCE, ground: dict[str, str] = GROUND) -> str:
        return tree_key(computed, source, known.patches, ground)

    first = key(base)
    for slower in (Options(jobs=1), Options(memory=2**30)):
        fewer = planned(known, slower)
        assert fewer.jobs < base.jobs
        assert key(fewer) == first, "jobs change how fast, not what"
    assert key(planned(known, Options(), "wheel-3.9-cpu")) == first
    assert key(replace(base, requirements=("numpy<3",))) == first
    changed = [
        key(base, ground={"g++": "13.1"}),
        key(base, replace(SOURCE, commit="2" * 40)),
        key(base, replace(SOURCE, submodules={"a": "3"})),
        key(planned(known, Options(settings={"USE_X": "1"}))),
        key(replace(base, kit=("cmake<4",))),
        key(replace(base, prepare=())) if base.prepare else "none",
    ]
    assert len({first, *changed}) == 1 + len(changed)


def test_what_is_compiled_follows_the_interpreter_and_its_requirements(known: Facts, base: Plan) -> None:
    def key(computed: Plan, tree: str = "tree", python: str = "3.10.13") -> str:
        return compile_key(tree, environment_key(computed, {"python": python, "base": ""}), computed)

    first = key(base)
    changed = [
        key(base, tree="other"),
        key(base, python="3.10.14"),
        key(replace(base, requirements=("numpy<3",))),
        key(replace(base, compile=())),
        key(planned(known, Options(), "wheel-3.9-cpu")),
    ]
    assert len({first, *changed}) == 1 + len(changed)


def test_the_tree_follows_the_text_of_a_patch(known: Facts, base: Plan) -> None:
    patched = replace(base, patches=("base/a.patch",))
    patch = known.patches / "base" / "a.patch"
    patch.parent.mkdir(parents=True)
    keys = set()
    for text in ("one", "two"):
        patch.write_text(text)
        keys.add(tree_key(patched, SOURCE, known.patches, GROUND))
    assert len(keys) == 2
