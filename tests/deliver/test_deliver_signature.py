"""Signed deliveries: a genuine one is proven, also by other tools, and forged ones are refused."""

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from press_support import written_wheels
from securesystemslib.dsse import Envelope

from tests.deliver.test_deliver_agreement import TAMPERED, UNREADABLE, edit, sbom_of, statement_of
from tests.support import commands, documented_wheels
from tests.support.openssl import make_key, openssl, public_of
from tests.support.refusals import refused
from torchmill.commands.index import write_index
from torchmill.commands.publish import publish_wheels
from torchmill.config.facts import Facts
from torchmill.core.errors import DeliveryError
from torchmill.core.paths import Layout
from torchmill.deliver import agreement, signature
from torchmill.deliver.publish import upload_set
from torchmill.wheel import dist_files
from torchmill.wheel.statement import canonical_json

TYPE = "application/vnd.in-toto+json"
PASSPHRASE = "open sesame"  # noqa: S105 - of a key that is made for the tests


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with keys: ours, another's, an encrypted one, and keys of other kinds."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "other"):
        make_key(folder, name)
    make_key(folder, "locked", passphrase=PASSPHRASE)
    for kind in ("p256", "p384", "p521", "secp256k1", "rsa", "x25519"):
        make_key(folder, kind, kind)
    openssl(
        "req",
        "-x509",
        "-key",
        folder / "ours.pem",
        "-subj",
        "/CN=me",
        "-out",
        folder / "certificate.pem",
    )
    openssl("pkey", "-in", folder / "ours.pem", "-outform", "DER", "-out", folder / "binary.pem")
    (folder / "text.pem").write_text("a key\n")
    (folder / "empty.pem").write_text("")
    (folder / "folder.pem").mkdir()
    lines = (folder / "p256.pem").read_text().splitlines(keepends=True)
    (folder / "truncated.pem").write_text("".join(lines[:-2]))
    return folder


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    wheel = documented_wheels.built(tmp_path_factory.mktemp("signed"))
    signature.sign_wheel(wheel, signature.read_signer(str(keys / "ours.pem"), {}))
    return wheel


@pytest.fixture
def wheel(signed: Path, tmp_path: Path) -> Path:
    """Return a copy of the signed wheel and its documents, for a test to damage."""
    shutil.copytree(signed.parent, tmp_path / "dist")
    return tmp_path / "dist" / signed.name


def envelope_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.ENVELOPE_SUFFIX)


def problems(wheel: Path, keys: Path, *names: str) -> tuple[str, ...]:
    """Return the problems with the signature if one of some keys, by default ours, is required."""
    files = [str(keys / f"{name}.pub.pem") for name in names or ("ours",)]
    signers = signature.read_public_keys(files)
    return signature.check_signatures(wheel, signers).problems


