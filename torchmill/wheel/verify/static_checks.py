"""Check a wheel without running it: name, tags, METADATA, RECORD, extensions, and its sibling wheels."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from torchmill.config.model import Plan
from torchmill.core.errors import DeliveryError
from torchmill.core.process import capture
from torchmill.wheel import wheel_file
from torchmill.wheel.pack import elf, metadata, policy
from torchmill.wheel.pack.metadata import DeclaredNeeds
from torchmill.wheel.verify.clean_environment import clean_variables

INTERPRETER_PROBE = """
import json, platform, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps({
    "release": platform.python_version(),
    "abi": "cp%d%d" % sys.version_info[:2] + (getattr(sys, "abiflags", "") or ("t" if free else "")),
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
}))
"""
EXTENSION_MODULE = re.compile(
    r"/?(?P<module>[^/.]+)(?P<suffix>\.(cpython-|cp\d|pypy|graalpy|abi3)[^/]*\.(so|pyd)|\.abi3\.so)$"
)
CPYTHON_NAME = re.compile(r"cpython-(\d+)")


@dataclass(frozen=True, slots=True)
class TargetInterpreter:
    """The CPython that a wheel is for."""

    release: str  # "3.10.13"
    abi: str  # "cp310", "cp37m", "cp313t"
    suffix: str  # of extension modules: ".cpython-310-x86_64-linux-gnu.so"


def probe_interpreter(python: Path) -> TargetInterpreter:
    """Run `python` and return what it is. Raises CommandError or HostError where it does not run."""
    answer = capture([str(python), "-I", "-c", INTERPRETER_PROBE], env=clean_variables())
    return TargetInterpreter(**json.loads(answer))


def static_problems(wheel: Path, plan: Plan, interpreter: TargetInterpreter) -> list[str]:
    """Return a clause for each contradiction between a wheel, its plan and the interpreter it is for."""
    try:
        with ZipFile(wheel) as archive:
            return list(_archive_problems(wheel, archive, plan, interpreter))
    except BadZipFile as error:
        return [f"the file is not a zip archive ({error})"]


def sibling_wheels(wheel: Path) -> list[Path]:
    """Return the other wheels of the same version in a wheel's folder."""
    stem = "-".join(wheel.name.split("-")[:2])
    return sorted(path for path in wheel.parent.glob(f"{stem}-*.whl") if path != wheel)


def sibling_differences(wheel: Path, others: Iterable[Path]) -> list[str]:
    """Return a sentence for each other wheel that requires other packages, or supports other Pythons.

    A resolver reads the metadata of one wheel of a version, and takes it for all. Wheels that cannot be read
    are left out.
    """
    needs = {each.name: _read_needs(each) for each in (wheel, *others)}
    readable = [(name, declared) for name, declared in needs.items() if declared is not None]
    if needs[wheel.name] is None:
        return []
    return list(filter(None, (metadata.needs_difference(readable[0], other) for other in readable[1:])))


def foreign_files(names: Iterable[str], interpreter: TargetInterpreter) -> Iterator[str]:
    """Yield a clause for each file whose name is for another interpreter."""
    digits = re.sub(r"\D", "", interpreter.abi)
    for name in names:
        match = EXTENSION_MODULE.search(name)
        if match and match["suffix"] not in {interpreter.suffix, ".abi3.so"}:
            yield f"{name} is not for this interpreter, whose extensions end in {interpreter.suffix}"
        elif not match and any(each != digits for each in CPYTHON_NAME.findall(name)):
            yield f"{name} is for another CPython than {interpreter.abi}"


def _archive_problems(
    wheel: Path, archive: ZipFile, plan: Plan, interpreter: TargetInterpreter
) -> Iterator[str]:
    if not _is_planned(wheel.name, plan):
        yield f"the file is named {wheel.name}, the plan says {plan.wheel}"
    infos = wheel_file.dist_info_folders(archive.namelist())
    if len(infos) != 1:
        yield f"the wheel has {len(infos)} .dist-info folders, not one"
        return
    yield from _tag_problems(wheel.name, _read_headers(archive, f"{infos[0]}/WHEEL"), interpreter)
    yield from _metadata_problems(_read_headers(archive, f"{infos[0]}/METADATA"), plan)
    yield from wheel_file.record_problems(archive, f"{infos[0]}/RECORD")
    yield from foreign_files(archive.namelist(), interpreter)
    yield from _modules_without_entry(archive)


def _is_planned(name: str, plan: Plan) -> bool:
    """Tell whether a wheel is named as planned, or with an older platform tag where that is computed."""
    stem = plan.wheel.removesuffix(f"{plan.platform_tag}.whl")
    tag = policy.LIBC_TAG.fullmatch(name.removeprefix(stem).removesuffix(".whl"))
    if not plan.computed or not name.startswith(stem) or tag is None:
        return name == plan.wheel
    promised, newest = policy.platform_target(tag[0]), policy.platform_target(plan.platform_tag)
    return (tag["libc"], promised.arch) == ("manylinux", newest.arch) and promised.version <= newest.version


def _read_headers(archive: ZipFile, name: str) -> Message:
    """Parse a member; a missing one reads as empty, and the check of RECORD names it."""
    return wheel_file.parse_headers(archive.read(name) if name in archive.namelist() else b"")


def _tag_problems(name: str, headers: Message, interpreter: TargetInterpreter) -> Iterator[str]:
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename as error:
        yield f"the file's name is not one of a wheel ({error})"
        return
    major, minor = (int(number) for number in interpreter.release.split(".")[:2])
    platforms = sorted({tag.platform for tag in tags})
    supported = {
        *cpython_tags((major, minor), [interpreter.abi], platforms),
        *compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    }
    if not tags & supported:
        yield f"the tags {wheel_file.format_tags(tags)} do not fit the interpreter, {interpreter.abi}"
    yield from wheel_file.tag_mismatches(headers, tags)


def _metadata_problems(headers: Message, plan: Plan) -> Iterator[str]:
    name, version = headers.get("Name", ""), headers.get("Version", "")
    if canonicalize_name(name) != canonicalize_name(plan.build.package):
        yield f"METADATA names {name or 'nothing'}, not {plan.build.package}"
    if canonicalize_version(version) != canonicalize_version(plan.version):
        yield f"METADATA says version {version or 'nothing'}, not {plan.version}"
    if plan.torch is not None:
        planned = Requirement(plan.torch)
        declared = metadata.requirements_on(headers, planned.name)
        if [Requirement(each) for each in declared] != [planned]:
            yield f"METADATA requires {' and '.join(declared) or f'no {planned.name}'}, not {plan.torch}"


def _modules_without_entry(archive: ZipFile) -> Iterator[str]:
    """Yield a clause for each extension module without the function that the interpreter calls on import."""
    for name in archive.namelist():
        match = EXTENSION_MODULE.search(name)
        if match is None or not name.endswith(".so"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(archive.extract(name, folder))
            if elf.is_elf(path) and f"PyInit_{match['module']}" not in elf.defined_symbols(path):
                yield f"{name} has no PyInit_{match['module']}: it is not an extension module of that name"


def _read_needs(wheel: Path) -> DeclaredNeeds | None:
    """Return what METADATA requires; None where it cannot be read."""
    try:
        headers = wheel_file.parse_headers(wheel_file.read_metadata(wheel))
    except DeliveryError:
        return None
    requires, extras = (headers.get_all(name, []) for name in ("Requires-Dist", "Provides-Extra"))
    return metadata.declared_needs(headers.get("Requires-Python"), requires, extras)
