"""Fill in the templates of files that users get: Dockerfiles, project files, pages. They are Jinja's."""

import re
import shlex
from pathlib import Path

import tomlkit
from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDERS = [Path(__file__).with_name(name) for name in ("image", "index", "snippet")]


def toml_string(value: str) -> str:
    """Return a string in quotes."""
    return tomlkit.string(value).as_string()


_templates = Environment(  # noqa: S701 (no HTML)
    loader=FileSystemLoader(_FOLDERS),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {"toml": toml_string, "sh": shlex.quote}


def fill_template(name: str, **values: object) -> str:
    """Return a template of one of the folders with its values filled in; the filters `toml` and `sh` quote a string.

    Paragraphs are one blank line apart, whatever was left out between them.
    """
    return re.sub(r"\n{3,}", "\n\n", _templates.get_template(name).render(values)).strip() + "\n"
