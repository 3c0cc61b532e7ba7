"""A Sigstore of our own: an authority, a log of certificates and a log of signatures, each with a key made here.

It signs as GitHub's action does: a bundle of version 0.3 with a DSSE envelope and an entry "dsse" of Rekor.
"""

import hashlib
import json
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

ISSUER_OID = x509.ObjectIdentifier(
    "1.3.6.1.4.1.57264.1.1"
)  # github.com/sigstore/fulcio/blob/main/docs/oid-info.md
TIME = datetime(2026, 11, 1, tzinfo=UTC)
TYPE = "application/vnd.in-toto+json"


def text(data: bytes) -> str:
    return b64encode(data).decode()


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(SHA256()))


def key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(spki(key)).digest()


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class OwnSigstore:
    """All its keys, and its trusted root in a file."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.ct, self.rekor = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "own")])
        ski = x509.SubjectKeyIdentifier.from_public_key(self.ca.public_key())
        names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign"
        usage = dict.fromkeys(f"{names} crl_sign encipher_only decipher_only".split(), False)
        self.usage = usage
        self.authority = (
            x509.CertificateBuilder(name, name, self.ca.public_key(), x509.random_serial_number())
            .not_valid_before(TIME - timedelta(days=1))
            .not_valid_after(TIME + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage | {"key_cert_sign": True}), critical=True)
            .add_extension(ski, critical=False)
            .sign(self.ca, SHA256())
        )
        self.root = folder / "trusted_root.json"
        self.root.write_text(json.dumps(self._trusted_root()))

    def _trusted_root(self) -> dict[str, Any]:
        valid = {"start": "2026-10-01T00:00:00Z"}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {
                "rawBytes": text(spki(key)),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": valid,
            }
            return {
                "baseUrl": "https://own.example",
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": text(key_id(key))},
            }

        chain = {"certificates": [{"rawBytes": text(self.authority.public_bytes(Encoding.DER))}]}
        subject = {"organization": "own", "commonName": "own"}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.rekor)],
            "certificateAuthorities": [
                {
                    "subject": subject,
                    "uri": "https://own.example",
                    "certChain": chain,
                    "validFor": valid,
                }
            ],
            "ctlogs": [log(self.ct)],
            "timestampAuthorities": [],
        }

    def _certify(
        self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str
    ) -> x509.Certificate:
        """Return a certificate of ten minutes with the promise of the log of certificates in it."""
        ca = self.authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            x509.CertificateBuilder(
                self.authority.subject, x509.Name([]), key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(TIME)
            .not_valid_after(TIME + timedelta(minutes=10))
            .add_extension(x509.KeyUsage(**self.usage | {"digital_signature": True}), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca), critical=False
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)]),
                critical=True,
            )
            .add_extension(x509.UnrecognizedExtension(ISSUER_OID, issuer.encode()), critical=False)
        )
        tbs = builder.sign(self.ca, SHA256()).tbs_certificate_bytes
        when = int(TIME.timestamp() * 1000)
        entry = key_id(self.ca) + len(tbs).to_bytes(3, "big") + tbs
        signature = sign(
            self.ct, struct.pack("!BBQH", 0, 0, when, 1) + entry + struct.pack("!H", 0)
        )
        sct = (
            struct.pack("!B32sQHBBH", 0, key_id(self.ct), when, 0, 4, 3, len(signature)) + signature
        )
        listed = struct.pack("!HH", len(sct) + 2, len(sct)) + sct
        octets = (
            b"\x04"
            + (bytes([len(listed)]) if len(listed) < 128 else bytes([0x81, len(listed)]))
            + listed
        )
        oid = ExtensionOID.PRECERT_SIGNED_CERTIFICATE_TIMESTAMPS
        return builder.add_extension(x509.UnrecognizedExtension(oid, octets), critical=False).sign(
            self.ca, SHA256()
        )

    def bundle(
        self, payload: bytes, identity: str, issuer: str, *, kind: str = TYPE, late: int = 60
    ) -> dict[str, Any]:
        """Return what an identity signed, `late` seconds after it got its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certify(key, identity, issuer)
        sig = sign(key, b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload))
        digest = {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        signed = {"signature": text(sig), "verifier": text(certificate.public_bytes(Encoding.PEM))}
        spec = {"envelopeHash": digest, "payloadHash": digest, "signatures": [signed]}
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()
        leaf, when = hashlib.sha256(b"\0" + body).digest(), int(TIME.timestamp()) + late
        note = f"own - 1\n1\n{text(leaf)}\n"
        checkpoint = (
            f"{note}\n— own {text(key_id(self.rekor)[:4] + sign(self.rekor, note.encode()))}\n"
        )
        promised = {
            "body": text(body),
            "integratedTime": when,
            "logID": key_id(self.rekor).hex(),
            "logIndex": 0,
        }
        promise = sign(self.rekor, json.dumps(promised, separators=(",", ":")).encode())
        proof = {"logIndex": "0", "rootHash": text(leaf), "treeSize": "1", "hashes": []}
        entry = {
            "logIndex": "0",
            "logId": {"keyId": text(key_id(self.rekor))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(when),
            "inclusionPromise": {"signedEntryTimestamp": text(promise)},
            "inclusionProof": proof | {"checkpoint": {"envelope": checkpoint}},
            "canonicalizedBody": text(body),
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": text(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [entry],
            },
            "dsseEnvelope": {
                "payload": text(payload),
                "payloadType": kind,
                "signatures": [{"sig": text(sig)}],
            },
        }
