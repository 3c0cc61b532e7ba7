"""The SBOMs of a wheel, as CycloneDX 1.6: what is in it and, beside it, what it requires and was built with."""

import json
import uuid
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Commit, Component, ComponentScope, ComponentType, Pedigree
from cyclonedx.model.license import License
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement

from torchmill.wheel import statement

ROLE_PROPERTY, PATH_PROPERTY, REQUIRES_PROPERTY = (
    "torchmill:role",
    "torchmill:path",
    "torchmill:requires",
)
CAVEAT_PROPERTY, CONTENTS_PROPERTY = "torchmill:caveat", "torchmill:contents-sha256"
_LONGEST_LICENCE_CHARACTERS = 100  # a longer `License` is the licence's text, not its name
LICENCE_PROPERTY = "torchmill:licence-file"  # below .dist-info
INNER_PATH = "sboms/torchmill.cdx.json"  # below .dist-info (PEP 770)
_OF_THE_BUILD = {
    "wheel",
    "sha256",
    "identifier",
    "builder",
    "requirements",
    "tools",
    "toolkit",
    "libraries",
}
# Chosen once at random; serial numbers derive from it.
_SERIAL_NAMESPACE = uuid.UUID("6c1d2f0e-5f0b-5a63-9d5e-8f4f7f0c3a11")
_BUILD_TOOL_KINDS = {statement.TOOLKIT_KIND, statement.INTERPRETER_KIND, statement.REQUIREMENT_KIND}


def compose_sbom(manifest: Mapping[str, Any], metadata: bytes, digests: Mapping[str, str]) -> bytes:
    """Return the SBOM of the wheel that a manifest describes, with this METADATA and these digests in its RECORD.

    It names no time, and its serial number follows from the wheel's digest.
    """
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    wheel = _wheel_component(manifest, headers)
    materials = [_material_component(each, digests) for each in statement.list_materials(manifest)]
    for each in materials:
        if told := manifest.get("licences", {}).get(each.bom_ref.value):
            each.licenses = _licences(told["licence"])
            each.properties |= {
                Property(name=LICENCE_PROPERTY, value=file) for file in told["files"]
            }
    inside = [each for each in materials if each.scope != ComponentScope.EXCLUDED]
    required = list(_required_components(headers))
    version = manifest.get("builder", {}).get("torchmill")
    suite = Component(
        name="torchmill", version=version, type=ComponentType.APPLICATION, bom_ref="torchmill"
    )
    bom = Bom(
        metadata=BomMetaData(component=wheel, tools=ToolRepository(components=[suite])),
        components=[*materials, *required],
    )
    bom.register_dependency(wheel, [*inside, *required])
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]  # the library sets one
    document["serialNumber"] = serial_number(document, manifest.get("sha256"))
    return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def compose_inner_sbom(
    manifest: Mapping[str, Any], metadata: bytes, digests: Mapping[str, str]
) -> bytes:
    """Return the SBOM that a wheel contains, with the digests of bundled libraries: what is in it, not what built it.

    It cannot know the digest of the wheel, which covers it. It is the same wherever the source was fetched from:
    where that is the release's own, the manifest names the `repository` that has it.
    """
    inside = {name: value for name, value in manifest.items() if name not in _OF_THE_BUILD}
    return compose_sbom(inside | {"source": manifest.get("repository", "")}, metadata, digests)


def serial_number(document: Mapping[str, Any], sha256: str | None) -> str:
    """Return the serial number that follows from the digest of the wheel, or else from all that a document says."""
    return uuid.uuid5(
        _SERIAL_NAMESPACE, sha256 or json.dumps({**document, "serialNumber": ""}, sort_keys=True)
    ).urn


def _wheel_component(manifest: Mapping[str, Any], headers: Message) -> Component:
    name, version = (
        headers.get("Name", manifest["package"]),
        headers.get("Version", manifest["version"]),
    )
    file = {"file_name": manifest["wheel"]} if "wheel" in manifest else None
    purl = PackageURL("pypi", name=name, version=version, qualifiers=file)
    licence = headers.get("License-Expression") or headers.get("License") or ""
    is_text = "\n" in licence or len(licence) > _LONGEST_LICENCE_CHARACTERS
    identifier = [manifest["identifier"]] if "identifier" in manifest else []
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=_sha256_hashes(manifest.get("sha256")),
        licenses=_licences("" if is_text or licence == "UNKNOWN" else licence),
        properties=[Property(name="torchmill:identifier", value=one) for one in identifier],
    )


