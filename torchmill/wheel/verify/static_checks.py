"""Check a wheel against its plan and its interpreter, without running it."""

import json
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from millpress import (
    bundling,
    content_checks,
    dependencies,
    elf,
    library_checks,
    module_checks,
    wheel_file,
)
from millpress.errors import WheelError
from millpress.module_checks import TargetInterpreter
from packaging.requirements import Requirement

from torchmill.core.process import ask
from torchmill.core.units import name_few
from torchmill.wheel.planned_wheel import PlannedWheel
from torchmill.wheel.verify.clean_environment import clean_variables

# It must run on every Python that wheels are built for, down to 3.5. Windows has no sys.abiflags.
INTERPRETER_PROBE = """
import json, sys, sysconfig
flags = getattr(sys, "abiflags", "") or ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
print(json.dumps(["cp%d%d" % sys.version_info[:2] + flags, sysconfig.get_config_var("EXT_SUFFIX")]))
"""
# A mangled name of C++ with a namespace of torch in it: "_ZN2at4_ops10empty_like4callE…". At the
# beginning, also an operator may follow: "_ZN3c10lsERSo…" is c10::operator<<. Elsewhere only the
# name of a member proves a namespace: "2at" in "_ZNKSs2atEm" is the function std::string::at.
# https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-structure
_NAMESPACE = r"(2at|3c10|5torch|6caffe2)"
_TORCH_NAME = re.compile(rf"^_ZN{_NAMESPACE}|^_Z.*(?<!\d){_NAMESPACE}(?=\d)")
_PYTHON_NAME = re.compile(r"^_?Py[A-Z_]")  # of Python's C interface: "PyList_New", "_Py_Dealloc"


def probe_interpreter(python: Path) -> TargetInterpreter:
    """Run `python` and return its ABI tag ("cp310") and the suffix of its extension modules.

    Raises CommandError or HostError.
    """
    answer = ask([str(python), "-I", "-c", INTERPRETER_PROBE], clean_variables())
    abi, suffix = json.loads(answer)
    return TargetInterpreter(abi, suffix)


def static_problems(
    wheel: Path, expected: PlannedWheel, interpreter: TargetInterpreter
) -> list[str]:
    """Return a clause for each contradiction between a wheel, its plan and its interpreter."""
    problems: list[str] = []
    has_content_problems = False
    try:
        problems += content_checks.wheel_problems(wheel)
        has_content_problems = bool(problems)
        renamed = content_checks.renamed_platform(wheel)
        if renamed:
            problems.append(renamed)
        with ZipFile(wheel) as archive:
            # If a check raises an error, the list has the problems that came before it.
            problems.extend(_archive_problems(wheel, archive, expected, interpreter))
    except WheelError as error:
        problem = str(error).removeprefix(f"{wheel}: ")
        if problem not in problems:
            problems.append(problem)
    except (BadZipFile, zlib.error) as error:
        # A damaged member cannot be read by the later checks either: if the first check found it,
        # it is named already.
        if not has_content_problems:
            problems.append(str(error))
    return problems


def _archive_problems(
    wheel: Path, archive: ZipFile, expected: PlannedWheel, interpreter: TargetInterpreter
) -> Iterator[str]:
    """Yield a clause for each contradiction of an open wheel to its plan and its interpreter."""
    if not _is_planned(wheel.name, expected):
        yield f"the file is named {wheel.name}, the plan says {expected.file_name}"
    yield from module_checks.tag_problems(wheel, interpreter, expected.build.python)
    if expected.torch_requirement is not None:
        planned = Requirement(expected.torch_requirement)
        metadata = wheel_file.parse_headers(wheel_file.read_metadata(wheel))
        declared = dependencies.requirements_on(metadata, planned.name)
        if [Requirement(line) for line in declared] != [planned]:
            listed = " and ".join(declared) or f"no {planned.name}"
            yield f"METADATA requires {listed}, not {planned}"
    yield from module_checks.foreign_files(archive.namelist(), interpreter)
    yield from module_checks.modules_without_entry(archive)
    if expected.release.wheel.stable_abi:
        yield from _unstable_libraries(archive, expected)


def _is_planned(name: str, expected: PlannedWheel) -> bool:
    """Tell whether a wheel has the planned file name.

    If the plan has only the newest possible platform tag, an older manylinux tag counts, too: it is
    computed from the symbols of the libraries. Several tags in one name, such as
    "manylinux2014_x86_64.manylinux_2_17_x86_64", are never planned: torchmill writes a single tag.
    """
    platform_tag = name.removeprefix(expected.stem).removesuffix(".whl")
    match = bundling.LIBC_TAG.fullmatch(platform_tag)
    if not expected.tag_is_upper_bound or not name.startswith(expected.stem) or match is None:
        return name == expected.file_name
    target = bundling.platform_target(platform_tag)
    newest_target = bundling.platform_target(expected.platform_tag)
    is_same_family = match["libc"] == "manylinux" and target.arch == newest_target.arch
    return is_same_family and target.version <= newest_target.version


def _unstable_libraries(archive: ZipFile, expected: PlannedWheel) -> Iterator[str]:
    """Yield a clause for each library that uses more than the stable ABI of torch.

    A wheel with the tag of every Python ("py3-none-…") may not use Python's C interface either.
    """
    is_for_any_python = "-none-" in expected.file_name
    with tempfile.TemporaryDirectory() as folder:
        for path in library_checks.extract_libraries(archive, Path(folder)):
            name = path.relative_to(folder).as_posix()
            undefined = elf.undefined_symbols(path)
            torch_symbols = unstable_torch_symbols(undefined)
            if torch_symbols:
                requirement = expected.torch_requirement or "another torch"
                symbols = name_few(torch_symbols)
                yield f"{name} needs {symbols}, which {requirement} does not guarantee"
            if not is_for_any_python:
                continue
            python_symbols = find_python_symbols(undefined)
            if python_symbols:
                symbols = name_few(python_symbols)
                yield f"{name} needs {symbols} of Python's C interface, but is for any Python"


def unstable_torch_symbols(undefined: Iterable[str]) -> list[str]:
    """Return the undefined symbols of a library that may change with each torch, sorted.

    These are the C++ names of torch. Its C functions aoti_torch_… and torch_… stay
    (https://docs.pytorch.org/docs/stable/notes/libtorch_stable_abi.html).
    """
    return sorted(filter(_TORCH_NAME.search, undefined))


def find_python_symbols(undefined: Iterable[str]) -> list[str]:
    """Return the undefined symbols of a library that belong to Python's C interface, sorted."""
    return sorted(filter(_PYTHON_NAME.search, undefined))
