"""Slim a wheel, under a version of its own, or a package in an environment: without code for other GPUs."""

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
from typing import Any
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
from torchmill.wheel.slim import LibraryPlan, Request
from torchmill.wheel.verify import slimming
from torchmill.wheel.verify.device_code import FATBIN_SECTIONS, code_order

EXTRACT_THREADS = 2
READ_BYTES, LONGEST_NAME_BYTES = 1 << 20, 32
DATA_FOLDER = re.compile(r"^[^/]+\.data/")
CUDA_OF_PACKAGE = re.compile(r"^cuda\b[^=\n]*= *'(\d+\.\d+)", re.MULTILINE)  # in torch/version.py


@dataclass(frozen=True, slots=True)
class SlimLibrary:
    """A library of a wheel or an environment, and what of it stays."""

    name: str  # in the wheel
    path: Path  # as it is now
    plan: LibraryPlan

    @property
    def new_size(self) -> int:
        """Return the size that its file will have."""
        return self.plan.cuts.new_offset(self.plan.size)


def slim_version(version: Version, request: Request, cuda: str) -> str:
    """Return the version of what is left of a wheel: "2.6.0+cu124.sm86.ptx86"; `cuda` is for those that say none."""
    labels = [
        label
        for label in (version.local or "").split(".")
        if label and not SLIM_LABEL.fullmatch(label)
    ]
    if not labels and cuda:
        labels = [f"cu{cuda.replace('.', '')}"]
    for gpu, ptx in request.gpus:
        number = gpu.name.replace(".", "")
        labels += [f"sm{number}", *([f"ptx{number}"] if ptx else [])]
    return f"{version.public}+{'.'.join(labels)}"


def require_sound(wheel: Path) -> FinishedWheel:
    """Return a wheel that may be slimmed. Raises DeliveryError where it is signed, or is not what it says."""
    found = finished_wheel.read_wheel(wheel)
    with wheel_file.open_wheel(wheel) as archive:
        names = archive.namelist()
        if any(name.endswith((".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")) for name in names):
            raise DeliveryError(
                f"{wheel}: is signed, and the signature would no longer fit", code="signed-wheel"
            )
        record = f"{wheel_file.dist_info_folders(names)[0]}/RECORD"
        if problems := list(islice(content_checks.record_problems(archive, record), 3)):
            raise DeliveryError(
                f"{wheel}: {'; '.join(problems)}: fetch it again", code="wheel-rejected"
            )
    return found


