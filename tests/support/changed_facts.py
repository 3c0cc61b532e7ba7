"""Facts with other values in one of their groups."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchmill.config.facts import Facts


def change_facts(facts: Facts, **groups: Mapping[str, Any]) -> Facts:
    """Return facts in which some fields of groups differ: `costs={"runs": ()}`."""
    changed = {}
    for name, fields in groups.items():
        changed[name] = replace(getattr(facts, name), **fields)
    return replace(facts, **changed)
