"""Check a wheel without running it: name, tags, METADATA, RECORD, libraries, and its sibling wheels."""

import json
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags

from torchmill.core.errors import BuildError, ConfigError, DeliveryError
from torchmill.core.process import ask
from torchmill.core.system_errors import read_refusal
from torchmill.core.units import name_few
from torchmill.wheel import wheel_file
from torchmill.wheel.pack import bundling, elf, metadata, zip_archive
from torchmill.wheel.pack.bundling import (
    DRIVER_LIBRARY,
    INTERPRETER_LIBRARY,
    PlatformTarget,
    expand_origin,
)
from torchmill.wheel.pack.elf import ElfInfo
from torchmill.wheel.pack.metadata import DeclaredNeeds
from torchmill.wheel.planned_wheel import PlannedWheel
from torchmill.wheel.verify.clean_environment import clean_variables

INTERPRETER_PROBE = """
import json, sys, sysconfig
flags = getattr(sys, "abiflags", "") or ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
print(json.dumps(["cp%d%d" % sys.version_info[:2] + flags, sysconfig.get_config_var("EXT_SUFFIX")]))
"""
EXTENSION_MODULE = re.compile(
    r"/?(?P<module>[^/.]+)(?P<suffix>\.(cpython-|cp\d|pypy|graalpy|abi3)[^/]*\.(so|pyd)|\.abi3\.so)$"
)
_STABLE_SUFFIX = re.compile(
    r"\.abi3t?(-[\w-]+)?\.so"
)  # Python 3.15 has ".abi3t.so", ".abi3-x86_64-linux-gnu.so"
CPYTHON_NAME = re.compile(r"cpython-(\d+)")
_TORCH_NAME = (
    r"^_Z.*(?<!\d)(2at|3c10|5torch|6caffe2)(?=[\dEI])"  # a namespace of torch in a symbol of C++
)
_PYTHON_NAME = r"^_?Py[A-Z_]"
# of the function that the interpreter calls when it imports an extension module; the second from Python 3.15 on
ENTRY_PREFIXES = ("PyInit_", "PyModExport_")
NVIDIA_FOLDER = "nvidia"  # the folder of site-packages that all packages of NVIDIA share
_GLIBC = re.compile(r"libc\.so\.6|ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d")
_MUSL = re.compile(r"(libc\.|ld-)musl-\w+\.so\.1")
_OTHER_LIBC = {"manylinux": ("musl", _MUSL), "musllinux": ("glibc", _GLIBC)}


@dataclass(frozen=True, slots=True)
class TargetInterpreter:
    """The CPython that a wheel is for."""

    abi: str  # "cp310", "cp37m", "cp313t"
    suffix: str  # of extension modules: ".cpython-310-x86_64-linux-gnu.so"


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
            None, [*wheel_file.wheel_problems(wheel), wheel_file.renamed_platform(wheel)]
        )
        with ZipFile(wheel) as archive:
            return [*found, *_archive_problems(wheel, archive, expected, interpreter)]
    except DeliveryError as error:
        return [str(error).removeprefix(f"{wheel}: ")]
    except (BadZipFile, zlib.error) as error:
        return found or [str(error)]


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
    return list(
        filter(None, (metadata.needs_difference(readable[0], other) for other in readable[1:]))
    )


def foreign_files(names: Iterable[str], interpreter: TargetInterpreter) -> Iterator[str]:
    """Yield a clause for each file whose name is for another interpreter."""
    digits = re.sub(r"\D", "", interpreter.abi)
    for name in names:
        match = EXTENSION_MODULE.search(name)
        if (
            match
            and match["suffix"] != interpreter.suffix
            and not _STABLE_SUFFIX.fullmatch(match["suffix"])
        ):
            yield f"{name} is not for this interpreter, whose extensions end in {interpreter.suffix}"
        elif not match and any(each != digits for each in CPYTHON_NAME.findall(name)):
            yield f"{name} is for a different CPython than {interpreter.abi}"


def _archive_problems(
    wheel: Path, archive: ZipFile, expected: PlannedWheel, interpreter: TargetInterpreter
) -> Iterator[str]:
    if not _is_planned(wheel.name, expected):
        yield f"the file is named {wheel.name}, the plan says {expected.file_name}"
    yield from _tag_problems(wheel, interpreter, expected.build.python)
    if expected.torch_requirement is not None:
        planned = Requirement(expected.torch_requirement)
        declared = metadata.requirements_on(
            wheel_file.parse_headers(wheel_file.read_metadata(wheel)), planned.name
        )
        if [Requirement(each) for each in declared] != [planned]:
            yield f"METADATA requires {' and '.join(declared) or f'no {planned.name}'}, not {planned}"
    yield from foreign_files(archive.namelist(), interpreter)
    yield from _modules_without_entry(archive)
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


