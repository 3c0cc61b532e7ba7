"""Wheels with parts of a CUDA toolkit, as NVIDIA makes them, for an index on this machine."""

import hashlib
import io
import zipfile
from collections.abc import Mapping

from tests.support.index_server import Index


def wheel(
    folder: str, files: Mapping[str, str], requires: tuple[str, ...] = (), name: str = "x-1"
) -> bytes:
    """Return a wheel with files below a folder; those in bin are executable."""
    requirements = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    metadata = f"Metadata-Version: 2.1\n{requirements}\nText\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("nvidia/__init__.py", "")
        for path, text in files.items():
            info = zipfile.ZipInfo(f"{folder}/{path}")
            is_program = "bin/" in path and not path.endswith(".profile")
            mode = 0o100744 if is_program else 0o100644
            info.external_attr = mode << 16
            archive.writestr(info, text)
        archive.writestr(f"{name}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}.dist-info/licenses/License.txt", "terms")
    return stream.getvalue()


def put(index: Index, name: str, content: bytes, **attributes: object) -> None:
    """Put a wheel on the index, with its digest and size as PyPI lists them."""
    digest = hashlib.sha256(content).hexdigest()
    listed = {"hashes": {"sha256": digest}, "size": len(content), **attributes}
    index.add(name, content, **listed)
