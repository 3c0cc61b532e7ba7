"""Facts with other values in one of their groups."""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release

Value = TypeVar("Value", Package, Release)


def change_groups(value: Value, **changes: Any) -> Value:
    """Return a package or release with other values, in its groups too: `cuda={"pypi": "12.8"}`."""
    values: dict[str, Any] = {}
    for name, change in changes.items():
        group = getattr(value, name)
        is_group = is_dataclass(group) and isinstance(change, dict)
        values[name] = replace(group, **change) if is_group else change
    return replace(value, **values)


def change_facts(facts: Facts, **groups: Mapping[str, Any]) -> Facts:
    """Return facts in which some fields of groups differ: `costs={"runs": ()}`."""
    changed = {}
    for name, fields in groups.items():
        changed[name] = replace(getattr(facts, name), **fields)
    return replace(facts, **changed)
