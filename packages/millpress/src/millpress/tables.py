"""Read the facts that lie beside the modules as TOML."""

import tomllib
from pathlib import Path
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    """Return the table in a TOML file of this package, such as "machines.toml"."""
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))
