"""Signed deliveries: a true one is proven, by other tools too, and each way to forge one is refused."""

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
from tests.support import commands, told_wheels
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
    """Return a folder with keys: ours, another's, one that is encrypted, and some of other kinds."""
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
    wheel = told_wheels.built(tmp_path_factory.mktemp("signed"))
    signature.sign_wheel(wheel, signature.read_signer(str(keys / "ours.pem"), {}))
    return wheel


@pytest.fixture
def wheel(signed: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may spoil."""
    shutil.copytree(signed.parent, tmp_path / "dist")
    return tmp_path / "dist" / signed.name


def envelope_of(wheel: Path) -> Path:
    return dist_files.document_path(wheel, dist_files.ENVELOPE_SUFFIX)


def problems(wheel: Path, keys: Path, *names: str) -> tuple[str, ...]:
    """Return what is wrong with the signature where one of our keys must have made it."""
    signers = signature.read_public_keys(
        str(keys / f"{name}.pub.pem") for name in names or ("ours",)
    )
    return signature.check_signatures(wheel, signers).problems


def pae(payload: bytes, kind: str = TYPE) -> bytes:
    """Return what DSSE signs, by its specification."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def sign(private: Path, content: bytes) -> bytes:
    """Return the signature of some bytes by an ed25519 key."""
    file = private.with_suffix(".content")
    file.write_bytes(content)
    return openssl("pkeyutl", "-sign", "-inkey", private, "-rawin", "-in", file)


def test_a_true_delivery_is_proven(signed: Path, keys: Path) -> None:
    assert problems(signed, keys) == ()
    assert problems(signed, keys, "other", "ours") == (), "of several keys, any will do"
    assert problems(signed, keys, "other"), "but not another one"
    der = openssl("pkey", "-pubin", "-in", keys / "ours.pub.pem", "-outform", "DER")
    (name,) = json.loads(envelope_of(signed).read_text())["signatures"]
    assert openssl("dgst", "-sha256", "-r", given=der).decode().split()[0] == name["keyid"]
    assert agreement.examine_wheel(signed).problems == ()


@pytest.mark.parametrize("kind", ["ours", "p256", "p384", "p521", "locked"])
def test_others_verify_the_envelope_without_us(
    wheel: Path, keys: Path, tmp_path: Path, kind: str
) -> None:
    signer = signature.read_signer(
        str(keys / f"{kind}.pem"), {signature.PASSPHRASE_VARIABLE: PASSPHRASE}
    )
    envelope_of(wheel).unlink()
    signature.sign_wheel(wheel, signer)
    assert problems(wheel, keys, kind) == ()
    envelope = json.loads(envelope_of(wheel).read_text())
    payload, (one,) = base64.b64decode(envelope["payload"]), envelope["signatures"]
    (tmp_path / "pae").write_bytes(pae(payload, envelope["payloadType"]))
    (tmp_path / "sig").write_bytes(base64.b64decode(one["sig"]))
    public, files = keys / f"{kind}.pub.pem", ("-signature", tmp_path / "sig", tmp_path / "pae")
    if kind.startswith("p"):
        digest = {"p256": "-sha256", "p384": "-sha384", "p521": "-sha512"}[kind]
        assert b"Verified OK" in openssl("dgst", digest, "-verify", public, *files)
    else:
        how = (
            "-pubin",
            "-inkey",
            public,
            "-rawin",
            "-in",
            tmp_path / "pae",
            "-sigfile",
            tmp_path / "sig",
        )
        assert b"Verified Successfully" in openssl("pkeyutl", "-verify", *how)
    assert Envelope.from_dict(envelope).verify([signer.public_key], 1), (
        "securesystemslib's own rules"
    )


def test_the_payload_is_the_statement_about_all_files(signed: Path) -> None:
    payload = json.loads(base64.b64decode(json.loads(envelope_of(signed).read_text())["payload"]))
    statement = json.loads(statement_of(signed).read_text())
    subjects = {one["name"] for one in payload.pop("subject")}
    assert subjects == {
        signed.name,
        *(f"{signed.name}{suffix}" for suffix in (".json", ".intoto.json", ".cdx.json")),
    }
    statement.pop("subject")
    assert payload == statement


def test_a_manifest_may_be_kept_back_and_nothing_else(wheel: Path, keys: Path) -> None:
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
def test_a_file_that_is_none_is_refused(
    wheel: Path, keys: Path, file: Callable[[Path], Path], content: bytes
) -> None:
    file(wheel).write_bytes(content)
    assert problems(wheel, keys)


@dataclass(frozen=True)
class Forger:
    """What a forger has: the delivery, its envelope, our public key, a key of his own, and what we signed elsewhere."""

    wheel: Path
    keys: Path
    envelope: dict[str, Any]

    @property
    def payload(self) -> bytes:
        return base64.b64decode(self.envelope["payload"])

    def signed_by(
        self, name: str, payload: bytes, kind: str = TYPE, *, keyid: str = ""
    ) -> dict[str, Any]:
        """Return an envelope by a key; by ours only where we would have signed that."""
        sig = base64.b64encode(sign(self.keys / f"{name}.pem", pae(payload, kind))).decode()
        text = base64.b64encode(payload).decode()
        return {"payload": text, "payloadType": kind, "signatures": [{"keyid": keyid, "sig": sig}]}

    def said(self, **fields: Any) -> bytes:
        return canonical_json(json.loads(self.payload) | fields)

    def only(self, **fields: Any) -> dict[str, Any]:
        """Return our only signature with other fields."""
        return self.envelope | {"signatures": [self.envelope["signatures"][0] | fields]}

    def elsewhere(self, version: str) -> dict[str, Any]:
        """Return the envelope of another delivery of ours."""
        other = told_wheels.built(self.wheel.parent / "other", version)
        signature.sign_wheel(other, signature.read_signer(str(self.keys / "ours.pem"), {}))
        return dict(json.loads(envelope_of(other).read_text()))

    def subjects(self, *left_out: str, **other: str) -> bytes:
        """Return a statement without some subjects, and with other digests, each by the end of its file's name."""
        said = json.loads(self.payload)["subject"]
        for one in said:
            end = one["name"].removeprefix(self.wheel.name)
            one["digest"]["sha256"] = other.get(end.strip("."), one["digest"]["sha256"])
        return self.said(
            subject=[
                one for one in said if one["name"].removeprefix(self.wheel.name) not in left_out
            ]
        )


@pytest.mark.parametrize(
    "suffix", [".json", ".intoto.json", ".cdx.json", ".intoto.jsonl", ".sigstore.json"]
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    wheel: Path, keys: Path, suffix: str
) -> None:
    file = wheel.with_name(wheel.name + suffix)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    said = (*agreement.examine_wheel(wheel).problems, *problems(wheel, keys))
    assert [one for one in said if "not a file" in one or "is missing" in one], said


def flipped(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[5] ^= 1
    return base64.b64encode(data).decode()


def test_an_envelope_may_be_written_in_the_alphabet_of_urls(wheel: Path, keys: Path) -> None:
    envelope = json.loads(envelope_of(wheel).read_text())
    written = [(envelope, "payload"), (envelope["signatures"][0], "sig")]
    for where, name in written:
        where[name] = base64.urlsafe_b64encode(base64.b64decode(where[name])).decode()
    if not any("-" in where[name] or "_" in where[name] for where, name in written):
        pytest.skip("this signature has none of the characters in which the alphabets differ")
    envelope_of(wheel).write_text(json.dumps(envelope))
    assert problems(wheel, keys) == ()


FORGED: dict[str, Callable[[Forger], object]] = {
    "by another's key": lambda his: his.signed_by("other", his.payload),
    "by another's key in our name": lambda his: his.signed_by(
        "other", his.payload, keyid=his.envelope["signatures"][0]["keyid"]
    ),
    "by another's key, twice": lambda his: {
        **(made := his.signed_by("other", his.payload)),
        "signatures": made["signatures"] * 2,
    },
    "two signatures and neither ours": lambda his: {
        **(made := his.signed_by("other", his.payload)),
        "signatures": [
            *made["signatures"],
            {"keyid": "x", "sig": flipped(his.envelope["signatures"][0]["sig"])},
        ],
    },
    "of another wheel": lambda his: his.elsewhere("1.13.1+cpu"),
    "of an older build of that name": lambda his: his.signed_by(
        "ours", his.subjects(**{"": "0" * 64})
    ),
    "of another SBOM": lambda his: his.signed_by("ours", his.subjects(**{"cdx.json": "0" * 64})),
    "of another manifest": lambda his: his.signed_by("ours", his.subjects(json="0" * 64)),
    "of another statement": lambda his: his.signed_by(
        "ours", his.subjects(**{"intoto.json": "0" * 64})
    ),
    "not of the wheel": lambda his: his.signed_by("ours", his.subjects("")),
    "not of the SBOM": lambda his: his.signed_by("ours", his.subjects(".cdx.json")),
    "not of the manifest": lambda his: his.signed_by("ours", his.subjects(".json")),
    "not of the statement": lambda his: his.signed_by("ours", his.subjects(".intoto.json")),
    "of nothing": lambda his: his.signed_by("ours", his.said(subject=[])),
    "of subjects without digests": lambda his: his.signed_by(
        "ours", his.said(subject=[{"name": his.wheel.name}])
    ),
    "of subjects that are none": lambda his: his.signed_by("ours", his.said(subject=7)),
    "of another kind of statement": lambda his: his.signed_by(
        "ours", his.said(_type="https://in-toto.io/Statement/v2")
    ),
    "of another predicate": lambda his: his.signed_by(
        "ours", his.said(predicateType="https://example.org/withdrawn")
    ),
    "of a list": lambda his: his.signed_by("ours", b"[]"),
    "of a text": lambda his: his.signed_by("ours", b"I made it"),
    "of a statement that says a thing twice": lambda his: his.signed_by(
        "ours", his.payload.replace(b'{"_type"', b'{"_type":"x","_type"', 1)
    ),
    "payload: another type": lambda his: his.envelope | {"payloadType": "application/json"},
    "payload: another type, signed": lambda his: his.signed_by(
        "ours", his.payload, "application/json"
    ),
    "payload: its type in other letters": lambda his: his.envelope | {"payloadType": TYPE.upper()},
    "payload: no type": lambda his: {
        name: said for name, said in his.envelope.items() if name != "payloadType"
    },
    "payload: a type that is none": lambda his: his.envelope | {"payloadType": [TYPE]},
    "payload: another": lambda his: (
        his.envelope | {"payload": base64.b64encode(his.said(predicate={})).decode()}
    ),
    "payload: of another wheel": lambda his: (
        his.envelope | {"payload": his.elsewhere("1.13.1+cpu")["payload"]}
    ),
    "payload: a flipped bit": lambda his: (
        his.envelope | {"payload": flipped(his.envelope["payload"])}
    ),
    "payload: truncated": lambda his: his.envelope | {"payload": his.envelope["payload"][:-8]},
    "payload: empty": lambda his: his.envelope | {"payload": ""},
    "payload: a space at its end": lambda his: (
        his.envelope | {"payload": base64.b64encode(his.payload + b" ").decode()}
    ),
    "payload: no base64": lambda his: his.envelope | {"payload": "*"},
    "payload: not a text": lambda his: his.envelope | {"payload": json.loads(his.payload)},
    "payload: missing": lambda his: {
        name: said for name, said in his.envelope.items() if name != "payload"
    },
    "signature: of another payload": lambda his: (
        his.envelope | {"signatures": his.elsewhere("1.13.1+cpu")["signatures"]}
    ),
    "signature: of the payload alone": lambda his: his.only(
        sig=base64.b64encode(sign(his.keys / "ours.pem", his.payload)).decode()
    ),
    "signature: a flipped bit": lambda his: his.only(
        sig=flipped(his.envelope["signatures"][0]["sig"])
    ),
    "signature: truncated": lambda his: his.only(sig=his.envelope["signatures"][0]["sig"][:-8]),
    "signature: longer": lambda his: his.only(sig="AAAA" + his.envelope["signatures"][0]["sig"]),
    "signature: empty": lambda his: his.only(sig=""),
    "signature: zeros": lambda his: his.only(sig=base64.b64encode(bytes(64)).decode()),
    "signature: no base64": lambda his: his.only(sig="*"),
    "signature: a number": lambda his: his.only(sig=7),
    "signature: missing": lambda his: his.envelope | {"signatures": [{"keyid": "x"}]},
    "signatures: none": lambda his: his.envelope | {"signatures": []},
    "signatures: missing": lambda his: {
        name: said for name, said in his.envelope.items() if name != "signatures"
    },
    "signatures: a text": lambda his: his.envelope | {"signatures": "ours"},
    "signatures: null": lambda his: his.envelope | {"signatures": None},
    "a bundle of Sigstore": lambda his: {"dsseEnvelope": his.envelope, "verificationMaterial": {}},
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_envelope_is_refused(wheel: Path, keys: Path, forged: str) -> None:
    his = Forger(wheel, keys, json.loads(envelope_of(wheel).read_text()))
    envelope_of(wheel).write_text(json.dumps(FORGED[forged](his)))
    assert problems(wheel, keys)


def forge(wheel: Path, *, manifest: bool) -> None:
    """Put another wheel into the place of one, with a RECORD, a statement, an SBOM and a manifest that all fit."""
    made = written_wheels.made(
        wheel.parent / "forged", "tinytorch", "1.13.1+cu117", body="import evil\n"
    )
    made.replace(wheel)
    said = told_wheels.manifest(wheel) | {"bundled": [], "origins": {}}
    del said["licences"]  # nor is an SBOM in it
    told_wheels.write(wheel, said)
    if not manifest:
        dist_files.manifest_path(wheel).unlink()


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("envelope", ["kept", "missing", "of the forger"])
def test_a_delivery_that_is_forged_throughout_is_refused(
    wheel: Path, keys: Path, envelope: str, manifest: bool
) -> None:
    forge(wheel, manifest=manifest)
    assert agreement.examine_wheel(wheel).problems == (), (
        "everything fits, and without a key nobody can tell"
    )
    if envelope != "kept":
        envelope_of(wheel).unlink()
    if envelope == "of the forger":
        signature.sign_wheel(wheel, signature.read_signer(str(keys / "other.pem"), {}))
    assert problems(wheel, keys)
    assert bool(signature.check_signatures(wheel, signature.Signers()).problems) == (
        envelope == "kept"
    )


def test_of_two_signatures_one_by_our_key_is_enough(wheel: Path, keys: Path) -> None:
    """As DSSE has it: who adds a signature, good or not, proves nothing and spoils nothing."""
    ours = json.loads(envelope_of(wheel).read_text())
    signature.sign_wheel(wheel, signature.read_signer(str(keys / "other.pem"), {}))
    both = json.loads(envelope_of(wheel).read_text())
    assert both["signatures"][0] == ours["signatures"][0]
    assert problems(wheel, keys) == problems(wheel, keys, "other") == ()
    both["signatures"][1]["sig"] = flipped(both["signatures"][1]["sig"])
    envelope_of(wheel).write_text(json.dumps(both))
    assert problems(wheel, keys) == ()
    assert problems(wheel, keys, "other")


def test_signing_again_changes_nothing_and_renews_what_no_longer_fits(
    wheel: Path, keys: Path
) -> None:
    signer = signature.read_signer(str(keys / "p256.pem"), {})
    signature.sign_wheel(wheel, signer)
    before = envelope_of(wheel).read_bytes()
    signature.sign_wheel(wheel, signer)
    assert envelope_of(wheel).read_bytes() == before, (
        "though ECDSA signs the same in another way each time"
    )
    edit(dist_files.manifest_path(wheel), lambda said: said.update(upstream_tests={}))
    assert problems(wheel, keys, "p256")
    signature.sign_wheel(wheel, signer)
    assert problems(wheel, keys, "p256") == ()
    assert problems(wheel, keys), "of another state of the files, the other signature is gone"


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
def test_what_is_no_key_is_refused(keys: Path, name: str, read: str) -> None:
    public = public_of(keys / f"{name}.pem")
    with refused("invalid-key"):
        if read == "signer":
            signature.read_signer(str(keys / f"{name}.pem"), {})
        else:
            signature.read_public_keys([str(public if public.exists() else keys / f"{name}.pem")])


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


def test_a_setting_that_names_no_key_trusts_nobody(keys: Path) -> None:
    assert signature.read_trusted_keys({}) == signature.Signers()
    with refused("invalid-key"):
        signature.read_trusted_keys({signature.KEYS_VARIABLE: " "})
    both = signature.read_trusted_keys(
        {signature.KEYS_VARIABLE: f"{keys}/ours.pub.pem {keys}/p256.pub.pem"}
    )
    assert len(both.keys) == 2


def test_what_an_envelope_says_of_itself_does_not_reach_the_terminal(wheel: Path) -> None:
    edit(
        envelope_of(wheel), lambda said: said["signatures"][0].update(keyid="\x1b[2J" + "x" * 1000)
    )
    check = signature.check_signatures(wheel, signature.Signers())
    assert check.problems == ()
    assert check.text.isprintable()
    assert len(check.text) < 200


def publish(wheel: Path, keys: Path, to: object, key: str = "ours", **options: object) -> str:
    layout, file = (
        Layout(wheel.parents[1], wheel.parents[1] / "cache"),
        f"{keys / key}.pem" if key else "",
    )
    return publish_wheels(layout, str(to), sign_key=file, **options).text  # type: ignore[arg-type]


def test_what_is_published_is_signed(
    wheel: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope_of(wheel).unlink()
    there = tmp_path / "there"
    with refused("wrong-passphrase"):
        publish(wheel, keys, there, "locked")
    assert not there.exists()
    monkeypatch.setenv(signature.PASSPHRASE_VARIABLE, PASSPHRASE)
    publish(wheel, keys, there, "locked", dry_run=True)
    assert not envelope_of(wheel).exists()
    publish(wheel, keys, there, "locked")
    assert problems(there / wheel.name, keys, "locked") == ()
    assert not dist_files.manifest_path(there / wheel.name).exists()
    assert publish(wheel, keys, there, "locked").count(upload_set.PRESENT) == 4


def test_nothing_is_signed_that_does_not_verify(wheel: Path, keys: Path, tmp_path: Path) -> None:
    envelope_of(wheel).unlink()
    edit(sbom_of(wheel), lambda said: said.update(bomFormat="SPDX"))
    with refused("wheels-disagree"):
        publish(wheel, keys, tmp_path / "there")
    assert not envelope_of(wheel).exists()
    assert not (tmp_path / "there").exists()


def test_a_signature_of_something_else_is_not_published(
    wheel: Path, keys: Path, tmp_path: Path
) -> None:
    edit(dist_files.manifest_path(wheel), lambda said: said.update(upstream_tests={}))
    with refused("wheel-rejected") as caught:
        publish(wheel, keys, tmp_path / "there", "")
    assert f"signs another {wheel.name}.json" in str(caught.value)
    publish(wheel, keys, tmp_path / "there")
    assert problems(tmp_path / "there" / wheel.name, keys) == ()


def test_an_index_takes_no_signatures(wheel: Path, keys: Path) -> None:
    with refused("contradictory-options"):
        publish(wheel, keys, "http://127.0.0.1:9/")


def test_our_own_index_has_the_envelope_beside_the_wheel(
    wheel: Path, known: Facts, keys: Path, tmp_path: Path
) -> None:
    write_index(known, Layout(wheel.parents[1], tmp_path / "cache"), out=str(tmp_path / "index"))
    assert problems(tmp_path / "index" / "cu117" / wheel.name, keys) == ()
    page = json.loads((tmp_path / "index" / "tinytorch" / "index.v1_json").read_text())
    assert "provenance" not in page["files"][0], "PEP 740 has no place for keys of one's own"


def test_a_library_is_needed_only_where_something_is_to_be_proven(
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
    both = (f"--key={keys}/ours.pub.pem", f"--key={keys}/locked.pub.pem")
    done = commands.run("invoke", "verify", str(wheel), *both, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "by its own claim" not in done.stdout
    done = commands.run("invoke", "verify", str(wheel), both[0], home=tmp_path)
    assert done.returncode == DeliveryError.exit_code
    assert "none of the keys signed it" in done.stderr


def test_a_wheel_that_is_made_again_has_no_signature_of_the_old_one(
    wheel: Path, tmp_path: Path
) -> None:
    envelope, bundle = envelope_of(wheel), dist_files.document_path(wheel, dist_files.BUNDLE_SUFFIX)
    bundle.write_text("{}")
    manifest = told_wheels.manifest(wheel)
    shutil.copyfile(wheel, tmp_path / "packed.whl")
    dist_files.publish_wheel(tmp_path / "packed.whl", wheel, manifest, None, {})
    assert not envelope.exists()
    assert not bundle.exists()


def test_verify_takes_a_wheel_of_any_folder_by_its_key(
    wheel: Path, keys: Path, tmp_path: Path
) -> None:
    from torchmill.commands import verify

    layout = Layout(tmp_path, tmp_path / "cache")
    answer = verify.verify_wheels(layout, [str(wheel)], key=[str(keys / "ours.pub.pem")])
    answer.require()
    with refused("invalid-key"):
        verify.verify_wheels(layout, [str(wheel)], key=[str(keys / "ours.pem")])
    answer = verify.verify_wheels(layout, [str(wheel)], key=[str(keys / "other.pub.pem")])
    with refused("wheel-rejected"):
        answer.require()
