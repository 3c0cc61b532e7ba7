"""`invoke facts --code`: read the device code in the wheels on the index.

Device code is what runs on GPUs. It lies in fatbins, containers in a library that hold code for
several compute capabilities (targets).

A library is unpacked as it arrives, and examined on the disk, one at a time over one connection. No
part of a deflated member can be read without the part before it, and the headers of an ELF file are
at its end.

Wheels of one release for several Pythons have the same code, and their libraries differ by pages at
most. So a wheel is read only if one of its libraries with device code has a size that none of the
wheels had which were read before.
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
from torchmill.config.wheel_code import LibraryReading, PackageCode, WheelCode
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

CHUNK = 1 << 20  # bytes
# A library in wheels of 1.x that has kernels of Caffe2 and none of NVIDIA's.
OWN_ALONE = "/libcaffe2_detectron_ops_gpu.so"
DEFLATED = 8  # a method of compression in ZIP files
# NVIDIA's packages that have device code.
WITH_CODE = re.compile(
    r"nvidia-(cudnn|cublas|cufft|curand|cusolver|cusparse|cusparselt|nccl|nvshmem)(-cu\d+)?"
)
META_PACKAGE = "cuda-toolkit"  # its extras name the packages of libraries
# The end of a member's local header: length of the name, length of the extra field.
LOCAL_HEADER = "<26xHH"
Recorded = TypeVar("Recorded", WheelCode, PackageCode)
Fatbins = dict[str, int]  # targets ("8.0;9.0 PTX") -> number of fatbins
LibraryCode = dict[str, tuple[int, Fatbins]]  # path in the wheel -> size in bytes, fatbins
# Libraries of two wheels of one release that differ by less are taken to have the same code: the
# compression of debug information and of sections differs by whole pages from build to build. That
# is an inference. To test it, wheels for a second Python were read for 1.3.1, 2.12.1 and 2.15.0
# (cp315t) only: they had the same fatbins.
PAGES_BYTES = 1 << 16


@dataclass(slots=True)
class Reading:
    """The code of those wheels of one release for one machine that have the same code."""

    files: list[str] = field(default_factory=list)  # names of wheels that were read
    sizes: dict[str, set[int]] = field(default_factory=dict)  # library -> bytes in these wheels
    fatbins: dict[str, Fatbins] = field(default_factory=dict)  # library -> its fatbins

    def as_code(self) -> dict[str, LibraryReading]:
        """Return the libraries as facts have them."""
        libraries = {}
        for name, fatbins in sorted(self.fatbins.items()):
            libraries[name] = LibraryReading(name, tuple(sorted(self.sizes[name])), fatbins)
        return libraries

    def covers(self, members: Mapping[str, int]) -> bool:
        """Tell whether a wheel need not be read, because its libraries (`members`) have known sizes."""
        if not self.files:
            return False
        return all(is_size_read(members.get(name), sizes) for name, sizes in self.sizes.items())


def is_size_read(size: int | None, sizes: Iterable[int]) -> bool:
    """Tell whether a size differs from one of those that were read by some pages at most."""
    return size is not None and any(abs(size - read_size) < PAGES_BYTES for read_size in sizes)


def read_wheel_code(
    file: IndexFile, cache: Path, session: requests.Session, *, everywhere: bool = False
) -> LibraryCode:
    """Return the size and the fatbins of each library of a wheel on an index.

    The result stays in the folder `cache`. With `everywhere`, fatbins outside of their sections
    count too. That is meant for NVIDIA's own libraries. A library of torch may have parts of these
    linked in, and is described by its own code. Raises NetworkError.
    """
    path = cached_file(cache, file, "code.json")
    if not path.exists():
        code = {}
        for member in _distinct_libraries(file, session):
            fatbins = _member_code(file, member, session, everywhere=everywhere)
            code[member.name] = (member.size, fatbins)
        write_atomically(path, json.dumps(code))
    document = json.loads(path.read_text("utf-8"))
    return {name: (size, fatbins) for name, (size, fatbins) in document.items()}


def _distinct_libraries(file: IndexFile, session: requests.Session) -> Iterator[WheelMember]:
    """Yield the libraries of a wheel; of several with the same content only the first."""
    seen = set()
    for member in list_members(file, session):
        content = (member.size, member.checksum)
        if member.is_library and content not in seen:
            seen.add(content)
            yield member


def _member_code(
    file: IndexFile, member: WheelMember, session: requests.Session, *, everywhere: bool
) -> Fatbins:
    """Return the fatbins of one library in a wheel. Raises NetworkError."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library"
        try:
            with library.open("wb") as target:
                target.writelines(_unpack_member(file, member, session))
            return count_fatbins(library, everywhere=everywhere)
        except (requests.RequestException, OSError, zlib.error, InputError) as error:
            raise NetworkError(
                f"cannot read {member.name} of {file.url} ({error}): run the command again, which "
                "resumes",
                code="wheel-unreadable",
            ) from None


