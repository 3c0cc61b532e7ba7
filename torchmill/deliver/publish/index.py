"""A package index that takes uploads as a target; twine uploads, with its own configuration.

Uploads go to one URL, and the pages of the index are read at another (`simple`), to see which files
it has. Logins come from twine's variables or from ~/.pypirc.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

import requests

from torchmill.core import retries, urls
from torchmill.core.errors import (
    ConfigError,
    DeliveryError,
    NetworkError,
    SourceError,
    require_choice,
)
from torchmill.core.optional_libraries import require_library
from torchmill.core.paths import import_path
from torchmill.core.process import CommandError, capture
from torchmill.core.silence import LOWEST_RATE, silence_limit
from torchmill.deliver.publish.upload_set import (
    DigestAndSize,
    PublishTarget,
    UploadFile,
    digest_parts,
)
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session, open_url
from torchmill.fetch.http_failures import LASTING_CONNECTION, is_passing_status, judge_http
from torchmill.plan.published import PYPI_LARGEST

# The hosts that uploads to the public indexes go to -> where these indexes are read
# (https://packaging.python.org/guides/using-testpypi).
PUBLIC = {
    "upload.pypi.org": "https://pypi.org/simple",
    "pypi.org": "https://pypi.org/simple",
    "test.pypi.org": "https://test.pypi.org/simple",
}

# The sections that twine knows even if ~/.pypirc does not have them.
_DEFAULT_SECTIONS = {
    "pypi": "https://upload.pypi.org/legacy/",
    "testpypi": "https://test.pypi.org/legacy/",
}

_MAX_REASON_CHARACTERS = 300  # of the words of an index

# A password of fewer letters may occur in any text by chance.
_LONG_SECRET_CHARACTERS = 8

_READ_BYTES = 1 << 20

# Words in twine's errors that tell that a connection was not made, or broke.
_CONNECTION_WORDS = (
    "ConnectionError",
    "Max retries",
    "Connection refused",
    "NameResolution",
    "Timeout",
    "SSLError",
    "Chunked",
)


class PypircSection(NamedTuple):
    """A section of ~/.pypirc; a field that it does not have is ""."""

    repository: str
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class IndexTarget(PublishTarget):
    """An index: the URLs of uploads and of its pages, and the login for both."""

    upload_url: str
    simple: str  # the URL of its pages
    section: str  # of ~/.pypirc; "" for a target that is named by its URL
    login: tuple[str, str] | None  # user and password for reading its pages
    environ: Mapping[str, str]
    usual_limit: int  # bytes of a file
    partial_sizes: dict[str, int] = field(default_factory=dict)  # see PublishTarget
    takes_documents: ClassVar[bool] = False
    removes_files: ClassVar[bool] = False  # twine has no command for that

    @classmethod
    def from_address(cls, to: str, simple: str, environ: Mapping[str, str]) -> Self:
        """Return the index at a URL, or that of "pypirc:SECTION". Raises ConfigError."""
        section = ""
        configured = PypircSection(to, "", "")
        if to.startswith("pypirc:"):
            section = to.removeprefix("pypirc:")
            configured = _read_section(section, environ)
        upload_url = configured.repository
        host = urlsplit(upload_url).hostname or ""
        if not simple:
            simple = PUBLIC.get(host) or f"{upload_url.rstrip('/')}/simple"
        # twine prefers the variables to ~/.pypirc, too
        user = environ.get("TWINE_USERNAME") or configured.username
        password = environ.get("TWINE_PASSWORD") or configured.password
        login = None
        if user and password and _server(simple) == _server(upload_url):
            login = (user, password)
        if password:
            # `_without_secrets` finds the password there, wherever it came from.
            environ = {**environ, "TWINE_PASSWORD": password}
        usual_limit = PYPI_LARGEST if host in PUBLIC else sys.maxsize
        return cls(upload_url, simple, section, login, environ, usual_limit)

    @property
    def name(self) -> str:
        """Return the URL of uploads."""
        return urls.redact_url(self.upload_url)

    def complaint(self, file: UploadFile) -> str | None:
        """Return why an index would refuse a file; None if it would not, as far as is known."""
        if file.wheel.variant:
            return (
                f"{file.name}: is a wheel variant, whose name twine and indexes that take uploads "
                "refuse: publish it to a folder, a bucket or GitHub, and point `invoke index "
                "--variants --base-url` there"
            )
        if urlsplit(self.upload_url).hostname not in PUBLIC:
            return None
        if file.wheel.version.local:
            return (
                f"{file.name}: the public index takes no local versions (PEP 440), and this is "
                f"{file.wheel.version}: build it with `-- --label none`, or publish it elsewhere"
            )
        for platform in file.wheel.platforms:
            if platform.startswith("linux_"):
                return (
                    f"{file.name}: the public index takes no wheels for {platform}, only for "
                    "manylinux: build it with a platform tag that it can hold, or publish it "
                    "elsewhere"
                )
        return None

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the index's files that have the names of these files.

        Raises NetworkError, or HostError if twine is missing.
        """
        with require_library("twine"):
            import twine  # noqa: F401 - refused before anything is uploaded
        digests: dict[str, str] = {}
        with http_session() as session:
            session.auth = self.login
            for project in sorted({file.wheel.name for file in files}):
                digests |= self._project_digests(session, project, files)
        return digests

    def _project_digests(
        self, session: requests.Session, project: str, files: Sequence[UploadFile]
    ) -> dict[str, str]:
        """Return the sha256 of each of these files that the index lists for a project, by name.

        A file of which the index has only the beginning does not count: its size there goes into
        `partial_sizes`.
        """
        files_by_name = {file.name: file for file in files}
        hint = "try again, or say with --simple where the index is read"
        listed_files = package_index.find_project_files(session, self.simple, project, hint)
        digests = {}
        for listed in listed_files or ():
            file = files_by_name.get(listed.name)
            if file is None:
                continue
            digest = (listed.sha256 or "").lower()
            size = listed.size or 0
            if digest == file.sha256:
                self.partial_sizes.pop(file.name, None)
                digests[file.name] = digest
                continue
            # To tell the beginning of this file from another file, both its digest and its size
            # are needed.
            if not digest or listed.size is None:
                digest, size = self._read_listed(session, listed)
            if size < file.size and digest == _hash_start(file, size):
                self.partial_sizes[file.name] = size
            else:
                self.partial_sizes.pop(file.name, None)
                digests[file.name] = digest
        return digests

    def _read_listed(
        self, session: requests.Session, file: package_index.IndexFile
    ) -> DigestAndSize:
        """Return the digest and the size of a file of the index, which is downloaded."""
        # Another server that stores the file must not get the password.
        if _server(file.url) != _server(self.simple):
            session = http_session()

        def read() -> DigestAndSize:
            with open_url(session, file.url, {}) as (_, chunks):
                return digest_parts(chunks)

        try:
            return retries.repeat(read, judge_http, urls.redact_url(file.url))
        except (*package_index.READ_ERRORS, SourceError) as error:
            simple = urls.redact_url(self.simple)
            raise NetworkError(
                f"{urls.redact_url(file.url)} cannot be read to compare it "
                f"({type(error).__name__}), as {simple} lists no sha256 and size for it: try again",
                code="index-unreadable",
            ) from None

    def upload(self, file: UploadFile) -> None:
        """Upload a file with twine.

        Raises DeliveryError with the index's reason for a refusal, NetworkError.
        """
        limit = silence_limit()
        command = [sys.executable, "-P", "-m", "torchmill.deliver.publish.twine_upload"]
        command += [f"{limit:g}", "--non-interactive", "--disable-progress-bar"]
        if self.section:
            command += ["--repository", self.section]
        else:
            command += ["--repository-url", self.upload_url]
        command.append(str(file.path))
        # The longest upload: at the lowest rate (bytes per second) at which a transfer is not given
        # up, with a silence before it and a silence after it.
        seconds = 2 * limit + file.size / LOWEST_RATE
        try:
            capture(command, env=self._twine_environment(), seconds=seconds)
        except CommandError as error:  # twine_upload has printed a report
            raise self._upload_error(file, error.output) from None

    def _twine_environment(self) -> dict[str, str]:
        """Return the environment of twine, in which this package can be imported."""
        # The command line names the index: twine must not read it from variables.
        environment = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith("TWINE_REPOSITORY")
        }
        environment["PYTHONPATH"] = import_path(environment)
        environment["PYTHONUTF8"] = "1"
        # rich, which twine prints with, then writes no escapes
        environment["NO_COLOR"] = "1"
        environment["TERM"] = "dumb"
        return environment

    def _upload_error(self, file: UploadFile, output: str) -> DeliveryError | NetworkError:
        """Return the error for an upload that `twine_upload` reports as failed in its output."""
        report = _read_report(output)
        reason = f"{report.status or ''} {self._without_secrets(report.text)}".strip()
        reason = reason[:_MAX_REASON_CHARACTERS] or report.kind or "twine gave no reason"
        message = f"{report.kind} {report.text}"
        if not report.status and any(word in message for word in _CONNECTION_WORDS):
            error: DeliveryError | NetworkError = NetworkError(
                f"the connection to {self.name} was not made, or broke off ({reason}): run the "
                "command again to go on",
                code="host-unreachable",
            )
            if not LASTING_CONNECTION.search(message):
                error.retry_after = 0.0
            return error
        # Indexes answer 409 for a name that is taken, PyPI 400 with these words in its reason.
        if report.status != requests.codes.conflict and "already exist" not in report.text:
            error = DeliveryError(
                f"{self.name} refuses {file.name} ({reason}): twine takes TWINE_USERNAME and "
                "TWINE_PASSWORD, ~/.pypirc, or a keyring",
                code="upload-refused",
            )
            if is_passing_status(report.status):
                error.retry_after = report.pause
            return error
        partial_size = self.partial_sizes.get(file.name)
        if partial_size is not None:
            return DeliveryError(
                f"{self.name} has only the first {partial_size} of {file.size} bytes of "
                f"{file.name}, from an upload that broke off, and does not let it be replaced "
                f"({reason}): remove that file there, and run the command again",
                code="half-upload",
            )
        return DeliveryError(
            f"{self.name} already has {file.name}, but {urls.redact_url(self.simple)} does not "
            f"list it ({reason}): name the address that it is read from with --simple",
            code="simple-differs",
        )

    def _without_secrets(self, text: str) -> str:
        """Return the words of an index without the password in them.

        A short password may occur in any word: then nothing is shown.
        """
        secret = self.environ.get("TWINE_PASSWORD", "")
        if not secret and self.login:
            _, secret = self.login
        text = urls.hide_password(text)
        if not secret or secret not in text:
            return text
        if len(secret) < _LONG_SECRET_CHARACTERS:
            return ""
        return text.replace(secret, "***")


