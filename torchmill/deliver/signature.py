"""Who signed a delivery: an envelope of one's own keys, or a bundle of Sigstore, beside each wheel.

Both hold a statement whose subjects are the wheel and the files beside it, so that none of them can be another.
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, https://docs.sigstore.dev/about/bundle/
"""

import contextlib
import hashlib
import json
import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmill.core.errors import ConfigError, require_package
from torchmill.core.files import (
    hash_file,
    parse_json_object,
    read_document,
    read_json_object,
    write_atomically,
)
from torchmill.deliver.agreement import DOCUMENT_ERRORS, AgreementCheck, AgreementVerdict
from torchmill.wheel import dist_files
from torchmill.wheel.dist_files import (
    BUNDLE_SUFFIX,
    ENVELOPE_SUFFIX,
    PROVENANCE_SUFFIX,
    STATEMENT_SUFFIX,
)

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

PASSPHRASE_VARIABLE = "TORCHMILL_SIGN_PASSPHRASE"  # noqa: S105 - the name of a variable
KEYS_VARIABLE = "TORCHMILL_KEYS"  # files, with spaces between them
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_LIBRARY = ("a signature", "securesystemslib[crypto]", "signing-library-missing")


@dataclass(frozen=True, slots=True)
class Signers:
    """Who must have signed a delivery; by default nobody in particular."""

    keys: "tuple[SSlibKey, ...]" = ()  # any of them
    open_bundle: Callable[[bytes], bytes] | None = (
        None  # the payload that an identity signed, else ValueError
    )


def read_public_keys(files: Iterable[str]) -> Signers:
    """Return those who have one of the public keys in some files. Raises ConfigError, HostError."""
    return Signers(tuple(map(_read_public_key, files)))


def read_trusted_keys(environ: Mapping[str, str]) -> Signers:
    """Return whom the setting trusts: where it is not there, nobody in particular. Raises ConfigError, HostError."""
    files = environ.get(KEYS_VARIABLE, "").split()
    if KEYS_VARIABLE in environ and not files:
        raise ConfigError(
            f"{KEYS_VARIABLE} is set, and names no key: name files with public keys, or unset it",
            code="invalid-key",
        )
    return read_public_keys(files)


def _read_public_key(file: str) -> "SSlibKey":
    with require_package(*_LIBRARY):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    data = _read_key(file)
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{file}: is not a PEM public key: `openssl pkey -in PRIVATE.pem -pubout` prints that of a private one",
            code="invalid-key",
        ) from None
    return _name_key(file, key)


def read_signer(file: str, environ: Mapping[str, str]) -> "CryptoSigner":
    """Return what signs with the private key in a file; TORCHMILL_SIGN_PASSPHRASE opens an encrypted one.

    Raises ConfigError for what is no such key, or a passphrase that does not open it; HostError.
    """
    with require_package(*_LIBRARY):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from securesystemslib.signer import CryptoSigner
    data = _read_key(file)
    encrypted = b"ENCRYPTED" in data
    try:
        key = load_pem_private_key(
            data, environ.get(PASSPHRASE_VARIABLE, "").encode() if encrypted else None
        )
    except (ValueError, TypeError, UnsupportedAlgorithm):
        wrong = "wrong-passphrase" if encrypted else "invalid-key"
        why = f"is encrypted, and {PASSPHRASE_VARIABLE} does not open it: set it, for this command"
        other = "is not a PEM private key: `openssl genpkey -algorithm ed25519` makes one"
        raise ConfigError(f"{file}: {why if encrypted else other}", code=wrong) from None
    return CryptoSigner(key, _name_key(file, key.public_key()))


def _read_key(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror or error})", code="invalid-key"
        ) from None


def _name_key(file: str, key: Any) -> "SSlibKey":
    """Return a public key with its identifier, the sha256 of its DER form. Raises ConfigError for another kind."""
    with require_package(*_LIBRARY):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from securesystemslib.signer import SSlibKey
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with contextlib.suppress(ValueError):
        named = SSlibKey.from_crypto(key, hashlib.sha256(der).hexdigest())
        if named.keytype in {"ed25519", "ecdsa"}:
            return named
    raise ConfigError(
        f"{file}: is neither ed25519 nor ECDSA on P-256, P-384 or P-521", code="invalid-key"
    )


