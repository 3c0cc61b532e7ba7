"""The folder of an image: write its files, and never over files of somebody else."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torchmill.core import suite_files
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import link_file
from torchmill.core.strict_json import read_json_object
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.image.recipe import ImageRecipe

# The file by which a folder is known as torchmill's. "all" lists all paths in the folder, "written"
# has the sha256 of each file that a user could edit.
IMAGE_RECORD = "torchmill-image.json"

# The parts of a checkout that the suite needs; the others are for those who work on it.
SUITE = (
    "noxfile.py",
    "tasks.py",
    "pyproject.toml",
    "requirements.txt",
    "LICENSE",
    "torchmill",
    "packages",
    "tools",
    "checks",
    "sample",
)
FACTS = "build_configs"


def write_image_folder(
    folder: Path, recipe: ImageRecipe, wheels: Mapping[str, Path], facts: Path
) -> None:
    """Write the files of an image; those of an earlier run are replaced, all at once.

    The earlier folder is moved away just before the new one takes its name. `wheels` are the paths
    of the wheels by their names, `facts` is the folder of build_configs that goes into the image
    with the suite. Raises DeliveryError if the folder has files of somebody else, HostError if the
    disk refuses.
    """
    require_image_folder(folder)
    replaced = folder.with_name(f"{folder.name}.old")
    with report_unwritable(folder), fresh_path(folder) as fresh, fresh_path(replaced) as old:
        fresh.mkdir()
        _write_files(fresh, recipe, wheels, facts)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)


def require_image_folder(folder: Path) -> None:
    """Raise DeliveryError if a folder holds foreign files, or files that were edited by hand."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise DeliveryError(
            f"{folder} is not from `invoke image`: name another with --into", code="foreign-folder"
        )
    record = _read_record(folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    foreign = [name for name in names if name != IMAGE_RECORD and name not in record.paths]
    if foreign:
        raise DeliveryError(
            f"{folder} holds {', '.join(foreign[:3])}, which `invoke image` did not write: "
            "move that away, or name another folder with --into",
            code="foreign-folder",
        )
    for name, digest in record.digests.items():
        path = folder / name
        if path.is_file() and hash_file(path) != digest:
            raise DeliveryError(
                f"{path} was changed by hand: move the folder away, or name another with --into",
                code="changed-by-hand",
            )


class ImageRecord(NamedTuple):
    """The contents of IMAGE_RECORD; both are empty if the folder has no record."""

    paths: set[str]  # all that an earlier run wrote, relative to the folder
    digests: dict[str, str]  # the sha256 of those that a user could edit


def _read_record(folder: Path) -> ImageRecord:
    """Return the record of a folder. Raises DeliveryError if it is damaged."""
    file = folder / IMAGE_RECORD
    try:
        record = read_json_object(file)
        return ImageRecord(set(record["all"]), dict(record["written"]))
    except FileNotFoundError:
        return ImageRecord(set(), {})
    except (OSError, ValueError, TypeError, KeyError):
        raise DeliveryError(
            f"{file} is damaged: move the folder away", code="record-damaged"
        ) from None


def _write_files(
    folder: Path, recipe: ImageRecipe, wheels: Mapping[str, Path], facts: Path
) -> None:
    """Write the files of an image, and the record of them."""
    for name, text in recipe.texts.items():
        path = folder / name
        # Shells and engines need "\n", also if Windows writes the folder.
        path.write_text(text, encoding="utf-8", newline="\n")
        path.chmod(0o755 if name in recipe.programs else 0o644)
    for name, source in recipe.copied.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if source == "suite":
            _copy_suite(path, facts)
        elif source in wheels:
            if not link_file(wheels[source], path):  # a wheel may have gigabytes
                shutil.copyfile(wheels[source], path)
        else:
            suite_files.copy_part(source, path)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    written = {}
    for name in names:
        # Wheels and single files of the checkout are not compared: nobody edits them here.
        if name not in recipe.copied and (folder / name).is_file():
            written[name] = hash_file(folder / name)
    record = json.dumps({"all": names, "written": written}, indent=1)
    (folder / IMAGE_RECORD).write_text(record + "\n", encoding="utf-8")


def _copy_suite(target: Path, facts: Path) -> None:
    """Copy the suite and its facts into a folder."""
    target.mkdir()
    for name in SUITE:
        suite_files.copy_part(name, target / name)
    shutil.copytree(facts, target / FACTS, ignore=suite_files.UNWANTED)
