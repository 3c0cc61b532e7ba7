"""A snippet for uv: one lock file for all platforms, each with its own source.

`environments` keeps uv from looking for wheels where nobody asked for one; with `required-environments` it is
`uv lock` that fails where one is missing, and not somebody's `uv sync`. An explicit index is asked for what
names it, and nothing else.
https://docs.astral.sh/uv/concepts/indexes/, https://docs.astral.sh/uv/concepts/resolution/
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmill.deliver.snippet import platforms, project, toml
from torchmill.deliver.snippet.lines import Direct, flat, header, places, sources
from torchmill.deliver.snippet.offers import Place
from torchmill.deliver.snippet.words import Decision

SEVERAL = True  # variants, as extras that exclude each other


def render(decisions: Sequence[Decision], direct: Direct) -> str:
    """Return pyproject.toml for uv."""
    words = [
        "pyproject.toml; then `uv lock` and `uv sync`" + project.extra_words(decisions, "uv sync --extra")
    ]
    lines = [*header(decisions, words), "", *project.table(decisions, direct), "", "[tool.uv]"]
    every = [platforms.exactly(arch) for arch in decisions[0].platforms]
    lines += [f"{key} = {toml.array(every)}" for key in ("environments", "required-environments")]
    if len(decisions) > 1:
        extras = ", ".join(toml.inline({"extra": one.variant}) for one in decisions)
        lines.append(f"conflicts = [[{extras}]]")
    lines += _sources(decisions, direct)
    for place in places(decisions, direct):
        lines += ["", "[[tool.uv.index]]", *_index(place)]
    return "\n".join(lines)


def _index(place: Place) -> list[str]:
    lines = [f"name = {toml.text(place.name)}", f"url = {toml.text(place.url)}"]
    return [*lines, *(['format = "flat"'] if flat(place) else []), "explicit = true"]


def _sources(decisions: Sequence[Decision], direct: Direct) -> list[str]:
    lines = []
    for package in decisions[0].packages:
        tables = [
            {"index": place.name}
            | ({"extra": one.variant} if len(decisions) > 1 else {})
            | ({"marker": marker} if marker else {})
            for one in decisions
            for place, marker in sources(one, package, direct)
        ]
        if len(tables) == 1:
            lines.append(f"{package} = {toml.inline(tables[0])}")
        elif tables:
            lines.append(f"{package} = {toml.inlines(tables)}")
    return ["", "[tool.uv.sources]", *lines] if lines else []
