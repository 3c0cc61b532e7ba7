"""A wheel and the documents beside it, as a build of an old release with CUDA would write them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from press_support import written_wheels
from press_support.written_wheels import Members

from torchmill.core import formats
from torchmill.wheel import dist_files, sbom

COMMIT = "49444c3e546bf240bed24a101e747422d1f8a0ee"
FMT = "80f8d34427d40ec5e7ce3b10ededc46bd4bd5759"
BITS = "240513affe2b1d3e7ddb22a017f3d9c6a88c97ea"
WHEEL = "tinytorch-1.13.1+cu117-py3-none-any.whl"
BUNDLED = "tinytorch.libs/libgomp-0a1b2c3d.so.1"
GOMP = "pkg:deb/debian/libgomp1@12.2.0-14%2Bdeb12u1?arch=amd64"
PATCH = "ef1b24cb10f91092b384b8e0d37c2055469a9713f9c129013cb7b242fd48f033"


def manifest(wheel: Path, release: str = "v1.13.1") -> dict[str, Any]:
    """Return the manifest of a wheel, without the fields that nothing reads."""
    content = wheel.read_bytes() if wheel.exists() else b""
    name, version = wheel.name.split("-")[:2]
    return {
        "builder": {"id": "urn:torchmill:local", "torchmill": "0.1.0"},
        "requirements": ["setuptools==65.5.0", "cmake==3.27.9", "numpy==1.26.4"],
        formats.KEY: formats.MANIFEST,
        "size": len(content),
        "bundled": [
            {
                "name": Path(BUNDLED).name,
                "path": BUNDLED,
                "source": "/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0",
                "sha256": "aa" * 32,
            }
        ],
        "origins": {"/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0": GOMP},
        "identifier": "wheel-3.10-cu117",
        "wheel": wheel.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "package": name,
        "version": version,
        "tag": release,
        "commit": COMMIT,
        "commit_verified": True,
        "source": "https://github.com/pytorch/pytorch.git",
        "options": {"arch_list": "8.0;8.6"},
        "submodules": {"third_party/fmt": FMT, "third_party/nested/bits": BITS},
        "torch": None,
        "toolkit": "11.7",
        "libraries": {"cudnn": "8.5.0.96"},
        "switches": {"USE_CUDA": "1", "MAX_JOBS": "7"},
        "patches": ["torch/gcc-12.patch"],
        "tools": {"version": "3.10.13 (main, Aug 25 2023)", "python3.10": "bb" * 32},
        "jobs": 7,
        "seconds": {"compile": 4291.2},
        "key": "cc" * 32,
        "repository": "https://github.com/pytorch/pytorch.git",
        "static": [{"source": "/opt/mkl/lib/libmkl_core.a", "sha256": "dd" * 32}],
        "licences": {
            "submodule:third_party/fmt": {
                "licence": "MIT",
                "files": ["licenses/bundled/third_party/fmt/LICENSE"],
            },
            f"bundled library:{BUNDLED}": {
                "licence": "",
                "files": ["licenses/bundled/libgomp1/copyright"],
            },
        },
        "stages": {"compile": {"inputs": {"patch torch/gcc-12.patch": PATCH}}},
    }


def built(
    folder: Path,
    version: str = "1.13.1+cu117",
    *,
    name: str = "tinytorch",
    tag: str = "py3-none-any",
    release: str = "v1.13.1",
) -> Path:
    """Write a wheel with a bundled library, and the documents beside it; return its path."""
    requires = [
        "typing-extensions",
        "numpy<2 ; python_version < '3.12'",
        "opt-einsum>=3.3 ; extra == 'opt'",
    ]
    planned = manifest(folder / f"{name}-{version}-{tag}.whl", release)
    wheel = written_wheels.made(
        folder,
        name,
        version,
        tag,
        requires=requires,
        change=lambda members: _complete(members, planned),
    )
    write(wheel, manifest(wheel, release))
    return wheel


def write(wheel: Path, content: dict[str, Any]) -> None:
    """Write a manifest beside a wheel, and the documents that follow from the manifest."""
    dist_files.manifest_path(wheel).write_text(json.dumps(content), encoding="utf-8")
    for suffix, document in dist_files.compose_documents(content, wheel).items():
        dist_files.document_path(wheel, suffix).write_bytes(document)


def _complete(members: Members, content: dict[str, Any]) -> None:
    """Add a bundled library, and the SBOM in the wheel that follows from a manifest."""
    library = b"\x7fELF a library"
    add(members, BUNDLED, library)
    info = next(name for name in members if name.endswith("/METADATA")).removesuffix("METADATA")
    digests = {BUNDLED: hashlib.sha256(library).hexdigest()}
    inner = sbom.compose_inner_sbom(content, members[f"{info}METADATA"], digests)
    add(members, f"{info}{sbom.INNER_PATH}", inner)


def add(members: Members, name: str, content: bytes) -> None:
    """Add a member or change it, with its line in RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = next(name for name in members if name.endswith("/RECORD"))
    others = [
        line for line in members[record].decode().splitlines() if not line.startswith(f"{name},")
    ]
    members[record] = "\n".join([f"{name},sha256={digest},{len(content)}", *others, ""]).encode()
    members[name] = content
