"""Signatures of deliveries, beside each wheel: by keys of one's own, or by an identity of Sigstore.

An envelope (DSSE) is signed with a key. A bundle of Sigstore is signed for an identity, such as a
user's or a workflow's, that an issuer vouches for. Both hold a statement whose subjects are the
wheel and the files beside it, so that none of these files can be replaced by another.
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
https://docs.sigstore.dev/about/bundle/
"""

import contextlib
import hashlib
import json
import logging
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.digests import hash_file
from torchmill.core.errors import ConfigError
from torchmill.core.optional_libraries import require_library
from torchmill.core.strict_json import parse_json_object, read_document, read_json_object
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
KEYS_VARIABLE = "TORCHMILL_KEYS"  # a list of files with public keys, separated by spaces
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class OpenedSignature(NamedTuple):
    """The contents of a signature."""

    signer: str  # who signed it, as words
    payload: bytes  # the statement that was signed


class KeySignature(NamedTuple):
    """A signature in an envelope."""

    keyid: str  # of the key, as the envelope claims
    signature: bytes


class ParsedEnvelope(NamedTuple):
    """An envelope, of which nothing is verified."""

    payload: bytes
    signatures: list[KeySignature]


@dataclass(frozen=True, slots=True)
class Signers:
    """The signers that a delivery must have. By default no signature is required."""

    keys: "tuple[SSlibKey, ...]" = ()  # one of them must have signed
    # Returns the payload of a bundle that the required identity signed; raises ValueError for any
    # other bundle. None: no identity is required.
    open_bundle: Callable[[bytes], bytes] | None = None


def read_public_keys(files: Iterable[str]) -> Signers:
    """Return the signers with the public keys in some files; without files, none is required.

    Raises ConfigError for a file without a usable key, HostError if the library is missing.
    """
    return Signers(tuple(_read_public_key(file) for file in files))


def read_trusted_keys(environ: Mapping[str, str]) -> Signers:
    """Return the signers that TORCHMILL_KEYS trusts; if it is not set, no signature is required.

    Raises ConfigError for a file without a usable key and for an empty setting, HostError if the
    library is missing.
    """
    files = environ.get(KEYS_VARIABLE, "").split()
    # A setting without a key would trust everybody: whoever sets it does not mean that.
    if KEYS_VARIABLE in environ and not files:
        raise ConfigError(
            f"{KEYS_VARIABLE} is set, and names no key: name files with public keys, or unset it",
            code="invalid-key",
        )
    return read_public_keys(files)


def _read_public_key(file: str) -> "SSlibKey":
    """Return the public key in a PEM file. Raises ConfigError, HostError."""
    with require_library("securesystemslib"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    data = _read_key_file(file)
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{file}: is not a PEM public key: `openssl pkey -in PRIVATE.pem -pubout` prints that "
            "of a private one",
            code="invalid-key",
        ) from None
    return _identify_key(file, key)


def read_signer(file: str, environ: Mapping[str, str]) -> "CryptoSigner":
    """Return a signer with the private key in a file.

    TORCHMILL_SIGN_PASSPHRASE opens an encrypted key. Raises ConfigError for a file without a
    usable key and for a wrong passphrase, HostError if the library is missing.
    """
    with require_library("securesystemslib"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from securesystemslib.signer import CryptoSigner
    data = _read_key_file(file)
    encrypted = b"ENCRYPTED" in data
    # cryptography refuses a passphrase for a key that is not encrypted.
    passphrase = environ.get(PASSPHRASE_VARIABLE, "").encode() if encrypted else None
    try:
        key = load_pem_private_key(data, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if encrypted:
            raise ConfigError(
                f"{file}: is encrypted, and {PASSPHRASE_VARIABLE} does not open it: set it, for "
                "this command",
                code="wrong-passphrase",
            ) from None
        raise ConfigError(
            f"{file}: is not a PEM private key: `openssl genpkey -algorithm ed25519` makes one",
            code="invalid-key",
        ) from None
    return CryptoSigner(key, _identify_key(file, key.public_key()))


def _read_key_file(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror or error})", code="invalid-key"
        ) from None


