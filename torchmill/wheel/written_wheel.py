"""Write a wheel anew from another one: with other libraries, another version, as a variant.

The new wheel has its own manifest, statement and SBOM, which name the original by its digest. What
does not change is copied without being compressed again.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from millguard.limits import LimitMeter
from millpress import file_names, metadata, record_file, wheel_file, wheel_writer, zip_archive
from millpress.staging import StagedWheel
from millpress.wheel_writer import open_compressor
from millpress.zip_archive import ZipMember, ZipWriter

from torchmill.config.versions import labelled_cuda
from torchmill.config.wheel_variants import WheelVariant
from torchmill.core import formats
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.errors import BuildError
from torchmill.wheel import dist_files, sbom, slim, statement, variant_metadata
from torchmill.wheel.finished_wheel import FinishedWheel
from torchmill.wheel.slim import LibraryPlan
from torchmill.wheel.verify import slimming

DATA_FOLDER = re.compile(r"^[^/]+\.data/")  # its name has the version: "torch-2.6.0.data/"
CUDA_OF_PACKAGE = re.compile(r"^cuda\b[^=\n]*= *'(\d+\.\d+)", re.MULTILINE)  # in torch/version.py
# torchvision's module asks torch for its CUDA, and names that of the build in the version alone.
CUDA_OF_VERSION = re.compile(r"^__version__ *= *'[^'+]*\+(cu\d+)", re.MULTILINE)
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


@dataclass(frozen=True, slots=True)
class StagedLibraries:
    """A wheel whose metadata and libraries with code for GPUs are extracted to a folder.

    `libraries` are those that are written anew; () for a wheel that keeps them all.
    """

    wheel: FinishedWheel
    folder: Path
    libraries: Sequence[SlimLibrary]


@dataclass(frozen=True, slots=True)
class NewWheel:
    """What becomes of a wheel that is written anew."""

    version: str
    kept_for: tuple[str, ...] = ()  # GPUs that it still has code for: "8.6", "9.0+PTX"; (): all
    requirement: str | None = None  # on its slim base, instead of the one on the original base
    variant: WheelVariant | None = None
    # GPUs that the original has code for, of a variant beside those of other CUDA toolkits.
    original_gpus: tuple[str, ...] = ()

    def file_name(self, original: Path) -> str:
        """Return the name of its file; without a variant, it has the label that the original has."""
        plain_name, label = file_names.split_label(original.name)
        project, _, *tags = plain_name.split("-")
        if self.variant is not None:
            label = self.variant.label
        return file_names.with_label("-".join([project, self.version, *tags]), label)


def read_cuda_version(wheel: Path) -> str:
    """Return the CUDA version in a wheel's own version module: "12.4"; "" if it names none."""
    module = f"{wheel.name.partition('-')[0]}/version.py"
    with ZipFile(wheel) as archive:
        if module not in archive.namelist():
            return ""
        text = archive.read(module).decode("utf-8", "replace")
    match = CUDA_OF_PACKAGE.search(text)
    if match:
        return match[1]
    match = CUDA_OF_VERSION.search(text)
    return labelled_cuda(match[1]) if match else ""


def write_wheel(staged: StagedLibraries, new: NewWheel, destination: Path) -> Path:
    """Write the new wheel and the files beside it into the folder `destination`; return its path.

    A wheel of that name is replaced. The staged files stay as they are, so that several wheels can
    be written from them. Raises BuildError if a library would differ in more than removed code for
    GPUs.
    """
    original = staged.wheel
    name = new.file_name(original.path)
    root = staged.folder.with_name(f"{staged.folder.name}.new")
    with fresh_path(destination / name) as packed, fresh_path(root) as folder:
        (dist_info,) = staged.folder.glob("*.dist-info")
        shutil.copytree(dist_info, folder / dist_info.name)
        for library in staged.libraries:
            slim_library = folder / library.name
            slim_library.parent.mkdir(parents=True, exist_ok=True)
            write_proved(library, slim_library)
        stamped = _stamp_metadata(original, folder, new)
        manifest = _compose_manifest(staged, stamped, new, name)
        _write_inner_sbom(staged, stamped, manifest)
        manifest["packing"] = {"codec": _write_archive(staged, stamped, packed)}
        manifest |= {"sha256": hash_file(packed), "size": packed.stat().st_size}
        documents = dist_files.compose_documents(manifest, packed)
        dist_files.publish_wheel(packed, destination / name, manifest, documents=documents)
    return destination / name


