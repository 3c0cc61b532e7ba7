"""The SBOM of a wheel, validated by CycloneDX's own schema."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from millpress import record_file

from tests.support import documented_wheels
from torchmill.wheel import sbom, sbom_vulnerabilities


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return documented_wheels.built(tmp_path)


def compose(wheel: Path, **changes: Any) -> dict[str, Any]:
    """Return the SBOM beside a wheel, for its manifest with changes."""
    manifest = documented_wheels.manifest(wheel) | changes
    metadata = record_file.read_dist_info_file(wheel, "METADATA")
    assert metadata
    digests = record_file.recorded_digests(wheel)
    document: dict[str, Any] = json.loads(sbom.compose_sbom(manifest, metadata, digests))
    return document


def components(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {component["bom-ref"]: component for component in document["components"]}


def test_an_sbom_is_valid_by_the_official_schema(wheel: Path) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(compose(wheel))) is None
    assert validator.validate_str(json.dumps(compose(wheel) | {"made up": 1})) is not None


def test_an_sbom_is_about_the_wheel(wheel: Path) -> None:
    subject = compose(wheel)["metadata"]["component"]
    assert subject["purl"].startswith(
        "pkg:pypi/tinytorch@1.13.1%2Bcu117?file_name=tinytorch-1.13.1%2Bcu117-"
    )
    assert subject["hashes"] == [
        {"alg": "SHA-256", "content": documented_wheels.manifest(wheel)["sha256"]}
    ]


def test_an_sbom_names_the_contents_of_the_wheel(wheel: Path) -> None:
    by_reference = components(compose(wheel))
    source = by_reference["source:tinytorch"]
    assert source["purl"] == f"pkg:github/pytorch/pytorch@{documented_wheels.COMMIT}"
    assert source["pedigree"]["commits"] == [{"uid": documented_wheels.COMMIT}]
    assert by_reference["submodule:third_party/fmt"]["version"] == documented_wheels.FMT
    assert by_reference["patch:torch/gcc-12.patch"]["type"] == "file"


def test_a_bundled_library_is_the_file_in_the_wheel_and_comes_from_a_package(wheel: Path) -> None:
    library = components(compose(wheel))[f"bundled library:{documented_wheels.BUNDLED}"]
    record = record_file.recorded_digests(wheel)
    assert [entry["content"] for entry in library["hashes"]] == [record[documented_wheels.BUNDLED]]
    (ancestor,) = library["pedigree"]["ancestors"]
    assert (ancestor["purl"], ancestor["version"]) == (documented_wheels.GOMP, "12.2.0-14+deb12u1")
    assert [entry["content"] for entry in ancestor["hashes"]] == ["aa" * 32]


def test_requirements_count_as_required_and_build_tools_do_not(wheel: Path) -> None:
    document = compose(wheel)
    by_reference = components(document)
    assert by_reference["requires:typing-extensions"]["scope"] == "required"
    assert by_reference["requires:opt-einsum>=3.3 ; extra == 'opt'"]["scope"] == "optional"
    assert by_reference["requirement:cmake==3.27.9"]["scope"] == "excluded"
    assert by_reference["toolkit:cuda"]["scope"] == "excluded"
    subject = document["metadata"]["component"]["bom-ref"]
    dependencies = {entry["ref"]: entry.get("dependsOn") for entry in document["dependencies"]}
    assert f"bundled library:{documented_wheels.BUNDLED}" in dependencies[subject]
    assert "requirement:cmake==3.27.9" not in dependencies[subject]


def test_a_requirement_that_cannot_be_parsed_is_left_out(wheel: Path) -> None:
    manifest = documented_wheels.manifest(wheel)
    metadata = record_file.read_dist_info_file(wheel, "METADATA")
    assert metadata
    odd = metadata.replace(
        b"Requires-Dist: typing-extensions",
        b"Requires-Dist: typing-extensions\nRequires-Dist: a (>dev)",
    )
    assert odd != metadata
    assert sbom.compose_sbom(manifest, odd, {}) == sbom.compose_sbom(manifest, metadata, {})


def test_the_same_wheel_has_the_same_sbom_at_any_time(wheel: Path) -> None:
    document = compose(wheel)
    assert document == compose(wheel, seconds={"compile": 1.0}, jobs=1)
    assert "timestamp" not in document["metadata"]
    assert uuid.UUID(document["serialNumber"]).version == 5
    assert document["serialNumber"] != compose(wheel, sha256="dd" * 32)["serialNumber"]
    # The environments of the session and of the tree can have different versions of a project.
    twice = {"requirements": ["cmake==3.27.9", "cmake==3.31.0"]}
    assert compose(wheel, **twice) == compose(wheel, **twice)


def compose_inner(**changes: Any) -> dict[str, Any]:
    """Return the SBOM in a wheel, for its manifest with changes."""
    manifest = documented_wheels.manifest(Path("nowhere") / documented_wheels.WHEEL) | changes
    digests = {documented_wheels.BUNDLED: "ee" * 32}
    document: dict[str, Any] = json.loads(sbom.compose_inner_sbom(manifest, METADATA, digests))
    return document


METADATA = b"Metadata-Version: 2.1\nName: tinytorch\nVersion: 1.13.1+cu117\nLicense: BSD-3-Clause\n"


def test_the_inner_sbom_is_valid_and_names_only_the_contents() -> None:
    document = compose_inner()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    subject = document["metadata"]["component"]
    assert "hashes" not in subject
    assert subject["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    kinds = {reference.partition(":")[0] for reference in components(document)}
    assert kinds == {"source", "submodule", "patch", "bundled library", "static library"}


def test_components_have_their_licences_and_the_files_of_these() -> None:
    by_reference = components(compose_inner())
    fmt = by_reference["submodule:third_party/fmt"]
    gomp = by_reference[f"bundled library:{documented_wheels.BUNDLED}"]
    assert fmt["licenses"] == [{"license": {"id": "MIT"}}]
    assert licence_files(fmt) == ["licenses/bundled/third_party/fmt/LICENSE"]
    assert "licenses" not in gomp
    assert licence_files(gomp) == ["licenses/bundled/libgomp1/copyright"]


def licence_files(component: dict[str, Any]) -> list[str]:
    properties = component["properties"]
    return [entry["value"] for entry in properties if entry["name"] == sbom.LICENCE_PROPERTY]


def test_the_inner_sbom_does_not_depend_on_the_place_of_the_source_and_the_tools() -> None:
    document = compose_inner()
    assert document["serialNumber"] == sbom.serial_number(document, None)
    elsewhere = {
        "source": "file:///mirror/pytorch.git",
        "requirements": [],
        "tools": {},
        "sha256": "0" * 64,
        "key": "",
    }
    assert document == compose_inner(**elsewhere)
    assert (
        components(document)["source:tinytorch"]["purl"]
        == f"pkg:github/pytorch/pytorch@{documented_wheels.COMMIT}"
    )
    other = compose_inner(repository="", commit="0" * 40)
    assert components(other)["source:tinytorch"]["purl"] == f"pkg:generic/tinytorch@{'0' * 40}"
    assert other["serialNumber"] != document["serialNumber"]


def test_a_source_without_a_proven_commit_leads_to_no_repository(tmp_path: Path) -> None:
    wheel = documented_wheels.built(tmp_path)
    unproven = {
        "commit": None,
        "commit_declared": documented_wheels.COMMIT,
        "unproven": "x",
        "contents": "cc" * 32,
    }
    origin = {"repository": "", "source": "https://a.example/t.tar.gz (x)"}
    manifest = documented_wheels.manifest(wheel) | unproven | origin
    metadata = record_file.read_dist_info_file(wheel, "METADATA") or b""
    for content in (
        sbom.compose_sbom(manifest, metadata, {}),
        sbom.compose_inner_sbom(manifest, metadata, {}),
    ):
        source = components(json.loads(content))["source:tinytorch"]
        assert source["purl"] == "pkg:generic/tinytorch@v1.13.1"
        assert "pedigree" not in source
        links = [link["type"] for link in source.get("externalReferences", [])]
        assert links in ([], ["source-distribution"])
        properties = {entry["name"]: entry["value"] for entry in source["properties"]}
        assert properties[sbom.CAVEAT_PROPERTY].startswith("not proven to be any commit")
        assert properties[sbom.CONTENTS_PROPERTY] == "cc" * 32


def known(state: str, **changes: Any) -> dict[str, Any]:
    """Return an entry of a manifest's known vulnerabilities."""
    entry = {
        "id": "CVE-2025-32434",
        "aliases": ["PYSEC-2025-41"],
        "title": "a file runs code",
        "severity": "critical",
        "kind": "code execution",
        "part": "",
        "state": state,
        "because": "proven on 2026-12-01",
        "patches": ["torch/gcc-12.patch"] if state == "fixed by a patch" else [],
        "proven": None,
        "fixed": "2.6.0",
        "disputed": "",
        "disagreement": "",
        "commits": [],
        "sources": ["https://example.org/1"],
    }
    return entry | changes