def _identify_key(file: str, key: Any) -> "SSlibKey":
    """Return a public key with its identifier, the sha256 of its DER form.

    Raises ConfigError for a kind of key that is not supported.
    """
    with require_library("securesystemslib"):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from securesystemslib.signer import SSlibKey
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with contextlib.suppress(ValueError):  # from_crypto raises it for a kind that it does not know
        identified = SSlibKey.from_crypto(key, hashlib.sha256(der).hexdigest())
        if identified.keytype in {"ed25519", "ecdsa"}:
            return identified
    raise ConfigError(
        f"{file}: is neither ed25519 nor ECDSA on P-256, P-384 or P-521", code="invalid-key"
    )


def read_identity(identity: str, issuer: str, trusted_root: str = "") -> Signers:
    """Return the signer with an identity that an issuer vouches for, as Sigstore proves it.

    `trusted_root` is a file with the certificates and keys of a Sigstore instance, by default
    those of the public instance that the library ships. No server is contacted. Raises ConfigError
    for a missing identity or issuer and for an invalid root, HostError if the library is missing.
    """
    if not (identity and issuer):
        raise ConfigError(
            "--identity and --issuer go together: give both", code="incomplete-identity"
        )
    with require_library("sigstore"):
        from sigstore.errors import Error
        from sigstore.models import Bundle, TrustedRoot
        from sigstore.verify import Verifier, policy
    # sigstore logs a warning whenever it works offline, which is asked for here.
    logging.getLogger("sigstore").setLevel(logging.ERROR)
    try:
        if trusted_root:
            verifier = Verifier(trusted_root=TrustedRoot.from_file(trusted_root))
        else:
            verifier = Verifier.production(offline=True)
    except (OSError, ValueError, Error) as error:
        reason = str(error).partition("\n")[0]
        file = trusted_root or "what the library sigstore has for the public instance"
        raise ConfigError(
            f"{file}: is not a Sigstore trusted root ({reason})", code="invalid-key"
        ) from None

    def open_bundle(raw: bytes) -> bytes:
        """Return the payload of a bundle that the identity signed; else raise ValueError."""
        signer = policy.Identity(identity=identity, issuer=issuer)
        try:
            payload_type, payload = verifier.verify_dsse(Bundle.from_json(raw), signer)
        # The bundle came from elsewhere, and the library raises all kinds of exceptions for a
        # malformed one. Whichever it is, the bundle proves nothing.
        except Exception as error:  # noqa: BLE001
            reason = str(error).partition("\n")[0]
            raise ValueError(f"does not prove that {identity} signed ({reason})") from None
        return _require_payload_type(payload_type, payload)

    return Signers(open_bundle=open_bundle)


def add_check(verdict: AgreementVerdict, signers: Signers) -> AgreementVerdict:
    """Return a verdict with the check of the wheel's signatures added."""
    check = check_signatures(verdict.wheel, signers)
    return replace(verdict, checks=(*verdict.checks, check))


def check_signatures(wheel: Path, signers: Signers) -> AgreementCheck:
    """Return the check of the signatures of a wheel and the files beside it.

    If `signers` requires a key or an identity, a signature by it must exist. A signature that is
    not required is not verified, and proves nothing; but its statement must fit the files, too.
    """
    # The suffix of each form of signature, the function that opens it, and whether it is required.
    forms = (
        (ENVELOPE_SUFFIX, _open_envelope, bool(signers.keys)),
        (BUNDLE_SUFFIX, _open_bundle, signers.open_bundle is not None),
    )
    summaries = []
    problems = []
    for suffix, open_signature, is_required in forms:
        file = dist_files.document_path(wheel, suffix)
        try:
            opened = open_signature(read_document(file), signers)
            summary = opened.signer
            # Anybody can write any name into a signature that is not verified.
            if not is_required:
                summary += " by its own claim: --key or --identity proves it"
            summaries.append(summary)
            for problem in _subject_problems(wheel, opened.payload):
                problems.append(f"{file.name} {problem}")
        except FileNotFoundError:
            if is_required:
                problems.append(f"none by the required signer: {file.name} is missing")
        except (OSError, *DOCUMENT_ERRORS) as error:
            problems.append(f"{file.name} is not to be trusted ({error})")
    problems += _provenance_problems(wheel, signers)
    summary = "; ".join(summaries) or "none beside it: nothing proves who made these files"
    return AgreementCheck("signature", summary, tuple(problems))