def _unpack_member(
    file: IndexFile, member: WheelMember, session: requests.Session
) -> Iterator[bytes]:
    """Yield the content of a member. Raises OSError if it is not what the directory says."""
    end = member.offset + member.header_limit + member.packed
    headers = {"Range": f"bytes={member.offset}-{end}"}
    with session.get(file.url, headers=headers, stream=True, timeout=silence_limit()) as response:
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            raise OSError("the server does not answer range requests")
        header = response.raw.read(struct.calcsize(LOCAL_HEADER))
        name_length, extra_length = struct.unpack(LOCAL_HEADER, header)
        response.raw.read(name_length + extra_length)
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)  # without zlib's header
        checksum = 0
        remaining = member.packed
        while remaining:
            packed = response.raw.read(min(remaining, CHUNK))
            if not packed:
                raise OSError("the connection ended early")
            remaining -= len(packed)
            part = unpacker.decompress(packed) if member.method == DEFLATED else packed
            checksum = zlib.crc32(part, checksum)
            yield part
        rest = unpacker.flush() if member.method == DEFLATED else b""
        yield rest
    if zlib.crc32(rest, checksum) != member.checksum:
        raise OSError("its checksum is not the one in the wheel's directory")


def count_fatbins(path: Path, *, everywhere: bool) -> Fatbins:
    """Return the numbers of a library's fatbins by their targets, the most frequent first.

    Fatbins outside of their sections count only with `everywhere`, and in libraries for Windows.
    Raises InputError for a damaged library.
    """
    if elf.is_elf(path):
        fatbins = read_device_code(path)
        if everywhere:
            with elf.open_elf(path) as image:
                fatbins += scattered_fatbins(image.data, device_sections(image))
    else:
        fatbins = list(scattered_fatbins(path.read_bytes()))
    counts = Counter(";".join(sorted(fatbin.code_names, key=code_order)) for fatbin in fatbins)
    return dict(counts.most_common())


def own_targets(code: Mapping[str, LibraryReading]) -> str:
    """Return the targets of torch's own kernels, as TORCH_CUDA_ARCH_LIST names them.

    They are the most frequent targets in the library with most fatbins that is not NVIDIA's. Up to
    1.12 NVIDIA's libraries were linked into that library, and may have more fatbins than torch. So
    if there is a library with nothing but kernels of the package, that library counts.
    """
    libraries = [library for name, library in code.items() if name.endswith(OWN_ALONE)]
    if not libraries:
        libraries = [library for name, library in code.items() if not NVIDIA_LIBRARY.search(name)]
    largest = max(libraries, key=lambda library: sum(library.fatbins.values()), default=None)
    if largest is None or not largest.fatbins:
        return ""
    most_frequent = max(largest.fatbins, key=lambda targets: largest.fatbins[targets])
    machine = set()
    intermediate = set()
    for target in most_frequent.split(";"):
        name, _, kind = target.partition(" ")
        if not kind:
            machine.add(name)
        elif kind == PTX.upper():
            intermediate.add(name)
    arch_targets = []
    for name in machine | intermediate:
        capability = name.rstrip("af")
        suffix = name.lstrip("0123456789.")
        arch_targets.append(ArchTarget(capability, suffix, ptx=name in intermediate))
    return format_arch_list(arch_targets)


