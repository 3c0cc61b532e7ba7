"""Slim a wheel, under a version of its own, or a package in an environment.

A slim wheel has code only for the requested GPUs. It is a new wheel, whose version names these GPUs
("2.6.0+cu124.sm86"), with its own manifest, statement and SBOM. A package in an environment is
slimmed in place: its libraries and the rows about them in its RECORD are replaced.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile, ZipInfo

from millpress import (
    content_checks,
    dependencies,
    elf,
    record_file,
    wheel_file,
    zip_archive,
)
from packaging.version import Version

from torchmill.config.versions import cuda_label
from torchmill.core.atomic_writes import fresh_path, write_atomically
from torchmill.core.digests import hash_file
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.system_errors import report_unwritable
from torchmill.wheel import finished_wheel, slim, written_wheel
from torchmill.wheel.finished_wheel import SLIM_LABEL, FinishedWheel
from torchmill.wheel.slim import SlimRequest
from torchmill.wheel.verify.device_code import FATBIN_SECTIONS, code_order
from torchmill.wheel.written_wheel import NewWheel, SlimLibrary, StagedLibraries

EXTRACT_THREADS = 2
READ_BYTES = 1 << 20
LONGEST_NAME_BYTES = 32  # of a section of fatbins
MOST_PROBLEMS = 3  # that a message names
SIGNATURES = (".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")


def slim_version(version: Version, request: SlimRequest, cuda: str) -> str:
    """Return the version of a slim wheel: "2.6.0+cu124.sm86.ptx86".

    If the original's version has no local label, `cuda` ("12.4", or "") gives the first label.
    """
    labels = []
    for label in (version.local or "").split("."):
        if label and not SLIM_LABEL.fullmatch(label):
            labels.append(label)
    if not labels and cuda:
        labels = [cuda_label(cuda)]
    for gpu in request.gpus:
        number = gpu.capability.name.replace(".", "")
        labels.append(f"sm{number}")
        if gpu.with_ptx:
            labels.append(f"ptx{number}")
    return f"{version.public}+{'.'.join(labels)}"


def read_sound_wheel(path: Path) -> FinishedWheel:
    """Return the description of a wheel that may be slimmed.

    Raises DeliveryError if the wheel is signed, or if its files are not those in its RECORD.
    Raises WheelError if the file is not a wheel.
    """
    wheel = finished_wheel.read_wheel(path)
    with wheel_file.open_wheel(path) as archive:
        names = archive.namelist()
        if any(name.endswith(SIGNATURES) for name in names):
            raise DeliveryError(
                f"{path}: is signed, and the signature would no longer fit", code="signed-wheel"
            )
        record = f"{wheel_file.dist_info_folders(names)[0]}/RECORD"
        problems = list(islice(content_checks.record_problems(archive, record), MOST_PROBLEMS))
    if problems:
        raise DeliveryError(f"{path}: {'; '.join(problems)}: fetch it again", code="wheel-rejected")
    return wheel


def is_untouched(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a library must stay as it is: its file name matches one of the patterns.

    The patterns are those of NVIDIA's libraries in build_configs/kept_libraries.toml.
    """
    file_name = name.rpartition("/")[2]
    return any(fnmatch(file_name, pattern) for pattern in patterns)


class LibraryFile(NamedTuple):
    """A library or program of a wheel, or of a package in an environment."""

    name: str  # in RECORD: "torch/lib/libtorch_cuda.so"
    path: Path  # of the extracted or installed file


def plan_libraries(files: Iterable[LibraryFile], request: SlimRequest) -> list[SlimLibrary]:
    """Return the libraries with code for GPUs among `files`, each with the parts that stay.

    Raises InputError if a library is damaged.
    """
    return plan_for_each(files, [request])[0]


def plan_for_each(
    files: Iterable[LibraryFile], requests: Sequence[SlimRequest]
) -> list[list[SlimLibrary]]:
    """Return what `plan_libraries` returns for each of some requests; each file is read once."""
    planned: list[list[SlimLibrary]] = [[] for _ in requests]
    for file in files:
        for libraries, plan in zip(planned, slim.plan_for_each(file.path, requests), strict=True):
            if plan is not None:
                libraries.append(SlimLibrary(file.name, file.path, plan))
    return planned


