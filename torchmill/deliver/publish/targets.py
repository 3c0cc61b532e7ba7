"""Choose the target that the argument of --to names.

A target is a place that wheels are published to: a folder, an index, the releases of a repository,
or a bucket.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.request import url2pathname

from torchmill.core import urls
from torchmill.core.errors import ConfigError
from torchmill.deliver.publish.folder import FolderTarget
from torchmill.deliver.publish.upload_set import PublishTarget

GITHUB = re.compile(r"github:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<tag>[\w./+-]+))?")
BUCKET = re.compile(r"s3://(?P<bucket>[\w.-]{3,255})(?P<path>/[^?#]*)?", re.ASCII)

# The beginning of a URL, even if its colon was forgotten: "https//x" is no folder.
SCHEME = re.compile(r"[a-zA-Z][\w+.-]+(?::|//)")

# A host and a path, "wheels.example/simple", which can be an index or a folder.
HOST = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?/\w", re.ASCII)

# The help of --to, in commands/help.toml, has the same text; a test compares them.
TARGET_FORMS = (
    "a folder, file:///PATH, the address of an index (https://…), pypirc:NAME (a section of "
    "~/.pypirc), github:OWNER/NAME[@TAG] or s3://BUCKET[/PREFIX]"
)


def choose_target(to: str, environ: Mapping[str, str], simple: str = "") -> PublishTarget:
    """Return the target that --to names; `simple` is the URL at which its index is read.

    Raises ConfigError for an unknown form of target, and for a URL with a password in it, HostError
    if the library for a bucket is missing.
    """
    if not to:
        raise ConfigError(f"invoke publish needs --to: {TARGET_FORMS}", code="no-target")
    if to.startswith("github:"):
        return _github_target(to, environ)
    scheme = to.partition(":")[0].lower() if SCHEME.match(to) else ""
    is_index = scheme in {"http", "https", "pypirc"}  # ~/.pypirc lists indexes only
    if simple and not is_index:
        raise ConfigError(
            f"--simple is for indexes only, and {to} is none: leave it out",
            code="simple-without-index",
        )
    if is_index:
        return _index_target(to, environ, simple)
    if scheme == "s3":
        return _bucket_target(to)
    if scheme == "file":
        path = urls.validate_url("--to", to, ("file",), "file:///PATH").path
        return FolderTarget(Path(url2pathname(path)))
    if scheme:
        raise ConfigError(
            f"--to {urls.redact_url(to)}: unknown kind of target: give {TARGET_FORMS}",
            code="unknown-target",
        )
    return _folder_target(to)


def _folder_target(to: str) -> PublishTarget:
    """Return the folder that --to names by its path. Raises ConfigError."""
    if HOST.match(to) and not Path(to).parent.is_dir():
        raise ConfigError(
            f"--to {to}: write https://{to} for an index, ./{to} for a folder",
            code="unknown-target",
        )
    try:
        return FolderTarget(Path(to).expanduser().absolute())
    except RuntimeError:  # from expanduser
        raise ConfigError(
            f"--to {to}: unknown user: write the path in full", code="unknown-user"
        ) from None


def _bucket_target(to: str) -> PublishTarget:
    """Return the bucket of "s3://…". Raises ConfigError, and HostError if boto3 is missing."""
    from torchmill.deliver.publish.bucket import BucketTarget

    match = BUCKET.fullmatch(to)
    if match is None:
        raise ConfigError(
            f"--to {urls.redact_url(to)}: write it as s3://BUCKET or s3://BUCKET/PREFIX",
            code="invalid-target",
        )
    return BucketTarget.from_address(match["bucket"], match["path"] or "")


def _github_target(to: str, environ: Mapping[str, str]) -> PublishTarget:
    """Return the releases of "github:…". Raises ConfigError."""
    from torchmill.deliver.publish.github import GithubReleases

    match = GITHUB.fullmatch(to)
    # "." and ".." would lead to other paths of GitHub's API
    if match is None or {".", ".."} & set(match["repository"].split("/")):
        raise ConfigError(
            f"--to {to}: write it as github:OWNER/NAME, or github:OWNER/NAME@TAG",
            code="invalid-target",
        )
    return GithubReleases.from_address(match["repository"], match["tag"], environ)


def _index_target(to: str, environ: Mapping[str, str], simple: str) -> PublishTarget:
    """Return the index at a URL, or in a section of ~/.pypirc. Raises ConfigError."""
    from torchmill.deliver.publish.index import IndexTarget

    no_login = (
        "do not put passwords into commands: set TWINE_USERNAME and TWINE_PASSWORD, or write them "
        "to ~/.pypirc"
    )
    for option, url in (("--to", to), ("--simple", simple)):
        if url and not url.startswith("pypirc:"):
            urls.validate_url(
                option, url, ("https", "http"), "https://index.example/simple", no_login=no_login
            )
    return IndexTarget.from_address(to, simple, environ)
