"""Where a repository is asked for: its own address, or its place in a mirror."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from torchmill.errors import SourceError

PROTOCOLS = ("https", "ssh", "git", "file")
# GitHub answers neither of these any more; old releases name submodules so.
_RETIRED = re.compile(r"^(?:git|http)://(?:www\.)?github\.com/")
_SCP = re.compile(r"^(?:[\w.+-]+@)?[\w.-]{2,}:(?![:\\])(?!//)")
_PASSWORD = re.compile(r"(?<=://)[^/@]*:[^/@]*@")


def candidates(url: str, mirror: str | None) -> tuple[str, ...]:
    """Return the addresses to try in turn for a repository.

    In a mirror, https://host/OWNER/NAME(.git) is MIRROR/OWNER/NAME.git or MIRROR/NAME.git. Raises
    SourceError for a protocol that could run commands or cannot be trusted.
    """
    if mirror is None:
        return (allowed(_RETIRED.sub("https://github.com/", url)),)
    base = (allowed(mirror) if _has_host(mirror) else Path(mirror).resolve().as_uri()).rstrip("/")
    parts = [part for part in re.split(r"[/:\\]", url.rstrip("/").removesuffix(".git")) if part]
    if not parts or any(part in {".", ".."} for part in parts[-2:]):
        raise SourceError(f"'{url}' names no repository that a mirror could have: give no --mirror")
    owned = f"{base}/{'/'.join(parts[-2:])}.git"
    return (owned, f"{base}/{parts[-1]}.git")


def allowed(url: str) -> str:
    """Return `url`, or raise SourceError where git would do more than fetch from it."""
    scheme = url.split("://", 1)[0] if "://" in url else None
    fine = scheme in PROTOCOLS if scheme else not re.match(r"^\w+::", url)
    if url.startswith("-") or not fine or any(ord(letter) < ord(" ") for letter in url):
        raise SourceError(
            f"'{shown(url)}' is not fetched from: give an address of {', '.join(PROTOCOLS[:-1])} "
            f"or {PROTOCOLS[-1]}"
        )
    return url


def host_of(url: str) -> str:
    """Return the host that an address names, or the address of a folder."""
    if _SCP.match(url):
        return url.split(":", 1)[0].rpartition("@")[2]
    return urlsplit(url).hostname or url


def shown(url: str) -> str:
    """Return an address without the password in it."""
    return _PASSWORD.sub("", url)


def _has_host(mirror: str) -> bool:
    return "://" in mirror or "::" in mirror or _SCP.match(mirror) is not None