def read_release(
    wheels: Sequence[RemoteWheel],
    files: Mapping[str, IndexFile],
    cache: Path,
    session: requests.Session,
) -> list[Reading]:
    """Return the readings of one release for one machine; wheels with the same code share one.

    `files` are the wheels on the index by their names. Raises NetworkError.
    """
    readings: list[Reading] = []
    for wheel in sorted(wheels, key=_reading_order):
        if any(reading.covers(wheel.members) for reading in readings):
            continue
        code: LibraryCode
        if "macosx" in wheel.platform:
            # It has no device code, and the sizes of its libraries are in its directory.
            code = {name: (size, {}) for name, size in wheel.members.items()}
        else:
            code = read_wheel_code(files[wheel.name], cache, session)
        fatbins = {name: counts for name, (_, counts) in code.items() if counts}
        if not fatbins and code:
            # Without device code, the largest library stands for the wheel.
            largest = max(code, key=lambda name: code[name][0])
            fatbins = {largest: {}}
        reading = next((reading for reading in readings if reading.fatbins == fatbins), None)
        if reading is None:
            reading = Reading(fatbins=fatbins)
            readings.append(reading)
        reading.files.append(wheel.name)
        for name in fatbins:
            reading.sizes.setdefault(name, set()).add(code[name][0])
    return readings


def _reading_order(wheel: RemoteWheel) -> tuple[int, bool, Version]:
    """Return the key that sorts the newest rebuild for the oldest Python first."""
    python = wheel.python or "3"
    return -wheel.build, python.endswith("t"), Version(python.rstrip("t"))


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads wheels of one index, one after the other; results stay in a folder."""

    facts: Facts
    index: str  # its URL
    cache: Path
    session: requests.Session

    def releases(
        self, package: str, wheels: Iterable[RemoteWheel], bar: ProgressBar
    ) -> list[WheelCode]:
        """Return the code in the wheels of a package's known releases.

        Of wheels for macOS only the directory is read. Raises NetworkError.
        """
        files = {file.name: file for file in self.files(package)}
        groups = self._group(package, wheels)
        codes = []
        for number, ((version, arch), group) in enumerate(groups.items(), start=1):
            requirements = self._required_libraries(group, arch)
            cuda = next((wheel.cuda for wheel in group if wheel.cuda), None)
            for reading in read_release(group, files, self.cache, self.session):
                libraries = reading.as_code()
                targets = own_targets(libraries)
                code = WheelCode(
                    package=package,
                    release=version,
                    arch=arch,
                    files=tuple(reading.files),
                    date=today(),
                    code=libraries,
                    cuda=cuda if targets else None,
                    kernel_targets=targets,
                    required_packages=requirements,
                )
                codes.append(_with_old_date(code, self.facts.official.wheel_code))
            bar.update(number, len(groups), "releases")
        return codes

    def libraries(self, wheels: Iterable[WheelCode], bar: ProgressBar) -> list[PackageCode]:
        """Return the code in NVIDIA's packages of libraries that wheels require.

        Raises NetworkError.
        """
        pins = set()
        for wheel in wheels:
            for text in wheel.required_packages:
                name, version = text.split("==")
                pins.add((name, version, wheel.arch))
        codes = []
        for number, (name, version, arch) in enumerate(sorted(pins), start=1):
            files = []
            for file in self.files(name):
                is_version = Version(_version(file)) == Version(version)
                if is_version and file.name.endswith(f"_{arch}.whl"):
                    files.append(file)
            if files:
                file = files[-1]
                libraries = read_wheel_code(file, self.cache, self.session, everywhere=True)
                targets = unite_targets(libraries)
                code = PackageCode(name, version, arch, file.name, today(), targets)
                codes.append(_with_old_date(code, self.facts.official.package_code))
            bar.update(number, len(pins), name)
        return codes

    def files(self, project: str) -> list[IndexFile]:
        """Return the wheels of a project. Raises NetworkError."""
        files = package_index.project_files(self.session, self.index, canonicalize_name(project))
        return [file for file in files if file.name.endswith(".whl")]

    def _group(
        self, package: str, wheels: Iterable[RemoteWheel]
    ) -> dict[tuple[str, str], list[RemoteWheel]]:
        """Return the wheels of known releases by version and arch, the newest version first."""
        versions = {release.version for release in self.facts.releases[package]}
        groups: dict[tuple[str, str], list[RemoteWheel]] = {}
        for wheel in sorted(wheels, key=lambda wheel: Version(wheel.version), reverse=True):
            arch = platform_of_tag(self.facts, wheel.platform)
            is_python2 = (wheel.python or "3").startswith("2.")
            if arch and wheel.version in versions and not is_python2:
                groups.setdefault((wheel.version, arch.name), []).append(wheel)
        return groups

    def _required_libraries(self, wheels: Sequence[RemoteWheel], arch: str) -> tuple[str, ...]:
        """Return NVIDIA's packages with device code that wheels require: "nvidia-nccl-cu12==2.20.5".

        Raises NetworkError.
        """
        if not any(wheel.cuda for wheel in wheels):
            return ()
        machine = {
            "platform_system": "Linux",
            "sys_platform": "linux",
            "platform_machine": arch,
            "extra": "",
        }
        lines = dict.fromkeys(line for wheel in wheels for line in wheel.requires)
        pinned: dict[str, str] = {}
        for line in lines:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate(machine):
                continue
            if requirement.name == META_PACKAGE:
                pinned |= self._meta_package_libraries(requirement, machine)
            elif WITH_CODE.fullmatch(canonicalize_name(requirement.name)):
                pinned[requirement.name] = self._exact_version(requirement)
        return tuple(f"{name}=={version}" for name, version in sorted(pinned.items()))

    def _meta_package_libraries(
        self, requirement: Requirement, machine: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the versions of the packages that the extras of NVIDIA's meta package stand for.

        Only packages with device code are among them. `machine` is the environment of markers.
        """
        files = self.files(META_PACKAGE)
        fitting = [file for file in files if _version(file) in requirement.specifier]
        environments = [{**machine, "extra": extra} for extra in requirement.extras]
        versions: dict[str, str] = {}
        for line in read_requirements(fitting[-1], self.cache, self.session):
            library = Requirement(line)
            name = canonicalize_name(library.name)
            is_required = library.marker is None or any(map(library.marker.evaluate, environments))
            if is_required and WITH_CODE.fullmatch(name):
                versions[name] = self._exact_version(library)
        return versions

    def _exact_version(self, requirement: Requirement) -> str:
        """Return the newest version on the index that a requirement admits."""
        versions = {
            Version(_version(file)) for file in self.files(requirement.name) if not file.yanked
        }
        return str(max(requirement.specifier.filter(versions)))


