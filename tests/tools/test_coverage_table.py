"""The table of what the tests run, from a report of coverage.py."""

from tools.coverage_table import format_rows


def summary(lines: int, covered: int, branches: int, taken: int) -> dict[str, object]:
    """Return the entry of a file in the report."""
    counts = {
        "num_statements": lines,
        "covered_lines": covered,
        "num_branches": branches,
        "covered_branches": taken,
    }
    return {"summary": counts}


def test_files_are_counted_by_wing_and_by_distribution() -> None:
    files = {
        "torchmill/__init__.py": summary(lines=4, covered=4, branches=0, taken=0),
        "torchmill/plan/a.py": summary(lines=10, covered=9, branches=4, taken=3),
        "torchmill/plan/doctor/b.py": summary(lines=10, covered=10, branches=4, taken=4),
        "packages/millpress/src/millpress/c.py": summary(
            lines=2000, covered=1000, branches=8, taken=1
        ),
    }
    assert list(format_rows({"files": files}))[2:] == [
        "| `packages/millpress` | 50.0 % of 2,000 | 12.5 % of 8 |",
        "| `torchmill` | 100.0 % of 4 | none |",
        "| `torchmill/plan` | 95.0 % of 20 | 87.5 % of 8 |",
        "| `together` | 50.5 % of 2,024 | 50.0 % of 16 |",
    ]