def pae(payload: bytes, kind: str = TYPE) -> bytes:
    """Return the bytes that DSSE signs for a payload, by its specification."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def sign(private: Path, content: bytes) -> bytes:
    """Return the signature of some bytes by an ed25519 key."""
    file = private.with_suffix(".content")
    file.write_bytes(content)
    return openssl("pkeyutl", "-sign", "-inkey", private, "-rawin", "-in", file)


def test_a_genuine_delivery_is_proven(signed: Path, keys: Path) -> None:
    assert problems(signed, keys) == ()
    assert problems(signed, keys, "other", "ours") == (), "one of several keys is enough"
    assert problems(signed, keys, "other"), "but it must be one of them"
    der = openssl("pkey", "-pubin", "-in", keys / "ours.pub.pem", "-outform", "DER")
    (entry,) = json.loads(envelope_of(signed).read_text())["signatures"]
    assert openssl("dgst", "-sha256", "-r", given=der).decode().split()[0] == entry["keyid"]
    assert agreement.examine_wheel(signed).problems == ()


@pytest.mark.parametrize("kind", ["ours", "p256", "p384", "p521", "locked"])
def test_other_programs_verify_the_envelope(
    wheel: Path, keys: Path, tmp_path: Path, kind: str
) -> None:
    environ = {signature.PASSPHRASE_VARIABLE: PASSPHRASE}
    signer = signature.read_signer(str(keys / f"{kind}.pem"), environ)
    envelope_of(wheel).unlink()
    signature.sign_wheel(wheel, signer)
    assert problems(wheel, keys, kind) == ()
    envelope = json.loads(envelope_of(wheel).read_text())
    payload = base64.b64decode(envelope["payload"])
    (entry,) = envelope["signatures"]
    signed_file = tmp_path / "pae"
    signed_file.write_bytes(pae(payload, envelope["payloadType"]))
    signature_file = tmp_path / "sig"
    signature_file.write_bytes(base64.b64decode(entry["sig"]))
    public = keys / f"{kind}.pub.pem"
    if kind.startswith("p"):
        digest = {"p256": "-sha256", "p384": "-sha384", "p521": "-sha512"}[kind]
        options = ("-verify", public, "-signature", signature_file)
        assert b"Verified OK" in openssl("dgst", digest, *options, signed_file)
    else:
        inputs = ("-in", signed_file, "-sigfile", signature_file)
        answer = openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", *inputs)
        assert b"Verified Successfully" in answer
    accepted = Envelope.from_dict(envelope).verify([signer.public_key], 1)
    assert accepted, "by the rules of securesystemslib itself"


def test_the_payload_is_the_statement_with_all_files_as_subjects(signed: Path) -> None:
    envelope = json.loads(envelope_of(signed).read_text())
    payload = json.loads(base64.b64decode(envelope["payload"]))
    statement = json.loads(statement_of(signed).read_text())
    subjects = {subject["name"] for subject in payload.pop("subject")}
    suffixes = ("", ".json", ".intoto.json", ".cdx.json")
    assert subjects == {f"{signed.name}{suffix}" for suffix in suffixes}
    statement.pop("subject")
    assert payload == statement


def test_only_the_manifest_may_be_missing(wheel: Path, keys: Path) -> None:
    dist_files.manifest_path(wheel).unlink()
    assert problems(wheel, keys) == ()
    for file in (sbom_of(wheel), statement_of(wheel)):
        content = file.read_bytes()
        file.unlink()
        assert problems(wheel, keys), file
        file.write_bytes(content)


@pytest.mark.parametrize(("file", "change", "_"), TAMPERED)
def test_a_changed_document_is_refused(
    wheel: Path,
    keys: Path,
    file: Callable[[Path], Path],
    change: Callable[[dict[str, Any]], object],
    _: str,
) -> None:
    edit(file(wheel), change)
    assert any(file(wheel).name in problem for problem in problems(wheel, keys))
    assert signature.check_signatures(wheel, signature.Signers()).problems, "it does not even fit"


@pytest.mark.parametrize("file", [dist_files.manifest_path, statement_of, sbom_of, envelope_of])
@pytest.mark.parametrize("content", [content for content, _ in UNREADABLE.values()], ids=UNREADABLE)
def test_an_unreadable_file_is_refused(
    wheel: Path, keys: Path, file: Callable[[Path], Path], content: bytes
) -> None:
    file(wheel).write_bytes(content)
    assert problems(wheel, keys)


@dataclass(frozen=True)
class Forger:
    """The means of a forger: a delivery, its envelope, and everything that our key signed.

    A test may sign with our private key only what we would have signed.
    """

    wheel: Path
    keys: Path
    envelope: dict[str, Any]

    @property
    def payload(self) -> bytes:
        return base64.b64decode(self.envelope["payload"])

    @property
    def entry(self) -> dict[str, Any]:
        """Return the only signature of the envelope."""
        return dict(self.envelope["signatures"][0])

    def signed_by(
        self, name: str, payload: bytes, kind: str = TYPE, *, keyid: str = ""
    ) -> dict[str, Any]:
        """Return an envelope of a payload with the signature of a key."""
        sig = base64.b64encode(sign(self.keys / f"{name}.pem", pae(payload, kind))).decode()
        text = base64.b64encode(payload).decode()
        return {"payload": text, "payloadType": kind, "signatures": [{"keyid": keyid, "sig": sig}]}

    def signed_by_us(self, **fields: Any) -> dict[str, Any]:
        """Return an envelope of the payload with other fields, signed with our key."""
        return self.signed_by("ours", self.statement(**fields))

    def statement(self, **fields: Any) -> bytes:
        """Return the payload with other fields."""
        return canonical_json(json.loads(self.payload) | fields)

    def with_fields(self, **fields: Any) -> dict[str, Any]:
        """Return the envelope with other fields."""
        return self.envelope | fields

    def with_signature(self, **fields: Any) -> dict[str, Any]:
        """Return the envelope whose signature has other fields."""
        return self.with_fields(signatures=[self.entry | fields])

    def without(self, field: str) -> dict[str, Any]:
        """Return the envelope without a field."""
        return {name: value for name, value in self.envelope.items() if name != field}

    def signed_elsewhere(self) -> dict[str, Any]:
        """Return the envelope of another wheel that we signed."""
        other = documented_wheels.built(self.wheel.parent / "other", "1.13.1+cpu")
        signature.sign_wheel(other, signature.read_signer(str(self.keys / "ours.pem"), {}))
        return dict(json.loads(envelope_of(other).read_text()))

    def with_digest(self, suffix: str) -> dict[str, Any]:
        """Return an envelope, signed by us, in which the file with a suffix has another digest."""
        subjects = json.loads(self.payload)["subject"]
        for subject in subjects:
            if subject["name"] == f"{self.wheel.name}{suffix}":
                subject["digest"]["sha256"] = "0" * 64
        return self.signed_by_us(subject=subjects)

    def without_subject(self, suffix: str) -> dict[str, Any]:
        """Return an envelope, signed by us, without the file with a suffix."""
        name = f"{self.wheel.name}{suffix}"
        subjects = json.loads(self.payload)["subject"]
        return self.signed_by_us(subject=[entry for entry in subjects if entry["name"] != name])


@pytest.mark.parametrize(
    "suffix", [".json", ".intoto.json", ".cdx.json", ".intoto.jsonl", ".sigstore.json"]
)
def test_a_pipe_in_the_place_of_a_file_is_not_read(wheel: Path, keys: Path, suffix: str) -> None:
    file = wheel.with_name(wheel.name + suffix)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    all_problems = (*agreement.examine_wheel(wheel).problems, *problems(wheel, keys))
    text = "\n".join(all_problems)
    assert "not a file" in text or "is missing" in text, text


def flipped(text: str) -> str:
    """Return a base64 text with one bit changed."""
    data = bytearray(base64.b64decode(text))
    data[5] ^= 1
    return base64.b64encode(data).decode()


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_an_envelope_may_be_written_in_the_alphabet_of_urls(wheel: Path, keys: Path) -> None:
    envelope = json.loads(envelope_of(wheel).read_text())
    (entry,) = envelope["signatures"]
    for fields, name in ((envelope, "payload"), (entry, "sig")):
        fields[name] = base64.urlsafe_b64encode(base64.b64decode(fields[name])).decode()
    if {"-", "_"}.isdisjoint(envelope["payload"] + entry["sig"]):
        pytest.skip("this signature has none of the characters in which the alphabets differ")
    envelope_of(wheel).write_text(json.dumps(envelope))
    assert problems(wheel, keys) == ()


def forge_twice(forger: Forger) -> dict[str, Any]:
    envelope = forger.signed_by("other", forger.payload)
    envelope["signatures"] *= 2
    return envelope


def forge_two_signatures(forger: Forger) -> dict[str, Any]:
    envelope = forger.signed_by("other", forger.payload)
    envelope["signatures"].append({"keyid": "x", "sig": flipped(forger.entry["sig"])})
    return envelope


FORGERIES: dict[str, Callable[[Forger], object]] = {
    "by another's key": lambda forger: forger.signed_by("other", forger.payload),
    "by another's key in our name": lambda forger: forger.signed_by(
        "other", forger.payload, keyid=forger.entry["keyid"]
    ),
    "by another's key, twice": forge_twice,
    "two signatures and neither ours": forge_two_signatures,
    "of another wheel": lambda forger: forger.signed_elsewhere(),
    "of an older build of that name": lambda forger: forger.with_digest(""),
    "of another SBOM": lambda forger: forger.with_digest(".cdx.json"),
    "of another manifest": lambda forger: forger.with_digest(".json"),
    "of another statement": lambda forger: forger.with_digest(".intoto.json"),
    "not of the wheel": lambda forger: forger.without_subject(""),
    "not of the SBOM": lambda forger: forger.without_subject(".cdx.json"),
    "not of the manifest": lambda forger: forger.without_subject(".json"),
    "not of the statement": lambda forger: forger.without_subject(".intoto.json"),
    "of nothing": lambda forger: forger.signed_by_us(subject=[]),
    "of subjects without digests": lambda forger: forger.signed_by_us(
        subject=[{"name": forger.wheel.name}]
    ),
    "of invalid subjects": lambda forger: forger.signed_by_us(subject=7),
    "of another kind of statement": lambda forger: forger.signed_by_us(
        _type="https://in-toto.io/Statement/v2"
    ),
    "of another predicate": lambda forger: forger.signed_by_us(
        predicateType="https://example.org/withdrawn"
    ),
    "of a list": lambda forger: forger.signed_by("ours", b"[]"),
    "of a text": lambda forger: forger.signed_by("ours", b"I made it"),
    "of a statement with a name twice": lambda forger: forger.signed_by(
        "ours", forger.payload.replace(b'{"_type"', b'{"_type":"x","_type"', 1)
    ),
    "payload: another type": lambda forger: forger.with_fields(payloadType="application/json"),
    "payload: another type, signed": lambda forger: forger.signed_by(
        "ours", forger.payload, "application/json"
    ),
    "payload: its type in capitals": lambda forger: forger.with_fields(payloadType=TYPE.upper()),
    "payload: no type": lambda forger: forger.without("payloadType"),
    "payload: an invalid type": lambda forger: forger.with_fields(payloadType=[TYPE]),
    "payload: another": lambda forger: forger.with_fields(
        payload=encoded(forger.statement(predicate={}))
    ),
    "payload: of another wheel": lambda forger: forger.with_fields(
        payload=forger.signed_elsewhere()["payload"]
    ),
    "payload: a flipped bit": lambda forger: forger.with_fields(
        payload=flipped(forger.envelope["payload"])
    ),
    "payload: truncated": lambda forger: forger.with_fields(
        payload=forger.envelope["payload"][:-8]
    ),
    "payload: empty": lambda forger: forger.with_fields(payload=""),
    "payload: a space at its end": lambda forger: forger.with_fields(
        payload=encoded(forger.payload + b" ")
    ),
    "payload: no base64": lambda forger: forger.with_fields(payload="*"),
    "payload: not a text": lambda forger: forger.with_fields(payload=json.loads(forger.payload)),
    "payload: missing": lambda forger: forger.without("payload"),
    "signature: of another payload": lambda forger: forger.with_fields(
        signatures=forger.signed_elsewhere()["signatures"]
    ),
    "signature: of the payload alone": lambda forger: forger.with_signature(
        sig=encoded(sign(forger.keys / "ours.pem", forger.payload))
    ),
    "signature: a flipped bit": lambda forger: forger.with_signature(
        sig=flipped(forger.entry["sig"])
    ),
    "signature: truncated": lambda forger: forger.with_signature(sig=forger.entry["sig"][:-8]),
    "signature: longer": lambda forger: forger.with_signature(sig="AAAA" + forger.entry["sig"]),
    "signature: empty": lambda forger: forger.with_signature(sig=""),
    "signature: zeros": lambda forger: forger.with_signature(sig=encoded(bytes(64))),
    "signature: no base64": lambda forger: forger.with_signature(sig="*"),
    "signature: a number": lambda forger: forger.with_signature(sig=7),
    "signature: missing": lambda forger: forger.with_fields(signatures=[{"keyid": "x"}]),
    "signatures: none": lambda forger: forger.with_fields(signatures=[]),
    "signatures: missing": lambda forger: forger.without("signatures"),
    "signatures: a text": lambda forger: forger.with_fields(signatures="ours"),
    "signatures: null": lambda forger: forger.with_fields(signatures=None),
    "a bundle of Sigstore": lambda forger: {
        "dsseEnvelope": forger.envelope,
        "verificationMaterial": {},
    },
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_envelope_is_refused(wheel: Path, keys: Path, name: str) -> None:
    forger = Forger(wheel, keys, json.loads(envelope_of(wheel).read_text()))
    envelope_of(wheel).write_text(json.dumps(FORGERIES[name](forger)))
    assert problems(wheel, keys)


def forge_delivery(wheel: Path, *, manifest: bool) -> None:
    """Replace a wheel by another one, with a RECORD and documents that all fit it."""
    other = written_wheels.made(
        wheel.parent / "forged", "tinytorch", "1.13.1+cu117", body="import evil\n"
    )
    other.replace(wheel)
    fields = documented_wheels.manifest(wheel) | {"bundled": [], "origins": {}}
    del fields["licences"]  # by which the wheel would have to have an SBOM inside
    documented_wheels.write(wheel, fields)
    if not manifest:
        dist_files.manifest_path(wheel).unlink()


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("envelope", ["kept", "missing", "of the forger"])
def test_a_completely_forged_delivery_is_refused(
    wheel: Path, keys: Path, envelope: str, manifest: bool
) -> None:
    forge_delivery(wheel, manifest=manifest)
    assert agreement.examine_wheel(wheel).problems == (), (
        "everything fits, and without a key nobody can tell"
    )
    if envelope != "kept":
        envelope_of(wheel).unlink()
    if envelope == "of the forger":
        signature.sign_wheel(wheel, signature.read_signer(str(keys / "other.pem"), {}))
    assert problems(wheel, keys)
    misfits = signature.check_signatures(wheel, signature.Signers()).problems
    assert bool(misfits) == (envelope == "kept")


def test_a_signature_by_our_key_is_enough_if_others_signed_too(wheel: Path, keys: Path) -> None:
    """By the rules of DSSE, a further signature proves nothing and breaks nothing."""
    before = json.loads(envelope_of(wheel).read_text())
    signature.sign_wheel(wheel, signature.read_signer(str(keys / "other.pem"), {}))
    envelope = json.loads(envelope_of(wheel).read_text())
    assert envelope["signatures"][0] == before["signatures"][0]
    assert problems(wheel, keys) == problems(wheel, keys, "other") == ()
    envelope["signatures"][1]["sig"] = flipped(envelope["signatures"][1]["sig"])
    envelope_of(wheel).write_text(json.dumps(envelope))
    assert problems(wheel, keys) == ()
    assert problems(wheel, keys, "other")


def test_signing_again_changes_only_an_outdated_envelope(wheel: Path, keys: Path) -> None:
    signer = signature.read_signer(str(keys / "p256.pem"), {})
    signature.sign_wheel(wheel, signer)
    before = envelope_of(wheel).read_bytes()
    signature.sign_wheel(wheel, signer)
    # ECDSA makes a different signature of the same content each time
    assert envelope_of(wheel).read_bytes() == before
    edit(dist_files.manifest_path(wheel), lambda document: document.update(upstream_tests={}))
    assert problems(wheel, keys, "p256")
    signature.sign_wheel(wheel, signer)
    assert problems(wheel, keys, "p256") == ()
    assert problems(wheel, keys), "the signature of the other key was of earlier files, and is gone"


def test_a_bundle_of_others_that_is_outdated_does_not_let_us_sign_again(
    wheel: Path, keys: Path
) -> None:
    signer = signature.read_signer(str(keys / "p256.pem"), {})
    signature.sign_wheel(wheel, signer)
    before = envelope_of(wheel).read_bytes()
    dist_files.document_path(wheel, dist_files.BUNDLE_SUFFIX).write_text("{}")
    assert problems(wheel, keys, "p256")
    signature.sign_wheel(wheel, signer)
    assert envelope_of(wheel).read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "absent",
        "folder",
        "empty",
        "text",
        "truncated",
        "binary",
        "certificate",
        "secp256k1",
        "rsa",
        "x25519",
    ],
)
@pytest.mark.parametrize("read", ["signer", "public"])
def test_an_unusable_key_is_refused(keys: Path, name: str, read: str) -> None:
    file = keys / f"{name}.pem"
    if read == "signer":
        with refused("invalid-key"):
            signature.read_signer(str(file), {})
        return
    if public_of(file).exists():
        file = public_of(file)
    with refused("invalid-key"):
        signature.read_public_keys([str(file)])


def test_a_public_key_does_not_sign_and_a_private_one_is_not_trusted(keys: Path) -> None:
    with refused("invalid-key"):
        signature.read_signer(str(keys / "ours.pub.pem"), {})
    with refused("invalid-key"):
        signature.read_public_keys([str(keys / "ours.pem")])


@pytest.mark.parametrize("passphrase", [None, "", "wrong"])
def test_an_encrypted_key_needs_its_passphrase(keys: Path, passphrase: str | None) -> None:
    environ = {} if passphrase is None else {signature.PASSPHRASE_VARIABLE: passphrase}
    with refused("wrong-passphrase") as caught:
        signature.read_signer(str(keys / "locked.pem"), environ)
    assert signature.PASSPHRASE_VARIABLE in str(caught.value)


def test_an_empty_setting_of_trusted_keys_is_refused(keys: Path) -> None:
    assert signature.read_trusted_keys({}) == signature.Signers()
    with refused("invalid-key"):
        signature.read_trusted_keys({signature.KEYS_VARIABLE: " "})
    setting = f"{keys}/ours.pub.pem {keys}/p256.pub.pem"
    signers = signature.read_trusted_keys({signature.KEYS_VARIABLE: setting})
    assert len(signers.keys) == 2


def test_a_key_name_in_an_envelope_does_not_steer_the_terminal(wheel: Path) -> None:
    edit(
        envelope_of(wheel),
        lambda document: document["signatures"][0].update(keyid="\x1b[2J" + "x" * 1000),
    )
    check = signature.check_signatures(wheel, signature.Signers())
    assert check.problems == ()
    assert check.text.isprintable()
    assert len(check.text) < 200


def publish(wheel: Path, keys: Path, to: object, key: str = "ours", **options: object) -> str:
    """Publish a wheel, signed with a key, and return the output; "" publishes it as it is."""
    layout = Layout(wheel.parents[1], wheel.parents[1] / "cache")
    file = f"{keys / key}.pem" if key else ""
    return publish_wheels(layout, to=str(to), sign_key=file, **options).text  # type: ignore[arg-type]


def test_published_files_are_signed(
    wheel: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope_of(wheel).unlink()
    target = tmp_path / "there"
    with refused("wrong-passphrase"):
        publish(wheel, keys, target, "locked")
    assert not target.exists()
    monkeypatch.setenv(signature.PASSPHRASE_VARIABLE, PASSPHRASE)
    publish(wheel, keys, target, "locked", dry_run=True)
    assert not envelope_of(wheel).exists()
    publish(wheel, keys, target, "locked")
    assert problems(target / wheel.name, keys, "locked") == ()
    assert not dist_files.manifest_path(target / wheel.name).exists()
    assert publish(wheel, keys, target, "locked").count(upload_set.PRESENT) == 4


def test_an_unsound_delivery_is_not_signed(wheel: Path, keys: Path, tmp_path: Path) -> None:
    envelope_of(wheel).unlink()
    edit(sbom_of(wheel), lambda document: document.update(bomFormat="SPDX"))
    with refused("wheels-disagree"):
        publish(wheel, keys, tmp_path / "there")
    assert not envelope_of(wheel).exists()
    assert not (tmp_path / "there").exists()


def test_an_outdated_signature_is_not_published(wheel: Path, keys: Path, tmp_path: Path) -> None:
    edit(dist_files.manifest_path(wheel), lambda document: document.update(upstream_tests={}))
    with refused("wheel-rejected") as caught:
        publish(wheel, keys, tmp_path / "there", "")
    assert f"signs another {wheel.name}.json" in str(caught.value)
    publish(wheel, keys, tmp_path / "there")
    assert problems(tmp_path / "there" / wheel.name, keys) == ()


def test_an_index_takes_no_signatures(wheel: Path, keys: Path) -> None:
    with refused("contradictory-options"):
        publish(wheel, keys, "http://127.0.0.1:9/")


def test_our_own_index_has_the_envelope_beside_the_wheel(
    wheel: Path, small_facts: Facts, keys: Path, tmp_path: Path
) -> None:
    write_index(
        small_facts, Layout(wheel.parents[1], tmp_path / "cache"), out=str(tmp_path / "index")
    )
    assert problems(tmp_path / "index" / "cu117" / wheel.name, keys) == ()
    page = json.loads((tmp_path / "index" / "tinytorch" / "index.v1_json").read_text())
    assert "provenance" not in page["files"][0], "attestations of PEP 740 have no keys of one's own"


def test_libraries_are_needed_only_to_sign_or_to_prove(
    wheel: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("securesystemslib", "securesystemslib.signer", "sigstore", "sigstore.models"):
        monkeypatch.setitem(sys.modules, library, None)
    assert signature.check_signatures(wheel, signature.Signers()).problems == ()
    for read in (
        lambda: signature.read_public_keys([str(keys / "ours.pub.pem")]),
        lambda: signature.read_signer(str(keys / "ours.pem"), {}),
        lambda: signature.read_identity("me", "you"),
    ):
        with refused("signing-library-missing"):
            read()


def test_the_tasks_sign_and_verify(wheel: Path, keys: Path, tmp_path: Path) -> None:
    envelope_of(wheel).unlink()
    env = {signature.PASSPHRASE_VARIABLE: PASSPHRASE}
    done = commands.run(
        "invoke",
        "publish",
        f"--to={wheel.parent}",
        f"--sign-key={keys}/locked.pem",
        home=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert PASSPHRASE not in done.stdout + done.stderr
    our_key = f"--key={keys}/ours.pub.pem"
    locked = f"--key={keys}/locked.pub.pem"
    done = commands.run("invoke", "verify", str(wheel), our_key, locked, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "by its own claim" not in done.stdout
    done = commands.run("invoke", "verify", str(wheel), our_key, home=tmp_path)
    assert done.returncode == DeliveryError.exit_code
    assert "none of the keys signed it" in done.stderr


def test_a_wheel_that_is_built_again_loses_the_signatures_of_the_old_one(
    wheel: Path, tmp_path: Path
) -> None:
    envelope = envelope_of(wheel)
    bundle = dist_files.document_path(wheel, dist_files.BUNDLE_SUFFIX)
    bundle.write_text("{}")
    manifest = documented_wheels.manifest(wheel)
    shutil.copyfile(wheel, tmp_path / "packed.whl")
    dist_files.publish_wheel(tmp_path / "packed.whl", wheel, manifest, None, {})
    assert not envelope.exists()
    assert not bundle.exists()


def test_a_wheel_in_any_folder_is_verified_by_its_key(
    wheel: Path, keys: Path, tmp_path: Path
) -> None:
    from torchmill.commands import verify

    layout = Layout(tmp_path, tmp_path / "cache")
    answer = verify.verify_wheels(layout, wheel=[str(wheel)], key=[str(keys / "ours.pub.pem")])
    answer.require()
    with refused("invalid-key"):
        verify.verify_wheels(layout, wheel=[str(wheel)], key=[str(keys / "ours.pem")])
    answer = verify.verify_wheels(layout, wheel=[str(wheel)], key=[str(keys / "other.pub.pem")])
    with refused("wheel-rejected"):
        answer.require()
