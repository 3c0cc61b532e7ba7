"""The selected release: what `invoke fetch` recorded, or TORCHMILL_TAG names."""

import json
import os

from torchmill.config.matrix import base_package, find_release, newest_release
from torchmill.config.model import Facts, Release
from torchmill.core import files
from torchmill.core.errors import SourceError
from torchmill.core.paths import Layout


def selected_release(facts: Facts, layout: Layout, tag: str | None = None) -> Release | None:
    """Return the selected release of the base package, or None when nothing is selected.

    `tag` is what the user said on the command line; it wins over the environment, and that over the
    record. Raises UnknownReleaseError for a tag that no release has.
    """
    tag = tag or os.environ.get("TORCHMILL_TAG") or _recorded(layout)
    return find_release(facts, base_package(facts).name, tag) if tag else None


def selected_or_newest(facts: Facts, layout: Layout, tag: str | None = None) -> Release:
    """Return the selected release of the base package, the newest when nothing is selected.

    Raises UnknownReleaseError for a tag that no release has.
    """
    return selected_release(facts, layout, tag) or newest_release(facts)


def select_release(layout: Layout, release: Release) -> None:
    """Record a release as the selected one."""
    files.write_atomically(layout.selection, json.dumps({"tag": release.tag}) + "\n")


def _recorded(layout: Layout) -> str | None:
    try:
        record = json.loads(layout.selection.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError):
        record = {}
    if not isinstance(record, dict) or not isinstance(record.get("tag"), str):
        raise SourceError(
            f"{layout.selection} does not name a release: delete it, or run `invoke fetch --tag` again",
            code="selection-invalid",
        )
    return str(record["tag"])
