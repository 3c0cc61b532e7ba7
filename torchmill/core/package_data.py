"""Read tables (TOML files) that lie in the package, beside the module that uses them."""

import tomllib
from pathlib import Path
from typing import Any


def read_table_beside(module: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file in the folder of a module, which is its `__file__`."""
    return tomllib.loads(Path(module).with_name(name).read_text("utf-8"))
