"""Check a wheel without running it: name, tags, metadata, RECORD, and whom its extensions are for."""

from __future__ import annotations

import json
import re
import tempfile
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

from torchmill.model import Plan
from torchmill.pack import elf, policy
from torchmill.pack.metadata import requirements_on
from torchmill.process import capture
from torchmill.verify import record
from torchmill.verify.trial import clean

PROBE = """
import json, platform, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps({
    "release": platform.python_version(),
    "abi": "cp%d%d" % sys.version_info[:2] + (getattr(sys, "abiflags", "") or ("t" if free else "")),
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
}))
"""
MODULE = re.compile(
    r"/?(?P<module>[^/.]+)(?P<suffix>\.(cpython-|cp\d|pypy|graalpy|abi3)[^/]*\.(so|pyd)|\.abi3\.so)$"
)
CPYTHON = re.compile(r"cpython-(\d+)")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The CPython that a wheel is for."""

    release: str  # "3.10.13"
    abi: str  # "cp310", "cp37m", "cp313t"
    suffix: str  # ".cpython-310-x86_64-linux-gnu.so"

    @property
    def version(self) -> tuple[int, int]:
        """Return major and minor version."""
        major, minor = self.release.split(".")[:2]
        return int(major), int(minor)


def interpreter(python: Path) -> Interpreter:
    """Ask `python` what it is; raise CommandError or HostError where it does not run."""
    told = json.loads(capture([str(python), "-I", "-c", PROBE], env=clean()))
    return Interpreter(told["release"], told["abi"], told["suffix"])


def problems(wheel: Path, plan: Plan, interpreter: Interpreter) -> list[str]:
    """Return everything about `wheel` that is not as `plan` says or as `interpreter` takes it."""
    try:
        with ZipFile(wheel) as archive:
            return list(_problems(wheel, archive, plan, interpreter))
    except BadZipFile as error:
        return [f"the file is no zip archive ({error})"]


def _problems(wheel: Path, archive: ZipFile, plan: Plan, interpreter: Interpreter) -> Iterator[str]:
    if not _is_planned(wheel.name, plan):
        yield f"the file is named {wheel.name}, the plan says {plan.wheel}"
    folders = {name.partition("/")[0] for name in archive.namelist()}
    infos = [folder for folder in folders if folder.endswith(".dist-info")]
    if len(infos) != 1:
        yield f"the wheel has {len(infos)} .dist-info folders, not one"
        return
    yield from _tags(wheel.name, _headers(archive, f"{infos[0]}/WHEEL"), interpreter)
    yield from _metadata(_headers(archive, f"{infos[0]}/METADATA"), plan)
    yield from record.problems(archive, f"{infos[0]}/RECORD")
    yield from foreign(archive.namelist(), interpreter)
    yield from _without_entry(archive)


def _is_planned(name: str, plan: Plan) -> bool:
    """Tell whether a wheel is named as planned, or with an older platform tag where that is computed."""
    stem = plan.wheel.removesuffix(f"{plan.platform_tag}.whl")
    found = policy.TAG.fullmatch(name.removeprefix(stem).removesuffix(".whl"))
    if not plan.computed or not name.startswith(stem) or found is None:
        return name == plan.wheel
    promised, most = policy.target(found[0]), policy.target(plan.platform_tag)
    return (found["libc"], promised.arch) == ("manylinux", most.arch) and promised.version <= most.version


def _headers(archive: ZipFile, name: str) -> Message:
    """Parse a member; what is missing reads as empty, and RECORD's check names it."""
    present = name in archive.namelist()
    return Parser().parsestr(archive.read(name).decode("utf-8") if present else "")


def _tags(name: str, wheel: Message, interpreter: Interpreter) -> Iterator[str]:
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename as error:
        yield f"the file's name is not one of a wheel ({error})"
        return
    if not tags & _supported({tag.platform for tag in tags}, interpreter):
        yield f"the tags {_listed(tags)} do not fit the interpreter, {interpreter.abi}"
    told = {tag for line in wheel.get_all("Tag", []) for tag in parse_tag(line)}
    if told != tags:
        yield f"WHEEL says {_listed(told) or 'no tag'}, the file's name {_listed(tags)}"


def _supported(platforms: Iterable[str], interpreter: Interpreter) -> set[Tag]:
    """Return the tags that the interpreter takes, on whatever platforms the wheel names."""
    wanted = sorted(platforms)
    version = interpreter.version
    return {
        *cpython_tags(version, [interpreter.abi], wanted),
        *compatible_tags(version, f"cp{version[0]}{version[1]}", wanted),
    }


def _listed(tags: Iterable[Tag]) -> str:
    return ", ".join(sorted(map(str, tags)))


def _metadata(metadata: Message, plan: Plan) -> Iterator[str]:
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


def foreign(names: Iterable[str], interpreter: Interpreter) -> Iterator[str]:
    """Yield a clause for each file whose name says that it is for another interpreter."""
    digits = re.sub(r"\D", "", interpreter.abi)
    for name in names:
        match = MODULE.search(name)
        if match and match["suffix"] not in {interpreter.suffix, ".abi3.so"}:
            yield f"{name} is not for this interpreter, whose extensions end in {interpreter.suffix}"
        elif not match and any(each != digits for each in CPYTHON.findall(name)):
            yield f"{name} is for another CPython than {interpreter.abi}"


def _without_entry(archive: ZipFile) -> Iterator[str]:
    """Yield a clause for each extension module that the interpreter could not enter."""
    for name in archive.namelist():
        match = MODULE.search(name)
        if match is None or not name.endswith(".so"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(archive.extract(name, folder))
            if elf.is_elf(path) and f"PyInit_{match['module']}" not in elf.exports(path):
                yield f"{name} has no PyInit_{match['module']}: it is not an extension module of that name"
