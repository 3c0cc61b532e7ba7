"""Find the certificates of authorities by which downloads are verified."""

from collections.abc import Mapping
from pathlib import Path

from torchmill.core.lenient_paths import exists

# Variables that name a file or a folder of certificates, for OpenSSL, requests, curl and pip. They
# pass to a build, which fails with one that does not exist.
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
# Where distributions have them: https://go.dev/src/crypto/x509/root_linux.go
_USUAL_FILES = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/cert.pem",
)
_USUAL_PLACE = "/etc/ssl/certs"


def missing_certificates(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Return what is named and not there: "SSL_CERT_FILE=/etc/x.pem", or "/etc/ssl/certs".

    The latter stands for the system's own certificates, without which git and curl verify nothing.
    `root` is the folder of the system's files.
    """
    missing: list[str] = []
    for name in _VARIABLES:
        value = environ.get(name)
        # SSL_CERT_DIR may name several folders: https://docs.openssl.org/3.0/man3/SSL_CTX_load_verify_locations/
        if value and not any(exists(root / part.lstrip("/")) for part in value.split(":")):
            missing.append(f"{name}={value}")
    has_system = exists(root / "etc/os-release")  # nothing is known of other systems
    if has_system and not any(exists(root / file) for file in _USUAL_FILES):
        missing.append(_USUAL_PLACE)
    return tuple(missing)