def _provenance_problems(wheel: Path, signers: Signers) -> Iterator[str]:
    """Yield the problems with the attestations of an index that lie beside a wheel, if any do."""
    file = dist_files.document_path(wheel, PROVENANCE_SUFFIX)
    try:
        for bundle in _read_provenance(parse_json_object(read_document(file))):
            statement = parse_json_object(_open_bundle(bundle, signers).payload)
            subjects = [
                (entry["name"], entry["digest"]["sha256"]) for entry in statement["subject"]
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
    attestations = []
    for publisher in document["attestation_bundles"]:
        attestations += publisher["attestations"]
    for attestation in attestations:
        material = attestation["verification_material"]
        envelope = attestation["envelope"]
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": material["certificate"]},
                "tlogEntries": material["transparency_entries"],
            },
            "dsseEnvelope": {
                "payload": envelope["statement"],
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": envelope["signature"]}],
            },
        }
        yield json.dumps(bundle).encode()


def _open_envelope(raw: bytes, signers: Signers) -> OpenedSignature:
    """Return the contents of an envelope, with the key that signed it.

    If no keys are required, these are the keys that the envelope names. Raises DOCUMENT_ERRORS,
    also if none of the required keys signed it.
    """
    envelope = _parse_envelope(parse_json_object(raw))
    claimed = ", ".join(repr(entry.keyid[:64]) for entry in envelope.signatures)
    if not signers.keys:
        return OpenedSignature(f"of {claimed or 'nobody'}", envelope.payload)
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    # DSSE signs the payload together with its type.
    signed = Envelope(envelope.payload, PAYLOAD_TYPE, {}).pae()
    for key in signers.keys:
        # The key that a signature names is only a hint, so each signature is tried with each key.
        for entry in envelope.signatures:
            with contextlib.suppress(UnverifiedSignatureError):
                key.verify_signature(Signature(key.keyid, entry.signature.hex()), signed)
                return OpenedSignature(f"of {key.keyid}", envelope.payload)
    raise ValueError(f"none of the keys signed it; it names {claimed or 'none'}")


def _open_bundle(raw: bytes, signers: Signers) -> OpenedSignature:
    """Return the contents of a Sigstore bundle.

    Raises DOCUMENT_ERRORS, also if the required identity did not sign it.
    """
    if signers.open_bundle:
        return OpenedSignature("of the identity, by Sigstore", signers.open_bundle(raw))
    return OpenedSignature("by Sigstore", read_payload(raw))


def read_payload(raw: bytes) -> bytes:
    """Return the payload of an envelope, a Sigstore bundle or a provenance object.

    Of a provenance object, these are the payloads of all its attestations, a line for each. Nothing
    proves who signed it. Raises DOCUMENT_ERRORS.
    """
    document = parse_json_object(raw)
    if "attestation_bundles" in document:
        return b"\n".join(read_payload(bundle) for bundle in _read_provenance(document))
    return _parse_envelope(document.get("dsseEnvelope", document)).payload


