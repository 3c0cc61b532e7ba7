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

from tests.support import told_wheels
from torchmill.wheel import sbom


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return told_wheels.built(tmp_path)


def composed(wheel: Path, **said: Any) -> dict[str, Any]:
    told = told_wheels.manifest(wheel) | said
    metadata = record_file.read_described(wheel, "METADATA")
    assert metadata
    found: dict[str, Any] = json.loads(
        sbom.compose_sbom(told, metadata, record_file.recorded_digests(wheel))
    )
    return found


def components(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["bom-ref"]: one for one in made["components"]}


def test_it_is_valid_by_the_official_schema(wheel: Path) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(composed(wheel))) is None
    assert validator.validate_str(json.dumps(composed(wheel) | {"made up": 1})) is not None


def test_it_is_about_the_wheel(wheel: Path) -> None:
    about = composed(wheel)["metadata"]["component"]
    assert about["purl"].startswith(
        "pkg:pypi/tinytorch@1.13.1%2Bcu117?file_name=tinytorch-1.13.1%2Bcu117-"
    )
    assert about["hashes"] == [{"alg": "SHA-256", "content": told_wheels.manifest(wheel)["sha256"]}]


def test_it_names_what_is_in_the_wheel(wheel: Path) -> None:
    found = components(composed(wheel))
    source = found["source:tinytorch"]
    assert source["purl"] == f"pkg:github/pytorch/pytorch@{told_wheels.COMMIT}"
    assert source["pedigree"]["commits"] == [{"uid": told_wheels.COMMIT}]
    assert found["submodule:third_party/fmt"]["version"] == told_wheels.FMT
    assert found["patch:torch/gcc-12.patch"]["type"] == "file"


def test_a_bundled_library_is_the_file_in_the_wheel_and_comes_from_a_package(wheel: Path) -> None:
    library = components(composed(wheel))[f"bundled library:{told_wheels.BUNDLED}"]
    record = record_file.recorded_digests(wheel)
    assert [one["content"] for one in library["hashes"]] == [record[told_wheels.BUNDLED]]
    (ancestor,) = library["pedigree"]["ancestors"]
    assert (ancestor["purl"], ancestor["version"]) == (told_wheels.GOMP, "12.2.0-14+deb12u1")
    assert [one["content"] for one in ancestor["hashes"]] == ["aa" * 32]


def test_what_pip_installs_beside_it_is_required_and_what_built_it_is_not(wheel: Path) -> None:
    made = composed(wheel)
    found = components(made)
    assert found["requires:typing-extensions"]["scope"] == "required"
    assert found["requires:opt-einsum>=3.3 ; extra == 'opt'"]["scope"] == "optional"
    assert {found[name]["scope"] for name in ("requirement:cmake==3.27.9", "toolkit:cuda")} == {
        "excluded"
    }
    about = made["metadata"]["component"]["bom-ref"]
    needed = next(one["dependsOn"] for one in made["dependencies"] if one["ref"] == about)
    assert f"bundled library:{told_wheels.BUNDLED}" in needed
    assert "requirement:cmake==3.27.9" not in needed


def test_a_requirement_that_nothing_parses_is_left_out(wheel: Path) -> None:
    told, metadata = told_wheels.manifest(wheel), record_file.read_described(wheel, "METADATA")
    assert metadata
    odd = metadata.replace(
        b"Requires-Dist: typing-extensions",
        b"Requires-Dist: typing-extensions\nRequires-Dist: a (>dev)",
    )
    assert odd != metadata
    assert sbom.compose_sbom(told, odd, {}) == sbom.compose_sbom(told, metadata, {})


def test_the_same_wheel_has_the_same_one_at_any_time(wheel: Path) -> None:
    made = composed(wheel)
    assert made == composed(wheel, seconds={"compile": 1.0}, jobs=1)
    assert "timestamp" not in made["metadata"]
    assert uuid.UUID(made["serialNumber"]).version == 5
    assert made["serialNumber"] != composed(wheel, sha256="dd" * 32)["serialNumber"]
    twice = {
        "requirements": ["cmake==3.27.9", "cmake==3.31.0"]
    }  # in the session's environment, and in the tree's
    assert composed(wheel, **twice) == composed(wheel, **twice)


