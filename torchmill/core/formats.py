"""The formats of files that outlive the torchmill that wrote them, one integer each.

A format is raised when a reader of the former one would misunderstand the file, or when the same inputs give another
statement or SBOM. Whether two torchmills understand each other is judged by these numbers, never by their versions.
"""

from collections.abc import Mapping
from typing import Any, Literal

KEY = "format"  # the field that every such file has; files that were written before there were formats have none
SOURCE_RECORD = 1  # source.json beside a fetched source
LEDGER = 2  # the stages of a cell
MANIFEST = 2  # beside a wheel; statement and SBOM follow from it
PRODUCT = 1  # beside what was made of a wheel: a conda package, a libtorch archive
STATEMENT = 1  # internalParameters of the statement
JSON_OUTPUT = 1  # what --json prints
BEFORE_FORMATS = 0

FormatAge = Literal["same", "older", "newer", "invalid"]


def judge_format(document: Mapping[str, Any], own: int) -> FormatAge:
    """Return how the format of a document compares with `own`, the one that is written now."""
    found = document.get(KEY, BEFORE_FORMATS)
    if not isinstance(found, int) or isinstance(found, bool) or found < BEFORE_FORMATS:
        return "invalid"
    if found == own:
        return "same"
    return "older" if found < own else "newer"


def stamp_output(data: Any) -> Any:
    """Return what --json prints of some data: an object says its format first."""
    return {KEY: JSON_OUTPUT, **data} if isinstance(data, dict) else data


def newer_clause(document: Mapping[str, Any], own: int) -> str:
    """Return why a document of a newer format cannot be judged, as a clause."""
    return f"was made by a newer torchmill (format {document.get(KEY)}, this one reads {own}): cannot tell"
