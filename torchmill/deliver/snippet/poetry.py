"""A snippet for Poetry: its sources are explicit, and each constraint names its own.

Poetry asks sources over HTTP only: from a folder each wheel is named by its address. It joins `==1.13.1` and
`==1.13.1+cpu` of one source into the labelled version, also where there is no wheel of that: there too the
address is named. https://python-poetry.org/docs/repositories/, https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmill.deliver.snippet import project, toml
from torchmill.deliver.snippet.lines import Direct, flat, header, places, shadowed, sources
from torchmill.deliver.snippet.words import Decision, Pin

SEVERAL = False


def render(decisions: Sequence[Decision], direct: Direct) -> str:
    """Return pyproject.toml for Poetry 2."""
    decision, *_ = decisions

    def addressed(pin: Pin) -> bool:
        unreadable = flat(pin.place) or pin.place.local or shadowed(decision, pin)
        return direct(pin) or (bool(pin.offers) and unreadable)

    words = ["pyproject.toml; then `poetry lock` and `poetry install`"]
    if any(addressed(pin) and not direct(pin) for pin in decision.pins):
        words.append(
            "wheels are named by their address where Poetry cannot look them up: see docs/snippets.md"
        )
    lines = [*header(decisions, words), "", *project.table(decisions, addressed)]
    lines += ["", "[tool.poetry]", "package-mode = false", *_sources(decision, addressed)]
    for place in places(decisions, addressed):
        lines += ["", "[[tool.poetry.source]]", f"name = {toml.text(place.name)}"]
        lines += [f"url = {toml.text(place.url)}", 'priority = "explicit"']
    return "\n".join(lines)


def _sources(decision: Decision, direct: Direct) -> list[str]:
    lines = []
    for package in decision.packages:
        tables = [
            ({"markers": marker} if marker else {}) | {"source": place.name}
            for place, marker in sources(decision, package, direct)
        ]
        if tables:
            single = len(tables) == 1 and "markers" not in tables[0]
            lines.append(f"{package} = {toml.inline(tables[0]) if single else toml.inlines(tables)}")
    return ["", "[tool.poetry.dependencies]", *lines] if lines else []
