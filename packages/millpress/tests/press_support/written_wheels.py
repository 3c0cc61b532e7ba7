"""Wheels with a few lines of Python and any metadata that a test needs, sound or not."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

Members = dict[str, bytes]


def made(
    folder: Path,
    name: str = "tinytorch",
    version: str = "1.0+cpu",
    tag: str = "py3-none-any",
    *,
    requires: Sequence[str] = (),
    python: str = "",
    body: str = "",
    files: Mapping[str, bytes] | None = None,
    change: Callable[[Members], object] | None = None,
    links: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel with a correct RECORD.

    `change` may then change its members; `links` (name -> target) are added last.
    """
    info = f"{name}-{version}.dist-info"
    headers = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    if python:
        headers.append(f"Requires-Python: {python}\n")
    headers += [f"Requires-Dist: {requirement}\n" for requirement in requires]
    tags = "".join(f"Tag: {single_tag}\n" for single_tag in _expanded(tag))
    wheel_headers = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n{tags}"
    module = f"__version__ = {version!r}\n{body}"
    members: Members = {
        **(files or {}),
        f"{name}/__init__.py": module.encode(),
        f"{info}/METADATA": "".join(headers).encode(),
        f"{info}/WHEEL": wheel_headers.encode(),
    }
    lines = [f"{member},{_digest(data)},{len(data)}\n" for member, data in members.items()]
    members[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    if change is not None:
        change(members)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)
        for member, target in (links or {}).items():
            link = zipfile.ZipInfo(member)
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
    return path


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _expanded(tag: str) -> list[str]:
    """Return each tag that a compressed one, such as "py2.py3-none-any", stands for."""
    # the last three parts, because a build number may come before them
    parts = [part.split(".") for part in tag.split("-")[-3:]]
    return ["-".join(values) for values in product(*parts)]


def replacing(name: str, old: bytes, new: bytes) -> Callable[[Members], object]:
    """Return a change of members that replaces bytes in one of them."""
    return lambda members: members.update({name: members[name].replace(old, new)})
