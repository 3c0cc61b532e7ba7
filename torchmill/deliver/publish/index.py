"""A package index that takes uploads: twine brings them, with its own configuration."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import requests

from torchmill.core import urls
from torchmill.core.errors import ConfigError, DeliveryError, HostError, NetworkError
from torchmill.deliver.publish.upload_set import PublishTarget, UploadFile
from torchmill.fetch import package_index

PUBLIC = {  # where the public indexes are read (https://packaging.python.org/guides/using-testpypi)
    "upload.pypi.org": "https://pypi.org/simple",
    "pypi.org": "https://pypi.org/simple",
    "test.pypi.org": "https://test.pypi.org/simple",
}
_USUAL = {"pypi": "https://upload.pypi.org/legacy/", "testpypi": "https://test.pypi.org/legacy/"}
_TAKEN = ("409 Conflict", "already exist")
_LOGIN = re.compile(r"//[^/@\s]*@")
_LONGEST = 300  # letters of what twine says
_NOWHERE = ("ConnectionError", "Max retries", "Connection refused", "NameResolution", "Timeout")


@dataclass(frozen=True, slots=True)
class IndexTarget(PublishTarget):
    """An index: where it is written, where it is read, and as whom."""

    upload_url: str
    simple: str
    section: str  # of ~/.pypirc; "" where the address is all there is
    login: tuple[str, str] | None  # of who reads it
    environ: Mapping[str, str]
    takes_documents: ClassVar[bool] = False

    @classmethod
    def from_address(cls, to: str, simple: str, environ: Mapping[str, str]) -> IndexTarget:
        """Return the index at an address, or of a section of ~/.pypirc. Raises ConfigError."""
        section = to.removeprefix("pypirc:") if to.startswith("pypirc:") else ""
        upload, *said = _section(section, environ) if section else (to, "", "")
        host = urlsplit(upload).hostname or ""
        read = simple or PUBLIC.get(host) or upload.rstrip("/") + "/simple"
        user, password = (
            environ.get(name) or known for name, known in zip(("TWINE_USERNAME", "TWINE_PASSWORD"), said, strict=True)
        )
        same = _server(read) == _server(upload)
        return cls(upload, read, section, (user, password) if user and password and same else None, environ)

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

    def existing(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the files that the index lists. Raises NetworkError or HostError."""
        if importlib.util.find_spec("twine") is None:
            raise HostError(
                "uploading to an index needs twine: run `python -m pip install twine`", code="twine-missing"
            )
        found: dict[str, str] = {}
        with requests.Session() as session:
            session.auth = self.login
            for project in sorted({file.wheel.name for file in files}):
                found |= self._listed(session, project, {file.name for file in files})
        return found

    def _listed(self, session: requests.Session, project: str, names: Collection[str]) -> dict[str, str]:
        """Return the files of a project; one that the index does not know has none."""
        cure = "try again, or say with --simple where the index is read"
        listed = package_index.find_project_files(session, self.simple, project, cure) or ()
        return {
            file.name: (file.sha256 or self._fetched(session, file)).lower() for file in listed if file.name in names
        }

    def _fetched(self, session: requests.Session, file: package_index.IndexFile) -> str:
        """Return the digest of a file for which the index says none."""
        digest = hashlib.sha256()
        # whoever else keeps the file is not told the password
        asked = session if _server(file.url) == _server(self.simple) else requests.Session()
        try:
            with contextlib.closing(
                asked.get(file.url, stream=True, timeout=package_index.INDEX_TIMEOUT_SECONDS)
            ) as response:
                response.raise_for_status()
                for chunk in response.iter_content(1 << 20):
                    digest.update(chunk)
        except (requests.RequestException, ValueError) as error:
            raise NetworkError(
                f"{urls.redact_url(file.url)} cannot be read to compare it ({type(error).__name__}), and "
                f"{urls.redact_url(self.simple)} lists no sha256 for it: try again",
                code="index-unreadable",
            ) from None
        return digest.hexdigest()

    def upload(self, file: UploadFile) -> None:
        """Upload a file with twine. Raises DeliveryError with what the index says, or NetworkError."""
        target = ["--repository", self.section] if self.section else ["--repository-url", self.upload_url]
        options = ["--verbose", "--non-interactive", "--disable-progress-bar", *target]
        argv = [sys.executable, "-m", "twine", "upload", *options, str(file.path)]
        led = {name: value for name, value in self.environ.items() if not name.startswith("TWINE_REPOSITORY")}
        env = {**led, "PYTHONUTF8": "1", "NO_COLOR": "1", "TERM": "dumb"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise self._failed(file, f"{done.stdout}\n{done.stderr}")

    def _failed(self, file: UploadFile, output: str) -> DeliveryError | NetworkError:
        output = " ".join(self._without_secrets(output).split())
        said = output.rpartition("ERROR ")[2][-_LONGEST:]
        if any(word in output for word in _TAKEN):
            return DeliveryError(
                f"{self.name} already has {file.name}, but {urls.redact_url(self.simple)} does not list it "
                f"({said}): name the address that it is read from with --simple",
                code="simple-differs",
            )
        if any(word in output for word in _NOWHERE):
            return NetworkError(
                f"{self.name} cannot be reached ({said}): run the command again to go on",
                code="host-unreachable",
            )
        return DeliveryError(
            f"{self.name} refuses {file.name} ({said}): twine takes TWINE_USERNAME and TWINE_PASSWORD, "
            "~/.pypirc, or a keyring",
            code="upload-refused",
        )

    def _without_secrets(self, text: str) -> str:
        """Return what twine said; it shows no password, but an index might."""
        secret = self.environ.get("TWINE_PASSWORD") or (self.login[1] if self.login else "")
        return _LOGIN.sub("//", text.replace(secret, "***") if secret else text)


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
    found = read.get(section, "repository", fallback=_USUAL.get(section, ""))
    if not found:
        known = ", ".join([one for one in read.sections() if read.has_option(one, "repository")] + [*_USUAL])
        raise ConfigError(
            f"--to pypirc:{section}: {file} has no such repository: choose from {known}",
            code="unknown-repository",
        )
    urls.validate_url(f"{file}, {section}:", found, ("https", "http"), "https://index.example/")
    user, password = (read.get(section, name, fallback="") for name in ("username", "password"))
    return found, user, password
