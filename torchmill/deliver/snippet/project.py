"""The [project] table, which uv, Poetry and PDM read alike (PEP 621)."""

from __future__ import annotations

from collections.abc import Sequence

from torchmill.deliver.snippet import toml
from torchmill.deliver.snippet.lines import Direct, python_range, requirements
from torchmill.deliver.snippet.words import Decision


def table(decisions: Sequence[Decision], direct: Direct) -> list[str]:
    """Return the lines of the table: dependencies, or an extra for each variant where there are several."""
    first, *_ = decisions
    pythons = [python for python in first.pythons if all(python in one.pythons for one in decisions)]
    lines = [
        "[project]",
        'name = "my-project"',
        'version = "0.1.0"',
        f"requires-python = {toml.text(python_range(pythons))}",
    ]
    if len(decisions) == 1:
        return [*lines, f"dependencies = {toml.array(requirements(first, direct))}"]
    lines += ["", "[project.optional-dependencies]"]
    return [*lines, *(f"{one.variant} = {toml.array(requirements(one, direct))}" for one in decisions)]


def extra_words(decisions: Sequence[Decision], command: str) -> str:
    """Return how an extra is chosen; "" where there is none to choose."""
    if len(decisions) == 1:
        return ""
    return ": " + " or ".join(f"`{command} {one.variant}`" for one in decisions)
