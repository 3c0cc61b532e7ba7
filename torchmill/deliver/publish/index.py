"""A package index that takes uploads: twine brings them, with its own configuration."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

import requests

import torchmill
from torchmill.core import urls
from torchmill.core.errors import (
    ConfigError,
    DeliveryError,
    NetworkError,
    SourceError,
    require_choice,
    require_package,
)
from torchmill.core.process import CommandError, capture
from torchmill.core.silence import LOWEST_RATE, silence_limit
from torchmill.deliver.publish.upload_set import PublishTarget, UploadFile, digest_parts
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session, open_url
from torchmill.plan.published import PYPI_LARGEST

PUBLIC = {  # where the public indexes are read (https://packaging.python.org/guides/using-testpypi)
    "upload.pypi.org": "https://pypi.org/simple",
    "pypi.org": "https://pypi.org/simple",
    "test.pypi.org": "https://test.pypi.org/simple",
}
_USUAL = {"pypi": "https://upload.pypi.org/legacy/", "testpypi": "https://test.pypi.org/legacy/"}
_LONGEST = 300  # letters of what an index says
_LONG_SECRET = 8  # letters
_NOWHERE = (
    "ConnectionError",
    "Max retries",
    "Connection refused",
    "NameResolution",
    "Timeout",
    "SSLError",
    "Chunked",
)


@dataclass(frozen=True, slots=True)
class IndexTarget(PublishTarget):
    """An index: where it is written, where it is read, and as whom."""

    upload_url: str
    simple: str
    section: str  # of ~/.pypirc; "" where the address is all there is
    login: tuple[str, str] | None  # of who reads it
    environ: Mapping[str, str]
    usual_limit: int  # bytes of a file
    partial_sizes: dict[str, int] = field(
        default_factory=dict
    )  # file of which it has the beginning alone -> bytes
    takes_documents: ClassVar[bool] = False

    @classmethod
    def from_address(cls, to: str, simple: str, environ: Mapping[str, str]) -> Self:
        """Return the index at an address, or of a section of ~/.pypirc. Raises ConfigError."""
        section = to.removeprefix("pypirc:") if to.startswith("pypirc:") else ""
        upload, *said = _section(section, environ) if to.startswith("pypirc:") else (to, "", "")
        host = urlsplit(upload).hostname or ""
        read = simple or PUBLIC.get(host) or upload.rstrip("/") + "/simple"
        names = ("TWINE_USERNAME", "TWINE_PASSWORD")
        user, password = (
            environ.get(name) or known for name, known in zip(names, said, strict=True)
        )
        same = _server(read) == _server(upload)
        login = (user, password) if user and password and same else None
        environ = (
            {**environ, names[1]: password} if password else environ
        )  # what it says is not shown, whoever says it
        return cls(
            upload, read, section, login, environ, PYPI_LARGEST if host in PUBLIC else sys.maxsize
        )

    @property
    def name(self) -> str:
        """Return its address."""
        return urls.redact_url(self.upload_url)

    def complaint(self, file: UploadFile) -> str | None:
        """Return why the public indexes would not take a file."""
        if urlsplit(self.upload_url).hostname not in PUBLIC:
            return None
        if file.wheel.version.local:
            return (
                f"{file.name}: the public index takes no local versions (PEP 440), and this is "
                f"{file.wheel.version}: build it with `-- --label none`, or publish it elsewhere"
            )
        plain = [one for one in file.wheel.platforms if one.startswith("linux_")]
        if plain:
            return (
                f"{file.name}: the public index takes no wheels for {plain[0]}, only for manylinux: build it "
                "with a platform tag that it can hold, or publish it elsewhere"
            )
        return None

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the files that the index lists. Raises NetworkError or HostError."""
        with require_package("uploading to an index", "twine", "twine-missing"):
            import twine  # noqa: F401 - which is run as a program
        found: dict[str, str] = {}
        with http_session() as session:
            session.auth = self.login
            for project in sorted({file.wheel.name for file in files}):
                found |= self._listed(session, project, {file.name: file for file in files})
        return found

    def _listed(
        self, session: requests.Session, project: str, wanted: Mapping[str, UploadFile]
    ) -> dict[str, str]:
        """Return the digests of a project's files; none of one that is half of ours, which is remembered."""
        cure = "try again, or say with --simple where the index is read"
        found = {}
        for listed in package_index.find_project_files(session, self.simple, project, cure) or ():
            if (ours := wanted.get(listed.name)) is None:
                continue
            digest, size = (listed.sha256 or "").lower(), listed.size or 0
            if digest != ours.sha256 and (not digest or listed.size is None):
                digest, size = self._read_back(session, listed)
            if digest != ours.sha256 and size < ours.size and digest == _hash_start(ours, size):
                self.partial_sizes[ours.name] = size
            else:
                self.partial_sizes.pop(ours.name, None)
                found[ours.name] = digest
        return found

    def _read_back(
        self, session: requests.Session, file: package_index.IndexFile
    ) -> tuple[str, int]:
        """Return the sha256 of what the index has for a file, and how many bytes that is."""
        # whoever else keeps the file is not told the password
        asked = session if _server(file.url) == _server(self.simple) else http_session()
        try:
            with open_url(asked, file.url, {}) as (_, chunks):
                return digest_parts(chunks)
        except (*package_index.READ_ERRORS, SourceError) as error:
            raise NetworkError(
                f"{urls.redact_url(file.url)} cannot be read to compare it ({type(error).__name__}), as "
                f"{urls.redact_url(self.simple)} lists no sha256 and size for it: try again",
                code="index-unreadable",
            ) from None

    def upload(self, file: UploadFile) -> None:
        """Upload a file with twine. Raises DeliveryError with what the index says, or NetworkError."""
        target = (
            ["--repository", self.section]
            if self.section
            else ["--repository-url", self.upload_url]
        )
        options = ["--non-interactive", "--disable-progress-bar", *target]
        limit = silence_limit()
        argv = [
            sys.executable,
            "-P",
            "-m",
            "torchmill.deliver.publish.twine_upload",
            f"{limit:g}",
            *options,
        ]
        led = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith("TWINE_REPOSITORY")
        }
        own = os.pathsep.join(
            [str(Path(torchmill.__file__).parents[1]), *filter(None, [led.get("PYTHONPATH")])]
        )
        env = {**led, "PYTHONPATH": own, "PYTHONUTF8": "1", "NO_COLOR": "1", "TERM": "dumb"}
        try:
            capture([*argv, str(file.path)], env=env, seconds=2 * limit + file.size / LOWEST_RATE)
        except CommandError as error:
            raise self._failed(file, error.output) from None

    def _failed(self, file: UploadFile, output: str) -> DeliveryError | NetworkError:
        """Return the error to show for what `twine_upload` printed."""
        # of several such lines, what the index said comes later: stderr stands behind stdout
        report = next((line for line in output.splitlines() if line.startswith('{"kind": ')), "{}")
        kind, status, text = (
            json.loads(report).get(name) or "" for name in ("kind", "status", "text")
        )
        why = (
            f"{status} {self._without_secrets(text)}".strip()[:_LONGEST]
            or kind
            or "twine gave no reason"
        )
        if not status and any(word in f"{kind} {text}" for word in _NOWHERE):
            return NetworkError(
                f"the connection to {self.name} was not made, or broke off ({why}): run the command again to go on",
                code="host-unreachable",
            )
        if not (status == requests.codes.conflict or "already exist" in text):
            return DeliveryError(
                f"{self.name} refuses {file.name} ({why}): twine takes TWINE_USERNAME and TWINE_PASSWORD, "
                "~/.pypirc, or a keyring",
                code="upload-refused",
            )
        if (size := self.partial_sizes.get(file.name)) is not None:
            return DeliveryError(
                f"{self.name} has only the first {size} of {file.size} bytes of {file.name}, from an upload that "
                f"broke off, and does not let it be replaced ({why}): remove that file there, and run the command "
                "again",
                code="half-upload",
            )
        return DeliveryError(
            f"{self.name} already has {file.name}, but {urls.redact_url(self.simple)} does not list it "
            f"({why}): name the address that it is read from with --simple",
            code="simple-differs",
        )

    def _without_secrets(self, text: str) -> str:
        """Return what an index said; one that is short may be in any word, so nothing is shown then."""
        secret = self.environ.get("TWINE_PASSWORD") or (self.login[1] if self.login else "")
        text = urls.hide_password(text)
        if not secret or secret not in text:
            return text
        return text.replace(secret, "***") if len(secret) >= _LONG_SECRET else ""


def _hash_start(file: UploadFile, size: int) -> str:
    with file.path.open("rb") as content:
        return digest_parts(
            content.read(min(size - at, 1 << 20)) for at in range(0, size, 1 << 20)
        )[0]


def _server(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _section(section: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return address, user and password that a section of ~/.pypirc names. Raises ConfigError."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - an environment that is given
    file = Path(home) / ".pypirc"
    read = ConfigParser(interpolation=None)
    try:
        read.read(file, encoding="utf-8")
    except (ConfigParserError, UnicodeDecodeError):
        raise ConfigError(
            f"{file} cannot be read: see https://packaging.python.org/specifications/pypirc",
            code="pypirc-invalid",
        ) from None
    known = [one for one in read.sections() if read.has_option(one, "repository")] + [*_USUAL]
    require_choice(f"repository of {file}", section, known, "unknown-repository")
    found = read.get(section, "repository", fallback=_USUAL.get(section, ""))
    urls.validate_url(f"{file}, {section}:", found, ("https", "http"), "https://index.example/")
    user, password = (read.get(section, name, fallback="") for name in ("username", "password"))
    return found, user, password
