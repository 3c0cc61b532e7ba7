"""The selected release, what `invoke fetch` recorded or TORCHMILL_TAG names, and its sessions for nox.

What only some of it needs is loaded there: listing sessions takes half the time without facts and matrix.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import SourceError
from torchmill.core.lenient_paths import exists
from torchmill.core.paths import Layout
from torchmill.core.strict_json import load_object

if TYPE_CHECKING:
    from torchmill.config.facts import Facts
    from torchmill.config.release import Release


def selected_tag(layout: Layout) -> str | None:
    """Return the tag of the selected release: what TORCHMILL_TAG names, or else `invoke fetch` recorded.

    Raises SourceError for a record that names none.
    """
    if tag := os.environ.get("TORCHMILL_TAG"):
        return tag
    if not exists(layout.selection):
        return None
    if not isinstance(tag := load_object(layout.selection).get("tag"), str):
        raise SourceError(
            f"{layout.selection} does not name a release: run `invoke fetch --tag TAG` again",
            code="selection-invalid",
        )
    return tag


def selected_release(facts: Facts, layout: Layout, tag: str | None = None) -> Release | None:
    """Return the selected release of the base package, or None when nothing is selected.

    `tag` is what the user said on the command line; it wins over the environment, and that over the record.
    Raises UnknownReleaseError for a tag that no release has, SourceError for a record that names none.
    """
    from torchmill.config.release_lookup import base_package, find_release

    tag = tag or selected_tag(layout)
    return find_release(facts, base_package(facts).name, tag) if tag else None


def describe_selection(layout: Layout, tag: str) -> str:
    """Return which release a question was answered for, unless it was named in the question; "" if none is selected."""
    if tag or not (selected := selected_tag(layout)):
        return ""
    by = "TORCHMILL_TAG" if os.environ.get("TORCHMILL_TAG") else "`invoke fetch`"
    return f"asked of {selected}, which {by} selected: `--tag` asks of another release"


def describe_state(layout: Layout) -> str:
    """Return which release is selected, and by what, or that none is."""
    if not (selected := selected_tag(layout)):
        return (
            "no release is selected: each command takes the newest that fits, or what `--tag` names"
        )
    by = (
        "TORCHMILL_TAG"
        if os.environ.get("TORCHMILL_TAG")
        else f"`invoke fetch` ({layout.selection})"
    )
    return f"{selected} is selected, by {by}: commands are about it unless `--tag` names another"


def selected_or_newest(facts: Facts, layout: Layout, tag: str | None = None) -> Release:
    """Return the selected release of the base package as `selected_release` does, or else the newest."""
    from torchmill.config.release_lookup import newest_release

    return selected_release(facts, layout, tag) or newest_release(facts)


def select_release(layout: Layout, release: Release) -> None:
    """Record a release as the selected one."""
    write_atomically(layout.selection, json.dumps({"tag": release.tag}) + "\n")
