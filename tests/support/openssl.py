"""Keys that the real openssl makes, and signatures that it verifies."""

import subprocess
from pathlib import Path

OPTIONS = {
    "ed25519": ("-algorithm", "ed25519"),
    "p256": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "p384": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"),
    "p521": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"),
    "secp256k1": ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:secp256k1"),
    "rsa": ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"),
    "x25519": ("-algorithm", "X25519"),
}


def openssl(*arguments: object, given: bytes = b"") -> bytes:
    return subprocess.run(
        ["openssl", *map(str, arguments)], input=given, capture_output=True, check=True
    ).stdout


def make_key(folder: Path, name: str, kind: str = "ed25519", *, passphrase: str = "") -> Path:
    """Write NAME.pem, encrypted if there is a passphrase, and NAME.pub.pem; return the private one."""
    private = folder / f"{name}.pem"
    openssl("genpkey", *OPTIONS[kind], "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public_of(private))
    if passphrase:
        openssl(
            "pkcs8",
            "-topk8",
            "-in",
            private,
            "-out",
            folder / "tmp",
            "-passout",
            f"pass:{passphrase}",
        )
        (folder / "tmp").replace(private)
    return private


def public_of(private: Path) -> Path:
    return private.with_suffix(".pub.pem")