def _version(file: IndexFile) -> str:
    """Return the version in the name of a wheel."""
    return file.name.split("-")[1]


def _with_old_date(code: Recorded, recorded: Iterable[Recorded]) -> Recorded:
    """Return the reading in the facts that differs only by its date, or else the new one."""
    for old_code in recorded:
        if replace(old_code, date=code.date) == code:
            return old_code
    return code


def today() -> str:
    """Return the date as readings have it."""
    return datetime.now(UTC).date().isoformat()


def read_packages(
    facts: Facts,
    observed: Mapping[str, Sequence[RemoteWheel]],
    index: str,
    cache: Path,
    bars: ProgressDisplay,
) -> tuple[dict[str, list[WheelCode]], list[PackageCode]]:
    """Read the wheels of all known releases, and the packages of libraries that they require.

    Raises NetworkError.
    """
    codes: dict[str, list[WheelCode]] = {}
    with http_session() as session:
        reader = IndexReader(facts, index, cache, session)
        for package, wheels in observed.items():
            bar = bars.start_bar(f"code of {package}", None)
            codes[package] = reader.releases(package, wheels, bar)
            bar.close()
        bar = bars.start_bar("code of NVIDIA's packages", None)
        libraries = reader.libraries(chain.from_iterable(codes.values()), bar)
        bar.close()
    return codes, libraries


def unite_targets(code: Mapping[str, tuple[int, Fatbins]]) -> dict[str, str]:
    """Return the targets of any fatbin of a library, by the library's file name."""
    united = {}
    for path, (_, fatbins) in sorted(code.items()):
        targets: set[str] = set()
        for listed in fatbins:
            targets.update(listed.split(";"))
        if targets:
            name = path.rpartition("/")[2]
            united[name] = ";".join(sorted(targets, key=code_order))
    return united
