"""Read files that lie in the package, beside the module that uses them: they are part of its code."""

import tomllib
from pathlib import Path
from typing import Any


def read_text_beside(module: str, name: str) -> str:
    """Return the text of a file in the folder of a module, which is its `__file__`."""
    return (Path(module).parent / name).read_text("utf-8")


def read_table_beside(module: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file in the folder of a module, which is its `__file__`."""
    return tomllib.loads(read_text_beside(module, name))