STATES = {
    "affected": "exploitable",
    "fixed by a patch": "resolved_with_pedigree",
    "not affected": "not_affected",
    "cannot tell": "in_triage",
}


@pytest.mark.parametrize("state", STATES)
def test_an_sbom_says_in_which_state_a_vulnerability_is(wheel: Path, state: str) -> None:
    document = compose(wheel, vulnerabilities=[known(state)])
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    (entry,) = document["vulnerabilities"]
    assert (entry["id"], entry["analysis"]["state"]) == ("CVE-2025-32434", STATES[state])
    assert entry["affects"] == [{"ref": document["metadata"]["component"]["bom-ref"]}]
    assert list(sbom_vulnerabilities.statement_problems(document)) == []
    assert sbom_vulnerabilities.count_states(document) == f"1 {STATES[state]}"


def test_a_fix_is_in_the_pedigree_of_the_wheel(wheel: Path) -> None:
    document = compose(wheel, vulnerabilities=[known("fixed by a patch")])
    (patch,) = document["metadata"]["component"]["pedigree"]["patches"]
    assert (patch["type"], patch["resolves"][0]["id"]) == ("backport", "CVE-2025-32434")


def test_the_inner_sbom_says_only_what_follows_from_the_contents(wheel: Path) -> None:
    """What else is known depends on the day, and wheels of the same contents are the same."""
    other = known("affected", id="CVE-2000-1")
    manifest = documented_wheels.manifest(wheel) | {
        "vulnerabilities": [known("fixed by a patch"), other]
    }
    metadata = record_file.read_dist_info_file(wheel, "METADATA")
    assert metadata
    content = sbom.compose_inner_sbom(manifest, metadata, {documented_wheels.BUNDLED: "aa" * 32})
    assert [entry["id"] for entry in json.loads(content)["vulnerabilities"]] == ["CVE-2025-32434"]
    later = manifest | {"vulnerabilities": [known("fixed by a patch")]}
    digests = {documented_wheels.BUNDLED: "aa" * 32}
    assert sbom.compose_inner_sbom(later, metadata, digests) == content


def test_a_fix_without_its_patch_is_a_problem(wheel: Path) -> None:
    absent = known("fixed by a patch", patches=["torch/absent.patch"])
    document = compose(wheel, vulnerabilities=[absent])
    (problem,) = sbom_vulnerabilities.statement_problems(document)
    assert "torch/absent.patch" in problem
    (problem,) = sbom_vulnerabilities.statement_problems(
        compose(wheel, vulnerabilities=[known("fixed by a patch", patches=[])])
    )
    assert "no patch" in problem


def test_a_slim_wheel_has_the_statements_and_the_patches_of_its_original(wheel: Path) -> None:
    original = {"wheel": "big.whl", "version": "1.13.1", "sha256": "ee" * 32}
    entries = [known("fixed by a patch")]
    document = compose(wheel, original=original, vulnerabilities=entries)
    assert sbom_vulnerabilities.count_states(document) == "1 resolved_with_pedigree"
    assert list(sbom_vulnerabilities.statement_problems(document)) == []
