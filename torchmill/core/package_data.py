"""Tables that lie beside the modules that read them."""

import tomllib
from pathlib import Path
from typing import Any


def read_table_beside(module: str, name: str) -> dict[str, Any]:
    """Return a TOML file of this package, from the folder of a module (its `__file__`)."""
    return tomllib.loads(Path(module).with_name(name).read_text("utf-8"))
