"""The SBOMs of a wheel, as CycloneDX 1.6.

One is in the wheel and lists its contents, and the packages that its METADATA requires. The other is
beside it, and also lists the tools that the wheel was built with.
"""

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

from torchmill.wheel import sbom_vulnerabilities, statement
from torchmill.wheel.statement import Material

# Names of properties.
ROLE_PROPERTY = "torchmill:role"
PATH_PROPERTY = "torchmill:path"
REQUIRES_PROPERTY = "torchmill:requires"
CAVEAT_PROPERTY = "torchmill:caveat"
CONTENTS_PROPERTY = "torchmill:contents-sha256"
LICENCE_PROPERTY = "torchmill:licence-file"  # below .dist-info
IDENTIFIER_PROPERTY = "torchmill:identifier"

INNER_PATH = "sboms/torchmill.cdx.json"  # below .dist-info (PEP 770)
_LONGEST_LICENCE_CHARACTERS = 100  # a longer `License` is the licence's text, not its name
# Keys of the manifest that differ between two builds of the same wheel.
_BUILD_KEYS = {
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
    """Return the SBOM of the wheel that a manifest describes.

    `metadata` is its METADATA, `digests` are the hexadecimal sha256 of its files, by their paths in
    RECORD. The document has no time, and its serial number follows from the wheel's digest. Without
    that digest in the manifest, it follows from the document.
    """
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    wheel = _wheel_component(manifest, headers)
    licences = manifest.get("licences", {})
    materials = []
    for material in statement.list_materials(manifest):
        component = _material_component(material, digests)
        licence = licences.get(component.bom_ref.value)
        if licence:
            component.licenses = _parse_licence(licence["licence"])
            for file in licence["files"]:
                component.properties.add(Property(name=LICENCE_PROPERTY, value=file))
        materials.append(component)
    contents = [component for component in materials if component.scope != ComponentScope.EXCLUDED]
    required = list(_required_components(headers))
    suite = Component(
        name="torchmill",
        version=manifest.get("builder", {}).get("torchmill"),
        type=ComponentType.APPLICATION,
        bom_ref="torchmill",
    )
    known = manifest.get("vulnerabilities", ())
    bom = Bom(
        metadata=BomMetaData(component=wheel, tools=ToolRepository(components=[suite])),
        components=[*materials, *required],
        vulnerabilities=sbom_vulnerabilities.make_statements(known, str(wheel.bom_ref.value)),
    )
    bom.register_dependency(wheel, [*contents, *required])
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]  # cyclonedx sets it to the present time
    document["serialNumber"] = serial_number(document, manifest.get("sha256"))
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False)
    return f"{text}\n".encode()


def compose_inner_sbom(
    manifest: Mapping[str, Any], metadata: bytes, digests: Mapping[str, str]
) -> bytes:
    """Return the SBOM that a wheel contains, of its contents and not of the tools that built it.

    It lists the requirements in `metadata`, too, which is the wheel's METADATA. `digests` are the
    hexadecimal sha256 of the bundled libraries, by path. The SBOM does not have the digest of
    the wheel, because that digest depends on the SBOM. Of the vulnerabilities it has those alone
    that a patch fixes.
    """
    inner_manifest = {name: manifest[name] for name in manifest if name not in _BUILD_KEYS}
    # Not the place that the source was fetched from (a mirror, a folder): two builds of the same
    # commit give the same wheel. The repository is known if the commit is proven to be the
    # release's.
    inner_manifest["source"] = manifest.get("repository", "")
    # Of the known vulnerabilities only those that a patch fixes: what else is known depends on the
    # day, and two builds of the same contents must not differ by it.
    known = manifest.get("vulnerabilities", ())
    fixed = [entry for entry in known if entry["state"] == sbom_vulnerabilities.FIXED]
    inner_manifest["vulnerabilities"] = fixed
    return compose_sbom(inner_manifest, metadata, digests)


def serial_number(document: Mapping[str, Any], sha256: str | None) -> str:
    """Return the serial number of an SBOM: "urn:uuid:…".

    It follows from the wheel's digest, `sha256`, or if that is None from the document itself.
    """
    seed = sha256
    if not seed:
        seed = json.dumps({**document, "serialNumber": ""}, sort_keys=True)
    return uuid.uuid5(_SERIAL_NAMESPACE, seed).urn


