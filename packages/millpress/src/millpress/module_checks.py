"""Check that a wheel's extension modules and tags are for one interpreter.

An extension module is a shared library that Python imports. Its file name says for which
interpreter it is: "_C.cpython-310-x86_64-linux-gnu.so", or "_C.abi3.so" for all that have the stable
ABI.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from packaging.tags import compatible_tags, cpython_tags

from millpress import elf, wheel_file
from millpress.atomic_files import name_file
from millpress.errors import InputError

EXTENSION_MODULE = re.compile(
    r"""
    (?P<module> [^/.]+ )  # "_C" of "torch/_C.cpython-310-x86_64-linux-gnu.so"
    (?P<suffix> \. (cpython- | cp\d | pypy | graalpy | abi3) [^/]* \. (so | pyd) )
    $
    """,
    re.VERBOSE,
)
# Python 3.15 has ".abi3t.so" and ".abi3-x86_64-linux-gnu.so", too.
_STABLE_SUFFIX = re.compile(r"\.abi3t?(-[\w-]+)?\.so")
CPYTHON_NAME = re.compile(r"cpython-(\d+)")
# When the interpreter imports an extension module, it calls the function named by one of these
# prefixes followed by the module's name; the second is new in Python 3.15 (PEP 793).
ENTRY_PREFIXES = ("PyInit_", "PyModExport_")
# The prefixes for modules whose names are not ASCII (PEP 489).
ENCODED_ENTRY_PREFIXES = ("PyInitU_", "PyModExportU_")


@dataclass(frozen=True, slots=True)
class TargetInterpreter:
    """The CPython that a wheel is for."""

    abi: str  # "cp310", "cp37m", "cp313t"
    suffix: str  # of extension modules: ".cpython-310-x86_64-linux-gnu.so"


def foreign_files(names: Iterable[str], interpreter: TargetInterpreter) -> Iterator[str]:
    """Yield a clause for each file whose name is for another interpreter.

    Besides extension modules, this covers files with "cpython-310" in their paths, such as
    "spam.cpython-310.pyc"; letters behind the number do not count. A module for a stable ABI passes
    for every interpreter: the wheel's tags say which interpreters have that ABI, and `tag_problems`
    checks them.
    """
    version_digits = re.sub(r"\D", "", interpreter.abi)  # "313" of "cp313t"
    for name in names:
        match = EXTENSION_MODULE.search(name)
        if match is not None:
            suffix = match["suffix"]
            if suffix != interpreter.suffix and not _STABLE_SUFFIX.fullmatch(suffix):
                yield (
                    f"{name} is not for this interpreter, "
                    f"whose extensions end in {interpreter.suffix}"
                )
        elif any(version != version_digits for version in CPYTHON_NAME.findall(name)):
            yield f"{name} is for a different CPython than {interpreter.abi}"


def tag_problems(wheel: Path, interpreter: TargetInterpreter, python: str) -> Iterator[str]:
    """Yield at most one clause: that no tag in the wheel's name fits the interpreter.

    `python` is the interpreter's version: "3.10", or "3.13t" of a free-threaded one. The wheel is
    not read. Raises WheelError for a name that is not a wheel's.
    """
    tags = wheel_file.parse_file_name(wheel).tags
    platforms = sorted({tag.platform for tag in tags})
    major, minor = map(int, python.rstrip("t").split("."))
    supported = set(cpython_tags((major, minor), [interpreter.abi], platforms))
    supported |= set(compatible_tags((major, minor), f"cp{major}{minor}", platforms))
    if tags.isdisjoint(supported):
        formatted = wheel_file.format_tags(tags)
        yield f"the tags {formatted} do not fit the interpreter, {interpreter.abi}"


def modules_without_entry(archive: ZipFile) -> Iterator[str]:
    """Yield a clause for each extension module without its entry, the function an import calls.

    A damaged ELF file gets a clause, too. Modules in other files (`unread_modules`), and those
    without an interpreter or a stable ABI in their names are not read. Raises
    BadZipFile for a member that cannot be extracted, which in a block of `open_wheel` becomes a
    WheelError, and OSError if the disk for temporary files is full.
    """
    for name in archive.namelist():
        match = EXTENSION_MODULE.search(name)
        if match is None or not name.endswith(".so"):
            continue
        # a folder for each module, so that never more than one of them takes space on the disk
        with tempfile.TemporaryDirectory() as folder:
            with name_file(Path(folder)):
                path = Path(archive.extract(name, folder))
            if not elf.is_elf(path):
                continue
            entries = _entry_functions(match["module"])
            try:
                if elf.defined_symbols(path).isdisjoint(entries):
                    yield f"{name} has no {entries[0]}: it is not an extension module of that name"
            except InputError as error:
                yield str(error).replace(f"{folder}/", "")


def unread_modules(archive: ZipFile) -> Iterator[str]:
    """Yield the name of each extension module that is no ELF file: for macOS, or for Windows.

    `modules_without_entry` says nothing of these. Raises BadZipFile for a damaged member.
    """
    for name in archive.namelist():
        if EXTENSION_MODULE.search(name) is None:
            continue
        with archive.open(name) as member:
            if member.read(len(elf.ELF_MAGIC)) != elf.ELF_MAGIC:
                yield name


def _entry_functions(module: str) -> list[str]:
    """Return the names of functions of which a module must have one, from the module's name."""
    if module.isascii():
        return [prefix + module for prefix in ENTRY_PREFIXES]
    # https://peps.python.org/pep-0489/#export-hook-name
    encoded = module.encode("punycode").decode("ascii").replace("-", "_")
    return [prefix + encoded for prefix in ENCODED_ENTRY_PREFIXES]
