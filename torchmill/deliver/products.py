"""Products made from a verified wheel: find the wheel, parse options, reuse a product.

A product is a file in dist/ that is made of one wheel: a conda package or the libtorch archive. Its
record, a JSON file beside it, lists its parts: everything that can change its bytes. A product
whose parts are unchanged is not made again.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torchmill.cell.option_files import parse_options
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import DeliveryError, UnknownReleaseError, require_count
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source.source_dir import load_source
from torchmill.host.processor import resolve_processor
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.cell import Cell
from torchmill.plan.local_gpus import with_local_gpus
from torchmill.plan.options import OptionParser
from torchmill.plan.plan import Plan
from torchmill.plan.session_names import split_product
from torchmill.wheel import dist_files

# Everything that can change the bytes of a product, by names that people read in its record. The
# parts "wheel" and "wheel_sha256" are in each (`wheel_parts`).
ProductParts = Mapping[str, str]

# The key in a product's record with its parts. It holds a list, because several wheels can make
# the same bytes.
MADE_OF = "made_of"

BUILD_NUMBER_OPTION = "--build-number"
LIBTORCH_OPTION = "--libtorch"
PUBLISHED_OPTION = "--published"
TESTS_OPTION = "--tests"

# A larger build number is a slip, such as a date with its time.
MAX_BUILD_NUMBER = 999_999_999


@dataclass(frozen=True, slots=True)
class Product:
    """A file in dist/ that was made of a wheel."""

    file: Path
    unchanged: bool  # an earlier run made it of the same parts

    def __str__(self) -> str:
        if self.unchanged:
            return f"{self.file} is up to date"
        return f"{self.file} is made"


class ProductCell(NamedTuple):
    """The kind of product that a session makes, and the cell of the wheel that it is made of."""

    kind: str  # "conda"; "" for a session that makes the wheel itself
    cell: Cell


def product_cell(
    facts: Facts, identifier: str, native: str, selected: Release | None
) -> ProductCell:
    """Return the kind of product that a session makes, and the cell of its wheel.

    "conda-3.10-cpu" gives "conda" and the cell of "wheel-3.10-cpu". `native` is the arch of a name
    without one, and `selected` the release of a name without one. Raises UnknownReleaseError for
    a name that no session has, ImpossibleBuildError for a product that cannot be made.
    """
    product, name = split_product(identifier)
    cell = cell_lookup.find_cell(facts, name, native, selected)
    if product in {"libtorch", "speed"} and facts.packages[cell.build.package].after:
        raise UnknownReleaseError(
            f"'{identifier}' names no session: {product} is of torch alone", code="unknown-build"
        )
    if product == "conda":
        # Only `nox -s conda-…` needs this module.
        from torchmill.deliver.conda import requirements

        # Raises the error for a machine that conda has no folder for.
        requirements.conda_subdir(requirements.conda_facts(facts), cell.build.arch, {})
    return ProductCell(product, cell)


def find_unchanged(
    files: Iterable[Path], parts: ProductParts, stat_cache: StatCache
) -> Path | None:
    """Return the first file that was made of exactly these parts and was not edited since.

    Returns None if there is no such file.
    """
    for file in files:
        record = dist_files.read_manifest(file)
        if dict(parts) not in _recorded_parts(record):
            continue
        if stat_cache.digest(file) == record.get("sha256"):
            return file
    return None


def write_record(file: Path, parts: ProductParts, sha256: str, fields: Mapping[str, Any]) -> None:
    """Write the record of a product: its parts, its digest, and `fields` about it.

    If another wheel made the same bytes before, its parts stay in the record. Raises OSError.
    """
    previous = dist_files.read_manifest(file)
    made_of = []
    if previous.get("sha256") == sha256:
        made_of = [
            entry for entry in _recorded_parts(previous) if entry.get("wheel") != parts["wheel"]
        ]
    made_of.append(dict(parts))
    record = {
        formats.KEY: formats.PRODUCT,
        "sha256": sha256,
        "size": file.stat().st_size,
        **fields,
        MADE_OF: made_of,
    }
    write_atomically(dist_files.manifest_path(file), json.dumps(record, indent=1) + "\n")


def _recorded_parts(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the parts that a record lists; [] if it is of another format or damaged."""
    if formats.judge_format(record, formats.PRODUCT) != "same":
        return []
    entries = record.get(MADE_OF)
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict)]


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """The options of a product."""

    number: int | None = None  # the build number of a conda package; None: the wheel's
    libtorch: bool = False  # make a conda package of the libraries for C++, too
    # The wheel to compare with, as a file or a requirement; "": the wheel that the facts name.
    published: str = ""
    tests: str = ""  # a folder with upstream's tests; "": the fetched source has them

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options as words of a command line."""
        words = []
        if self.number is not None:
            words.append(f"{BUILD_NUMBER_OPTION}={self.number}")
        if self.libtorch:
            words.append(LIBTORCH_OPTION)
        if self.published:
            words.append(f"{PUBLISHED_OPTION}={self.published}")
        if self.tests:
            words.append(f"{TESTS_OPTION}={self.tests}")
        return tuple(words)


def parse_conda_options(arguments: Sequence[str], prog: str) -> tuple[ProductOptions, list[str]]:
    """Return the options of a conda package among a session's arguments, and the other arguments.

    The others are for the session of the wheel. If `--help` is among them, it stays there, and the
    help of these options is printed. Raises ConfigError for a build number that is no number or too
    large.
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
    # argparse's own --help would end the program here; the help of the wheel's options follows.
    if not {"--help", "-h"}.isdisjoint(rest):
        parser.print_help()
    number = None
    if options.build_number is not None:
        number = require_count(
            f"{prog}: {BUILD_NUMBER_OPTION}",
            options.build_number,
            least=0,
            most=MAX_BUILD_NUMBER,
            code="invalid-build-number",
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


def wheel_parts(verified: VerifiedWheel, stat_cache: StatCache) -> dict[str, str]:
    """Return the parts of a product that stand for its wheel: the wheel's file name and sha256.

    Raises DeliveryError if the wheel is not the file that its manifest describes.
    """
    sha256 = stat_cache.digest(verified.wheel)
    if sha256 is None or sha256 != verified.manifest.get("sha256"):
        raise DeliveryError(
            f"{verified.wheel}: is not the file that its manifest describes: run its session, "
            "which builds it again",
            code="wheel-changed",
        )
    return {"wheel": verified.wheel.name, "wheel_sha256": sha256}


def find_verified(
    root: Path, facts: Facts, cell: Cell, arguments: Sequence[str], *, contained: bool = False
) -> VerifiedWheel | None:
    """Return the wheel in dist/ that a cell's session with these arguments makes.

    Returns None if there is none with a manifest, which only verified wheels have. That the wheel
    is still the same file is not checked here (`wheel_parts`). `contained` says that the session
    runs in a container. Whether the source has changed since the build is not checked: the wheel's
    own session does that.
    Raises ConfigError for invalid arguments, SourceError if the record of the source cannot be
    read, and what `compute_plan` raises.
    """
    # `nox -l` imports this module, and must not wait for the modules that measure the machine.
    from torchmill.host.measurement import measure_basic_host, measure_host

    layout = Layout.of_checkout(root)
    if cell.build.cuda:
        host = measure_host(layout.root)
    else:
        host = measure_basic_host(StatCache(layout.stat_cache))
    options = parse_options(arguments, f"nox -s {cell.build.identifier(host.arch)} --")
    processor = resolve_processor(facts, cell.build.arch, host, options.cpu, options.settings)
    options = replace(options, processor=processor)
    if not contained:
        options = with_local_gpus(facts, cell, host, options)
    source = load_source(layout, cell.build.package, cell.release.tag)
    plan = build_plan.compute_plan(facts, cell, host, options, source)
    wheel = dist_files.find_wheel(layout.dist, plan.wheel, contained=contained)
    manifest = dist_files.read_manifest(wheel)
    if not wheel.is_file() or not manifest:
        return None
    return VerifiedWheel(layout, facts, cell, plan, wheel, manifest)


def require_verified(
    root: Path, facts: Facts, cell: Cell, arguments: Sequence[str], *, contained: bool = False
) -> VerifiedWheel:
    """Return the wheel of `find_verified`; raises DeliveryError if there is none."""
    verified = find_verified(root, facts, cell, arguments, contained=contained)
    if verified is None:
        build, release = cell.build, cell.release
        raise DeliveryError(
            f"{build.package} {release.version}, Python {build.python}, {build.variant}: "
            "dist/ has no verified wheel of it after its session: build it with nox and try again",
            code="wheel-not-built",
        )
    return verified