def _compose_manifest(
    staged: StagedLibraries, stamped: StagedWheel, new: NewWheel, name: str
) -> dict[str, Any]:
    """Return the manifest of the new wheel, without its digest and size."""
    original = staged.wheel
    manifest: dict[str, Any] = {formats.KEY: formats.MANIFEST} | _original_manifest(original)
    manifest.pop("planned", None)  # a file name that the plan gave to the original
    manifest |= {
        "wheel": name,
        "version": new.version,
        "key": wheel_key(original, new),
        "toolkit": original_cuda(original) or None,
        "original": {
            "wheel": original.path.name,
            "version": str(original.version),
            "sha256": original.sha256,
        },
        "builder": statement.describe_builder(os.environ),
    }
    if "bundled" in manifest:
        manifest["bundled"] = [
            {**library, "path": _new_name(library["path"], stamped)}
            for library in manifest["bundled"]
        ]
    if new.kept_for:
        device_code = {
            _new_name(library.name, stamped): dict(library.plan.kept_code)
            for library in staged.libraries
        }
        manifest |= {"kept_for": list(new.kept_for), "device_code": device_code}
    if new.variant is not None:
        draft = variant_metadata.draft_version()
        manifest["wheel_variant"] = {
            "label": new.variant.label,
            "properties": [str(required) for required in new.variant.properties],
            **draft._asdict(),
        }
        if new.original_gpus:
            manifest["wheel_variant"]["original_gpus"] = list(new.original_gpus)
    return manifest


def wheel_key(original: FinishedWheel, new: NewWheel) -> str:
    """Return the key of the manifest: a digest of the original, the GPUs kept and the variant."""
    contents = f"{original.sha256} {list(new.kept_for)}"
    if new.variant is not None:
        contents += f" {new.variant} {variant_metadata.draft_version()}"
    return hashlib.sha256(contents.encode()).hexdigest()


def original_cuda(original: FinishedWheel) -> str:
    """Return the CUDA version that a wheel was made with; "" if nothing says it."""
    return str(original.manifest.get("toolkit") or read_cuda_version(original.path))


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
    """Write the SBOM in the wheel anew, if it has one; remove it if the original has no manifest.

    Without the manifest the materials of the original are not known, so its SBOM cannot be composed
    for changed libraries.
    """
    file = stamped.dist_info / sbom.INNER_PATH
    if not staged.wheel.manifest:
        file.unlink(missing_ok=True)
    elif file.exists():
        recorded = record_file.recorded_digests(staged.wheel.path)
        digests = {_new_name(path, stamped): digest for path, digest in recorded.items()}
        for library in staged.libraries:
            path = _new_name(library.name, stamped)
            digests[path] = hash_file(stamped.root / path)
        headers = (stamped.dist_info / "METADATA").read_bytes()
        file.write_bytes(sbom.compose_inner_sbom(manifest, headers, digests))


def write_proved(library: SlimLibrary, destination: Path) -> None:
    """Write a slim library with the mode of its original, and compare it with that.

    Raises BuildError if they differ in more than removed code for GPUs.
    """
    slim.write_library(library.path, destination, library.plan)
    shutil.copymode(library.path, destination)  # a program is still one
    problem = next(slimming.library_differences(library.path, destination), None)
    if problem is not None:
        raise BuildError(
            f"{library.name}: cannot be slimmed ({problem}): it stays as it is", code="not-slimmed"
        )


def _stamp_metadata(wheel: FinishedWheel, folder: Path, new: NewWheel) -> StagedWheel:
    """Write version, requirement and variant into the extracted metadata in `folder`.

    WHEEL gets the platform tag of the original's file name. Returns the extracted wheel under its
    new version: its .dist-info is renamed.
    """
    (dist_info,) = folder.glob("*.dist-info")
    unstamped = StagedWheel(
        raw_name=wheel.path.name,
        root=folder,
        dist_info=dist_info,
        name=wheel.name,
        version=str(wheel.version),
        package="",
    )
    # PyTorch's own wheels have one platform tag in WHEEL ("linux_x86_64") and another in their file
    # name ("manylinux_2_28_x86_64"), which installers go by.
    metadata.set_platform_tag(unstamped, file_names.platform_part(wheel.path.name))
    stamped = metadata.stamp_version(unstamped, new.version, new.requirement)
    if new.variant is not None:
        content = variant_metadata.compose_metadata([new.variant])
        (stamped.dist_info / file_names.VARIANT_FILE).write_bytes(content)
    return stamped


def _new_name(name: str, stamped: StagedWheel) -> str:
    """Return the name of a file of the original in the new wheel, whose .data has another name.

    The file is not one of .dist-info: those names stay as they are.
    """
    data_folder = f"{stamped.dist_info.name.removesuffix('dist-info')}data/"
    return DATA_FOLDER.sub(data_folder, name)


def _write_archive(staged: StagedLibraries, stamped: StagedWheel, packed: Path) -> str:
    """Write the archive of the new wheel, and return the codec that compressed it.

    Members that did not change are copied from the original without compressing them again, with
    their rows in RECORD. Slim libraries and the metadata are compressed.
    """
    original = staged.wheel.path
    dist_info = stamped.dist_info.name
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
            name = _new_name(info.filename, stamped)
            # Unix keeps the file's mode in the upper half of this field.
            permissions = info.external_attr >> 16 & PERMISSION_BITS
            mode = zip_archive.READABLE_MODE | permissions
            member = ZipMember(name, mode, info.file_size, info.CRC, info.compress_type)
            target.add_parts(member, zip_archive.stored_parts(source, info))
            digest_and_size = rows[info.filename][1:]
            copied_rows.append((name, *digest_and_size))
        record = f"{dist_info}/RECORD"
        library_names = sorted(_new_name(name, stamped) for name in changed_names)
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