def is_untouched(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether a file is one of the libraries that are kept as they are, by its name."""
    return any(fnmatch(name.rpartition("/")[2], pattern) for pattern in patterns)


def plan_libraries(files: Iterable[tuple[str, Path]], request: Request) -> list[SlimLibrary]:
    """Return those of some files that hold code for GPUs. Raises BuildError for one that is damaged."""
    found = ((name, path, slim.plan_library(path, request)) for name, path in files)
    return [SlimLibrary(name, path, plan) for name, path, plan in found if plan is not None]


def require_served(title: str, libraries: Sequence[SlimLibrary], request: Request) -> None:
    """Raise DeliveryError where most of the code is for other GPUs than those that were asked for."""
    plans = [library.plan for library in libraries]
    total, code = (
        sum(plan.fatbins for plan in plans),
        sum((plan.code for plan in plans), Counter[str]()),
    )
    there = ", ".join(sorted(code, key=code_order))
    if not total:
        raise DeliveryError(
            f"{title}: has no code for GPUs that may be left out", code="no-device-code"
        )
    for gpu, _ in request.gpus:
        if 2 * sum(plan.served[gpu.name] for plan in plans) < total:
            raise DeliveryError(
                f"{title}: has no code that runs on GPUs of {gpu.name}; it has {there}",
                code="capability-not-in-wheel",
            )


def removes_code(libraries: Iterable[SlimLibrary]) -> bool:
    """Tell whether any of some libraries has code that does not stay."""
    return any(library.plan.kept != library.plan.code for library in libraries)


def stage_libraries(wheel: Path, folder: Path, patterns: Iterable[str]) -> list[tuple[str, Path]]:
    """Extract the libraries and programs of a wheel, but those that are kept as they are, and its metadata."""
    with ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        code = [
            info
            for info in infos
            if not is_untouched(info.filename, patterns) and _has_code(archive, info)
        ]
    described = [info for info in infos if info.filename.partition("/")[0].endswith(".dist-info")]
    targets = [(info, f"{folder}/{info.filename}") for info in (*code, *described)]
    zip_archive.extract_members(wheel, targets, EXTRACT_THREADS)
    return [(info.filename, folder / info.filename) for info in code]


def _has_code(archive: ZipFile, info: ZipInfo) -> bool:
    """Tell whether a library or program may have fatbins: it names the sections. It is not written to a disk."""
    with archive.open(info) as file:
        part = file.read(READ_BYTES)
        found, before = part.startswith((elf.ELF_MAGIC, elf.AR_MAGIC)), b""
        while found and part:
            if any(name.encode() in before + part for name in FATBIN_SECTIONS):
                return True
            before, part = part[-LONGEST_NAME_BYTES:], file.read(READ_BYTES)
    return False


def cuda_of(wheel: Path) -> str:
    """Return the CUDA that a wheel's own version module names: "12.4"; "" where it has none."""
    with ZipFile(wheel) as archive:
        module = f"{wheel.name.partition('-')[0]}/version.py"
        text = (
            archive.read(module).decode("utf-8", "replace") if module in archive.namelist() else ""
        )
    found = CUDA_OF_PACKAGE.search(text)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class StagedLibraries:
    """A wheel, and those of its libraries that hold code for GPUs, in a folder."""

    wheel: FinishedWheel
    folder: Path
    libraries: Sequence[SlimLibrary]


def write_slim_wheel(
    staged: StagedLibraries, request: Request, destination: Path, bases: Mapping[str, str]
) -> Path:
    """Write what is left of a wheel, and the documents about it, into a folder.

    `bases` are the requirements of wheels that are slimmed with it: "torch==2.1.0+cu118" -> the new one.
    """
    found = staged.wheel
    cuda = str(found.manifest.get("toolkit") or cuda_of(found.path))
    version = slim_version(found.version, request, cuda)
    for library in staged.libraries:
        smaller = library.path.with_name(f"{library.path.name}.slim")
        _write_proved(library, smaller)
        smaller.replace(library.path)
    parts = found.path.name.split("-")
    name = "-".join([parts[0], version, *parts[2:]])
    with fresh_path(destination / name) as packed:
        own = _known_manifest(found)
        kept_for = [f"{gpu.name}{'+PTX' * ptx}" for gpu, ptx in request.gpus]
        manifest: dict[str, Any] = {
            formats.KEY: formats.MANIFEST,
            **{key: value for key, value in own.items() if key != "planned"},
            "wheel": name,
            "version": version,
            "key": hashlib.sha256(f"{found.sha256} {kept_for}".encode()).hexdigest(),
            "toolkit": cuda or None,
            "original": {
                "wheel": found.path.name,
                "version": str(found.version),
                "sha256": found.sha256,
            },
            "kept_for": kept_for,
            "device_code": {library.name: dict(library.plan.kept) for library in staged.libraries},
            "builder": statement.describe_builder(os.environ),
        }
        stamped = _stamp(staged, version, bases)
        _write_inner_sbom(staged, stamped, manifest)
        manifest["packing"] = {"codec": _write_archive(staged, stamped, packed)}
        manifest |= {"sha256": hash_file(packed), "size": packed.stat().st_size}
        documents = dist_files.compose_documents(manifest, packed)
        dist_files.publish_wheel(packed, destination / name, manifest, documents=documents)
    return destination / name


def _known_manifest(found: FinishedWheel) -> dict[str, Any]:
    """Return what the manifest of a wheel says; without one, what its name says.

    What an older torchmill called a commit may not have been proven.
    """
    if not found.manifest:
        return {"package": found.name, "tag": f"v{found.version.public}", "identifier": found.name}
    if formats.judge_format(found.manifest, formats.MANIFEST) == "same":
        return dict(found.manifest)
    unproven = "the torchmill that built it wrote another format"
    declared = found.manifest.get("commit")
    told = {
        "commit": None,
        "commit_verified": False,
        "commit_declared": declared,
        "unproven": unproven,
    }
    unknown = dict.fromkeys(found.manifest.get("submodules", {}), "")
    return dict(found.manifest) | told | {"submodules": unknown, formats.KEY: formats.MANIFEST}


def _write_inner_sbom(
    staged: StagedLibraries, stamped: StagedWheel, manifest: Mapping[str, Any]
) -> None:
    """Write the SBOM in the wheel anew; where nothing says any more what the wheel was made of, leave it out."""
    file = stamped.dist_info / sbom.INNER_PATH
    if not staged.wheel.manifest:
        file.unlink(missing_ok=True)
    elif file.exists():
        digests = record_file.recorded_digests(staged.wheel.path)
        digests |= {each.name: hash_file(each.path) for each in staged.libraries}
        file.write_bytes(
            sbom.compose_inner_sbom(
                manifest, (stamped.dist_info / "METADATA").read_bytes(), digests
            )
        )


def _write_proved(library: SlimLibrary, destination: Path) -> None:
    """Write what of a library stays. Raises BuildError where anything else differs."""
    slim.write_library(library.path, destination, library.plan)
    if problem := next(slimming.library_differences(library.path, destination), None):
        raise BuildError(
            f"{library.name}: cannot be slimmed ({problem}): it stays as it is", code="not-slimmed"
        )


def _stamp(staged: StagedLibraries, version: str, bases: Mapping[str, str]) -> StagedWheel:
    """Write the new version, and those of wheels that are slimmed with it, into the staged metadata."""
    found = staged.wheel
    (info,) = staged.folder.glob("*.dist-info")
    old = StagedWheel(found.path.name, staged.folder, info, found.name, str(found.version), "")
    metadata.set_platform_tag(old, found.path.stem.rpartition("-")[2])  # some say another in WHEEL
    return metadata.stamp_version(old, version, new_base(found, bases))


def new_base(found: FinishedWheel, bases: Mapping[str, str]) -> str | None:
    """Return the slim requirement in place of one that a wheel pins; None where it pins none that is slimmed."""
    return next(
        (
            bases[old]
            for old in sorted(dependencies.declared_needs(None, found.requires, ()) & set(bases))
        ),
        None,
    )


def _write_archive(staged: StagedLibraries, stamped: StagedWheel, packed: Path) -> str:
    """Copy the members that stay as they are, compressed as they are, and compress the others."""
    wheel, info_name = staged.wheel.path, stamped.dist_info.name
    with ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        described = f"{wheel_file.dist_info_folders(archive.namelist())[0]}/"
        rows = record_file.parse_record(archive.read(f"{described}RECORD").decode())
    changed = {each.name for each in staged.libraries}
    written: list[Sequence[str]] = []

    def renamed(name: str) -> str:
        return DATA_FOLDER.sub(info_name.removesuffix("dist-info") + r"data/", name)

    with (
        packed.open("wb") as sink,
        wheel.open("rb") as source,
        open_compressor(None, threads=LimitMeter().cores().count) as compressor,
    ):
        target = ZipWriter(sink, time.gmtime(wheel_writer.source_date_epoch(os.environ)))
        for info in infos:
            if info.filename not in changed and not info.filename.startswith(described):
                mode, name = (
                    zip_archive.READABLE_MODE | (info.external_attr >> 16 & 0o777),
                    renamed(info.filename),
                )
                member = ZipMember(name, mode, info.file_size, info.CRC, info.compress_type)
                target.add_parts(member, zip_archive.stored_parts(source, info))
                written.append((name, *rows[info.filename][1:]))
        names = sorted(map(renamed, changed))
        names += sorted(
            f"{info_name}/{path.relative_to(stamped.dist_info)}"
            for path in stamped.dist_info.rglob("*")
        )
        paths = ((name, stamped.root / name) for name in names if name != f"{info_name}/RECORD")
        files = [
            wheel_writer.member_source(name, path, path.stat())
            for name, path in paths
            if path.is_file()
        ]
        compressor.add_recorded(target, files, f"{info_name}/RECORD", written)
        target.close()
    return str(compressor.codec)


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A package in an environment, with its libraries and programs."""

    name: str
    version: str
    record: Path
    rows: Mapping[str, list[str]]  # of RECORD, by path
    files: list[tuple[str, Path]]  # by their names there


def list_packages(environment: Path, patterns: Sequence[str]) -> Iterator[InstalledPackage]:
    """Yield the packages in an environment, without NVIDIA's.

    Raises ConfigError where it is none, DeliveryError for a RECORD that cannot be read.
    """
    folders = {folder.resolve() for folder in environment.glob("lib*/python*/site-packages")}
    if not folders:
        raise ConfigError(
            f"{environment}: not an environment of Python: name its folder",
            code="not-an-environment",
        )
    for record in sorted(each for folder in folders for each in folder.glob("*.dist-info/RECORD")):
        name, _, version = record.parent.name.removesuffix(".dist-info").partition("-")
        if not name.startswith("nvidia"):
            try:
                rows = record_file.parse_record(record.read_text("utf-8"))
            except (OSError, ValueError, csv.Error) as error:
                why = f"{record}: cannot be read ({error}): reinstall {name}"
                raise DeliveryError(why, code="invalid-record") from None
            paths = (
                (each, record.parents[1] / each)
                for each in rows
                if not is_untouched(each, patterns)
            )
            files = [
                (each, path)
                for each, path in paths
                if elf.has_magic(path, elf.ELF_MAGIC, elf.AR_MAGIC)
            ]
            yield InstalledPackage(name, version, record, rows, files)


def require_unchanged(package: InstalledPackage, libraries: Iterable[SlimLibrary]) -> None:
    """Raise DeliveryError where a library is not as it was installed."""
    for library in libraries:
        digest = bytes.fromhex(hash_file(library.path))
        if package.rows[library.name][1:2] != [record_file.record_digest(digest)]:
            raise DeliveryError(
                f"{library.path}: is not what was installed: reinstall {package.name}",
                code="changed-library",
            )


def slim_package(package: InstalledPackage, libraries: Sequence[SlimLibrary]) -> None:
    """Replace the libraries of a package, and RECORD, once all of them are written.

    Programs that run keep the files that they opened. Raises HostError where the disk is full: nothing has
    changed then.
    """
    rows = dict(package.rows)
    with report_unwritable(package.record), ExitStack() as stack:
        fresh = {
            library.path: stack.enter_context(fresh_path(library.path)) for library in libraries
        }
        for library in libraries:
            smaller = fresh[library.path]
            _write_proved(library, smaller)
            shutil.copymode(library.path, smaller)
            digest = record_file.record_digest(bytes.fromhex(hash_file(smaller)))
            rows[library.name] = [library.name, digest, str(smaller.stat().st_size)]
        for path, smaller in fresh.items():
            smaller.replace(path)
        write_atomically(package.record, record_file.format_record(rows.values()))