def _licences(named: str) -> list[License]:
    return [LicenseFactory().make_from_string(named)] if named else []


def _material_component(material: statement.Material, hashes: Mapping[str, str]) -> Component:
    """Return a material: in the wheel, compiled or unchanged, or only what it was built with."""
    if material.kind == statement.BUNDLED_KIND:
        return _bundled_component(material, hashes)
    is_tool, commit = material.kind in _BUILD_TOOL_KINDS, material.digest.get("gitCommit")
    is_file = material.kind in {statement.PATCH_KIND, statement.EDIT_KIND}
    kind = ComponentType.FILE if is_file else ComponentType.LIBRARY
    name = (
        f"{material.name}=={material.version}"
        if material.kind == statement.REQUIREMENT_KIND
        else material.name
    )
    return Component(
        name=material.name,
        version=material.version or None,
        type=ComponentType.APPLICATION if is_tool else kind,
        bom_ref=f"{material.kind}:{name}",  # where two are equal, the library takes random ones
        purl=material.purl,
        scope=ComponentScope.EXCLUDED if is_tool else None,
        hashes=_sha256_hashes(material.digest.get("sha256")),
        external_references=_source_links(material),
        pedigree=Pedigree(commits=[Commit(uid=commit)]) if commit else None,
        properties=[Property(name=ROLE_PROPERTY, value=material.kind), *_reservations(material)],
    )


def _source_links(material: statement.Material) -> list[ExternalReference]:
    """Return where a source came from: a repository if its commit is proven, else no more than an archive."""
    origin = material.notes.get("origin", "").partition(" ")[0]
    kind = ExternalReferenceType.VCS
    if "gitCommit" not in material.digest:
        kind = ExternalReferenceType.SOURCE_DISTRIBUTION
    return [ExternalReference(type=kind, url=XsUri(origin))] if "://" in origin else []


def _reservations(material: statement.Material) -> Iterator[Property]:
    """Yield what was not proven of a material, and the digest of what it held instead."""
    for name, note in ((CAVEAT_PROPERTY, statement.CAVEAT), (CONTENTS_PROPERTY, "contents sha256")):
        if note in material.notes:
            yield Property(name=name, value=material.notes[note])


def _bundled_component(material: statement.Material, hashes: Mapping[str, str]) -> Component:
    """Return a bundled library as the wheel has it, edited; its ancestor is the machine's."""
    path, version = material.notes["path"], material.version or None
    digest = _sha256_hashes(material.digest["sha256"])
    ancestor = Component(name=material.name, version=version, purl=material.purl, hashes=digest)
    return Component(
        name=path.rpartition("/")[2],
        version=version,
        bom_ref=f"{material.kind}:{path}",
        hashes=_sha256_hashes(hashes.get(path)),
        pedigree=Pedigree(ancestors=[ancestor]),
        properties=[
            Property(name=ROLE_PROPERTY, value=material.kind),
            Property(name=PATH_PROPERTY, value=path),
        ],
    )


def _required_components(headers: Message) -> Iterator[Component]:
    """Yield the requirements in METADATA, which pip installs with the wheel."""
    for line in sorted({" ".join(each.split()) for each in headers.get_all("Requires-Dist", [])}):
        try:
            requirement = Requirement(line)
        except (
            InvalidRequirement
        ):  # old setuptools wrote some that nothing parses any more, nor does pip install them
            continue
        equal = (clause.version for clause in requirement.specifier if clause.operator == "==")
        exact = [version for version in equal if "*" not in version]
        version = exact[0] if len(exact) == 1 else None
        yield Component(
            name=requirement.name,
            version=version,
            bom_ref=f"requires:{line}",
            purl=PackageURL("pypi", name=requirement.name, version=version),
            scope=ComponentScope.OPTIONAL
            if "extra" in str(requirement.marker)
            else ComponentScope.REQUIRED,
            properties=[
                Property(name=ROLE_PROPERTY, value="requires"),
                Property(name=REQUIRES_PROPERTY, value=line),
            ],
        )


def _sha256_hashes(digest: str | None) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest is not None else []