def inner(**said: Any) -> dict[str, Any]:
    told = told_wheels.manifest(Path("nowhere") / told_wheels.WHEEL) | said
    found: dict[str, Any] = json.loads(
        sbom.compose_inner_sbom(told, METADATA, {told_wheels.BUNDLED: "ee" * 32})
    )
    return found


METADATA = b"Metadata-Version: 2.1\nName: tinytorch\nVersion: 1.13.1+cu117\nLicense: BSD-3-Clause\n"


def test_the_one_in_the_wheel_is_valid_and_names_what_is_in_it_alone() -> None:
    made = inner()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(made)) is None
    about = made["metadata"]["component"]
    assert "hashes" not in about
    assert about["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    kinds = {one["bom-ref"].partition(":")[0] for one in made["components"]}
    assert kinds == {"source", "submodule", "patch", "bundled library", "static library"}


def test_it_tells_the_licences_and_where_their_texts_are() -> None:
    found = components(inner())
    fmt, gomp = found["submodule:third_party/fmt"], found[f"bundled library:{told_wheels.BUNDLED}"]
    assert fmt["licenses"] == [{"license": {"id": "MIT"}}]
    files = [one["value"] for one in fmt["properties"] if one["name"] == sbom.LICENCE_PROPERTY]
    assert files == ["licenses/bundled/third_party/fmt/LICENSE"]
    assert "licenses" not in gomp
    assert {"name": sbom.LICENCE_PROPERTY, "value": "licenses/bundled/libgomp1/copyright"} in gomp[
        "properties"
    ]


def test_it_is_the_same_wherever_the_source_came_from_and_whatever_built_it() -> None:
    made = inner()
    assert made["serialNumber"] == sbom.serial_number(made, None)
    elsewhere = {
        "source": "file:///mirror/pytorch.git",
        "requirements": [],
        "tools": {},
        "sha256": "0" * 64,
        "key": "",
    }
    assert made == inner(**elsewhere)
    assert (
        components(made)["source:tinytorch"]["purl"]
        == f"pkg:github/pytorch/pytorch@{told_wheels.COMMIT}"
    )
    other = inner(repository="", commit="0" * 40)
    assert components(other)["source:tinytorch"]["purl"] == f"pkg:generic/tinytorch@{'0' * 40}"
    assert other["serialNumber"] != made["serialNumber"]


def test_a_source_without_a_proven_commit_leads_to_no_repository(tmp_path: Path) -> None:
    wheel = told_wheels.built(tmp_path)
    unproven = {
        "commit": None,
        "commit_declared": told_wheels.COMMIT,
        "unproven": "x",
        "contents": "cc" * 32,
    }
    told = (
        told_wheels.manifest(wheel)
        | unproven
        | {"repository": "", "source": "https://a.example/t.tar.gz (x)"}
    )
    metadata = record_file.read_described(wheel, "METADATA") or b""
    for content in (
        sbom.compose_sbom(told, metadata, {}),
        sbom.compose_inner_sbom(told, metadata, {}),
    ):
        (source,) = (
            one for one in json.loads(content)["components"] if one["bom-ref"] == "source:tinytorch"
        )
        assert source["purl"] == "pkg:generic/tinytorch@v1.13.1"
        assert "pedigree" not in source
        assert [one["type"] for one in source.get("externalReferences", [])] in (
            [],
            ["source-distribution"],
        )
        said = {one["name"]: one["value"] for one in source["properties"]}
        assert said[sbom.CAVEAT_PROPERTY].startswith("not proven to be any commit")
        assert said[sbom.CONTENTS_PROPERTY] == "cc" * 32
