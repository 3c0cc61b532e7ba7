"""Take what torchmill's wheel requires from the files that say it, for hatchling (pyproject.toml).

requirements.txt has what all commands need; torchmill/core/optional_libraries.toml has what only
some need, by extras.
"""

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

EDITABLE = "-e ./packages/"
OPTIONAL_LIBRARIES = "torchmill/core/optional_libraries.toml"


class RequirementsHook(MetadataHookInterface):
    """Requires in a wheel what a checkout requires."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the keys "dependencies" and "optional-dependencies" to the project's metadata."""
        text = Path(self.root, "requirements.txt").read_text("utf-8")
        metadata["dependencies"] = read_requirements(text)
        libraries = Path(self.root, OPTIONAL_LIBRARIES).read_text("utf-8")
        metadata["optional-dependencies"] = read_extras(libraries)


def read_requirements(text: str) -> list[str]:
    """Return the requirements of a requirements.txt in PEP 508's form.

    A distribution of this repository stands there as a folder, "-e ./packages/millguard", and is
    named in a wheel.
    """
    requirements = []
    for line in text.splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement:
            requirements.append(requirement.removeprefix(EDITABLE))
    return requirements


def read_extras(text: str) -> dict[str, list[str]]:
    """Return the requirements of each extra, from the text of the table of optional libraries."""
    extras: dict[str, list[str]] = {}
    for library in tomllib.loads(text).values():
        extras.setdefault(library["extra"], []).append(library["requirement"])
    return extras