def read_identity(identity: str, issuer: str, trusted_root: str = "") -> Signers:
    """Return who has an identity that an issuer vouched for, by Sigstore's certificates and log.

    `trusted_root` is a file with the certificates and keys of a Sigstore instance; by default the public one's, as
    the library has them. Nothing is asked of a server. Raises ConfigError, HostError.
    """
    if not (identity and issuer):
        raise ConfigError(
            "--identity and --issuer go together: give both", code="incomplete-identity"
        )
    with require_package("a signature by Sigstore", "sigstore", "signing-library-missing"):
        from sigstore.errors import Error
        from sigstore.models import Bundle, TrustedRoot
        from sigstore.verify import Verifier, policy
    logging.getLogger("sigstore").setLevel(
        logging.ERROR
    )  # it warns of each run that asks no server
    try:
        root = TrustedRoot.from_file(trusted_root) if trusted_root else None
        verifier = Verifier(trusted_root=root) if root else Verifier.production(offline=True)
    except (OSError, ValueError, Error) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{trusted_root}: is not a Sigstore trusted root ({reason})", code="invalid-key"
        ) from None

    def open_bundle(raw: bytes) -> bytes:
        try:
            kind, payload = verifier.verify_dsse(
                Bundle.from_json(raw), policy.Identity(identity=identity, issuer=issuer)
            )
        except Exception as error:  # noqa: BLE001 - of what others wrote, and whatever it is, nothing is proven
            reason = str(error).partition("\n")[0]
            raise ValueError(f"does not prove that {identity} signed ({reason})") from None
        return _require_type(kind, payload)

    return Signers(open_bundle=open_bundle)


def add_check(verdict: AgreementVerdict, signers: Signers) -> AgreementVerdict:
    """Return a verdict that also says who signed the wheel."""
    return replace(verdict, checks=(*verdict.checks, check_signatures(verdict.wheel, signers)))


def check_signatures(wheel: Path, signers: Signers) -> AgreementCheck:
    """Return the check of who signed a wheel and the files beside it: whoever must have done so is proven."""
    said, problems = [], []
    ways = (
        (ENVELOPE_SUFFIX, _open_envelope, bool(signers.keys)),
        (BUNDLE_SUFFIX, _open_bundle, signers.open_bundle is not None),
    )
    for suffix, open_file, wanted in ways:
        file = dist_files.document_path(wheel, suffix)
        try:
            who, payload = open_file(read_document(file), signers)
            said.append(who if wanted else f"{who} by its own claim: --key or --identity proves it")
            problems += [f"{file.name} {one}" for one in _misfits(wheel, payload)]
        except FileNotFoundError:
            problems += [f"none by the signer asked for: {file.name} is missing"] if wanted else []
        except (OSError, *DOCUMENT_ERRORS) as error:
            problems.append(f"{file.name} is not to be trusted ({error})")
    problems += _provenance_problems(wheel, signers)
    unsigned = "none beside it: nothing proves who made these files"
    return AgreementCheck("signature", "; ".join(said) or unsigned, tuple(problems))


def _provenance_problems(wheel: Path, signers: Signers) -> Iterator[str]:
    """Yield what is wrong with the attestations that an index hands on with a wheel, where it has some."""
    file = dist_files.document_path(wheel, PROVENANCE_SUFFIX)
    try:
        for bundle in _read_provenance(parse_json_object(read_document(file))):
            _, payload = _open_bundle(bundle, signers)
            subjects = [
                (one["name"], one["digest"]["sha256"])
                for one in parse_json_object(payload)["subject"]
            ]
            if subjects != [(wheel.name, hash_file(wheel))]:
                yield f"{file.name} is not for {wheel.name} alone"
    except FileNotFoundError:
        pass
    except (OSError, *DOCUMENT_ERRORS) as error:
        yield f"{file.name} is not to be trusted ({error})"


