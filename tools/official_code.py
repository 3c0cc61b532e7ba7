"""`invoke facts --code`: read the device code in the wheels on the index, and write build_configs/wheel_code/.

A library is unpacked as it arrives and looked at on the disk, one at a time over one connection: no part of a deflated
member can be read without what stands before it, and the headers of an ELF file stand at its end. Wheels of one release
for several Pythons hold the same code; their libraries differ by pages at most. So a wheel is read if one of its
libraries with device code has a size that no wheel of that release had which was read already.
"""

import json
import re
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TypeVar

import requests
from millpress import elf
from millpress.errors import InputError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.remote_wheel import (
    RemoteWheel,
    WheelMember,
    cached_file,
    list_members,
    read_requirements,
)
from torchmill.config.arch_list import ArchTarget, format_arch_list
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag
from torchmill.config.wheel_code import PackageCode, ReadLibrary, WheelCode
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import NetworkError
from torchmill.core.silence import silence_limit
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session
from torchmill.fetch.package_index import IndexFile
from torchmill.plan.wheel_fit import NVIDIA_LIBRARY
from torchmill.wheel.verify.device_code import (
    PTX,
    code_order,
    device_sections,
    read_device_code,
    scattered_fatbins,
)

CHUNK = 1 << 20
OWN_ALONE = "/libcaffe2_detectron_ops_gpu.so"  # kernels of Caffe2's, in wheels of 1.x
STORED, DEFLATED = 0, 8  # methods of compression
WITH_CODE = re.compile(
    r"nvidia-(cudnn|cublas|cufft|curand|cusolver|cusparse|cusparselt|nccl|nvshmem)(-cu\d+)?"
)
META_PACKAGE = "cuda-toolkit"  # whose extras name the packages of libraries
LOCAL_HEADER = "<26xHH"  # …, length of the name, length of the extra field
Recorded = TypeVar("Recorded", WheelCode, PackageCode)
Fatbins = dict[str, int]  # targets -> number of fatbins
# Two wheels of one release whose libraries differ by less are taken to hold the same code: compression of debug
# information and of sections differs by whole pages from build to build. That is an inference. Wheels of second Pythons
# were read to test it for 1.3.1, 2.12.1 and 2.15.0 (cp315t) alone: they had the same fatbins.
PAGES_BYTES = 1 << 16


@dataclass(slots=True)
class Reading:
    """What is read of the wheels of one release for one machine."""

    files: list[str] = field(default_factory=list)
    sizes: dict[str, set[int]] = field(default_factory=dict)
    fatbins: dict[str, Fatbins] = field(default_factory=dict)

    def as_code(self) -> dict[str, ReadLibrary]:
        """Return it as facts have it."""
        return {
            name: ReadLibrary(name, tuple(sorted(self.sizes[name])), fatbins)
            for name, fatbins in sorted(self.fatbins.items())
        }

    def covers(self, members: Mapping[str, int]) -> bool:
        """Tell whether the libraries that count have the sizes of libraries that were read, but for some pages."""
        return bool(self.files) and all(
            is_size_read(members.get(name), sizes) for name, sizes in self.sizes.items()
        )


def is_size_read(size: int | None, sizes: Iterable[int]) -> bool:
    """Tell whether a library of a size is one of those that were read, but for some pages."""
    return size is not None and any(abs(size - one) < PAGES_BYTES for one in sizes)


def read_wheel_code(
    file: IndexFile, cache: Path, session: requests.Session, *, everywhere: bool = False
) -> dict[str, tuple[int, Fatbins]]:
    """Return the size and the fatbins of each library of a wheel on an index, from the cache if it is there.

    With `everywhere` also those outside the sections for them: in libraries of NVIDIA's alone, for what others link in
    from these is found by their own code. Raises NetworkError.
    """
    known = cached_file(cache, file, "code.json")
    if not known.exists():
        found = {
            member.name: (member.size, _member_code(file, member, session, everywhere=everywhere))
            for member in _libraries(file, session)
        }
        write_atomically(known, json.dumps(found))
    return {
        name: (size, fatbins)
        for name, (size, fatbins) in json.loads(known.read_text("utf-8")).items()
    }


def _libraries(file: IndexFile, session: requests.Session) -> Iterator[WheelMember]:
    """Yield the libraries of a wheel; of several with the same content the first."""
    seen = set()
    for member in list_members(file, session):
        if member.is_library and (member.size, member.checksum) not in seen:
            seen.add((member.size, member.checksum))
            yield member


