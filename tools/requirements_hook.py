"""Take what torchmill's wheel requires from requirements.txt, for hatchling (pyproject.toml)."""

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

EDITABLE = "-e ./packages/"


class RequirementsHook(MetadataHookInterface):
    """Requires in a wheel what requirements.txt installs in a checkout."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the key "dependencies" to the project's metadata."""
        text = Path(self.root, "requirements.txt").read_text("utf-8")
        metadata["dependencies"] = read_requirements(text)


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
