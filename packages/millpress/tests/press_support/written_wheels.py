"""Wheels that hold a few lines of Python and say of themselves what a test wants, true or not."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
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
    """Write a wheel with a true RECORD; `change` may spoil its members afterwards, `links` are added last."""
    info = f"{name}-{version}.dist-info"
    headers = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    headers += [f"Requires-Python: {python}\n"] if python else []
    headers += [f"Requires-Dist: {item}\n" for item in requires]
    tags = "".join(f"Tag: {item}\n" for item in _expanded(tag))
    module = f"__version__ = {version!r}\n{body}"
    members: Members = {
        **(files or {}),
        f"{name}/__init__.py": module.encode(),
        f"{info}/METADATA": "".join(headers).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n{tags}".encode(),
    }
    lines = [f"{item},{_digest(data)},{len(data)}\n" for item, data in members.items()]
    members[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    if change is not None:
        change(members)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for item, data in members.items():
            archive.writestr(zipfile.ZipInfo(item), data)
        for item, target in (links or {}).items():
            link = zipfile.ZipInfo(item)
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
    return path


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _expanded(tag: str) -> list[str]:
    pythons, abis, platforms = (part.split(".") for part in tag.split("-")[-3:])
    return [
        f"{python}-{abi}-{platform}" for python in pythons for abi in abis for platform in platforms
    ]


def replacing(name: str, old: bytes, new: bytes) -> Callable[[Members], object]:
    """Return a change of members that replaces bytes in one of them."""
    return lambda members: members.update({name: members[name].replace(old, new)})
