"""Certificates that are named and not there."""

from pathlib import Path

from torchmill.host.certificates import missing_certificates


def make_system(root: Path, *files: str) -> Path:
    for name in ("etc/os-release", *files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_a_system_with_certificates_misses_none(tmp_path: Path) -> None:
    root = make_system(tmp_path, "etc/ssl/certs/ca-certificates.crt", "etc/own.pem")
    assert missing_certificates({"SSL_CERT_FILE": "/etc/own.pem"}, root) == ()
    assert missing_certificates({"SSL_CERT_DIR": "/gone:/etc/ssl/certs"}, root) == ()


def test_a_slim_image_has_none(tmp_path: Path) -> None:
    assert missing_certificates({}, make_system(tmp_path)) == ("/etc/ssl/certs",)


def test_a_variable_that_names_no_file_is_named(tmp_path: Path) -> None:
    root = make_system(tmp_path, "etc/ssl/cert.pem")
    environ = {"REQUESTS_CA_BUNDLE": "/etc/gone.pem", "PIP_CERT": ""}
    assert missing_certificates(environ, root) == ("REQUESTS_CA_BUNDLE=/etc/gone.pem",)


def test_nothing_is_said_of_a_system_that_is_not_linux(tmp_path: Path) -> None:
    assert missing_certificates({}, tmp_path) == ()
