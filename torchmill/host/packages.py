"""The system packages that are installed, by the package manager of the machine."""

import re
from collections.abc import Mapping
from pathlib import Path

from torchmill.host.programs import Run

_LISTING: Mapping[str, tuple[str, ...]] = {
    "apt": ("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n"),
    "dnf": ("rpm", "--query", "--all", "--queryformat", "installed %{NAME} %{VERSION}\n"),
    "brew": ("brew", "list", "--versions"),
}
_CONDA = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-[^-]+")


def installed(manager: str, environ: Mapping[str, str], run: Run) -> dict[str, str]:
    """Return every installed package and its version."""
    if manager == "conda":
        return _of_conda(Path(environ.get("CONDA_PREFIX", "")))
    rows = [line.split() for line in run(_LISTING[manager]).splitlines()]
    if manager == "brew":
        return {row[0]: row[-1] for row in rows if row}
    return {row[1]: row[2] for row in rows if row[:1] == ["installed"] and len(row) > 2}  # noqa: PLR2004


def _of_conda(prefix: Path) -> dict[str, str]:
    matches = (_CONDA.fullmatch(path.stem) for path in (prefix / "conda-meta").glob("*.json"))
    return {match["name"]: match["version"] for match in matches if match}
