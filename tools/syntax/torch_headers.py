"""The headers of a torch on the index, without its libraries: a folder that a setup.py takes for torch.

A wheel of torch has hundreds of megabytes, its headers ten. An index that answers HTTP range
requests gives these alone. Beside them the folder has the modules of torch that choose the flags of
extensions, `torch.utils.cpp_extension` and what it imports, and stand-ins for the rest of torch.
"""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from struct import unpack_from

import requests

from tools.official_code import DEFLATED, LOCAL_HEADER
from tools.remote_wheel import WheelMember, list_members
from torchmill.core.errors import NetworkError
from torchmill.core.silence import silence_limit
from torchmill.fetch import package_index
from torchmill.fetch.package_index import IndexFile

_FOLDERS = ("torch/include/", "torch/utils/hipify/", "torch/_vendor/")
_MODULES = (
    "torch/_appdirs.py",
    "torch/torch_version.py",
    "torch/version.py",
    "torch/utils/_cpp_extension_versioner.py",
    "torch/utils/cpp_extension.py",
    "torch/utils/file_baton.py",
)
_GAP = (
    1 << 18
)  # bytes between two members that are read with them, which is quicker than to ask again
_LOCAL_HEADER_BYTES = 30  # of a member's own header in a ZIP file, without name and extra fields
_COMPLETE = "complete"  # the file that is written last
_STANDINS = {
    "torch/__init__.py": """\
from torch import version
from torch.torch_version import __version__

version.cuda = version.hip = None  # a torch without GPUs
from torch import _C, __config__, backends, cuda, xpu
""",
    "torch/__config__.py": """\
def parallel_info():
    return "ATen parallel backend: OpenMP"
""",
    "torch/_utils_internal.py": """\
import os


def get_file_path(*parts):
    return os.path.join(os.path.dirname(os.path.dirname(__file__)), *parts)
""",
    "torch/_C.py": """\
_GLIBCXX_USE_CXX11_ABI = True
_PYBIND11_BUILD_ABI = _PYBIND11_COMPILER_TYPE = _PYBIND11_STDLIB = None
""",
    "torch/backends.py": """\
class mps:
    is_available = is_built = staticmethod(lambda: False)
""",
    "torch/cuda.py": """\
def is_available():
    return False


def _is_compiled():
    return False
""",
    "torch/xpu.py": """\
def _is_compiled():
    return False


def get_arch_list():
    return []
""",
    "torch/utils/__init__.py": "",
    "torch/utils/_filelock.py": "class FileLock:\n    pass\n",
}


def provide_headers(torch: str, python: str, cache: Path, session: requests.Session) -> Path:
    """Return a folder with the headers of a release of torch for a Python ("3.12"), on Linux x86_64.

    It is kept in `cache`. Raises NetworkError if the index has no such wheel, or gives no parts of it.
    """
    folder = cache / f"torch-{torch}-{python}"
    if (folder / _COMPLETE).exists():
        return folder
    file = _find_wheel(torch, python, session)
    members = [member for member in list_members(file, session) if _is_needed(member.name)]
    for member, content in _read_members(file, members, session):
        _write(folder / member, content)
    for name, text in _STANDINS.items():
        _write(folder / name, text.encode())
    _write(folder / _COMPLETE, file.name.encode())
    return folder


def _find_wheel(torch: str, python: str, session: requests.Session) -> IndexFile:
    tag = f"cp{python.replace('.', '')}"
    index = package_index.configured_index()
    for file in package_index.project_files(session, index, "torch"):
        is_of_release = file.name.startswith(f"torch-{torch}-{tag}-{tag}-manylinux")
        if is_of_release and file.name.endswith("x86_64.whl"):
            return file
    raise NetworkError(
        f"{index} has no wheel of torch {torch} for Python {python} on Linux x86_64",
        code="wheel-unreadable",
    )


def _is_needed(name: str) -> bool:
    return (name.startswith(_FOLDERS) and not name.endswith("/")) or name in _MODULES


def _read_members(
    file: IndexFile, members: Iterable[WheelMember], session: requests.Session
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the paths and contents of members. Members that lie together are read by one request."""
    runs: list[list[WheelMember]] = []
    for member in sorted(members, key=lambda member: member.offset):
        if runs and member.offset - _end(runs[-1][-1]) < _GAP:
            runs[-1].append(member)
        else:
            runs.append([member])
    for run in runs:
        start = run[0].offset
        words = {"Range": f"bytes={start}-{_end(run[-1]) - 1}"}
        response = session.get(file.url, headers=words, timeout=silence_limit())
        if response.status_code != requests.codes.partial_content:
            raise NetworkError(f"{file.url}: answers no range requests", code="wheel-unreadable")
        for member in run:
            yield PurePosixPath(member.name), _unpack(response.content, member, start)


def _end(member: WheelMember) -> int:
    return member.offset + member.header_limit + member.packed


def _unpack(content: bytes, member: WheelMember, start: int) -> bytes:
    """Return the content of a member; `start` is the offset of `content` in the wheel."""
    position = member.offset - start
    name, extra = unpack_from(LOCAL_HEADER, content, position)
    position += _LOCAL_HEADER_BYTES + name + extra
    packed = content[position : position + member.packed]
    unpacked = zlib.decompress(packed, -zlib.MAX_WBITS) if member.method == DEFLATED else packed
    if zlib.crc32(unpacked) != member.checksum:
        raise NetworkError(f"{member.name} arrived damaged: try again", code="wheel-unreadable")
    return unpacked


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
