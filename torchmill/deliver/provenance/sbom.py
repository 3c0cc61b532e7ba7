"""The bill of materials of a wheel, as CycloneDX 1.6: what is in it, what it requires, what made it."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import uuid
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from typing import Any

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Commit, Component, ComponentScope, ComponentType, Pedigree
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from torchmill.deliver.provenance import materials
from torchmill.deliver.provenance.materials import Material

ROLE, PATH, REQUIRES = "torchmill:role", "torchmill:path", "torchmill:requires"
_LONGEST = 100  # letters of a licence's name; what is longer is its text

_SERIALS = uuid.UUID("6c1d2f0e-5f0b-5a63-9d5e-8f4f7f0c3a11")  # chosen once: by it serial numbers are derived


def compose(told: Mapping[str, Any], metadata: bytes, record: bytes) -> bytes:
    """Return the SBOM of the wheel that a manifest tells of, which holds this METADATA and RECORD.

    It has no time, and its serial number follows from the wheel's digest.
    """
    headers = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
    hashes = recorded(record)
    wheel = _wheel(told, headers)
    inside = [_inside(one, hashes) for one in materials.of(told) if one.kind not in _MADE_WITH]
    required = list(_required(headers))
    made_with = [_made_with(one) for one in materials.of(told) if one.kind in _MADE_WITH]
    bom = Bom(
        serial_number=uuid.UUID(serial(told["sha256"])),
        metadata=BomMetaData(component=wheel, tools=ToolRepository(components=[_suite(told)])),
        components=[*inside, *required, *made_with],
    )
    bom.register_dependency(wheel, [*inside, *required])
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]  # the library sets one
    return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def serial(sha256: str) -> str:
    """Return the serial number of a wheel's SBOM, as a UUID."""
    return str(uuid.uuid5(_SERIALS, sha256))


def recorded(record: bytes) -> dict[str, str]:
    """Return the sha256, hexadecimal, of each file that a RECORD names."""
    found = {}
    for row in csv.reader(io.StringIO(record.decode("utf-8", "replace"))):
        name, said = (*row, "", "")[:2]
        if said.startswith("sha256="):
            text = said.removeprefix("sha256=")
            with contextlib.suppress(ValueError):  # what is none is told of RECORD, not of the SBOM
                found[name] = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
    return found


def _wheel(told: Mapping[str, Any], headers: Message) -> Component:
    name, version = headers.get("Name", told["package"]), headers.get("Version", told["version"])
    purl = PackageURL("pypi", name=name, version=version, qualifiers={"file_name": told["wheel"]})
    licence = headers.get("License-Expression") or headers.get("License") or ""
    named = licence and licence != "UNKNOWN" and "\n" not in licence and len(licence) <= _LONGEST
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=[_sha256(told["sha256"])],
        licenses=[LicenseFactory().make_from_string(licence)] if named else [],
        properties=[Property(name="torchmill:identifier", value=told["identifier"])],
    )


def _suite(told: Mapping[str, Any]) -> Component:
    version = told.get("builder", {}).get("torchmill", "unknown")
    return Component(name="torchmill", version=version, type=ComponentType.APPLICATION)


def _inside(one: Material, hashes: Mapping[str, str]) -> Component:
    """Return what the wheel was made of: it is in it, compiled or as it was."""
    if one.kind == materials.BUNDLED:
        return _bundled(one, hashes)
    commit = one.digest.get("gitCommit")
    origin = one.notes.get("origin", "").partition(" ")[0]
    links = [ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(origin))] if "://" in origin else []
    return Component(
        name=one.name,
        version=one.version or None,
        type=ComponentType.FILE if one.kind == materials.PATCH else ComponentType.LIBRARY,
        bom_ref=f"{one.kind}:{one.name}",
        purl=one.purl,
        hashes=[_sha256(one.digest["sha256"])] if "sha256" in one.digest else [],
        external_references=links,
        pedigree=Pedigree(commits=[Commit(uid=commit)]) if commit else None,
        properties=[Property(name=ROLE, value=one.kind)],
    )


def _bundled(one: Material, hashes: Mapping[str, str]) -> Component:
    """Return a library as it lies in the wheel, edited; its ancestor is what the machine had."""
    path = one.notes["path"]
    ancestor = Component(
        name=one.name, version=one.version or None, purl=one.purl, hashes=[_sha256(one.digest["sha256"])]
    )
    return Component(
        name=path.rpartition("/")[2],
        version=one.version or None,
        bom_ref=f"{one.kind}:{path}",
        hashes=[_sha256(hashes[path])] if path in hashes else [],
        pedigree=Pedigree(ancestors=[ancestor]),
        properties=[Property(name=ROLE, value=one.kind), Property(name=PATH, value=path)],
    )


def _required(headers: Message) -> Iterator[Component]:
    """Yield what pip installs beside the wheel, each with what METADATA says of it."""
    for line in sorted({" ".join(each.split()) for each in headers.get_all("Requires-Dist", [])}):
        wanted = Requirement(line)
        exact = [one.version for one in wanted.specifier if one.operator == "==" and "*" not in one.version]
        version = exact[0] if len(exact) == 1 else None
        yield Component(
            name=wanted.name,
            version=version,
            bom_ref=f"requires:{line}",
            purl=PackageURL("pypi", name=wanted.name, version=version),
            scope=ComponentScope.OPTIONAL if "extra" in str(wanted.marker) else ComponentScope.REQUIRED,
            properties=[Property(name=ROLE, value="requires"), Property(name=REQUIRES, value=line)],
        )


_MADE_WITH = {materials.TOOLKIT, materials.INTERPRETER, materials.REQUIREMENT}


def _made_with(one: Material) -> Component:
    """Return what was there when the wheel was made, and is not in it."""
    return Component(
        name=one.name,
        version=one.version or None,
        type=ComponentType.APPLICATION,
        bom_ref=f"{one.kind}:{one.name}",
        purl=one.purl,
        scope=ComponentScope.EXCLUDED,
        hashes=[_sha256(one.digest["sha256"])] if "sha256" in one.digest else [],
        properties=[Property(name=ROLE, value=one.kind)],
    )


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)
