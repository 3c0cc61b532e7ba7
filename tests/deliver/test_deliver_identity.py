"""Bundles of Sigstore: what a workflow signed is proven without a server, and each way to forge one is refused."""

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

from tests.support import told_wheels
from tests.support.commands import ROOT
from tests.support.own_sigstore import OwnSigstore
from tests.support.refusals import refused
from torchmill.commands import verify
from torchmill.core.digests import hash_file
from torchmill.core.paths import Layout
from torchmill.deliver import signature
from torchmill.wheel import dist_files

ME, ISSUER = (
    "https://github.com/me/x/.github/workflows/wheels.yml@refs/heads/main",
    "https://issuer.example",
)
Bundle = dict[str, Any]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> OwnSigstore:
    return OwnSigstore(tmp_path_factory.mktemp("sigstore"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return told_wheels.built(tmp_path_factory.mktemp("built"))


@pytest.fixture
def wheel(built: Path, own: OwnSigstore, tmp_path: Path) -> Path:
    """Return a copy of a wheel with its bundle, that a test may spoil."""
    shutil.copytree(built.parent, tmp_path / "dist")
    wheel = tmp_path / "dist" / built.name
    bundle_of(wheel).write_text(json.dumps(own.bundle(said(wheel), ME, ISSUER)))
    return wheel


def bundle_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.BUNDLE_SUFFIX)


def said(wheel: Path, *left_out: str, **fields: Any) -> bytes:
    """Return what GitHub's action says of all files beside a wheel, and of another wheel."""
    files = [
        file
        for file in (wheel, *dist_files.companion_paths(wheel)[:3])
        if file.name not in left_out
    ]
    subject = [{"name": file.name, "digest": {"sha256": hash_file(file)}} for file in files]
    subject.append({"name": "other-1.0-py3-none-any.whl", "digest": {"sha256": "0" * 64}})
    types = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://slsa.dev/provenance/v1",
    }
    build = {"buildType": "https://actions.github.io/buildtypes/workflow/v1"}
    return json.dumps(
        types | {"subject": subject, "predicate": {"buildDefinition": build}} | fields
    ).encode()


def problems(
    wheel: Path, own: OwnSigstore, identity: str = ME, issuer: str = ISSUER
) -> tuple[str, ...]:
    return signature.check_signatures(
        wheel, signature.read_identity(identity, issuer, str(own.root))
    ).problems


def test_what_a_workflow_signed_is_proven(wheel: Path, own: OwnSigstore, tmp_path: Path) -> None:
    assert problems(wheel, own) == ()
    check = signature.check_signatures(wheel, signature.Signers())
    assert check.problems == ()
    assert "by its own claim" in check.summary
    options = {"identity": ME, "issuer": ISSUER, "trusted_root": str(own.root)}
    verify.verify_wheels(Layout(tmp_path, tmp_path), [str(wheel)], **options).require()  # type: ignore[arg-type]
    dist_files.manifest_path(wheel).unlink()
    assert problems(wheel, own) == ()


@pytest.mark.parametrize(
    ("identity", "issuer"), [(ME + "2", ISSUER), (ME[:-1], ISSUER), (ME, ISSUER + "/")]
)
def test_another_identity_is_refused(
    wheel: Path, own: OwnSigstore, identity: str, issuer: str
) -> None:
    assert problems(wheel, own, identity, issuer)


def test_another_sigstore_is_refused(wheel: Path, own: OwnSigstore, tmp_path: Path) -> None:
    other = OwnSigstore(tmp_path)
    assert problems(wheel, other)
    bundle_of(wheel).write_text(json.dumps(other.bundle(said(wheel), ME, ISSUER)))
    assert problems(wheel, own)


