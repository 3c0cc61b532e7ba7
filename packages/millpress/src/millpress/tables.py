"""Read the TOML files of facts in the folder of this package."""

import tomllib
from pathlib import Path
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    """Return the contents of a TOML file in this package's folder, such as "machines.toml"."""
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))
