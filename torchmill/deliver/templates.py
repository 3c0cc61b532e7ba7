"""Fill in the templates of files that users get: Dockerfiles, project files and pages.

The templates are Jinja's and lie beside the modules that use them.
"""

import re
import shlex
from pathlib import Path

import tomlkit
from jinja2 import Environment, FileSystemLoader, StrictUndefined

_WING = Path(__file__).parent


def toml_string(value: str) -> str:
    """Return a string as TOML writes it, in quotes."""
    return tomlkit.string(value).as_string()


# Nothing is escaped by itself, because most templates are not HTML: the only HTML page uses `e`.
_templates = Environment(  # noqa: S701
    loader=FileSystemLoader([_WING / "image", _WING / "index", _WING / "snippet"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters["toml"] = toml_string
_templates.filters["sh"] = shlex.quote


def fill_template(name: str, **values: object) -> str:
    """Return a template with its values filled in.

    Raises UndefinedError for a value that is missing. In a template, the filters `toml` and `sh`
    quote a string. If a template has a block that is not filled in, the blank lines around it stay:
    so several blank lines are reduced to a single one.
    """
    text = _templates.get_template(name).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