def _read_provenance(document: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the attestations of a provenance object as bundles of Sigstore. Raises DOCUMENT_ERRORS.

    https://packaging.python.org/specifications/index-hosted-attestations/
    """
    for one in [
        one for publisher in document["attestation_bundles"] for one in publisher["attestations"]
    ]:
        material, envelope = one["verification_material"], one["envelope"]
        certificate = {"rawBytes": material["certificate"]}
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": certificate,
                "tlogEntries": material["transparency_entries"],
            },
            "dsseEnvelope": {
                "payload": envelope["statement"],
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": envelope["signature"]}],
            },
        }
        yield json.dumps(bundle).encode()


def _open_envelope(raw: bytes, signers: Signers) -> tuple[str, bytes]:
    """Return which key signed an envelope, and the payload.

    Raises DOCUMENT_ERRORS, also for other keys than are asked for.
    """
    payload, signatures = _parse_envelope(parse_json_object(raw))
    claimed = ", ".join(repr(keyid[:64]) for keyid, _ in signatures)
    if not signers.keys:
        return f"of {claimed or 'nobody'}", payload
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    signed = Envelope(payload, PAYLOAD_TYPE, {}).pae()
    for key, (_, signature) in product(
        signers.keys, signatures
    ):  # the key that a signature names is but a hint
        with contextlib.suppress(UnverifiedSignatureError):
            key.verify_signature(Signature(key.keyid, signature.hex()), signed)
            return f"of {key.keyid}", payload
    raise ValueError(f"none of the keys signed it; it names {claimed or 'none'}")


def _open_bundle(raw: bytes, signers: Signers) -> tuple[str, bytes]:
    """Return that the identity signed a bundle, and the payload. Raises DOCUMENT_ERRORS, also for another identity."""
    if signers.open_bundle:
        return "of the identity, by Sigstore", signers.open_bundle(raw)
    return "by Sigstore", read_payload(raw)


def read_payload(raw: bytes) -> bytes:
    """Return what an envelope, a bundle of Sigstore or a provenance object says was signed, by whomever.

    Raises DOCUMENT_ERRORS.
    """
    document = parse_json_object(raw)
    if "attestation_bundles" in document:
        return b"\n".join(map(read_payload, _read_provenance(document)))
    return _parse_envelope(document.get("dsseEnvelope", document))[0]


def _parse_envelope(envelope: Mapping[str, Any]) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the payload of an envelope, and its signatures with the keys that they name. Raises DOCUMENT_ERRORS."""
    payload = _require_type(envelope["payloadType"], _decode(envelope["payload"]))
    return payload, [
        (str(one.get("keyid", "")), _decode(one["sig"])) for one in envelope["signatures"]
    ]


def _decode(text: str) -> bytes:
    """Return what base64 stands for, in the usual alphabet or in that for URLs: DSSE allows both."""
    return b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _require_type(kind: str, payload: bytes) -> bytes:
    if kind != PAYLOAD_TYPE:
        raise ValueError(f"its payload is {kind!r}, not {PAYLOAD_TYPE}")
    return payload


def _signed_files(wheel: Path) -> tuple[Path, ...]:
    """Return the paths of what is signed together; the last one, the manifest, may be kept back later."""
    documents = (dist_files.document_path(wheel, suffix) for suffix in dist_files.DOCUMENT_SUFFIXES)
    return wheel, *documents, dist_files.manifest_path(wheel)


def _misfits(wheel: Path, payload: bytes) -> Iterator[str]:
    """Yield a clause for each file that is not the one that was signed. Raises OSError, DOCUMENT_ERRORS."""
    from torchmill.wheel import statement

    document = parse_json_object(payload)
    types = document.get("_type"), document.get("predicateType")
    if types != (statement.STATEMENT_TYPE, statement.PREDICATE_TYPE):
        yield f"signs {types!r}, which is not SLSA 1 provenance"
        return
    signed = {one["name"]: one["digest"]["sha256"] for one in document["subject"]}
    for file in _signed_files(wheel):
        if not file.is_file():
            if file.name in signed and file != dist_files.manifest_path(wheel):
                yield f"signs {file.name}, which is missing"
        elif file.name not in signed:
            yield f"does not sign {file.name}"
        elif signed[file.name] != hash_file(file):
            yield f"signs another {file.name}"


def sign_wheel(wheel: Path, signer: "CryptoSigner") -> None:
    """Write the envelope of a wheel and the files beside it; one that this key has signed so already stays.

    It holds the wheel's statement with all of these files as subjects, and keeps what others signed of the same.
    Raises OSError.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Signature

    from torchmill.wheel import statement

    if not check_signatures(wheel, Signers((signer.public_key,))).problems:
        return
    said = read_json_object(dist_files.document_path(wheel, STATEMENT_SUFFIX))
    files = [file for file in _signed_files(wheel) if file.is_file()]
    subject = [{"name": file.name, "digest": {"sha256": hash_file(file)}} for file in files]
    envelope = Envelope(statement.canonical_json(said | {"subject": subject}), PAYLOAD_TYPE, {})
    target = dist_files.document_path(wheel, ENVELOPE_SUFFIX)
    with contextlib.suppress(OSError, *DOCUMENT_ERRORS):
        payload, signatures = _parse_envelope(read_json_object(target))
        if payload == envelope.payload:
            envelope.signatures = {keyid: Signature(keyid, one.hex()) for keyid, one in signatures}
    envelope.sign(signer)
    write_atomically(target, json.dumps(envelope.to_dict()) + "\n")
