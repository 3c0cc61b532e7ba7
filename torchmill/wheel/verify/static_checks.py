"""Check a wheel without running it: name, tags, METADATA, RECORD, libraries, and its sibling wheels."""

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

INTERPRETER_PROBE = """
import json, sys, sysconfig
flags = getattr(sys, "abiflags", "") or ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
print(json.dumps(["cp%d%d" % sys.version_info[:2] + flags, sysconfig.get_config_var("EXT_SUFFIX")]))
"""
_TORCH_NAME = (
    r"^_Z.*(?<!\d)(2at|3c10|5torch|6caffe2)(?=[\dEI])"  # a namespace of torch in a symbol of C++
)
_PYTHON_NAME = r"^_?Py[A-Z_]"


def probe_interpreter(python: Path) -> TargetInterpreter:
    """Run `python` and return what it is. Raises CommandError or HostError where it does not run."""
    return TargetInterpreter(
        *json.loads(ask([str(python), "-I", "-c", INTERPRETER_PROBE], clean_variables()))
    )


def static_problems(
    wheel: Path, expected: PlannedWheel, interpreter: TargetInterpreter
) -> list[str]:
    """Return a clause for each contradiction between a wheel, its plan and the interpreter it is for."""
    found: list[str] = []
    try:
        found += filter(
            None, [*content_checks.wheel_problems(wheel), content_checks.renamed_platform(wheel)]
        )
        with ZipFile(wheel) as archive:
            return [*found, *_archive_problems(wheel, archive, expected, interpreter)]
    except WheelError as error:
        return [str(error).removeprefix(f"{wheel}: ")]
    except (BadZipFile, zlib.error) as error:
        return found or [str(error)]


def _archive_problems(
    wheel: Path, archive: ZipFile, expected: PlannedWheel, interpreter: TargetInterpreter
) -> Iterator[str]:
    if not _is_planned(wheel.name, expected):
        yield f"the file is named {wheel.name}, the plan says {expected.file_name}"
    yield from module_checks.interpreter_problems(wheel, interpreter, expected.build.python)
    if expected.torch_requirement is not None:
        planned = Requirement(expected.torch_requirement)
        declared = dependencies.requirements_on(
            wheel_file.parse_headers(wheel_file.read_metadata(wheel)), planned.name
        )
        if [Requirement(each) for each in declared] != [planned]:
            yield f"METADATA requires {' and '.join(declared) or f'no {planned.name}'}, not {planned}"
    yield from module_checks.foreign_files(archive.namelist(), interpreter)
    yield from module_checks.modules_without_entry(archive)
    if expected.release.stable_abi:
        yield from _unstable_libraries(archive, expected)


def _is_planned(name: str, expected: PlannedWheel) -> bool:
    """Tell whether a wheel is named as planned, or with an older platform tag where that is computed."""
    tag = bundling.LIBC_TAG.fullmatch(name.removeprefix(expected.stem).removesuffix(".whl"))
    if not expected.tag_is_upper_bound or not name.startswith(expected.stem) or tag is None:
        return name == expected.file_name
    promised, newest = (
        bundling.platform_target(tag[0]),
        bundling.platform_target(expected.platform_tag),
    )
    return (tag["libc"], promised.arch) == (
        "manylinux",
        newest.arch,
    ) and promised.version <= newest.version


def _unstable_libraries(archive: ZipFile, expected: PlannedWheel) -> Iterator[str]:
    """Yield a clause for each library that needs more of torch and Python than the wheel's name and requirement say."""
    with tempfile.TemporaryDirectory() as folder:
        for path in library_checks.extract_libraries(archive, Path(folder)):
            found = unstable_symbols(
                elf.undefined_symbols(path), any_python="-none-" in expected.file_name
            )
            if found:
                name = path.relative_to(folder).as_posix()
                yield f"{name} needs {name_few(found)}, which {expected.torch_requirement} is not sure to have"


def unstable_symbols(undefined: Iterable[str], *, any_python: bool) -> list[str]:
    """Return those of a library's undefined symbols that change with torch: names of its C++, sorted.

    What libtorch keeps stable are functions of C, aoti_torch_... and torch_...; with `any_python` the library must
    not use Python's interface either.
    """
    unwanted = re.compile(f"{_TORCH_NAME}|{_PYTHON_NAME}" if any_python else _TORCH_NAME)
    return sorted(name for name in undefined if unwanted.search(name))
