"""Products made from a verified wheel: find the wheel, parse options, reuse an unchanged product."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from torchmill.config import cell_lookup, selection
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Plan, Release
from torchmill.core import formats
from torchmill.core.errors import DeliveryError, UnknownReleaseError, require_count
from torchmill.core.files import write_atomically
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source.source_dir import load_source
from torchmill.host.processor import resolve_processor
from torchmill.plan import build_plan
from torchmill.plan.local_gpus import with_local_gpus
from torchmill.plan.options import OptionParser, parse_options
from torchmill.wheel import dist_files

ProductParts = Mapping[str, str]  # all that can change a file, by names for people
MADE_OF = "made_of"  # the key of the record: a list, because several wheels can make the same bytes
BUILD_NUMBER_OPTION, LIBTORCH_OPTION, PUBLISHED_OPTION = (
    "--build-number",
    "--libtorch",
    "--published",
)
MAX_BUILD_NUMBER = 999_999_999  # as a build number; more is a slip, such as a date with its time


@dataclass(frozen=True, slots=True)
class Product:
    """A file in dist/ that was made of a wheel."""

    file: Path
    unchanged: bool  # it was there, and nothing changed

    def __str__(self) -> str:
        return (
            f"{self.file} is there and nothing changed"
            if self.unchanged
            else f"{self.file} is made"
        )


def product_cell(
    facts: Facts, identifier: str, native: str, selected: Release | None
) -> tuple[str, Cell]:
    """Return the word of what is made of a wheel, "" for the wheel itself, and the cell of the wheel.

    Raises UnknownReleaseError for a name that nothing has, ImpossibleBuildError for what cannot be made.
    """
    product, name = selection.split_product(identifier)
    cell = cell_lookup.find_cell(facts, name, native, selected)
    if product in {"libtorch", "speed"} and facts.packages[cell.build.package].after:
        raise UnknownReleaseError(
            f"'{identifier}' names no session: {product} is of torch alone", code="unknown-build"
        )
    if product == "conda":
        from torchmill.deliver.conda import requirements

        requirements.conda_subdir(requirements.conda_facts(facts), cell.build.arch, {})
    return product, cell


def find_unchanged(
    files: Iterable[Path], parts: ProductParts, stat_cache: StatCache
) -> Path | None:
    """Return the file that was made of just these parts and is as it was then; None where there is none."""
    same = (
        (file, record)
        for file in files
        if dict(parts) in _made_of(record := dist_files.read_manifest(file))
    )
    return next(
        (file for file, record in same if stat_cache.digest(file) == record.get("sha256")), None
    )


def write_record(file: Path, parts: ProductParts, sha256: str, fields: Mapping[str, Any]) -> None:
    """Write beside a file what it was made of, and `fields` about it.

    What another wheel was noted to make stays, as long as it is the same file. Raises OSError.
    """
    before = dist_files.read_manifest(file)
    others = [one for one in _made_of(before) if one.get("wheel") != parts["wheel"]]
    same = others if before.get("sha256") == sha256 else []
    record = {
        formats.KEY: formats.PRODUCT,
        "sha256": sha256,
        "size": file.stat().st_size,
        **fields,
        MADE_OF: [*same, dict(parts)],
    }
    write_atomically(dist_files.manifest_path(file), json.dumps(record, indent=1) + "\n")


def _made_of(record: Mapping[str, Any]) -> list[dict[str, str]]:
    found = record.get(MADE_OF) if formats.judge_format(record, formats.PRODUCT) == "same" else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def installed_version(distribution: str) -> str:
    """Return the version of an installed package, "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """The options of a product."""

    number: int | None = None  # the build number of a conda package; None: that of the wheel
    libtorch: bool = False  # a conda package for C++, too
    published: str = (
        ""  # what a wheel is compared with, a file or a requirement; "": what the facts name
    )

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words that say it."""
        number = () if self.number is None else (f"{BUILD_NUMBER_OPTION}={self.number}",)
        library = (LIBTORCH_OPTION,) if self.libtorch else ()
        return (
            *number,
            *library,
            *([f"{PUBLISHED_OPTION}={self.published}"] if self.published else ()),
        )


