"""Sigstore bundles: a signature is proven without a server, and forged ones are refused."""

import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jq  # type: ignore[import-not-found]
import pytest
from pypi_attestations import Attestation, GitHubPublisher, Provenance
from sigstore.models import Bundle as SigstoreBundle

from tests.support import documented_wheels
from tests.support.commands import ROOT
from tests.support.own_sigstore import OwnSigstore
from tests.support.refusals import refused
from torchmill.commands import verify
from torchmill.core.digests import hash_file
from torchmill.core.paths import Layout
from torchmill.deliver import signature
from torchmill.wheel import dist_files

ME = "https://github.com/me/x/.github/workflows/wheels.yml@refs/heads/main"
ISSUER = "https://issuer.example"
Bundle = dict[str, Any]


@pytest.fixture(scope="module")
def sigstore(tmp_path_factory: pytest.TempPathFactory) -> OwnSigstore:
    return OwnSigstore(tmp_path_factory.mktemp("sigstore"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documented_wheels.built(tmp_path_factory.mktemp("built"))


@pytest.fixture
def wheel(built: Path, sigstore: OwnSigstore, tmp_path: Path) -> Path:
    """Return a copy of a wheel with its bundle, for a test to damage."""
    shutil.copytree(built.parent, tmp_path / "dist")
    wheel = tmp_path / "dist" / built.name
    bundle_of(wheel).write_text(json.dumps(sigstore.bundle(statement_of(wheel), ME, ISSUER)))
    return wheel


def bundle_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.BUNDLE_SUFFIX)


def statement_of(wheel: Path, *excluded: str, **fields: Any) -> bytes:
    """Return the statement of GitHub's action about a wheel, its documents and another wheel."""
    files = (wheel, *dist_files.companion_paths(wheel)[:3])
    subject = [
        {"name": file.name, "digest": {"sha256": hash_file(file)}}
        for file in files
        if file.name not in excluded
    ]
    subject.append({"name": "other-1.0-py3-none-any.whl", "digest": {"sha256": "0" * 64}})
    build = {"buildType": "https://actions.github.io/buildtypes/workflow/v1"}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://slsa.dev/provenance/v1",
        "subject": subject,
        "predicate": {"buildDefinition": build},
    }
    return json.dumps(statement | fields).encode()


def problems(
    wheel: Path, sigstore: OwnSigstore, identity: str = ME, issuer: str = ISSUER
) -> tuple[str, ...]:
    signers = signature.read_identity(identity, issuer, str(sigstore.root))
    return signature.check_signatures(wheel, signers).problems


def test_the_signature_of_a_workflow_is_proven(
    wheel: Path, sigstore: OwnSigstore, tmp_path: Path
) -> None:
    assert problems(wheel, sigstore) == ()
    check = signature.check_signatures(wheel, signature.Signers())
    assert check.problems == ()
    assert "by its own claim" in check.summary
    options = {"identity": ME, "issuer": ISSUER, "trusted_root": str(sigstore.root)}
    verify.verify_wheels(Layout(tmp_path, tmp_path), wheel=[str(wheel)], **options).require()  # type: ignore[arg-type]
    dist_files.manifest_path(wheel).unlink()
    assert problems(wheel, sigstore) == ()


@pytest.mark.parametrize(
    ("identity", "issuer"), [(ME + "2", ISSUER), (ME[:-1], ISSUER), (ME, ISSUER + "/")]
)
def test_another_identity_is_refused(
    wheel: Path, sigstore: OwnSigstore, identity: str, issuer: str
) -> None:
    assert problems(wheel, sigstore, identity, issuer)


def test_another_sigstore_is_refused(wheel: Path, sigstore: OwnSigstore, tmp_path: Path) -> None:
    other = OwnSigstore(tmp_path)
    assert problems(wheel, other)
    bundle_of(wheel).write_text(json.dumps(other.bundle(statement_of(wheel), ME, ISSUER)))
    assert problems(wheel, sigstore)