def require_served(title: str, libraries: Sequence[SlimLibrary], request: SlimRequest) -> None:
    """Raise DeliveryError if there are no fatbins, or a requested GPU runs less than half of them.

    `title` names the wheel or package in messages. Less than half, because a wheel need not have
    all code for a GPU that it was built for: releases compile single kernels for few capabilities,
    and libraries that are linked in were compiled for lists of their own.
    """
    if not any(library.plan.fatbins for library in libraries):
        raise DeliveryError(
            f"{title}: has no code for GPUs that may be left out", code="no-device-code"
        )
    code = Counter[str]()
    for library in libraries:
        code += library.plan.code
    served = Counter[str]()
    for library in libraries:
        served += library.plan.served
    capabilities = _most_served(libraries, served)
    for gpu in request.gpus:
        capability = gpu.capability.name
        if capability not in capabilities:
            listed = ", ".join(sorted(code, key=code_order))
            raise DeliveryError(
                f"{title}: has no code that runs on GPUs of {capability}; it has {listed}",
                code="capability-not-in-wheel",
            )


def native_capabilities(libraries: Sequence[SlimLibrary]) -> tuple[str, ...]:
    """Return the requested GPUs that have machine code in at least half of all fatbins."""
    served = Counter[str]()
    for library in libraries:
        served += library.plan.served_natively
    return _most_served(libraries, served)


def _most_served(libraries: Sequence[SlimLibrary], served: Counter[str]) -> tuple[str, ...]:
    """Return the GPUs with at least half of all fatbins, oldest first; `served` counts those."""
    fatbin_count = sum(library.plan.fatbins for library in libraries)
    capabilities = [name for name, count in served.items() if 2 * count >= fatbin_count]
    return tuple(sorted(capabilities, key=code_order))


def removes_code(libraries: Iterable[SlimLibrary]) -> bool:
    """Tell whether any library has code that does not stay."""
    return any(library.plan.kept_code != library.plan.code for library in libraries)


@contextmanager
def staging_folder(wheel: Path, destination: Path) -> Iterator[Path]:
    """Yield an empty folder in `destination` for the parts of a wheel; it is removed at the end."""
    with (
        report_unwritable(destination),
        fresh_path(destination / f"{wheel.stem}.slim") as folder,
    ):
        folder.mkdir()
        yield folder


def stage_libraries(wheel: Path, folder: Path, patterns: Iterable[str]) -> list[LibraryFile]:
    """Extract the parts of a wheel that slimming changes into `folder`.

    These are its .dist-info, and its libraries and programs that may have code for GPUs, without
    those whose names match `patterns`. Returns the extracted libraries and programs.
    """
    libraries = []
    with ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir() or is_untouched(info.filename, patterns):
                continue
            if _may_have_code(archive, info):
                libraries.append(info)
    targets = [(info, f"{folder}/{info.filename}") for info in libraries]
    zip_archive.extract_members(wheel, targets, EXTRACT_THREADS)
    stage_metadata(wheel, folder)
    return [LibraryFile(info.filename, folder / info.filename) for info in libraries]


def stage_metadata(wheel: Path, folder: Path) -> None:
    """Extract the .dist-info of a wheel into `folder`."""
    targets = []
    with ZipFile(wheel) as archive:
        for info in archive.infolist():
            top = info.filename.partition("/")[0]
            if top.endswith(".dist-info") and not info.is_dir():
                targets.append((info, f"{folder}/{info.filename}"))
    zip_archive.extract_members(wheel, targets, EXTRACT_THREADS)


def _may_have_code(archive: ZipFile, info: ZipInfo) -> bool:
    """Tell whether a member is a library or program with the name of a section of fatbins in it.

    It is read in parts, without being written to a disk: most libraries have no code for GPUs.
    """
    section_names = [name.encode() for name in FATBIN_SECTIONS]
    with archive.open(info) as file:
        part = file.read(READ_BYTES)
        if not part.startswith((elf.ELF_MAGIC, elf.AR_MAGIC)):
            return False
        overlap = b""  # the end of the previous part: a name may begin in it and end in this part
        while part:
            if any(name in overlap + part for name in section_names):
                return True
            overlap = part[-LONGEST_NAME_BYTES:]
            part = file.read(READ_BYTES)
    return False


def write_slim_wheel(
    staged: StagedLibraries, request: SlimRequest, destination: Path, bases: Mapping[str, str]
) -> Path:
    """Write the slim wheel and the files beside it into the folder `destination`; return its path.

    `bases` is for a wheel that pins another wheel, its base, which was slimmed before it: it maps
    the requirement on the original base to the requirement on the slim base
    ("torch==2.1.0+cu118" -> "torch==2.1.0+cu118.sm86").
    """
    original = staged.wheel
    version = slim_version(original.version, request, written_wheel.original_cuda(original))
    new = NewWheel(version, kept_for(request), slim_requirement(original, bases))
    return written_wheel.write_wheel(staged, new, destination)