def _parse_envelope(envelope: Mapping[str, Any]) -> ParsedEnvelope:
    """Return the payload and the signatures of an envelope. Raises DOCUMENT_ERRORS."""
    payload = _require_payload_type(envelope["payloadType"], _decode_base64(envelope["payload"]))
    signatures = [
        KeySignature(str(entry.get("keyid", "")), _decode_base64(entry["sig"]))
        for entry in envelope["signatures"]
    ]
    return ParsedEnvelope(payload, signatures)


def _decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, in the usual alphabet or the one for URLs.

    DSSE allows both.
    """
    return b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _require_payload_type(payload_type: str, payload: bytes) -> bytes:
    """Return a payload if it is of the type of statements; raises ValueError if not."""
    if payload_type != PAYLOAD_TYPE:
        raise ValueError(f"its payload is {payload_type!r}, not {PAYLOAD_TYPE}")
    return payload


def _signed_files(wheel: Path) -> tuple[Path, ...]:
    """Return the paths of the files that are signed together; the last one is the manifest."""
    documents = [dist_files.document_path(wheel, suffix) for suffix in dist_files.DOCUMENT_SUFFIXES]
    return (wheel, *documents, dist_files.manifest_path(wheel))


def _subject_problems(wheel: Path, payload: bytes) -> Iterator[str]:
    """Yield a clause for each file that is not the file in the signed statement.

    The manifest may be missing, because publishing without --manifest keeps it back. Raises
    OSError, DOCUMENT_ERRORS.
    """
    from torchmill.wheel import statement

    document = parse_json_object(payload)
    types = (document.get("_type"), document.get("predicateType"))
    if types != (statement.STATEMENT_TYPE, statement.PREDICATE_TYPE):
        yield f"signs {types!r}, which is not SLSA 1 provenance"
        return
    signed = {subject["name"]: subject["digest"]["sha256"] for subject in document["subject"]}
    for file in _signed_files(wheel):
        if not file.is_file():
            if file.name in signed and file != dist_files.manifest_path(wheel):
                yield f"signs {file.name}, which is missing"
        elif file.name not in signed:
            yield f"does not sign {file.name}"
        elif signed[file.name] != hash_file(file):
            yield f"signs another {file.name}"


def sign_wheel(wheel: Path, signer: "CryptoSigner") -> None:
    """Write the envelope of a wheel and the files beside it, unless this key signed them already.

    The envelope holds the wheel's statement with all of these files as subjects. If others signed
    exactly the same, their signatures stay in it. Raises OSError, and ValueError for a damaged
    statement.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Signature

    from torchmill.wheel import statement

    target = dist_files.document_path(wheel, ENVELOPE_SUFFIX)
    if _is_signed_with(wheel, target, signer.public_key):
        return
    document = read_json_object(dist_files.document_path(wheel, STATEMENT_SUFFIX))
    document["subject"] = []
    for file in _signed_files(wheel):
        if file.is_file():
            subject = {"name": file.name, "digest": {"sha256": hash_file(file)}}
            document["subject"].append(subject)
    envelope = Envelope(statement.canonical_json(document), PAYLOAD_TYPE, {})
    with contextlib.suppress(OSError, *DOCUMENT_ERRORS):  # a missing or damaged one is replaced
        previous = _parse_envelope(read_json_object(target))
        if previous.payload == envelope.payload:
            for entry in previous.signatures:
                envelope.signatures[entry.keyid] = Signature(entry.keyid, entry.signature.hex())
    envelope.sign(signer)
    write_atomically(target, json.dumps(envelope.to_dict()) + "\n")


def _is_signed_with(wheel: Path, envelope: Path, key: "SSlibKey") -> bool:
    """Tell whether a key signed a wheel and the files beside it, as they are now, in an envelope.

    Other signatures do not count. A bundle of Sigstore may be for older files, and nothing that is
    signed here would change that: ECDSA would only write another envelope each time.
    """
    try:
        opened = _open_envelope(read_document(envelope), Signers((key,)))
        return not list(_subject_problems(wheel, opened.payload))
    except (OSError, *DOCUMENT_ERRORS):  # a missing or damaged one
        return False
