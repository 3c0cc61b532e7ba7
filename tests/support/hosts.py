"""Machines that differ from another in some fields."""

from dataclasses import replace
from typing import Any

from torchmill.host.host import Host


def change_host(host: Host, **changes: Any) -> Host:
    """Return a host with other values, in a group of them too: `gpus={"driver": "535.104.05"}`."""
    values = {}
    for name, change in changes.items():
        group = getattr(host, name)
        values[name] = replace(group, **change) if isinstance(change, dict) else change
    return replace(host, **values)
