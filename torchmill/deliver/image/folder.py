"""The folder of an image: written whole, and never over somebody else's files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from torchmill.core import files
from torchmill.core.errors import DeliveryError
from torchmill.deliver.image.dockerfile import ImageRecipe

IMAGE_RECORD = "torchmill-image.json"  # says that a folder is ours, and what we wrote into it
# What of a checkout is the suite; the rest is for those who work on it.
SUITE = ("noxfile.py", "tasks.py", "pyproject.toml", "requirements.txt", "LICENSE", "torchmill", "sample")
FACTS = "build_configs"
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def write_image_folder(
    folder: Path, recipe: ImageRecipe, sources: Mapping[str, Path], suite: Path, facts: Path
) -> None:
    """Write the files of an image; what we wrote there before is replaced, in one move.

    `sources` are the wheels by name, `suite` is the checkout that is copied, `facts` its build_configs.
    Raises DeliveryError where the folder holds what is not ours, or cannot be written.
    """
    require_our_folder(folder)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True)
        _fill(fresh, recipe, sources, suite, facts)
        _swap(fresh, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DeliveryError(
            f"cannot write {folder} ({reason}): name another with --into", code="not-writable"
        ) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def require_our_folder(folder: Path) -> None:
    """Raise DeliveryError where a folder holds files that are not ours, or ours changed by hand."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise DeliveryError(
            f"{folder} was not written by `invoke image`: name another with --into", code="foreign-folder"
        )
    names = sorted(entry.name for entry in folder.iterdir())
    record = _record(folder)
    strange = [name for name in names if name != IMAGE_RECORD and name not in record["top"]]
    if strange:
        raise DeliveryError(
            f"{folder} holds {', '.join(strange[:3])}, which `invoke image` did not write: "
            "move that away, or name another folder with --into",
            code="foreign-folder",
        )
    for name, digest in record["written"].items():
        path = folder / name
        if path.is_file() and _sha256(path.read_bytes()) != digest:
            raise DeliveryError(
                f"{path} was changed by hand: move the folder away, or name another with --into",
                code="changed-by-hand",
            )


def _record(folder: Path) -> dict[str, dict[str, str]]:
    """Return what we wrote into a folder; nothing where it is not ours."""
    try:
        record = files.read_json_object(folder / IMAGE_RECORD)
        return {"top": dict.fromkeys(record["top"], ""), "written": dict(record["written"])}
    except FileNotFoundError:
        return {"top": {}, "written": {}}
    except (OSError, ValueError, TypeError, KeyError):
        raise DeliveryError(
            f"{folder / IMAGE_RECORD} is damaged: move the folder away", code="record-damaged"
        ) from None


def _fill(folder: Path, recipe: ImageRecipe, sources: Mapping[str, Path], suite: Path, facts: Path) -> None:
    for name, text in recipe.texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8", newline="\n")
        path.chmod(0o755 if name in recipe.programs else 0o644)
    for name, what in recipe.copied.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if what == "suite":
            _copy_suite(path, suite, facts)
        elif what not in sources or not files.link_file(sources[what], path):  # a wheel may have gigabytes
            shutil.copyfile(sources.get(what, suite / what), path)
    record = {
        "top": sorted({Path(name).parts[0] for name in (*recipe.texts, *recipe.copied)}),
        "written": {name: _sha256(text.encode()) for name, text in sorted(recipe.texts.items())},
    }
    (folder / IMAGE_RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _copy_suite(target: Path, suite: Path, facts: Path) -> None:
    for name in SUITE:
        source = suite / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=UNWANTED)
        elif source.exists():
            target.mkdir(exist_ok=True)
            shutil.copyfile(source, target / name)
    shutil.copytree(facts, target / FACTS, ignore=UNWANTED)


def _swap(fresh: Path, folder: Path) -> None:
    """Put a folder in place of another."""
    old = folder.with_name(f".{folder.name}.old.{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
