"""The formats of files that outlive the torchmill that wrote them, one integer each.

A format is raised if a reader of the former one would misunderstand the file, or if the same inputs
give another statement or SBOM. Two torchmills understand each other if these numbers agree; their
versions say nothing about that.
"""

from collections.abc import Mapping
from typing import Any, Literal

KEY = "format"  # the field of every such file; files from before there were formats lack it
SOURCE_RECORD = 1  # source.json beside a fetched source
LEDGER = 2  # the stages of a cell
MANIFEST = 2  # beside a wheel; statement and SBOM are derived from it
PRODUCT = 1  # beside a product of a wheel: a conda package, a libtorch archive
STATEMENT = 1  # internalParameters of the statement
DEBUG_ARCHIVE = 1  # the index of an archive with debug information
SHARD = 1  # the record of a share of a build
PROOF = 1  # the reports of the sessions check-… and speed-…
JSON_OUTPUT = 1  # the output of --json
BEFORE_FORMATS = 0

FormatAge = Literal["same", "older", "newer", "invalid"]


def judge_format(document: Mapping[str, Any], current: int) -> FormatAge:
    """Return the age of a document's format, compared with the one that is written now.

    A document without a format is "older", one whose format is no whole number is "invalid".
    """
    number = document.get(KEY, BEFORE_FORMATS)
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if not is_number or number < BEFORE_FORMATS:
        return "invalid"
    if number == current:
        return "same"
    return "older" if number < current else "newer"


def stamp_output(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data as --json prints it: with its format, which comes first."""
    return {KEY: JSON_OUTPUT, **data}


def newer_clause(document: Mapping[str, Any], current: int) -> str:
    """Return why a document of a newer format cannot be judged, as a clause."""
    return (
        f"was made by a newer torchmill (format {document.get(KEY)}, "
        f"this one reads {current}): cannot tell"
    )