def _tag_problems(wheel: Path, interpreter: TargetInterpreter, python: str) -> Iterator[str]:
    tags = wheel_file.parse_file_name(wheel)[3]
    major, minor = map(int, python.rstrip("t").split("."))
    platforms = sorted({tag.platform for tag in tags})
    supported = {
        *cpython_tags((major, minor), [interpreter.abi], platforms),
        *compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    }
    if not tags & supported:
        yield f"the tags {wheel_file.format_tags(tags)} do not fit the interpreter, {interpreter.abi}"


def _modules_without_entry(archive: ZipFile) -> Iterator[str]:
    """Yield a clause for each extension module without the function that the interpreter calls on import."""
    for name in archive.namelist():
        match = EXTENSION_MODULE.search(name)
        if match is None or not name.endswith(".so"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(archive.extract(name, folder))
            entries = [prefix + match["module"] for prefix in ENTRY_PREFIXES]
            if elf.is_elf(path) and elf.defined_symbols(path).isdisjoint(entries):
                yield f"{name} has no {entries[0]}: it is not an extension module of that name"


def _unstable_libraries(archive: ZipFile, expected: PlannedWheel) -> Iterator[str]:
    """Yield a clause for each library that needs more of torch and Python than the wheel's name and requirement say."""
    with tempfile.TemporaryDirectory() as folder:
        for path in _extract_libraries(archive, Path(folder)):
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


def _read_needs(wheel: Path) -> DeclaredNeeds | None:
    """Return what METADATA requires; None where it cannot be read."""
    try:
        headers = wheel_file.parse_headers(wheel_file.read_metadata(wheel))
    except DeliveryError:
        return None
    requires, extras = (headers.get_all(name, []) for name in ("Requires-Dist", "Provides-Extra"))
    return metadata.declared_needs(headers.get("Requires-Python"), requires, extras)


def platform_tags(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64", "manylinux2014_x86_64"."""
    return tuple(name.removesuffix(".whl").rpartition("-")[2].split("."))


@dataclass(frozen=True, slots=True)
class TagJudgement:
    """How the files of a wheel contradict its platform tags, as clauses."""

    contradictions: tuple[str, ...] = ()  # another machine or C library: nobody can use the wheel
    broken_promises: tuple[
        str, ...
    ] = ()  # a newer C library than the name says: old systems cannot use it


def judge_tags(wheel: Path) -> TagJudgement:
    """Return what the wheel's name promises and its files contradict, without installing it.

    Tags of Linux wheels promise a machine, and manylinux and musllinux tags a C library and its symbols.
    Other tags are not judged.
    """
    promises = [
        tag
        for tag in platform_tags(wheel.name)
        if tag.startswith((*_OTHER_LIBC, bundling.PLAIN_LINUX_PREFIX))
    ]
    if not promises:
        return TagJudgement()
    with tempfile.TemporaryDirectory() as folder:
        try:
            root = Path(folder)
            with ZipFile(wheel) as archive:
                libraries = {path: elf.read_elf(path) for path in _extract_libraries(archive, root)}
            files = {path: info for path, info in libraries.items() if info is not None}
            return TagJudgement(
                tuple(
                    clause for tag in promises for clause in _foreign_platforms(root, files, tag)
                ),
                tuple(clause for tag in promises for clause in _broken_promises(root, files, tag)),
            )
        except zip_archive.ARCHIVE_ERRORS as error:
            return TagJudgement((f"the file is not a sound zip archive ({error})",))
        except OSError as error:
            if (refusal := read_refusal(str(error), root)) is not None:  # says nothing of the wheel
                raise refusal from None
            why = f"its libraries cannot be extracted ({error.strerror or str(error)}): see the names of its members"
            return TagJudgement((why,))
        except BuildError as error:
            return TagJudgement((str(error).replace(f"{folder}/", ""),))
        except ConfigError as error:  # a machine of which no policy is known
            return TagJudgement(broken_promises=(str(error).replace(f"{folder}/", ""),))


def linking_problems(
    site: Path, names: Iterable[str], platform_tag: str, lender: Path | None = None
) -> list[str]:
    """Return a clause for each problem of the libraries among the files `names` that a wheel installed.

    `site` is the site-packages of an environment that also holds what the wheel requires, or `lender` does. Platforms
    other than manylinux and musllinux are not judged.
    """
    if not bundling.match_libc_tag(platform_tag):
        return []
    own = [site / name for name in names if elf.is_elf(site / name)]
    files = {path: info for path in own if (info := elf.read_elf(path)) is not None}
    # what can be loaded with the wheel: its own libraries, and those of other packages
    sites = [site] if lender is None else [lender, site]
    found = ((path.relative_to(one).parts[0], path) for one in sites for path in one.rglob("*.so*"))
    others = (path for top, path in found if top != NVIDIA_FOLDER and path.is_file())
    loadable = {path.name: path for path in (*others, *own)}
    target = bundling.platform_target(platform_tag)
    return [
        *(
            clause
            for path in files
            for clause in _unresolved(site, path, files[path], loadable, target)
        ),
        *_driver_imports(site, files, loadable),
        *_foreign_platforms(site, files, platform_tag),
        *_broken_promises(site, files, platform_tag),
    ]


def _tag_target(tag: str) -> PlatformTarget | None:
    return None if tag.startswith(bundling.PLAIN_LINUX_PREFIX) else bundling.platform_target(tag)


def _broken_promises(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    """Yield a clause for each file below `root` that needs more of the C library than the tag promises."""
    if target := _tag_target(tag):
        own = {path.name for path in files}
        yield from bundling.policy_problems(target, bundling.system_needs(root, files, target, own))


def _foreign_platforms(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    """Yield a clause for each file below `root` that is for another machine or C library than the tag."""
    target = _tag_target(tag)
    arch = target.arch if target else tag.removeprefix(bundling.PLAIN_LINUX_PREFIX)
    for path, info in files.items():
        if not info.runs_on(arch):
            yield f"{path.relative_to(root).as_posix()} is built for {info.machine}, not for {arch}"
    if target is None:
        return
    own = {path.name for path in files}
    libc, pattern = _OTHER_LIBC[target.tag.partition("linux")[0] + "linux"]
    for path, info in files.items():
        for needed in info.needed:
            if pattern.fullmatch(needed) and needed not in own:
                file = path.relative_to(root).as_posix()
                yield f"{file} needs {needed} of {libc}, which systems of {target.tag} do not have"


def _extract_libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    for info in archive.infolist():
        if info.is_dir() or zip_archive.unsafe_member(info):
            continue
        with archive.open(info) as member:
            is_library = member.read(len(elf.ELF_MAGIC)) == elf.ELF_MAGIC
        if is_library:
            yield Path(archive.extract(info, root))


def _unresolved(
    site: Path, path: Path, info: ElfInfo, loadable: Mapping[str, Path], target: PlatformTarget
) -> Iterator[str]:
    """Yield a clause for each missing folder of a run path, and for each library that is nowhere."""
    name = path.relative_to(site).as_posix()
    folders = [expand_origin(entry, path) for entry in info.rpath]
    for entry, folder in zip(info.rpath, folders, strict=True):
        if f"/{NVIDIA_FOLDER}/" in entry and not folder.is_dir():
            yield f"{name} looks in {entry}, which nothing that the wheel requires installs"
    for needed in info.needed:
        resolved = needed in loadable or any((folder / needed).is_file() for folder in folders)
        if (
            not resolved
            and not target.on_system(needed)
            and not INTERPRETER_LIBRARY.fullmatch(needed)
        ):
            yield f"{name} needs {needed}, which is neither in the wheel nor in what it requires"


def _driver_imports(
    site: Path, files: Iterable[Path], loadable: Mapping[str, Path]
) -> Iterator[str]:
    """Yield a clause for each library of the driver that an import of the wheel loads."""
    for path in files:
        if any(name.startswith(ENTRY_PREFIXES) for name in elf.defined_symbols(path)):
            for chain in _driver_chains(path, loadable):
                yield (
                    f"importing {path.relative_to(site).as_posix()} loads {chain[-1]} of the driver, "
                    f"through {' and '.join(chain[:-1]) or 'itself'}: it fails where there is no GPU"
                )


def _driver_chains(start: Path, loadable: Mapping[str, Path]) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead from a library to each library of the driver."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(start, ())]
    seen = {start.name}
    while waiting:
        path, chain = waiting.pop()
        info = elf.read_elf(path)
        for needed in info.needed if info else ():
            if needed in seen:
                continue
            seen.add(needed)
            if DRIVER_LIBRARY.fullmatch(needed):
                yield (*chain, needed)
            elif needed in loadable:
                waiting.append((loadable[needed], (*chain, needed)))