def parse_conda_options(arguments: Sequence[str], prog: str) -> tuple[ProductOptions, list[str]]:
    """Return what the words after -- say of a conda package, and those that are for its wheel.

    Raises ConfigError for a build number that is none.
    """
    parser = OptionParser(prog=prog, usage=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    parser.add_argument(
        BUILD_NUMBER_OPTION,
        metavar="N",
        help="of the conda package; by default the wheel's, else 0",
    )
    parser.add_argument(
        LIBTORCH_OPTION, action="store_true", help="make a package of its libraries for C++, too"
    )
    options, rest = parser.parse_known_args(list(arguments))
    if not {"--help", "-h"}.isdisjoint(rest):  # that of the wheel's options follows
        parser.print_help()
    number = None
    if (text := options.build_number) is not None:
        number = require_count(
            f"{prog}: {BUILD_NUMBER_OPTION}", text, 0, MAX_BUILD_NUMBER, "invalid-build-number"
        )
    return ProductOptions(number, options.libtorch), rest


@dataclass(frozen=True, slots=True)
class VerifiedWheel:
    """A wheel in dist/, with its facts, its plan and its manifest."""

    layout: Layout
    facts: Facts
    cell: Cell
    plan: Plan
    wheel: Path
    manifest: Mapping[str, Any]


def wheel_parts(found: VerifiedWheel, recall: StatCache) -> dict[str, str]:
    """Return the parts that a wheel is: its name, which tells what it is for, and its bytes.

    Raises DeliveryError where it is not the file that its manifest describes.
    """
    sha256 = recall.digest(found.wheel)
    if sha256 is None or sha256 != found.manifest.get("sha256"):
        raise DeliveryError(
            f"{found.wheel}: is not the file that its manifest describes: run its session, which builds it again",
            code="wheel-changed",
        )
    return {"wheel": found.wheel.name, "wheel_sha256": sha256}


def find_verified(
    root: Path, facts: Facts, cell: Cell, arguments: Sequence[str], *, contained: bool = False
) -> VerifiedWheel | None:
    """Return the wheel in dist/ that a cell's session with these arguments makes; None where there is none.

    The session may be `contained`, in a container. Whether its source has changed since is for its own session to find
    out. Raises ConfigError for invalid arguments.
    """
    from torchmill.host.measurement import measure_basic_host, measure_host  # not for `nox -l`

    layout = Layout.of_checkout(root)
    host = (
        measure_host(layout.root)
        if cell.build.cuda
        else measure_basic_host(StatCache(layout.stat_cache))
    )
    options = parse_options(arguments, f"nox -s {cell.build.identifier(host.arch)} --")
    options = resolve_processor(facts, cell.build.arch, host, options)
    options = options if contained else with_local_gpus(facts, cell, host, options)
    source = load_source(layout, cell.build.package, cell.release.tag)
    plan = build_plan.compute_plan(facts, cell, host, options, source)
    wheel = dist_files.find_wheel(layout.dist, plan, contained=contained)
    manifest = dist_files.read_manifest(wheel)
    return (
        VerifiedWheel(layout, facts, cell, plan, wheel, manifest)
        if wheel.is_file() and manifest
        else None
    )


def require_verified(
    root: Path, facts: Facts, cell: Cell, arguments: Sequence[str], *, contained: bool = False
) -> VerifiedWheel:
    """Return the wheel of find_verified; raises DeliveryError where there is none."""
    found = find_verified(root, facts, cell, arguments, contained=contained)
    if found is None:
        raise DeliveryError(
            f"{cell.build.package} {cell.release.version}, Python {cell.build.python}, {cell.build.variant}: "
            "dist/ has no verified wheel of it after its session: build it with nox and try again",
            code="wheel-not-built",
        )
    return found
