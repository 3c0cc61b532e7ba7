"""The selected release: the tag that TORCHMILL_TAG names, or that `invoke fetch` recorded.

`noxfile.py` imports this module at every start, so it imports the facts only if they are used.
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
    """Return the tag of the selected release: that of TORCHMILL_TAG, or else the recorded one.

    None if no release is selected. Raises SourceError for a record that has no tag.
    """
    tag = os.environ.get("TORCHMILL_TAG")
    if tag:
        return tag
    if not exists(layout.selection):
        return None
    recorded = load_object(layout.selection).get("tag")
    if not isinstance(recorded, str):
        raise SourceError(
            f"{layout.selection} does not name a release: run `invoke fetch --tag TAG` again",
            code="selection-invalid",
        )
    return recorded


def selected_release(facts: Facts, layout: Layout, tag: str | None = None) -> Release | None:
    """Return the selected release of the base package, or None if none is selected.

    `tag` comes from the command line, and wins over the environment, which wins over the record.
    Raises UnknownReleaseError for a tag that no release has, SourceError for a record without one.
    """
    from torchmill.config.release_lookup import base_package, find_release

    tag = tag or selected_tag(layout)
    return find_release(facts, base_package(facts).name, tag) if tag else None


def selected_or_newest(facts: Facts, layout: Layout, tag: str | None = None) -> Release:
    """Return the selected release of the base package as `selected_release` does, or the newest."""
    from torchmill.config.release_lookup import newest_release

    return selected_release(facts, layout, tag) or newest_release(facts)


def select_release(layout: Layout, release: Release) -> None:
    """Record a release as the selected one."""
    write_atomically(layout.selection, json.dumps({"tag": release.tag}) + "\n")


def describe_selection(layout: Layout, tag: str) -> str:
    """Return a clause on the selected release, which an answer is about.

    "" if `tag`, of the command line, names another, or no release is selected.
    """
    selected = None if tag else selected_tag(layout)
    if not selected:
        return ""
    selector = "TORCHMILL_TAG" if os.environ.get("TORCHMILL_TAG") else "`invoke fetch`"
    return f"asked of {selected}, which {selector} selected: `--tag` asks of another release"


def describe_state(layout: Layout) -> str:
    """Return the selected release and its selector as a sentence, or that there is none."""
    selected = selected_tag(layout)
    if not selected:
        return (
            "no release is selected: each command takes the newest that fits, or what `--tag` names"
        )
    if os.environ.get("TORCHMILL_TAG"):
        selector = "TORCHMILL_TAG"
    else:
        selector = f"`invoke fetch` ({layout.selection})"
    return (
        f"{selected} is selected, by {selector}: commands are about it unless `--tag` names another"
    )