def _wheel_component(manifest: Mapping[str, Any], headers: Message) -> Component:
    """Return the component of the wheel itself; `headers` are those of METADATA."""
    name = headers.get("Name", manifest["package"])
    version = headers.get("Version", manifest["version"])
    qualifiers = {"file_name": manifest["wheel"]} if "wheel" in manifest else None
    purl = PackageURL("pypi", name=name, version=version, qualifiers=qualifiers)
    licence = headers.get("License-Expression") or headers.get("License") or ""
    is_text = "\n" in licence or len(licence) > _LONGEST_LICENCE_CHARACTERS
    if is_text or licence == "UNKNOWN":
        licence = ""
    patches = list(sbom_vulnerabilities.backported_patches(manifest.get("vulnerabilities", ())))
    properties = []
    if "identifier" in manifest:
        properties.append(Property(name=IDENTIFIER_PROPERTY, value=manifest["identifier"]))
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=_sha256_hashes(manifest.get("sha256")),
        licenses=_parse_licence(licence),
        pedigree=Pedigree(patches=patches) if patches else None,
        properties=properties,
    )


def _parse_licence(name: str) -> list[License]:
    return [LicenseFactory().make_from_string(name)] if name else []


def _material_component(material: Material, digests: Mapping[str, str]) -> Component:
    """Return a material that is in the wheel, compiled or unchanged, or a tool of its build."""
    if material.kind == statement.BUNDLED_KIND:
        return _bundled_component(material, digests)
    kind = ComponentType.LIBRARY
    scope = None
    if material.kind in _BUILD_TOOL_KINDS:
        kind = ComponentType.APPLICATION
        scope = ComponentScope.EXCLUDED
    elif material.kind in {statement.PATCH_KIND, statement.EDIT_KIND}:
        kind = ComponentType.FILE
    # cyclonedx replaces equal references by random ones, which would differ in every build; and two
    # requirements can have the same name.
    reference = f"{material.kind}:{material.name}"
    if material.kind == statement.REQUIREMENT_KIND:
        reference += f"=={material.version}"
    commit = material.digest.get("gitCommit")
    return Component(
        name=material.name,
        version=material.version or None,
        type=kind,
        bom_ref=reference,
        purl=material.purl,
        scope=scope,
        hashes=_sha256_hashes(material.digest.get("sha256")),
        external_references=_source_links(material),
        pedigree=Pedigree(commits=[Commit(uid=commit)]) if commit else None,
        properties=[Property(name=ROLE_PROPERTY, value=material.kind), *_caveats(material)],
    )


def _source_links(material: Material) -> list[ExternalReference]:
    """Return the address of a source: a repository if its commit is proven, else an archive."""
    origin = material.notes.get("origin", "").partition(" ")[0]
    if "://" not in origin:
        return []
    kind = ExternalReferenceType.SOURCE_DISTRIBUTION
    if "gitCommit" in material.digest:
        kind = ExternalReferenceType.VCS
    return [ExternalReference(type=kind, url=XsUri(origin))]


def _caveats(material: Material) -> Iterator[Property]:
    """Yield what was not proven of a material, and the digest of its contents instead."""
    for name, note in ((CAVEAT_PROPERTY, statement.CAVEAT), (CONTENTS_PROPERTY, "contents sha256")):
        if note in material.notes:
            yield Property(name=name, value=material.notes[note])


def _bundled_component(material: Material, digests: Mapping[str, str]) -> Component:
    """Return a bundled library as the wheel has it, edited; its ancestor is the machine's file."""
    path = material.notes["path"]
    version = material.version or None
    ancestor = Component(
        name=material.name,
        version=version,
        purl=material.purl,
        hashes=_sha256_hashes(material.digest["sha256"]),
    )
    return Component(
        name=path.rpartition("/")[2],
        version=version,
        bom_ref=f"{material.kind}:{path}",
        hashes=_sha256_hashes(digests.get(path)),
        pedigree=Pedigree(ancestors=[ancestor]),
        properties=[
            Property(name=ROLE_PROPERTY, value=material.kind),
            Property(name=PATH_PROPERTY, value=path),
        ],
    )


def _required_components(headers: Message) -> Iterator[Component]:
    """Yield the requirements in METADATA, which pip installs with the wheel."""
    lines = {" ".join(line.split()) for line in headers.get_all("Requires-Dist", [])}
    for line in sorted(lines):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # old setuptools wrote some that pip does not install either
            continue
        version = _exact_version(requirement)
        is_optional = "extra" in str(requirement.marker)
        yield Component(
            name=requirement.name,
            version=version,
            bom_ref=f"requires:{line}",
            purl=PackageURL("pypi", name=requirement.name, version=version),
            scope=ComponentScope.OPTIONAL if is_optional else ComponentScope.REQUIRED,
            properties=[
                Property(name=ROLE_PROPERTY, value="requires"),
                Property(name=REQUIRES_PROPERTY, value=line),
            ],
        )


def _exact_version(requirement: Requirement) -> str | None:
    """Return the only version that a requirement allows; None if it allows several."""
    versions = [
        clause.version
        for clause in requirement.specifier
        if clause.operator == "==" and "*" not in clause.version
    ]
    return versions[0] if len(versions) == 1 else None


def _sha256_hashes(digest: str | None) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest is not None else []
