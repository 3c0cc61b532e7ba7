"""The wheels of one version must require the same: a resolver reads the metadata of one, for all of them."""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.config.model import Plan
from torchmill.core.process import capture
from torchmill.wheel import wheel_file
from torchmill.wheel.pack import elf, metadata, policy
from torchmill.wheel.pack.metadata import DeclaredNeeds, requirements_on
from torchmill.wheel.pack.staging import ARCHIVE_ERRORS
from torchmill.wheel.verify.clean_environment import clean_variables


def sibling_wheels(wheel: Path) -> list[Path]:
    """Return the other wheels of the same version in the folder where a wheel lies, or will lie."""
    stem = "-".join(wheel.name.split("-")[:2])
    every = wheel.parent.glob("*.whl")
    return sorted(path for path in every if path.name.startswith(f"{stem}-") and path != wheel)


def sibling_differences(wheel: Path, others: Iterable[Path]) -> list[str]:
    """Return a sentence for each other wheel that requires something else, or supports other Pythons."""
    mine = _read_needs(wheel)
    read = ((other, _read_needs(other)) for other in others)
    sentences = (
        metadata.needs_difference((wheel.name, mine), (other.name, theirs))
        for other, theirs in read
        if mine is not None and theirs is not None
    )
    return [sentence for sentence in sentences if sentence]


def _read_needs(wheel: Path) -> DeclaredNeeds | None:
    """Return what METADATA says; None where it cannot be read."""
    try:
        with ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            said = Parser().parsestr(archive.read(name).decode("utf-8"))
    except (OSError, StopIteration, zlib.error, *ARCHIVE_ERRORS):
        return None
    return metadata.declared_needs(
        said.get("Requires-Python"), said.get_all("Requires-Dist", []), said.get_all("Provides-Extra", [])
    )


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
    suffix: str  # ".cpython-310-x86_64-linux-gnu.so"

    @property
    def version(self) -> tuple[int, int]:
        """Return major and minor version."""
        major, minor = self.release.split(".")[:2]
        return int(major), int(minor)


def probe_interpreter(python: Path) -> TargetInterpreter:
    """Ask `python` what it is; raise CommandError or HostError where it does not run."""
    told = json.loads(capture([str(python), "-I", "-c", INTERPRETER_PROBE], env=clean_variables()))
    return TargetInterpreter(told["release"], told["abi"], told["suffix"])


def static_problems(wheel: Path, plan: Plan, interpreter: TargetInterpreter) -> list[str]:
    """Return everything about `wheel` that is not as `plan` says or as `interpreter` takes it."""
    try:
        with ZipFile(wheel) as archive:
            return list(_archive_problems(wheel, archive, plan, interpreter))
    except BadZipFile as error:
        return [f"the file is no zip archive ({error})"]


def _archive_problems(
    wheel: Path, archive: ZipFile, plan: Plan, interpreter: TargetInterpreter
) -> Iterator[str]:
    if not _is_planned(wheel.name, plan):
        yield f"the file is named {wheel.name}, the plan says {plan.wheel}"
    folders = {name.partition("/")[0] for name in archive.namelist()}
    infos = [folder for folder in folders if folder.endswith(".dist-info")]
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
    found = policy.LIBC_TAG.fullmatch(name.removeprefix(stem).removesuffix(".whl"))
    if not plan.computed or not name.startswith(stem) or found is None:
        return name == plan.wheel
    promised, most = policy.platform_target(found[0]), policy.platform_target(plan.platform_tag)
    return (found["libc"], promised.arch) == ("manylinux", most.arch) and promised.version <= most.version


def _read_headers(archive: ZipFile, name: str) -> Message:
    """Parse a member; what is missing reads as empty, and RECORD's check names it."""
    present = name in archive.namelist()
    return Parser().parsestr(archive.read(name).decode("utf-8") if present else "")


def _tag_problems(name: str, wheel: Message, interpreter: TargetInterpreter) -> Iterator[str]:
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename as error:
        yield f"the file's name is not one of a wheel ({error})"
        return
    if not tags & _supported_tags({tag.platform for tag in tags}, interpreter):
        yield f"the tags {_format_tags(tags)} do not fit the interpreter, {interpreter.abi}"
    told = {tag for line in wheel.get_all("Tag", []) for tag in parse_tag(line)}
    if told != tags:
        yield f"WHEEL says {_format_tags(told) or 'no tag'}, the file's name {_format_tags(tags)}"


def _supported_tags(platforms: Iterable[str], interpreter: TargetInterpreter) -> set[Tag]:
    """Return the tags that the interpreter takes, on whatever platforms the wheel names."""
    wanted = sorted(platforms)
    version = interpreter.version
    return {
        *cpython_tags(version, [interpreter.abi], wanted),
        *compatible_tags(version, f"cp{version[0]}{version[1]}", wanted),
    }


def _format_tags(tags: Iterable[Tag]) -> str:
    return ", ".join(sorted(map(str, tags)))


def _metadata_problems(metadata: Message, plan: Plan) -> Iterator[str]:
    name, version = metadata.get("Name", ""), metadata.get("Version", "")
    if canonicalize_name(name) != canonicalize_name(plan.build.package):
        yield f"METADATA names {name or 'nothing'}, not {plan.build.package}"
    if not _same_version(version, plan.version):
        yield f"METADATA says version {version or 'nothing'}, not {plan.version}"
    if plan.torch is not None:
        wanted = Requirement(plan.torch)
        found = requirements_on(metadata, wanted.name)
        if [Requirement(each) for each in found] != [wanted]:
            yield f"METADATA requires {' and '.join(found) or f'no {wanted.name}'}, not {plan.torch}"


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def foreign_files(names: Iterable[str], interpreter: TargetInterpreter) -> Iterator[str]:
    """Yield a clause for each file whose name says that it is for another interpreter."""
    digits = re.sub(r"\D", "", interpreter.abi)
    for name in names:
        match = EXTENSION_MODULE.search(name)
        if match and match["suffix"] not in {interpreter.suffix, ".abi3.so"}:
            yield f"{name} is not for this interpreter, whose extensions end in {interpreter.suffix}"
        elif not match and any(each != digits for each in CPYTHON_NAME.findall(name)):
            yield f"{name} is for another CPython than {interpreter.abi}"


def _modules_without_entry(archive: ZipFile) -> Iterator[str]:
    """Yield a clause for each extension module that the interpreter could not enter."""
    for name in archive.namelist():
        match = EXTENSION_MODULE.search(name)
        if match is None or not name.endswith(".so"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(archive.extract(name, folder))
            if elf.is_elf(path) and f"PyInit_{match['module']}" not in elf.defined_symbols(path):
                yield f"{name} has no PyInit_{match['module']}: it is not an extension module of that name"
