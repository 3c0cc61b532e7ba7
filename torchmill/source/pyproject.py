"""The one fact of a fetched tree that decides how it is built, and whether it is a source at all."""

import tomllib
from pathlib import Path

from torchmill.errors import SourceError


def build_backend(tree: Path) -> str | None:
    """Return the backend of [build-system] in a tree's pyproject.toml, or None.

    Raises SourceError for a file that is no TOML.
    """
    file = tree / "pyproject.toml"
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8")).get("build-system", {}).get("build-backend")
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise SourceError(f"{file} cannot be read ({error}): fetch the source from another place") from None
    return str(found) if found is not None else None


def assure_source(tree: Path, origin: str) -> None:
    """Raise SourceError where `tree`, which came from `origin`, cannot be the source of a Python package."""
    if not any((tree / name).is_file() for name in ("setup.py", "pyproject.toml")):
        hint = "; a git repository without files is given with --mirror" if (tree / "HEAD").is_file() else ""
        raise SourceError(
            f"{origin} has neither setup.py nor pyproject.toml: give the top folder of a source, or an "
            f"archive of it{hint}"
        )
