"""What the records of a wheel say of its build, and what is otherwise now."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchmill.deliver.agreement import DOCUMENT_ERRORS
from torchmill.plan import rebuild
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.rebuild import FirstBuild, SecondBuild
from torchmill.wheel import statement

PATCH = "given/mine.patch"


def manifest(**changes: Any) -> dict[str, Any]:
    """Return a manifest with the entries that a rebuild and a statement need."""
    return {
        "format": 2,
        "wheel": "tiny-1.0-cp312-cp312-linux_x86_64.whl",
        "sha256": "1" * 64,
        "identifier": "vision-3.12-cpu",
        "package": "tinyvision",
        "version": "0.1.0",
        "tag": "v0.1.0",
        "commit": "2" * 40,
        "contents": "3" * 64,
        "archive": None,
        "source": "https://github.com/tiny/tinyvision.git",
        "options": {"settings": {"USE_X": "0"}, "platform": "linux"},
        "submodules": {},
        "torch": "tinytorch==1.0.0+cpu",
        "switches": {"USE_X": "0", "MAX_JOBS": "2"},
        "patches": [PATCH],
        "edits": {},
        "network": "none",
        "requirements": ["setuptools==80.0", "tinytorch==1.0.0+cpu"],
        "builder": {"id": statement.LOCAL_BUILDER, "torchmill": "v1"},
        "tools": {"version": "3.12.1 (main)", "python3.12": "4" * 64},
        "key": "5" * 64,
        "stages": {"compile": {"inputs": {f"patch {PATCH}": "6" * 64, "compiler": "7"}}},
        **changes,
    }


def first_build(**changes: Any) -> FirstBuild:
    return rebuild.read_manifest(manifest(**changes))


SAME = SecondBuild(
    torchmill="v1",
    python="3.12.1",
    interpreter={"python3.12": "4" * 64},
    switches={"USE_X": "0", "MAX_JOBS": "9"},
    patches={PATCH: "6" * 64},
    inputs={f"patch {PATCH}": "6" * 64, "compiler": "7"},
    unavailable=(),
)


def test_a_statement_says_the_same_as_its_manifest_but_for_digests_of_the_machine() -> None:
    document = json.loads(json.dumps(statement.compose_statement(manifest())))
    by_statement = rebuild.read_statement(document)
    by_manifest = first_build()
    switches = {"USE_X": "0"}  # a statement has no setting that changes the speed alone
    expected = replace(by_manifest, inputs={}, switches=switches, contents="")
    assert by_statement == expected


def test_a_source_without_a_commit_is_known_by_its_contents() -> None:
    for archive in ("8" * 64, None):
        document = statement.compose_statement(manifest(commit=None, archive=archive))
        first = rebuild.read_statement(json.loads(json.dumps(document)))
        assert (first.commit, first.contents, first.archive) == ("", "3" * 64, archive or "")


def test_nothing_is_said_if_all_is_the_same() -> None:
    assert list(rebuild.other_inputs(first_build(), SAME)) == []


@pytest.mark.parametrize(
    ("recorded", "values_now", "clause"),
    [
        ({"builder": {"id": "https://ci", "torchmill": "v1"}}, {}, "it was built by https://ci"),
        ({}, {"torchmill": "v2"}, "it was built by torchmill v1, this is v2"),
        (
            {"builder": {"id": statement.LOCAL_BUILDER, "torchmill": "v1-dirty"}},
            {"torchmill": "v1-dirty"},
            "with changes that nobody committed",
        ),
        ({}, {"python": "3.12.4"}, "it was built with Python 3.12.1, here is 3.12.4"),
        ({}, {"interpreter": {}}, "was another build of that version"),
        ({"edits": {"a.cpp": "9"}}, {}, "a.cpp was edited by hand"),
        ({}, {"patches": {PATCH: "0" * 64}}, f"the patch {PATCH} has other contents"),
        ({}, {"patches": {}}, f"the patch {PATCH} was applied, which is not planned here"),
        ({}, {"unavailable": ["setuptools"]}, "setuptools 80.0 was installed, and no index"),
        ({}, {"switches": {"USE_X": "1"}}, "USE_X was 0, here it is 1"),
        ({}, {"switches": {}}, "USE_X was 0, and is not set here"),
        ({}, {"switches": {"USE_X": "0", "Y": "1"}}, "Y is 1 here, and was not set"),
        ({}, {"inputs": {"compiler": "8"}}, "another compiler than on its machine"),
        ({}, {"inputs": {}}, "its machine had an input that this one lacks: compiler"),
        ({"stages": {}, "patches": []}, {"patches": {}}, "compilers and libraries of its machine"),
    ],
)
def test_each_other_input_is_named_once(
    recorded: dict[str, Any], values_now: dict[str, Any], clause: str
) -> None:
    (difference,) = rebuild.other_inputs(first_build(**recorded), replace(SAME, **values_now))
    assert clause in difference


def test_the_options_are_given_again() -> None:
    recorded = {"settings": {"USE_X": "0"}, "platform": "linux", "debug_info": "full"}
    options, missing = rebuild.recorded_options(first_build(options=recorded), "", {})
    assert missing == []
    assert options == Options(settings={"USE_X": "0"}, platform="linux", debug_info="full")
    options, missing = rebuild.recorded_options(
        first_build(options={}, network="open: --network"), "", {}
    )
    assert (options, missing) == (replace(NO_OPTIONS, network=True), [])


def test_what_a_record_only_names_has_to_be_named_again(tmp_path: Path) -> None:
    first = first_build(options={"torch": "torch-2.0.whl", "patches": [PATCH], "new": 1})
    options, missing = rebuild.recorded_options(first, "", {})
    assert (options.torch, dict(options.patches)) == (None, {})
    for part in ("the option new", "--torch", "mine.patch"):
        assert any(part in clause for clause in missing)
    wheel, patch = str(tmp_path / "torch-2.0.whl"), str(tmp_path / "mine.patch")
    first = first_build(options={"torch": "torch-2.0.whl", "patches": [PATCH]})
    options, missing = rebuild.recorded_options(first, wheel, {PATCH: patch})
    assert (options.torch, dict(options.patches), missing) == (wheel, {PATCH: patch}, [])
    options, missing = rebuild.recorded_options(first_build(options={"torch": "PyPI"}), "", {})
    assert (options.torch, missing) == ("PyPI", [])


def test_packages_are_pinned_but_for_the_base_and_what_no_index_offers() -> None:
    first = first_build(requirements=["setuptools==80.0", "wheel==0.4", "tinytorch==1.0.0+cpu"])
    assert rebuild.indexable_packages(first) == ["setuptools", "wheel"]
    assert rebuild.pinned_requirements(first, {"wheel": False}) == ["setuptools==80.0"]


@pytest.mark.parametrize(
    ("changes", "original"),
    [
        ({}, ""),
        ({"original": {"wheel": "torch-1.0.whl"}}, "torch-1.0.whl"),
        ({"kept_for": ["8.6"]}, "another wheel"),
        ({"wheel_variant": {}}, "another wheel"),
    ],
)
def test_a_wheel_that_was_made_of_another_is_told(changes: dict[str, Any], original: str) -> None:
    assert first_build(**changes).made_of == original


@pytest.mark.parametrize(
    "changes",
    [
        {"requirements": ["a\n--index-url https://example.org/simple\nninja==1.13"]},
        {"requirements": ["ninja==1.13\n--extra-index-url https://example.org"]},
        {"requirements": ["-r /etc/passwd\nx==1"]},
        {"requirements": ["a @ https://example.org/a.whl\nb==1"]},
        {"requirements": ["setuptools==80.0 ; python_version > '3'"]},
        {"requirements": [7]},
        {"torch": "torch"},
        {"torch": ["torch==1"]},
        {"tag": 1},
        {"tag": None},
        {"identifier": ["vision-3.12-cpu"]},
        {"package": {}},
        {"commit": 5},
        {"contents": None},
        {"source": None},
        {"switches": {"USE_X": 0}},
        {"switches": ["USE_X"]},
        {"options": ["settings"]},
        {"options": {"settings": ["CC"]}},
        {"options": {"settings": {"USE_X": 0}}},
        {"options": {"arch_list": 8.6}},
        {"options": {"cpu": True}},
        {"options": {"patches": [1]}},
        {"options": {"torch": 2}},
        {"edits": {1: "x"}},
        {"builder": {"id": 1, "torchmill": "v1"}},
        {"tools": {"python3.12": 3}},
        {"stages": {"compile": []}},
    ],
)
def test_a_record_of_another_shape_is_not_taken(changes: dict[str, Any]) -> None:
    with pytest.raises(DOCUMENT_ERRORS):
        first_build(**changes)


def test_options_that_change_no_wheel_are_not_taken_from_a_record() -> None:
    for name in ("parts", "shard", "jobs", "memory", "until", "processor", "network", "guard"):
        options, missing = rebuild.recorded_options(first_build(options={name: "4"}), "", {})
        assert options == NO_OPTIONS
        assert name in missing[0]


@pytest.mark.parametrize(
    ("changes", "fetches", "clauses"),
    [
        ({}, False, []),
        ({}, True, [f"commit {'2' * 40}, which is not that of v0.1.0"]),
        ({"commit": "1" * 40}, True, []),
        ({"commit": None}, True, ["a source from https://github.com/tiny/tinyvision.git"]),
        ({"commit": None, "source": "https://example.org/a.zip"}, False, []),
        ({"commit": None, "source": "PyPI's tiny-1.tar.gz"}, True, []),
        ({"options": {"settings": {"USE_X": "0", "USE_Y": "On", "BITS": "64"}}}, False, []),
        ({"options": {"settings": {"CC": "sh -c x"}}}, False, ["the variable CC=sh -c x"]),
        ({"options": {"settings": {"LD_PRELOAD": "x.so"}}}, False, ["the variable LD_PRELOAD"]),
        ({"network": "open: --network"}, False, ["a network that is open"]),
    ],
)
def test_what_could_run_code_of_whoever_wrote_the_record_is_named(
    changes: dict[str, Any], fetches: bool, clauses: list[str]
) -> None:
    parts = list(
        rebuild.untrusted_parts(
            first_build(**changes), fetches=fetches, release_commit="1" * 40, wheels=()
        )
    )
    assert len(parts) == len(clauses)
    for part, clause in zip(parts, clauses, strict=True):
        assert clause in part
