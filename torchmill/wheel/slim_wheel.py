"""Slim a wheel, under a version of its own, or a package in an environment.

A slim wheel has code only for the requested GPUs. It is a new wheel, whose version names these GPUs
("2.6.0+cu124.sm86"), with its own manifest, statement and SBOM. A package in an environment is
slimmed in place: its libraries and the rows about them in its RECORD are replaced.
"""

import csv
import hashlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile, ZipInfo

from millguard.limits import LimitMeter
from millpress import (
    content_checks,
    dependencies,
    elf,
    metadata,
    record_file,
    wheel_file,
    wheel_writer,
    zip_archive,
)
from millpress.staging import StagedWheel
from millpress.wheel_writer import open_compressor
from millpress.zip_archive import ZipMember, ZipWriter
from packaging.version import Version

from torchmill.core import formats
from torchmill.core.atomic_writes import fresh_path, write_atomically
from torchmill.core.digests import hash_file
from torchmill.core.errors import BuildError, ConfigError, DeliveryError
from torchmill.core.system_errors import report_unwritable
from torchmill.wheel import dist_files, finished_wheel, sbom, slim, statement
from torchmill.wheel.finished_wheel import SLIM_LABEL, FinishedWheel
from torchmill.wheel.slim import LibraryPlan, SlimRequest
from torchmill.wheel.verify import slimming
from torchmill.wheel.verify.device_code import FATBIN_SECTIONS, code_order

EXTRACT_THREADS = 2
READ_BYTES = 1 << 20
LONGEST_NAME_BYTES = 32  # of a section of fatbins
MOST_PROBLEMS = 3  # that a message names
SIGNATURES = (".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")
DATA_FOLDER = re.compile(r"^[^/]+\.data/")  # its name has the version: "torch-2.6.0.data/"
CUDA_OF_PACKAGE = re.compile(r"^cuda\b[^=\n]*= *'(\d+\.\d+)", re.MULTILINE)  # in torch/version.py
PERMISSION_BITS = 0o777


@dataclass(frozen=True, slots=True)
class SlimLibrary:
    """A library of a wheel or an environment, and the parts of it that stay."""

    name: str  # in RECORD
    path: Path  # of the library as it is now
    plan: LibraryPlan

    @property
    def new_size(self) -> int:
        """Return the size that its file will have, in bytes."""
        return self.plan.cuts.new_offset(self.plan.size)


def slim_version(version: Version, request: SlimRequest, cuda: str) -> str:
    """Return the version of a slim wheel: "2.6.0+cu124.sm86.ptx86".

    If the original's version has no local label, `cuda` ("12.4", or "") gives the first label.
    """
    labels = []
    for label in (version.local or "").split("."):
        if label and not SLIM_LABEL.fullmatch(label):
            labels.append(label)
    if not labels and cuda:
        labels = [f"cu{cuda.replace('.', '')}"]
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
    libraries = []
    for file in files:
        plan = slim.plan_library(file.path, request)
        if plan is not None:
            libraries.append(SlimLibrary(file.name, file.path, plan))
    return libraries


def require_served(title: str, libraries: Sequence[SlimLibrary], request: SlimRequest) -> None:
    """Raise DeliveryError if a requested GPU runs the code of less than half of all fatbins.

    `title` names the wheel or package in messages. Less than half, because a wheel need not have
    all code for a GPU that it was built for: releases compile single kernels for few capabilities,
    and libraries that are linked in were compiled for lists of their own.
    """
    fatbin_count = sum(library.plan.fatbins for library in libraries)
    if not fatbin_count:
        raise DeliveryError(
            f"{title}: has no code for GPUs that may be left out", code="no-device-code"
        )
    code = Counter[str]()
    for library in libraries:
        code += library.plan.code
    for gpu in request.gpus:
        capability = gpu.capability.name
        served_count = sum(library.plan.served[capability] for library in libraries)
        if 2 * served_count < fatbin_count:
            listed = ", ".join(sorted(code, key=code_order))
            raise DeliveryError(
                f"{title}: has no code that runs on GPUs of {capability}; it has {listed}",
                code="capability-not-in-wheel",
            )


def removes_code(libraries: Iterable[SlimLibrary]) -> bool:
    """Tell whether any library has code that does not stay."""
    return any(library.plan.kept_code != library.plan.code for library in libraries)


def stage_libraries(wheel: Path, folder: Path, patterns: Iterable[str]) -> list[LibraryFile]:
    """Extract the parts of a wheel that slimming changes into `folder`.

    These are its .dist-info, and its libraries and programs that may have code for GPUs, without
    those whose names match `patterns`. Returns the extracted libraries and programs.
    """
    libraries = []
    metadata_files = []
    with ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if not is_untouched(info.filename, patterns) and _may_have_code(archive, info):
                libraries.append(info)
            if info.filename.partition("/")[0].endswith(".dist-info"):
                metadata_files.append(info)
    targets = [(info, f"{folder}/{info.filename}") for info in libraries + metadata_files]
    zip_archive.extract_members(wheel, targets, EXTRACT_THREADS)
    return [LibraryFile(info.filename, folder / info.filename) for info in libraries]


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


