"""The statement of a wheel: its contents, its canonical form, and that in-toto's library reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from tests.support import documented_wheels
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
def manifest(tmp_path: Path) -> dict[str, Any]:
    return documented_wheels.manifest(documented_wheels.built(tmp_path))


def materials(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the materials in a statement, by their kind and name."""
    by_name = {}
    for material in document["predicate"]["buildDefinition"]["resolvedDependencies"]:
        by_name[f"{material['annotations']['kind']} {material['name']}"] = material
    return by_name


def canonical_statement(manifest: dict[str, Any]) -> bytes:
    return statement.canonical_json(statement.compose_statement(manifest))


def test_the_library_of_in_toto_reads_a_statement(manifest: dict[str, Any]) -> None:
    text = canonical_statement(manifest).decode()
    read = json_format.Parse(text, statement_pb2.Statement())
    Statement.copy_from_pb(read).validate()
    predicate = json_format.MessageToJson(read.predicate)
    # This refuses fields that SLSA's schema does not have.
    slsa = json_format.Parse(predicate, provenance_pb2.Provenance())
    assert slsa.build_definition.build_type == statement.BUILD_TYPE
    assert slsa.build_definition.external_parameters["tag"] == "v1.13.1"
    assert slsa.run_details.builder.id == statement.LOCAL_BUILDER
    assert len(slsa.build_definition.resolved_dependencies) == 12


def test_the_subject_is_the_wheel_by_name_and_digest(manifest: dict[str, Any]) -> None:
    document = statement.compose_statement(manifest)
    assert document["subject"] == [
        {"name": manifest["wheel"], "digest": {"sha256": manifest["sha256"]}}
    ]
    assert (document["_type"], document["predicateType"]) == (
        statement.STATEMENT_TYPE,
        statement.PREDICATE_TYPE,
    )


def test_a_statement_names_all_materials(manifest: dict[str, Any]) -> None:
    by_name = materials(statement.compose_statement(manifest))
    assert (
        by_name["source tinytorch"]["uri"] == "git+https://github.com/pytorch/pytorch.git@v1.13.1"
    )
    assert by_name["source tinytorch"]["digest"] == {"gitCommit": documented_wheels.COMMIT}
    assert by_name["submodule third_party/fmt"]["digest"] == {"gitCommit": documented_wheels.FMT}
    assert by_name["patch torch/gcc-12.patch"]["digest"] == {"sha256": documented_wheels.PATCH}
    assert by_name["toolkit cuda"]["uri"] == "pkg:generic/cuda@11.7"
    assert by_name["toolkit cudnn"]["uri"] == "pkg:generic/cudnn@8.5.0.96"
    assert by_name["interpreter python3.10"]["digest"] == {"sha256": "bb" * 32}
    assert by_name["requirement numpy"]["uri"] == "pkg:pypi/numpy@1.26.4"
    library = by_name["bundled library libgomp.so.1.0.0"]
    assert (library["uri"], library["digest"]) == (documented_wheels.GOMP, {"sha256": "aa" * 32})


@pytest.mark.parametrize(
    ("origin", "archive", "declared"),
    [
        ("/home/me/x.tar.gz", "de" * 32, documented_wheels.COMMIT),
        ("Debian's pytorch 1.13.1+dfsg-4 (repacked)", "de" * 32, None),
        (f"/home/me/x (sha256 {'bb' * 32})", None, None),
        ("https://github.com/pytorch/pytorch.git (main)", None, documented_wheels.COMMIT),
    ],
    ids=["archive", "Debian", "folder with a digest in its name", "branch"],
)
def test_a_source_without_a_proven_commit_has_a_digest_of_its_contents(
    manifest: dict[str, Any], origin: str, archive: str | None, declared: str | None
) -> None:
    contents = "cc" * 32
    unproven = {
        "commit": None,
        "commit_verified": False,
        "commit_declared": declared,
        "unproven": "nothing proves it",
    }
    document = statement.compose_statement(
        manifest | unproven | {"source": origin, "archive": archive, "contents": contents}
    )
    source = materials(document)["source tinytorch"]
    assert source["digest"] == {"sha256": archive or contents}
    assert source["uri"] == "pkg:generic/tinytorch@v1.13.1"
    assert source["annotations"]["origin"] == origin
    assert source["annotations"]["commit proven"] == "no"
    assert source["annotations"]["contents sha256"] == contents
    assert source["annotations"]["caveat"].startswith(
        "not proven to be any commit: nothing proves it"
    )
    assert "gitCommit" not in source["digest"]


def test_a_submodule_without_a_proven_commit_has_no_digest(manifest: dict[str, Any]) -> None:
    document = statement.compose_statement(manifest | {"submodules": {"third_party/fmt": ""}})
    submodule = materials(document)["submodule third_party/fmt"]
    assert "digest" not in submodule
    assert submodule["annotations"]["caveat"] == "no commit is proven"


def test_local_edits_are_named_and_doubt_the_source(manifest: dict[str, Any]) -> None:
    by_name = materials(statement.compose_statement(manifest | {"edits": {"setup.py": "ee" * 32}}))
    assert by_name["local edit setup.py"]["digest"] == {"sha256": "ee" * 32}
    assert (
        by_name["source tinytorch"]["annotations"]["caveat"]
        == "changed after it was fetched: setup.py"
    )


def test_a_statement_has_its_format(manifest: dict[str, Any]) -> None:
    definition = statement.compose_statement(manifest)["predicate"]["buildDefinition"]
    parameters = definition["internalParameters"]
    assert parameters["format"] == formats.STATEMENT


def test_facts_that_cannot_change_the_wheel_do_not_change_its_statement(
    manifest: dict[str, Any],
) -> None:
    again = manifest | {
        "seconds": {"compile": 1.0},
        "jobs": 2,
        "switches": {"USE_CUDA": "1", "MAX_JOBS": "2"},
    }
    assert canonical_statement(again) == canonical_statement(manifest)
    other = manifest | {"switches": {"USE_CUDA": "0"}}
    assert canonical_statement(other) != canonical_statement(manifest)


def test_a_statement_is_written_in_canonical_form(manifest: dict[str, Any]) -> None:
    text = canonical_statement(manifest)
    assert b"\n" not in text
    assert b": " not in text
    shuffled = json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert statement.canonical_json(shuffled) == text


def test_a_statement_follows_from_an_older_manifest_too(manifest: dict[str, Any]) -> None:
    for word in ("builder", "origins", "options"):
        del manifest[word]
    document = statement.compose_statement(manifest)
    assert document["predicate"]["runDetails"]["builder"]["id"] == statement.LOCAL_BUILDER
    assert "uri" not in materials(document)["bundled library libgomp.so.1.0.0"]


def test_the_builder_is_the_workflow_if_there_is_one(manifest: dict[str, Any]) -> None:
    assert statement.describe_builder({}) == {
        "id": statement.LOCAL_BUILDER,
        "torchmill": suite_version(),
    }
    assert (
        statement.describe_builder({"TORCHMILL_BUILDER": "https://me/b", **CI})["id"]
        == "https://me/b"
    )
    document = statement.compose_statement(manifest | {"builder": statement.describe_builder(CI)})
    details = document["predicate"]["runDetails"]
    assert details["builder"]["id"] == f"https://github.com/{CI['GITHUB_WORKFLOW_REF']}"
    invocation = "https://github.com/me/wheels/actions/runs/17/attempts/2"
    assert details["metadata"]["invocationId"] == invocation
