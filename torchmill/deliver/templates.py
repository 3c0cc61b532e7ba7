"""Fill in the templates of files that users get: Dockerfiles, project files, pages. They are Jinja's."""

import re
import shlex
from functools import cache
from pathlib import Path

import tomlkit
from jinja2 import Environment, FileSystemLoader, StrictUndefined


def fill_template(file: Path, **values: object) -> str:
    """Return a template with its values filled in; the filters `toml` and `sh` quote a string.

    Paragraphs are one blank line apart, whatever was left out between them.
    """
    return re.sub(r"\n{3,}", "\n\n", _environment(file.parent).get_template(file.name).render(values)).strip() + "\n"


@cache
def _environment(folder: Path) -> Environment:
    found = Environment(  # noqa: S701 (no HTML)
        loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"toml": toml_string, "sh": shlex.quote}
    return found


def toml_string(value: str) -> str:
    """Return a string in quotes."""
    return tomlkit.string(value).as_string()
