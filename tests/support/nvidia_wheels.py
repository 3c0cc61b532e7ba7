"""Wheels with parts of a CUDA toolkit, as NVIDIA makes them, for an index on this machine."""

import hashlib
import io
import zipfile
from collections.abc import Mapping

from tests.support.index_server import Index


def wheel(
    folder: str, files: Mapping[str, str], requires: tuple[str, ...] = (), name: str = "x-1"
) -> bytes:
    """Return a wheel with files below a folder, those in bin executable, as NVIDIA makes them."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("nvidia/__init__.py", "")
        for path, text in files.items():
            info = zipfile.ZipInfo(f"{folder}/{path}")
            runs = "bin/" in path and not path.endswith(".profile")
            info.external_attr = (0o100744 if runs else 0o100644) << 16
            archive.writestr(info, text)
        lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
        archive.writestr(f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\n{lines}\nText\n")
        archive.writestr(f"{name}.dist-info/licenses/License.txt", "terms")
    return made.getvalue()


def put(index: Index, name: str, content: bytes, **said: object) -> None:
    """Put a wheel on the index with what PyPI says of it."""
    digest = hashlib.sha256(content).hexdigest()
    index.add(name, content, **{"hashes": {"sha256": digest}, "size": len(content), **said})
