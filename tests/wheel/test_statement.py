"""The statement of a wheel: its content, that in-toto's library reads it, and that it is reproducible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from tests.support import told_wheels
from torchmill.core import formats
from torchmill.core.suite_version import suite_version
from torchmill.wheel import statement

CI = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "me/wheels",
    "GITHUB_WORKFLOW_REF": "me/wheels/.github/workflows/wheels.yml@refs/heads/main",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_ATTEMPT": "2",
}


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    return told_wheels.manifest(told_wheels.built(tmp_path))


def depends(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    return {f"{one['annotations']['kind']} {one['name']}": one for one in found}


def test_the_library_of_in_toto_takes_it(told: dict[str, Any]) -> None:
    text = statement.canonical_json(statement.compose_statement(told)).decode()
    read = json_format.Parse(text, statement_pb2.Statement())
    Statement.copy_from_pb(read).validate()
    predicate = json_format.MessageToJson(read.predicate)
    # fields that SLSA's schema does not know would be refused here
    slsa = json_format.Parse(predicate, provenance_pb2.Provenance())
    assert slsa.build_definition.build_type == statement.BUILD_TYPE
    assert slsa.build_definition.external_parameters["tag"] == "v1.13.1"
    assert slsa.run_details.builder.id == statement.LOCAL_BUILDER
    assert len(slsa.build_definition.resolved_dependencies) == 12


def test_it_is_about_the_wheel_by_name_and_digest(told: dict[str, Any]) -> None:
    made = statement.compose_statement(told)
    assert made["subject"] == [{"name": told["wheel"], "digest": {"sha256": told["sha256"]}}]
    assert (made["_type"], made["predicateType"]) == (
        statement.STATEMENT_TYPE,
        statement.PREDICATE_TYPE,
    )


def test_it_names_all_that_went_in(told: dict[str, Any]) -> None:
    found = depends(statement.compose_statement(told))
    assert found["source tinytorch"]["uri"] == "git+https://github.com/pytorch/pytorch.git@v1.13.1"
    assert found["source tinytorch"]["digest"] == {"gitCommit": told_wheels.COMMIT}
    assert found["submodule third_party/fmt"]["digest"] == {"gitCommit": told_wheels.FMT}
    assert found["patch torch/gcc-12.patch"]["digest"] == {"sha256": told_wheels.PATCH}
    assert found["toolkit cuda"]["uri"] == "pkg:generic/cuda@11.7"
    assert found["toolkit cudnn"]["uri"] == "pkg:generic/cudnn@8.5.0.96"
    assert found["interpreter python3.10"]["digest"] == {"sha256": "bb" * 32}
    assert found["requirement numpy"]["uri"] == "pkg:pypi/numpy@1.26.4"
    library = found["bundled library libgomp.so.1.0.0"]
    assert (library["uri"], library["digest"]) == (told_wheels.GOMP, {"sha256": "aa" * 32})


@pytest.mark.parametrize(
    ("origin", "archive", "declared"),
    [
        ("/home/me/x.tar.gz", "de" * 32, told_wheels.COMMIT),
        ("Debian's pytorch 1.13.1+dfsg-4 (repacked)", "de" * 32, None),
        (f"/home/me/x (sha256 {'bb' * 32})", None, None),
        ("https://github.com/pytorch/pytorch.git (main)", None, told_wheels.COMMIT),
    ],
    ids=["archive", "Debian", "folder with a digest in its name", "branch"],
)
def test_a_source_without_a_proven_commit_is_named_by_what_it_held(
    told: dict[str, Any], origin: str, archive: str | None, declared: str | None
) -> None:
    contents = "cc" * 32
    unproven = {
        "commit": None,
        "commit_verified": False,
        "commit_declared": declared,
        "unproven": "nothing proves it",
    }
    made = statement.compose_statement(
        told | unproven | {"source": origin, "archive": archive, "contents": contents}
    )
    source = depends(made)["source tinytorch"]
    assert source["digest"] == {"sha256": archive or contents}
    assert source["uri"] == "pkg:generic/tinytorch@v1.13.1"
    assert source["annotations"]["origin"] == origin
    assert source["annotations"]["commit proven"] == "no"
    assert source["annotations"]["contents sha256"] == contents
    assert source["annotations"]["caveat"].startswith(
        "not proven to be any commit: nothing proves it"
    )
    assert "gitCommit" not in source["digest"]


def test_a_submodule_without_a_proven_commit_has_no_digest(told: dict[str, Any]) -> None:
    made = statement.compose_statement(told | {"submodules": {"third_party/fmt": ""}})
    submodule = depends(made)["submodule third_party/fmt"]
    assert "digest" not in submodule
    assert submodule["annotations"]["caveat"] == "no commit is proven"


def test_local_edits_are_named_and_doubt_the_source(told: dict[str, Any]) -> None:
    found = depends(statement.compose_statement(told | {"edits": {"setup.py": "ee" * 32}}))
    assert found["local edit setup.py"]["digest"] == {"sha256": "ee" * 32}
    assert (
        found["source tinytorch"]["annotations"]["caveat"]
        == "changed after it was fetched: setup.py"
    )


def test_it_says_its_format(told: dict[str, Any]) -> None:
    parameters = statement.compose_statement(told)["predicate"]["buildDefinition"][
        "internalParameters"
    ]
    assert parameters["format"] == formats.STATEMENT


def test_what_cannot_change_the_wheel_does_not_change_it(told: dict[str, Any]) -> None:
    again = told | {
        "seconds": {"compile": 1.0},
        "jobs": 2,
        "switches": {"USE_CUDA": "1", "MAX_JOBS": "2"},
    }
    assert statement.canonical_json(statement.compose_statement(again)) == statement.canonical_json(
        statement.compose_statement(told)
    )
    other = told | {"switches": {"USE_CUDA": "0"}}
    assert statement.canonical_json(statement.compose_statement(other)) != statement.canonical_json(
        statement.compose_statement(told)
    )


def test_its_spelling_is_canonical(told: dict[str, Any]) -> None:
    text = statement.canonical_json(statement.compose_statement(told))
    assert b"\n" not in text
    assert b": " not in text
    shuffled = json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert statement.canonical_json(shuffled) == text


def test_an_older_manifest_has_one_too(told: dict[str, Any]) -> None:
    for word in ("builder", "origins", "options"):
        del told[word]
    made = statement.compose_statement(told)
    assert made["predicate"]["runDetails"]["builder"]["id"] == statement.LOCAL_BUILDER
    assert "uri" not in depends(made)["bundled library libgomp.so.1.0.0"]


def test_the_builder_is_the_workflow_where_there_is_one(told: dict[str, Any]) -> None:
    assert statement.describe_builder({}) == {
        "id": statement.LOCAL_BUILDER,
        "torchmill": suite_version(),
    }
    assert (
        statement.describe_builder({"TORCHMILL_BUILDER": "https://me/b", **CI})["id"]
        == "https://me/b"
    )
    made = statement.compose_statement(told | {"builder": statement.describe_builder(CI)})[
        "predicate"
    ]["runDetails"]
    assert made["builder"]["id"] == f"https://github.com/{CI['GITHUB_WORKFLOW_REF']}"
    assert (
        made["metadata"]["invocationId"]
        == "https://github.com/me/wheels/actions/runs/17/attempts/2"
    )