def test_the_public_sigstore_does_not_know_ours(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the certificates and keys that come with the library."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert signature.check_signatures(wheel, signature.read_identity(ME, ISSUER)).problems


@pytest.mark.parametrize("suffix", ["", ".json", ".intoto.json", ".cdx.json"])
def test_a_changed_file_is_refused(wheel: Path, own: OwnSigstore, suffix: str) -> None:
    file = dist_files.document_path(wheel, suffix)
    file.write_bytes(file.read_bytes() + b" ")
    assert any(f"signs another {file.name}" in one for one in problems(wheel, own))


@pytest.mark.parametrize("suffix", ["", ".json", ".intoto.json", ".cdx.json"])
def test_a_file_that_was_not_signed_is_refused(wheel: Path, own: OwnSigstore, suffix: str) -> None:
    name = f"{wheel.name}{suffix}"
    bundle_of(wheel).write_text(json.dumps(own.bundle(said(wheel, name), ME, ISSUER)))
    assert any(f"does not sign {name}" in one for one in problems(wheel, own))


def material(bundle: Bundle) -> Bundle:
    return bundle["verificationMaterial"]  # type: ignore[no-any-return]


def entry(bundle: Bundle) -> Bundle:
    return material(bundle)["tlogEntries"][0]  # type: ignore[no-any-return]


def flip(where: Bundle, name: str) -> None:
    data = bytearray(b64decode(where[name]))
    data[-3] ^= 1
    where[name] = b64encode(data).decode()


FORGED: dict[
    str, Callable[[Bundle, Bundle], object]
] = {  # what spoils a bundle, given another of the same identity
    "the payload changed": lambda one, _: flip(one["dsseEnvelope"], "payload"),
    "another's payload": lambda one, other: one["dsseEnvelope"].update(
        payload=other["dsseEnvelope"]["payload"]
    ),
    "another's envelope": lambda one, other: one.update(dsseEnvelope=other["dsseEnvelope"]),
    "another type": lambda one, _: one["dsseEnvelope"].update(payloadType="application/json"),
    "the signature changed": lambda one, _: flip(one["dsseEnvelope"]["signatures"][0], "sig"),
    "another's signature": lambda one, other: one["dsseEnvelope"].update(
        signatures=other["dsseEnvelope"]["signatures"]
    ),
    "no signature": lambda one, _: one["dsseEnvelope"].update(signatures=[]),
    "no envelope": lambda one, _: one.pop("dsseEnvelope"),
    "the certificate changed": lambda one, _: flip(material(one)["certificate"], "rawBytes"),
    "another's certificate": lambda one, other: material(one).update(
        certificate=material(other)["certificate"]
    ),
    "no certificate": lambda one, _: material(one).pop("certificate"),
    "another's entry in the log": lambda one, other: material(one).update(
        tlogEntries=material(other)["tlogEntries"]
    ),
    "no entry in the log": lambda one, _: material(one).update(tlogEntries=[]),
    "the entry changed": lambda one, _: flip(entry(one), "canonicalizedBody"),
    "another time": lambda one, _: entry(one).update(integratedTime="1793500000"),
    "no promise of the log": lambda one, _: entry(one).pop("inclusionPromise"),
    "the promise changed": lambda one, _: flip(
        entry(one)["inclusionPromise"], "signedEntryTimestamp"
    ),
    "no proof of the log": lambda one, _: entry(one).pop("inclusionProof"),
    "another root of the log": lambda one, _: flip(entry(one)["inclusionProof"], "rootHash"),
    "no checkpoint": lambda one, _: entry(one)["inclusionProof"].pop("checkpoint"),
    "another checkpoint": lambda one, other: entry(one)["inclusionProof"].update(
        checkpoint=entry(other)["inclusionProof"]["checkpoint"]
    ),
    "another format": lambda one, _: one.update(
        mediaType="application/vnd.dev.sigstore.bundle.v9+json"
    ),
    "nothing": lambda one, _: one.clear(),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_bundle_is_refused(wheel: Path, own: OwnSigstore, forged: str) -> None:
    bundle = json.loads(bundle_of(wheel).read_text())
    FORGED[forged](bundle, own.bundle(said(wheel, subject=[]), ME, ISSUER))
    bundle_of(wheel).write_text(json.dumps(bundle))
    assert problems(wheel, own)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_bundle_is_refused(wheel: Path, own: OwnSigstore, content: bytes) -> None:
    bundle_of(wheel).write_bytes(content)
    assert problems(wheel, own)
    assert signature.check_signatures(wheel, signature.Signers()).problems


def test_what_was_signed_after_the_certificate_had_ended_is_refused(
    wheel: Path, own: OwnSigstore
) -> None:
    bundle_of(wheel).write_text(json.dumps(own.bundle(said(wheel), ME, ISSUER, late=601)))
    assert problems(wheel, own)


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
    wheel: Path, own: OwnSigstore, fields: dict[str, object]
) -> None:
    bundle_of(wheel).write_text(json.dumps(own.bundle(said(wheel, **fields), ME, ISSUER)))
    assert problems(wheel, own)


def test_a_missing_bundle_is_refused_and_an_envelope_is_no_bundle(
    wheel: Path, own: OwnSigstore
) -> None:
    bundle = json.loads(bundle_of(wheel).read_text())
    bundle_of(wheel).unlink()
    assert problems(wheel, own)
    bundle_of(wheel).write_text(json.dumps(bundle["dsseEnvelope"]))
    assert problems(wheel, own)


def test_options_that_are_none_are_refused(own: OwnSigstore, tmp_path: Path) -> None:
    for identity, issuer in (("", ISSUER), (ME, ""), ("", "")):
        with refused("incomplete-identity"):
            signature.read_identity(identity, issuer, str(own.root))
    (tmp_path / "root.json").write_text("{}")
    for root in ("root.json", "absent.json"):
        with refused("invalid-key"):
            signature.read_identity(ME, ISSUER, str(tmp_path / root))


@pytest.fixture
def attested(wheel: Path, own: OwnSigstore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a wheel beside which the job `attest` laid what an index calls provenance."""
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/x")
    monkeypatch.setenv(
        "GITHUB_WORKFLOW_REF", "me/x/.github/workflows/wheels.yml@refs/heads/one@two/x.yml"
    )
    write_provenance(wheel, own.bundle(attests(wheel), ME, ISSUER))
    return wheel


def attests(*wheels: Path, name: str = "") -> bytes:
    subject = [{"name": name or one.name, "digest": {"sha256": hash_file(one)}} for one in wheels]
    types = {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://docs.pypi.org/attestations/publish/v1",
    }
    return json.dumps(types | {"subject": subject, "predicate": None}).encode()


def provenance_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.PROVENANCE_SUFFIX)


def write_provenance(wheel: Path, bundle: Bundle) -> None:
    """Write it as pypi-attestations and the workflow's own program do."""
    attestation = Attestation.from_bundle(SigstoreBundle.from_json(json.dumps(bundle)))
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    program = workflow.partition("jq '")[2].partition("'")[0]
    provenance_of(wheel).write_text(
        jq.compile(program).input_text(attestation.model_dump_json()).text()
    )


def test_what_the_workflow_attests_is_a_provenance_object_and_proven(
    attested: Path, own: OwnSigstore
) -> None:
    (bundle,) = Provenance.model_validate_json(
        provenance_of(attested).read_bytes()
    ).attestation_bundles
    assert bundle.publisher == GitHubPublisher(repository="me/x", workflow="wheels.yml")
    assert problems(attested, own) == ()
    assert signature.check_signatures(attested, signature.Signers()).problems == ()


def test_what_another_attests_is_not_proven(attested: Path, own: OwnSigstore) -> None:
    write_provenance(attested, own.bundle(attests(attested), ME + "2", ISSUER))
    assert signature.check_signatures(attested, signature.Signers()).problems == ()
    (problem,) = problems(attested, own)
    assert provenance_of(attested).name in problem


@pytest.mark.parametrize(
    "name", sorted(FORGED.keys() - {"another type"})
)  # which an attestation does not say
def test_each_way_to_forge_an_attestation_is_refused(
    name: str, attested: Path, own: OwnSigstore
) -> None:
    one, other = (own.bundle(attests(attested) + end, ME, ISSUER) for end in (b"", b" "))
    FORGED[name](one, other)
    try:
        write_provenance(attested, one)
    except Exception:  # noqa: BLE001 - of what cannot even be said as an attestation, there is none
        return
    assert problems(attested, own)


def test_an_attestation_of_another_wheel_is_refused_by_everybody(
    attested: Path, own: OwnSigstore
) -> None:
    other = attested.with_name("other-1.0-py3-none-any.whl")
    other.write_bytes(b"other")
    for payload in (
        attests(other),
        attests(other, name=attested.name),
        attests(attested, other),
        attests(),
    ):
        write_provenance(attested, own.bundle(payload, ME, ISSUER))
        for signers in (signature.Signers(), signature.read_identity(ME, ISSUER, str(own.root))):
            (problem,) = signature.check_signatures(attested, signers).problems
            assert problem == f"{provenance_of(attested).name} is not for {attested.name} alone"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"attestation_bundles": 1}', '{"attestation_bundles": [{}]}']
)
def test_what_is_no_provenance_object_is_refused(text: str, attested: Path) -> None:
    provenance_of(attested).write_text(text)
    (problem,) = signature.check_signatures(attested, signature.Signers()).problems
    assert "is not to be trusted" in problem
