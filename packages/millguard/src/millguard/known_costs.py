"""The costs of well-known heavy sources, for a machine that has never compiled them."""

import tomllib
from functools import lru_cache
from pathlib import Path

from millguard.costs import KnownCost

_FILE = Path(__file__).with_name("known_costs.toml")


@lru_cache(maxsize=1)
def load_known_costs() -> tuple[KnownCost, ...]:
    """Return the costs in `known_costs.toml`; of several patterns that match, the first counts."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    costs = []
    for row in table["cost"]:
        costs.append(KnownCost(row["pattern"], row["peak_bytes"], row.get("seconds")))
    return tuple(costs)