def test_the_public_sigstore_does_not_know_ours(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its certificates and keys come with the library."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert signature.check_signatures(wheel, signature.read_identity(ME, ISSUER)).problems


@pytest.mark.parametrize("suffix", ["", ".json", ".intoto.json", ".cdx.json"])
def test_a_changed_file_is_refused(wheel: Path, sigstore: OwnSigstore, suffix: str) -> None:
    file = dist_files.document_path(wheel, suffix)
    file.write_bytes(file.read_bytes() + b" ")
    assert any(f"signs another {file.name}" in text for text in problems(wheel, sigstore))


@pytest.mark.parametrize("suffix", ["", ".json", ".intoto.json", ".cdx.json"])
def test_a_file_that_was_not_signed_is_refused(
    wheel: Path, sigstore: OwnSigstore, suffix: str
) -> None:
    name = f"{wheel.name}{suffix}"
    bundle_of(wheel).write_text(json.dumps(sigstore.bundle(statement_of(wheel, name), ME, ISSUER)))
    assert any(f"does not sign {name}" in text for text in problems(wheel, sigstore))


def material(bundle: Bundle) -> Bundle:
    return bundle["verificationMaterial"]  # type: ignore[no-any-return]


def entry(bundle: Bundle) -> Bundle:
    return material(bundle)["tlogEntries"][0]  # type: ignore[no-any-return]


def flip(object_: Bundle, name: str) -> None:
    """Change a bit in a base64 field."""
    data = bytearray(b64decode(object_[name]))
    data[-3] ^= 1
    object_[name] = b64encode(data).decode()


def replace_in_envelope(field: str) -> Callable[[Bundle, Bundle], object]:
    """Return a forgery that takes a field of the envelope from the other bundle."""

    def forge(bundle: Bundle, other: Bundle) -> None:
        bundle["dsseEnvelope"][field] = other["dsseEnvelope"][field]

    return forge


def replace_in_material(field: str) -> Callable[[Bundle, Bundle], object]:
    """Return a forgery that takes a field of the verification material from the other bundle."""

    def forge(bundle: Bundle, other: Bundle) -> None:
        material(bundle)[field] = material(other)[field]

    return forge


def replace_checkpoint(bundle: Bundle, other: Bundle) -> None:
    checkpoint = entry(other)["inclusionProof"]["checkpoint"]
    entry(bundle)["inclusionProof"]["checkpoint"] = checkpoint


# Each forges a bundle; the second argument is another bundle of the same identity.
FORGERIES: dict[str, Callable[[Bundle, Bundle], object]] = {
    "the payload changed": lambda bundle, _: flip(bundle["dsseEnvelope"], "payload"),
    "another's payload": replace_in_envelope("payload"),
    "another's envelope": lambda bundle, other: bundle.update(dsseEnvelope=other["dsseEnvelope"]),
    "another type": lambda bundle, _: bundle["dsseEnvelope"].update(payloadType="application/json"),
    "the signature changed": lambda bundle, _: flip(bundle["dsseEnvelope"]["signatures"][0], "sig"),
    "another's signature": replace_in_envelope("signatures"),
    "no signature": lambda bundle, _: bundle["dsseEnvelope"].update(signatures=[]),
    "no envelope": lambda bundle, _: bundle.pop("dsseEnvelope"),
    "the certificate changed": lambda bundle, _: flip(material(bundle)["certificate"], "rawBytes"),
    "another's certificate": replace_in_material("certificate"),
    "no certificate": lambda bundle, _: material(bundle).pop("certificate"),
    "another's entry in the log": replace_in_material("tlogEntries"),
    "no entry in the log": lambda bundle, _: material(bundle).update(tlogEntries=[]),
    "the entry changed": lambda bundle, _: flip(entry(bundle), "canonicalizedBody"),
    "another time": lambda bundle, _: entry(bundle).update(integratedTime="1793500000"),
    "no promise of the log": lambda bundle, _: entry(bundle).pop("inclusionPromise"),
    "the promise changed": lambda bundle, _: flip(
        entry(bundle)["inclusionPromise"], "signedEntryTimestamp"
    ),
    "no proof of the log": lambda bundle, _: entry(bundle).pop("inclusionProof"),
    "another root of the log": lambda bundle, _: flip(entry(bundle)["inclusionProof"], "rootHash"),
    "no checkpoint": lambda bundle, _: entry(bundle)["inclusionProof"].pop("checkpoint"),
    "another checkpoint": replace_checkpoint,
    "another format": lambda bundle, _: bundle.update(
        mediaType="application/vnd.dev.sigstore.bundle.v9+json"
    ),
    "nothing": lambda bundle, _: bundle.clear(),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_bundle_is_refused(wheel: Path, sigstore: OwnSigstore, name: str) -> None:
    bundle = json.loads(bundle_of(wheel).read_text())
    FORGERIES[name](bundle, sigstore.bundle(statement_of(wheel, subject=[]), ME, ISSUER))
    bundle_of(wheel).write_text(json.dumps(bundle))
    assert problems(wheel, sigstore)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_bundle_is_refused(
    wheel: Path, sigstore: OwnSigstore, content: bytes
) -> None:
    bundle_of(wheel).write_bytes(content)
    assert problems(wheel, sigstore)
    assert signature.check_signatures(wheel, signature.Signers()).problems


def test_a_signature_after_the_end_of_the_certificate_is_refused(
    wheel: Path, sigstore: OwnSigstore
) -> None:
    bundle_of(wheel).write_text(
        json.dumps(sigstore.bundle(statement_of(wheel), ME, ISSUER, late=601))
    )
    assert problems(wheel, sigstore)


@pytest.mark.parametrize(
    "fields",
    [
        {"predicateType": "https://example.org/withdrawn"},
        {"_type": "x"},
        {"subject": []},
        {"subject": 7},
    ],
)
def test_another_statement_of_the_same_workflow_is_refused(
    wheel: Path, sigstore: OwnSigstore, fields: dict[str, object]
) -> None:
    bundle_of(wheel).write_text(
        json.dumps(sigstore.bundle(statement_of(wheel, **fields), ME, ISSUER))
    )
    assert problems(wheel, sigstore)


def test_a_missing_bundle_is_refused_and_an_envelope_is_no_bundle(
    wheel: Path, sigstore: OwnSigstore
) -> None:
    bundle = json.loads(bundle_of(wheel).read_text())
    bundle_of(wheel).unlink()
    assert problems(wheel, sigstore)
    bundle_of(wheel).write_text(json.dumps(bundle["dsseEnvelope"]))
    assert problems(wheel, sigstore)


def test_incomplete_identities_and_invalid_roots_are_refused(
    sigstore: OwnSigstore, tmp_path: Path
) -> None:
    for identity, issuer in (("", ISSUER), (ME, ""), ("", "")):
        with refused("incomplete-identity"):
            signature.read_identity(identity, issuer, str(sigstore.root))
    (tmp_path / "root.json").write_text("{}")
    for root in ("root.json", "absent.json"):
        with refused("invalid-key"):
            signature.read_identity(ME, ISSUER, str(tmp_path / root))


@pytest.fixture
def attested(wheel: Path, sigstore: OwnSigstore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a wheel with a provenance object, as the job `attest` writes it."""
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/x")
    monkeypatch.setenv(
        "GITHUB_WORKFLOW_REF", "me/x/.github/workflows/wheels.yml@refs/heads/one@two/x.yml"
    )
    write_provenance(wheel, sigstore.bundle(attestation_of(wheel), ME, ISSUER))
    return wheel


def attestation_of(*wheels: Path, name: str = "") -> bytes:
    """Return a statement about wheels, as pypi-attestations writes it for one."""
    subject = [
        {"name": name or wheel.name, "digest": {"sha256": hash_file(wheel)}} for wheel in wheels
    ]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://docs.pypi.org/attestations/publish/v1",
        "subject": subject,
        "predicate": None,
    }
    return json.dumps(statement).encode()


def provenance_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.PROVENANCE_SUFFIX)


def write_provenance(wheel: Path, bundle: Bundle) -> None:
    """Write a provenance object as pypi-attestations and the workflow's own program do."""
    attestation = Attestation.from_bundle(SigstoreBundle.from_json(json.dumps(bundle)))
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    program = workflow.partition("jq '")[2].partition("'")[0]
    provenance_of(wheel).write_text(
        jq.compile(program).input_text(attestation.model_dump_json()).text()
    )


def test_the_attestation_of_the_workflow_is_a_valid_provenance_object(
    attested: Path, sigstore: OwnSigstore
) -> None:
    provenance = Provenance.model_validate_json(provenance_of(attested).read_bytes())
    (bundle,) = provenance.attestation_bundles
    assert bundle.publisher == GitHubPublisher(repository="me/x", workflow="wheels.yml")
    assert problems(attested, sigstore) == ()
    assert signature.check_signatures(attested, signature.Signers()).problems == ()


def test_an_attestation_of_another_identity_is_not_proven(
    attested: Path, sigstore: OwnSigstore
) -> None:
    write_provenance(attested, sigstore.bundle(attestation_of(attested), ME + "2", ISSUER))
    assert signature.check_signatures(attested, signature.Signers()).problems == ()
    (problem,) = problems(attested, sigstore)
    assert provenance_of(attested).name in problem


# An attestation has no field for the type of its payload.
@pytest.mark.parametrize("name", sorted(FORGERIES.keys() - {"another type"}))
def test_a_forged_attestation_is_refused(name: str, attested: Path, sigstore: OwnSigstore) -> None:
    bundle = sigstore.bundle(attestation_of(attested), ME, ISSUER)
    other = sigstore.bundle(attestation_of(attested) + b" ", ME, ISSUER)
    FORGERIES[name](bundle, other)
    try:
        write_provenance(attested, bundle)
    except Exception:  # noqa: BLE001 - a bundle that cannot even become an attestation
        return
    assert problems(attested, sigstore)


def test_an_attestation_of_another_wheel_is_always_refused(
    attested: Path, sigstore: OwnSigstore
) -> None:
    other = attested.with_name("other-1.0-py3-none-any.whl")
    other.write_bytes(b"other")
    for payload in (
        attestation_of(other),
        attestation_of(other, name=attested.name),
        attestation_of(attested, other),
        attestation_of(),
    ):
        write_provenance(attested, sigstore.bundle(payload, ME, ISSUER))
        identity = signature.read_identity(ME, ISSUER, str(sigstore.root))
        for signers in (signature.Signers(), identity):
            (problem,) = signature.check_signatures(attested, signers).problems
            assert problem == f"{provenance_of(attested).name} is not for {attested.name} alone"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"attestation_bundles": 1}', '{"attestation_bundles": [{}]}']
)
def test_an_invalid_provenance_object_is_refused(text: str, attested: Path) -> None:
    provenance_of(attested).write_text(text)
    (problem,) = signature.check_signatures(attested, signature.Signers()).problems
    assert "is not to be trusted" in problem
