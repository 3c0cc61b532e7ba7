"""Read, repair, pack and verify Python wheels of any size, reproducibly.

The functions that most programs need are here: `read_wheel`, `verify_wheel`, `repair_wheel`, and
for a wheel that is edited on the way `stage_wheel`, `repair_staged` and `pack_wheel`. These modules
are public, too:

- `atomic_files`: files that appear whole or not at all
- `bundling`: find and bundle the libraries that a platform tag does not promise
- `content_checks`: find contradictions in a finished wheel
- `debug_info`: separate the debug information of libraries
- `dependencies`: compare what wheels of one version require
- `elf`, `elf_cut`, `elf_edit`: read ELF files, edit them in place, cut ranges out of them
- `errors`: the errors, each with a stable code
- `file_names`: the parts of a wheel's file name, also of a variant's
- `library_checks`, `module_checks`: check libraries, extension modules and tags
- `licences`: find the packages that own libraries, and copy their licence files
- `macos`: repair wheels for macOS
- `metadata`: edit METADATA and WHEEL
- `record_file`: read and write RECORD
- `repair`: bundle libraries and set run paths
- `staging`: extract the files of a wheel that are edited
- `wheel_file`: read a finished wheel
- `wheel_writer`: write RECORD and the archive, compressed by several threads
- `zip_archive`: the zip format
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpress.errors import MillpressError as MillpressError
    from millpress.repair import RepairedWheel as RepairedWheel
    from millpress.repair import RepairResult as RepairResult
    from millpress.repair import repair_staged as repair_staged
    from millpress.repair import repair_wheel as repair_wheel
    from millpress.staging import StagedWheel as StagedWheel
    from millpress.staging import stage_wheel as stage_wheel
    from millpress.verification import verify_wheel as verify_wheel
    from millpress.wheel_file import Wheel as Wheel
    from millpress.wheel_file import read_wheel as read_wheel
    from millpress.wheel_writer import PackedWheel as PackedWheel
    from millpress.wheel_writer import pack_wheel as pack_wheel

# Each module is loaded when a name of it is used first: auditwheel's policies, which only repair
# and verification need, take longer to load than a wheel's METADATA takes to read.
_MODULES = {
    "MillpressError": "errors",
    "PackedWheel": "wheel_writer",
    "RepairResult": "repair",
    "RepairedWheel": "repair",
    "StagedWheel": "staging",
    "Wheel": "wheel_file",
    "pack_wheel": "wheel_writer",
    "read_wheel": "wheel_file",
    "repair_staged": "repair",
    "repair_wheel": "repair",
    "stage_wheel": "staging",
    "verify_wheel": "verification",
}
__all__ = [  # noqa: RUF022 - in the order of the work
    "read_wheel",
    "verify_wheel",
    "repair_wheel",
    "stage_wheel",
    "repair_staged",
    "pack_wheel",
    "Wheel",
    "RepairedWheel",
    "StagedWheel",
    "RepairResult",
    "PackedWheel",
    "MillpressError",
]


def __getattr__(name: str) -> Any:
    """Return a function or class of the package, and load its module if need be (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