class _UploadReport(NamedTuple):
    """The report of `twine_upload` about an upload that failed; empty if it printed none."""

    kind: str  # the class of the error
    status: int  # of HTTP; 0 without an answer
    pause: float  # seconds that the answer asks to wait before the next try
    text: str


def _read_report(output: str) -> _UploadReport:
    """Return the report in the output of `twine_upload`."""
    # The words of an index in stderr, which comes last, could pretend to be such a report: the
    # first report is twine_upload's.
    lines = [line for line in output.splitlines() if line.startswith('{"kind": ')]
    report = json.loads(lines[0]) if lines else {}
    return _UploadReport(
        kind=report.get("kind") or "",
        status=report.get("status") or 0,
        pause=report.get("pause") or 0.0,
        text=report.get("text") or "",
    )


def _hash_start(file: UploadFile, size: int) -> str:
    """Return the sha256 of the first `size` bytes of a file."""

    def chunks() -> Iterator[bytes]:
        with file.path.open("rb") as content:
            for start in range(0, size, _READ_BYTES):
                yield content.read(min(size - start, _READ_BYTES))

    return digest_parts(chunks()).sha256


def _server(url: str) -> str:
    """Return the host and port of a URL, without a login."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _read_section(section: str, environ: Mapping[str, str]) -> PypircSection:
    """Return a section of ~/.pypirc. Raises ConfigError if it has no such section."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - HOME of `environ` first
    file = Path(home) / ".pypirc"
    parser = ConfigParser(interpolation=None)  # a password may have a %
    try:
        parser.read(file, encoding="utf-8")
    except (ConfigParserError, UnicodeDecodeError):
        raise ConfigError(
            f"{file} cannot be read: see https://packaging.python.org/specifications/pypirc",
            code="pypirc-invalid",
        ) from None
    sections = [name for name in parser.sections() if parser.has_option(name, "repository")]
    sections += _DEFAULT_SECTIONS
    require_choice(f"repository of {file}", section, sections, "unknown-repository")
    default = _DEFAULT_SECTIONS.get(section, "")
    repository = parser.get(section, "repository", fallback=default)
    urls.validate_url(
        f"{file}, {section}:", repository, ("https", "http"), "https://index.example/"
    )
    return PypircSection(
        repository,
        parser.get(section, "username", fallback=""),
        parser.get(section, "password", fallback=""),
    )