def read_cuda_version(wheel: Path) -> str:
    """Return the CUDA version in a wheel's own version module: "12.4"; "" if it names none."""
    module = f"{wheel.name.partition('-')[0]}/version.py"
    with ZipFile(wheel) as archive:
        if module not in archive.namelist():
            return ""
        text = archive.read(module).decode("utf-8", "replace")
    match = CUDA_OF_PACKAGE.search(text)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class StagedLibraries:
    """A wheel whose metadata and libraries with code for GPUs are extracted to a folder."""

    wheel: FinishedWheel
    folder: Path
    libraries: Sequence[SlimLibrary]


def write_slim_wheel(
    staged: StagedLibraries, request: SlimRequest, destination: Path, bases: Mapping[str, str]
) -> Path:
    """Write the slim wheel and the files beside it into the folder `destination`; return its path.

    `bases` is for a wheel that pins another wheel, its base, which was slimmed before it: it maps
    the requirement on the original base to the requirement on the slim base
    ("torch==2.1.0+cu118" -> "torch==2.1.0+cu118.sm86").
    """
    original = staged.wheel
    cuda = str(original.manifest.get("toolkit") or read_cuda_version(original.path))
    version = slim_version(original.version, request, cuda)
    for library in staged.libraries:
        smaller = library.path.with_name(f"{library.path.name}.slim")
        _write_proved(library, smaller)
        smaller.replace(library.path)
    project, _, *tags = original.path.name.split("-")
    name = "-".join([project, version, *tags])
    kept_for = []
    for gpu in request.gpus:
        suffix = "+PTX" if gpu.with_ptx else ""
        kept_for.append(f"{gpu.capability.name}{suffix}")
    with fresh_path(destination / name) as packed:
        manifest: dict[str, Any] = {formats.KEY: formats.MANIFEST} | _original_manifest(original)
        manifest.pop("planned", None)  # a file name that the plan gave to the original
        manifest |= {
            "wheel": name,
            "version": version,
            "key": hashlib.sha256(f"{original.sha256} {kept_for}".encode()).hexdigest(),
            "toolkit": cuda or None,
            "original": {
                "wheel": original.path.name,
                "version": str(original.version),
                "sha256": original.sha256,
            },
            "kept_for": kept_for,
            "device_code": {
                library.name: dict(library.plan.kept_code) for library in staged.libraries
            },
            "builder": statement.describe_builder(os.environ),
        }
        stamped = _stamp_metadata(staged, version, bases)
        _write_inner_sbom(staged, stamped, manifest)
        manifest["packing"] = {"codec": _write_archive(staged, stamped, packed)}
        manifest |= {"sha256": hash_file(packed), "size": packed.stat().st_size}
        documents = dist_files.compose_documents(manifest, packed)
        dist_files.publish_wheel(packed, destination / name, manifest, documents=documents)
    return destination / name


def _original_manifest(wheel: FinishedWheel) -> dict[str, Any]:
    """Return the manifest of a wheel, in today's format; without one, the facts in its name."""
    manifest = dict(wheel.manifest)
    if not manifest:
        return {"package": wheel.name, "tag": f"v{wheel.version.public}", "identifier": wheel.name}
    if formats.judge_format(manifest, formats.MANIFEST) == "same":
        return manifest
    # In other formats, "commit" may be a commit that was declared, not proven.
    manifest |= {
        "commit": None,
        "commit_verified": False,
        "commit_declared": manifest.get("commit"),
        "unproven": "the torchmill that built it wrote another format",
        "submodules": dict.fromkeys(manifest.get("submodules", {}), ""),
        formats.KEY: formats.MANIFEST,
    }
    return manifest


def _write_inner_sbom(
    staged: StagedLibraries, stamped: StagedWheel, manifest: Mapping[str, Any]
) -> None:
    """Write the SBOM in the wheel anew, or remove it if the original has no manifest.

    Without the manifest the materials of the original are not known, so its SBOM cannot be composed
    for changed libraries.
    """
    file = stamped.dist_info / sbom.INNER_PATH
    if not staged.wheel.manifest:
        file.unlink(missing_ok=True)
    elif file.exists():
        digests = record_file.recorded_digests(staged.wheel.path)
        for library in staged.libraries:
            digests[library.name] = hash_file(library.path)
        headers = (stamped.dist_info / "METADATA").read_bytes()
        file.write_bytes(sbom.compose_inner_sbom(manifest, headers, digests))


