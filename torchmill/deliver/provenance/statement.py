"""The in-toto statement of a wheel, with SLSA's provenance: not signed, and ready to be.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchmill.deliver.provenance import materials
from torchmill.deliver.provenance.builder import LOCAL
from torchmill.deliver.provenance.materials import Material
from torchmill.keys import IRRELEVANT

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:torchmill:build:v1"  # docs/provenance.md says what its parameters are
PAYLOAD = "application/vnd.in-toto+json"  # its type in an envelope of DSSE


def compose(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of the wheel that a manifest tells of; it has no time and nothing random."""
    builder = told.get("builder", {})
    return {
        "_type": TYPE,
        "subject": [{"name": told["wheel"], "digest": {"sha256": told["sha256"]}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "identifier": told["identifier"],
                    "package": told["package"],
                    "tag": told["tag"],
                    "options": dict(told.get("options", {})),
                },
                "internalParameters": _internal(told),
                "resolvedDependencies": [_descriptor(one) for one in materials.of(told)],
            },
            "runDetails": {
                "builder": {
                    "id": builder.get("id", LOCAL),
                    "version": {"torchmill": builder.get("torchmill", "unknown")},
                },
                "metadata": {"invocationId": builder.get("invocation") or told["key"]},
            },
        },
    }


def canonical(statement: Mapping[str, Any]) -> bytes:
    """Return the one spelling of a statement, which is what an envelope of DSSE holds and signs."""
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def _internal(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the suite decided; what cannot change the wheel is left out."""
    switches = {name: value for name, value in told.get("switches", {}).items() if name not in IRRELEVANT}
    return {
        "version": told["version"],
        "switches": switches,
        "toolkit": told.get("toolkit"),
        "libraries": dict(told.get("libraries", {})),
        "torch": told.get("torch"),
    }


def _descriptor(one: Material) -> dict[str, Any]:
    """Return what in-toto calls a resource descriptor."""
    found: dict[str, Any] = {"name": one.name}
    if uri := one.uri or (one.purl.to_string() if one.purl else ""):
        found["uri"] = uri
    if one.digest:
        found["digest"] = dict(one.digest)
    found["annotations"] = {"kind": one.kind, **one.notes}
    return found