def kept_for(request: SlimRequest) -> tuple[str, ...]:
    """Return the GPUs that code is kept for, as a manifest says it: "8.6", "9.0+PTX"."""
    names = []
    for gpu in request.gpus:
        suffix = "+PTX" if gpu.with_ptx else ""
        names.append(f"{gpu.capability.name}{suffix}")
    return tuple(names)


def slim_requirement(wheel: FinishedWheel, bases: Mapping[str, str]) -> str | None:
    """Return the requirement on a slim base that a slim wheel has.

    `bases` is that of `write_slim_wheel`. None if the wheel has none of the requirements in it.
    """
    needs = dependencies.declared_needs(None, wheel.requires, ())
    for requirement in sorted(needs):
        if requirement in bases:
            return bases[requirement]
    return None


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A package in an environment, with its libraries and programs."""

    name: str
    version: str
    record: Path
    rows: Mapping[str, list[str]]  # of RECORD, by the name in their first column
    files: list[LibraryFile]


def list_packages(environment: Path, patterns: Sequence[str]) -> Iterator[InstalledPackage]:
    """Yield the packages in an environment, without NVIDIA's.

    Their `files` are without those whose names match `patterns`. Raises ConfigError if the folder
    is not an environment, DeliveryError for a RECORD that cannot be read.
    """
    # Resolved, because lib64 is often a link to lib.
    sites = {folder.resolve() for folder in environment.glob("lib*/python*/site-packages")}
    if not sites:
        raise ConfigError(
            f"{environment}: not an environment of Python: name its folder",
            code="not-an-environment",
        )
    records: list[Path] = []
    for site in sites:
        records += site.glob("*.dist-info/RECORD")
    for record in sorted(records):
        name, _, version = record.parent.name.removesuffix(".dist-info").partition("-")
        # The licences of NVIDIA's wheels (cuDNN, cuBLAS, …) forbid changing them:
        # docs/how-to/make-slim-wheels.md quotes the sections.
        if name.startswith("nvidia"):
            continue
        rows = _read_record(record, name)
        files = []
        for file in rows:
            path = record.parents[1] / file
            is_library = not is_untouched(file, patterns)
            if is_library and elf.has_magic(path, elf.ELF_MAGIC, elf.AR_MAGIC):
                files.append(LibraryFile(file, path))
        yield InstalledPackage(name, version, record, rows, files)


def _read_record(record: Path, package: str) -> dict[str, list[str]]:
    """Return the rows of an installed RECORD. Raises DeliveryError."""
    try:
        return record_file.parse_record(record.read_text("utf-8"))
    except (OSError, ValueError, csv.Error) as error:
        raise DeliveryError(
            f"{record}: cannot be read ({error}): reinstall {package}", code="invalid-record"
        ) from None


def require_unchanged(package: InstalledPackage, libraries: Iterable[SlimLibrary]) -> None:
    """Raise DeliveryError if a library is not as it was installed."""
    for library in libraries:
        digest = bytes.fromhex(hash_file(library.path))
        recorded_digest = package.rows[library.name][1:2]  # empty if the row has no digest
        if recorded_digest != [record_file.record_digest(digest)]:
            raise DeliveryError(
                f"{library.path}: is not what was installed: reinstall {package.name}",
                code="changed-library",
            )


def slim_package(package: InstalledPackage, libraries: Sequence[SlimLibrary]) -> None:
    """Replace the libraries of a package by slim ones, and the rows about them in RECORD.

    All slim libraries are written before the first is replaced, and they replace the others by
    renaming, so that running programs keep the files that they opened. Raises HostError if the disk
    is full, BuildError as `write_proved` does: nothing has changed then.
    """
    rows = dict(package.rows)
    with report_unwritable(package.record), ExitStack() as stack:
        replacements = []
        for library in libraries:
            smaller = stack.enter_context(fresh_path(library.path))
            written_wheel.write_proved(library, smaller)
            digest = record_file.record_digest(bytes.fromhex(hash_file(smaller)))
            rows[library.name] = [library.name, digest, str(smaller.stat().st_size)]
            replacements.append((library.path, smaller))
        for path, smaller in replacements:
            smaller.replace(path)
        write_atomically(package.record, record_file.format_record(rows.values()))