def _member_code(
    file: IndexFile, member: WheelMember, session: requests.Session, *, everywhere: bool
) -> Fatbins:
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "library"
        try:
            with unpacked.open("wb") as target:
                target.writelines(_unpack_member(file, member, session))
            return count_fatbins(unpacked, everywhere=everywhere)
        except (requests.RequestException, OSError, zlib.error, InputError) as error:
            raise NetworkError(
                f"cannot read {member.name} of {file.url} ({error}): run the command again, which resumes",
                code="wheel-unreadable",
            ) from None


def _unpack_member(
    file: IndexFile, member: WheelMember, session: requests.Session
) -> Iterator[bytes]:
    """Yield the content of a member. Raises OSError where it is not what the directory of the wheel says."""
    end = member.offset + member.header_limit + member.packed
    headers = {"Range": f"bytes={member.offset}-{end}"}
    with session.get(file.url, headers=headers, stream=True, timeout=silence_limit()) as response:
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            raise OSError("the server does not answer range requests")
        header = response.raw.read(struct.calcsize(LOCAL_HEADER))
        response.raw.read(sum(struct.unpack(LOCAL_HEADER, header)))
        packer, checksum, left = zlib.decompressobj(-zlib.MAX_WBITS), 0, member.packed
        while left:
            packed = response.raw.read(min(left, CHUNK))
            if not packed:
                raise OSError("the connection ended early")
            left -= len(packed)
            part = packer.decompress(packed) if member.method == DEFLATED else packed
            checksum = zlib.crc32(part, checksum)
            yield part
        rest = packer.flush() if member.method == DEFLATED else b""
        yield rest
    if zlib.crc32(rest, checksum) != member.checksum:
        raise OSError("its checksum is not the one in the wheel's directory")


def count_fatbins(path: Path, *, everywhere: bool) -> Fatbins:
    """Return how many fatbins of a library have code for which targets. Raises BuildError where it is damaged.

    Fatbins outside the sections for them count only with `everywhere`, and in libraries of Windows.
    """
    if elf.is_elf(path):
        fatbins = read_device_code(path)
        if everywhere:
            with elf.open_elf(path) as image:
                fatbins += scattered_fatbins(image.data, device_sections(image))
    else:
        fatbins = list(scattered_fatbins(path.read_bytes()))
    found = Counter(";".join(sorted(one.targets, key=code_order)) for one in fatbins)
    return dict(found.most_common())


def own_targets(code: Mapping[str, ReadLibrary]) -> str:
    """Return what torch's own kernels are for, as TORCH_CUDA_ARCH_LIST says it.

    They are most fatbins of the library with most fatbins that is not NVIDIA's, unless there is a library of nothing
    else: NVIDIA's were linked statically up to 1.12, and can be more.
    """
    alone = [one for name, one in code.items() if name.endswith(OWN_ALONE)]
    mixed = [one for name, one in code.items() if not NVIDIA_LIBRARY.search(name)]
    largest = max(alone or mixed, key=lambda one: sum(one.fatbins.values()), default=None)
    if largest is None or not largest.fatbins:
        return ""
    pieces = [
        piece.partition(" ")[::2]
        for piece in max(largest.fatbins, key=largest.fatbins.__getitem__).split(";")
    ]
    intermediate = {name for name, kind in pieces if kind == PTX.upper()}
    machine = {name for name, kind in pieces if not kind}
    names = machine | intermediate
    return format_arch_list(
        ArchTarget(name.rstrip("af"), name.lstrip("0123456789."), ptx=name in intermediate)
        for name in names
    )


def read_release(
    wheels: Sequence[RemoteWheel],
    files: Mapping[str, IndexFile],
    cache: Path,
    session: requests.Session,
) -> list[Reading]:
    """Return what is read of the wheels of one release for one machine, apart by what they hold."""
    found: list[Reading] = []
    for wheel in sorted(wheels, key=_reading_order):
        if any(one.covers(wheel.members) for one in found):
            continue
        if "macosx" in wheel.platform:  # where there is no CUDA
            code: dict[str, tuple[int, Fatbins]] = {
                name: (size, {}) for name, size in wheel.members.items()
            }
        else:
            code = read_wheel_code(files[wheel.name], cache, session)
        counting = {name: fatbins for name, (_, fatbins) in code.items() if fatbins}
        if not counting and code:  # else there is no library in it
            counting = {max(code, key=lambda name: code[name][0]): {}}
        same = next((one for one in found if one.fatbins == counting), None)
        if same is None:
            same = Reading(fatbins=counting)
            found.append(same)
        same.files.append(wheel.name)
        for name in counting:
            same.sizes.setdefault(name, set()).add(code[name][0])
    return found


