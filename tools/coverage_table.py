"""Print how many lines and branches of each folder the tests run, from the JSON of coverage.py.

`nox -s coverage`, then `python -m coverage json -q -o - | python tools/coverage_table.py`
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any


def folder_of(path: str) -> str:
    """Return the wing of a file of torchmill ("torchmill/plan"), or the folder of a distribution."""
    top, *inner = path.split("/")[:-1]
    return "/".join([top, *inner[:1]])


def format_rows(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of a Markdown table, and as the last one those of all folders together."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in report["files"].items():
        for folder in (folder_of(path), "together"):
            counts[folder].update(file["summary"])
    yield "| folder | lines | branches |"
    yield "|---|--:|--:|"
    for folder in sorted(counts, key=lambda name: (name == "together", name)):
        count = counts[folder]
        lines = _format_share(count["covered_lines"], count["num_statements"])
        branches = _format_share(count["covered_branches"], count["num_branches"])
        yield f"| `{folder}` | {lines} | {branches} |"


def _format_share(part: int, whole: int) -> str:
    """Return a share in percent and the whole, which may be 0: "91.4 % of 1,204"."""
    return f"{100 * part / whole:.1f} % of {whole:,}" if whole else "none"


if __name__ == "__main__":
    for row in format_rows(json.load(sys.stdin)):
        print(row)