def _write_proved(library: SlimLibrary, destination: Path) -> None:
    """Write a slim library, and compare it with its original.

    Raises BuildError if they differ in more than removed code for GPUs.
    """
    slim.write_library(library.path, destination, library.plan)
    problem = next(slimming.library_differences(library.path, destination), None)
    if problem is not None:
        raise BuildError(
            f"{library.name}: cannot be slimmed ({problem}): it stays as it is", code="not-slimmed"
        )


def _stamp_metadata(staged: StagedLibraries, version: str, bases: Mapping[str, str]) -> StagedWheel:
    """Write the new version, and the requirement on a slim base, into the extracted metadata.

    Returns the extracted wheel under its new version: its .dist-info is renamed.
    """
    wheel = staged.wheel
    (dist_info,) = staged.folder.glob("*.dist-info")
    unstamped = StagedWheel(
        raw_name=wheel.path.name,
        root=staged.folder,
        dist_info=dist_info,
        name=wheel.name,
        version=str(wheel.version),
        package="",
    )
    # PyTorch's own wheels have one platform tag in WHEEL ("linux_x86_64") and another in their file
    # name ("manylinux_2_28_x86_64"), which installers go by.
    metadata.set_platform_tag(unstamped, wheel.path.stem.rpartition("-")[2])
    return metadata.stamp_version(unstamped, version, slim_requirement(wheel, bases))


def slim_requirement(wheel: FinishedWheel, bases: Mapping[str, str]) -> str | None:
    """Return the requirement on a slim base that a slim wheel has, or None if it pins no base.

    `bases` is that of `write_slim_wheel`.
    """
    needs = dependencies.declared_needs(None, wheel.requires, ())
    for requirement in sorted(needs):
        if requirement in bases:
            return bases[requirement]
    return None


def _write_archive(staged: StagedLibraries, stamped: StagedWheel, packed: Path) -> str:
    """Write the archive of a slim wheel, and return the codec that compressed it.

    Members that did not change are copied from the original without compressing them again, with
    their rows in RECORD. Slim libraries and the metadata are compressed.
    """
    original = staged.wheel.path
    dist_info = stamped.dist_info.name
    data_folder = f"{dist_info.removesuffix('dist-info')}data/"
    with ZipFile(original) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        old_dist_info = f"{wheel_file.dist_info_folders(archive.namelist())[0]}/"
        rows = record_file.parse_record(archive.read(f"{old_dist_info}RECORD").decode())
    changed_names = {library.name for library in staged.libraries}
    copied_rows: list[Sequence[str]] = []
    with (
        packed.open("wb") as sink,
        original.open("rb") as source,
        open_compressor(None, threads=LimitMeter().cores().count) as compressor,
    ):
        target = ZipWriter(sink, time.gmtime(wheel_writer.source_date_epoch(os.environ)))
        for info in infos:
            if info.filename in changed_names or info.filename.startswith(old_dist_info):
                continue
            name = DATA_FOLDER.sub(data_folder, info.filename)
            # Unix keeps the file's mode in the upper half of this field.
            permissions = info.external_attr >> 16 & PERMISSION_BITS
            mode = zip_archive.READABLE_MODE | permissions
            member = ZipMember(name, mode, info.file_size, info.CRC, info.compress_type)
            target.add_parts(member, zip_archive.stored_parts(source, info))
            digest_and_size = rows[info.filename][1:]
            copied_rows.append((name, *digest_and_size))
        record = f"{dist_info}/RECORD"
        library_names = sorted(DATA_FOLDER.sub(data_folder, name) for name in changed_names)
        metadata_names = []
        for path in stamped.dist_info.rglob("*"):
            name = f"{dist_info}/{path.relative_to(stamped.dist_info)}"
            if path.is_file() and name != record:
                metadata_names.append(name)
        files = []
        # The metadata is last, as PEP 427 recommends: then it can be changed in place.
        for name in library_names + sorted(metadata_names):
            path = stamped.root / name
            files.append(wheel_writer.member_source(name, path, path.stat()))
        compressor.add_recorded(target, files, record, copied_rows)
        target.close()
    return str(compressor.codec)


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
    is full: nothing has changed then.
    """
    rows = dict(package.rows)
    with report_unwritable(package.record), ExitStack() as stack:
        replacements = []
        for library in libraries:
            smaller = stack.enter_context(fresh_path(library.path))
            _write_proved(library, smaller)
            shutil.copymode(library.path, smaller)
            digest = record_file.record_digest(bytes.fromhex(hash_file(smaller)))
            rows[library.name] = [library.name, digest, str(smaller.stat().st_size)]
            replacements.append((library.path, smaller))
        for path, smaller in replacements:
            smaller.replace(path)
        write_atomically(package.record, record_file.format_record(rows.values()))