def _reading_order(wheel: RemoteWheel) -> tuple[int, bool, Version]:
    """Order wheels so that the newest rebuild for the oldest Python is read first."""
    python = wheel.python or "3"
    return -wheel.build, python.endswith("t"), Version(python.rstrip("t"))


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads wheels of one index, one after the other; what was read stays in a folder."""

    facts: Facts
    index: str
    cache: Path
    session: requests.Session

    def releases(
        self, package: str, wheels: Iterable[RemoteWheel], bar: ProgressBar
    ) -> list[WheelCode]:
        """Return what is read of the wheels of a package's known releases; of those for macOS the directories.

        Raises NetworkError.
        """
        files = {file.name: file for file in self.files(package)}
        groups = self._group(package, wheels)
        found = []
        for number, ((version, arch), group) in enumerate(groups.items(), 1):
            beside = self._beside(group, arch)
            cuda = next((wheel.cuda for wheel in group if wheel.cuda), None)
            for reading in read_release(group, files, self.cache, self.session):
                code = reading.as_code()
                own = own_targets(code)
                fresh = WheelCode(
                    package=package,
                    release=version,
                    arch=arch,
                    files=tuple(reading.files),
                    date=today(),
                    code=code,
                    cuda=cuda if own else None,
                    own=own,
                    beside=beside,
                )
                found.append(_with_old_date(fresh, self.facts.wheel_code))
            bar.update(number, len(groups), "releases")
        return found

    def libraries(self, wheels: Iterable[WheelCode], bar: ProgressBar) -> list[PackageCode]:
        """Return what is read in NVIDIA's packages of libraries that wheels require. Raises NetworkError."""
        wanted = sorted(
            {(*text.split("=="), wheel.arch) for wheel in wheels for text in wheel.beside}
        )
        found = []
        for number, (name, version, arch) in enumerate(wanted, 1):
            there = [
                file
                for file in self.files(name)
                if file.name.endswith(f"_{arch}.whl")
                and Version(_version(file)) == Version(version)
            ]
            if there:
                code = read_wheel_code(there[-1], self.cache, self.session, everywhere=True)
                fresh = PackageCode(
                    name, version, arch, there[-1].name, today(), unite_targets(code)
                )
                found.append(_with_old_date(fresh, self.facts.package_code))
            bar.update(number, len(wanted), name)
        return found

    def files(self, project: str) -> list[IndexFile]:
        """Return the wheels of a project."""
        there = package_index.project_files(self.session, self.index, canonicalize_name(project))
        return [file for file in there if file.name.endswith(".whl")]

    def _group(
        self, package: str, wheels: Iterable[RemoteWheel]
    ) -> dict[tuple[str, str], list[RemoteWheel]]:
        """Return the wheels of known releases by version and machine, the newest first."""
        known = {release.version for release in self.facts.releases[package]}
        found: dict[tuple[str, str], list[RemoteWheel]] = {}
        for wheel in sorted(wheels, key=lambda one: Version(one.version), reverse=True):
            arch = platform_of_tag(self.facts, wheel.platform)
            python2 = (wheel.python or "3").startswith("2.")
            if arch and wheel.version in known and not python2:
                found.setdefault((wheel.version, arch.name), []).append(wheel)
        return found

    def _beside(self, wheels: Sequence[RemoteWheel], arch: str) -> tuple[str, ...]:
        """Return the packages with device code that CUDA wheels require, each with its exact version."""
        if not any(wheel.cuda for wheel in wheels):
            return ()
        there = {
            "platform_system": "Linux",
            "sys_platform": "linux",
            "platform_machine": arch,
            "extra": "",
        }
        pinned: dict[str, str] = {}
        for text in dict.fromkeys(text for wheel in wheels for text in wheel.requires):
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate(there):
                continue
            if requirement.name == META_PACKAGE:
                pinned |= self._of_meta_package(requirement, there)
            elif WITH_CODE.fullmatch(canonicalize_name(requirement.name)):
                pinned[requirement.name] = self._exact(requirement)
        return tuple(f"{name}=={version}" for name, version in sorted(pinned.items()))

    def _of_meta_package(
        self, requirement: Requirement, there: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the packages with device code that the extras of NVIDIA's meta package stand for."""
        file = [one for one in self.files(META_PACKAGE) if _version(one) in requirement.specifier][
            -1
        ]
        found: dict[str, str] = {}
        for text in read_requirements(file, self.cache, self.session):
            inner = Requirement(text)
            wanted = inner.marker is None or any(
                inner.marker.evaluate({**there, "extra": extra}) for extra in requirement.extras
            )
            if wanted and WITH_CODE.fullmatch(canonicalize_name(inner.name)):
                found[canonicalize_name(inner.name)] = self._exact(inner)
        return found

    def _exact(self, requirement: Requirement) -> str:
        """Return the newest version on the index that a requirement admits."""
        versions = {
            Version(_version(file)) for file in self.files(requirement.name) if not file.yanked
        }
        return str(max(requirement.specifier.filter(versions)))


def _version(file: IndexFile) -> str:
    return file.name.split("-")[1]


def _with_old_date(fresh: Recorded, known: Iterable[Recorded]) -> Recorded:
    """Return a reading; one that the facts have already, with the day on which that was made."""
    return next((one for one in known if replace(one, date=fresh.date) == fresh), fresh)


def today() -> str:
    """Return the day, as a reading has it."""
    return datetime.now(UTC).date().isoformat()


def read_packages(
    facts: Facts,
    observed: Mapping[str, Sequence[RemoteWheel]],
    index: str,
    cache: Path,
    bars: ProgressDisplay,
) -> tuple[dict[str, list[WheelCode]], list[PackageCode]]:
    """Read the wheels of all known releases, and the packages of libraries that they require. Raises NetworkError."""
    found: dict[str, list[WheelCode]] = {}
    with http_session() as session:
        reader = IndexReader(facts, index, cache, session)
        for package, wheels in observed.items():
            bar = bars.task(f"code of {package}", None)
            found[package] = reader.releases(package, wheels, bar)
            bar.close()
        bar = bars.task("code of NVIDIA's packages", None)
        libraries = reader.libraries(chain.from_iterable(found.values()), bar)
        bar.close()
    return found, libraries


def unite_targets(code: Mapping[str, tuple[int, Fatbins]]) -> dict[str, str]:
    """Return for what any fatbin of a library has code, by the name of its file."""
    found = {}
    for name, (_, fatbins) in sorted(code.items()):
        if targets := {one for listed in fatbins for one in listed.split(";")}:
            found[name.rpartition("/")[2]] = ";".join(sorted(targets, key=code_order))
    return found


HEAD = """\
# What was read in the wheels of {package} on PyPI: which libraries have device code for what. Written by
# `invoke facts --code --write`; docs/reference/facts.md says what the keys mean.
"""
LIBRARIES_HEAD = """\
# What was read in NVIDIA's packages of libraries that official wheels require, and libraries of single features.
# Written by `invoke facts --code --write`, but for [[feature]].
"""


def write_wheel_code(folder: Path, package: str, wheels: Sequence[WheelCode]) -> Path:
    """Write what was read in the wheels of a package; what did not change keeps the day on which it was read."""
    lines = [HEAD.format(package=package)]
    for one in wheels:
        lines += [
            "[[wheel]]",
            f'release = "{one.release}"',
            f'arch = "{one.arch}"',
            f'date = "{one.date}"',
        ]
        lines += [f'cuda = "{one.cuda}"'] * bool(one.cuda) + [f'own = "{one.own}"'] * bool(one.own)
        lines += _list("files", one.files) + _list("beside", one.beside)
        for library in one.code.values():
            lines += [
                f'[wheel.code."{library.name}"]',
                f"sizes = {list(library.sizes)}",
                f'[wheel.code."{library.name}".fatbins]' if library.fatbins else "fatbins = {}",
            ]
            lines += [f'"{targets}" = {number}' for targets, number in library.fatbins.items()]
        lines.append("")
    path = folder / "wheel_code" / f"{package}.toml"
    write_atomically(path, "\n".join(lines))
    return path


def write_package_code(folder: Path, facts: Facts, packages: Sequence[PackageCode]) -> Path:
    """Write what was read in NVIDIA's packages, and keep what is said of libraries for newer GPUs."""
    lines = [LIBRARIES_HEAD]
    for feature in facts.feature_libraries:
        lines += ["[[feature]]", f'pattern = "{feature.pattern}"', f'feature = "{feature.feature}"']
        lines += [f'source = "{feature.source}"', ""]
    for one in packages:
        lines += [
            "[[package]]",
            f'name = "{one.name}"',
            f'version = "{one.version}"',
            f'arch = "{one.arch}"',
        ]
        lines += [f'file = "{one.file}"', f'date = "{one.date}"', "[package.code]"]
        lines += [*(f'"{name}" = "{targets}"' for name, targets in one.code.items()), ""]
    path = folder / "wheel_code" / "nvidia.toml"
    write_atomically(path, "\n".join(lines))
    return path


def _list(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key} = [", *(f'    "{value}",' for value in values), "]"] if values else []
