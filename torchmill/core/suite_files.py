"""The suite's own code and requirements, for a container or an image that runs it.

In a checkout everything lies in one folder, with the two libraries in packages/. An installed
torchmill consists of the folders that pip made of wheels: the package, what is beside it, and the
libraries. Nothing of them is shipped twice: a container sees these folders, and an image gets the
libraries as wheels, which are made of their folders again.
"""

import base64
import hashlib
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from torchmill.core.paths import CHECKOUT, IS_INSTALLED, PACKAGE
from torchmill.core.stat_cache import package_folder

LIBRARIES = ("millguard", "millpress")
REQUIREMENTS = "requirements.txt"
PACKAGES = "packages"  # the folder of the libraries
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
# The files of a .dist-info folder that a wheel has; pip adds others.
_INFO_FILES = ("METADATA", "WHEEL", "entry_points.txt")
_LICENCES = "licenses"  # a folder among them
_PROJECT = re.compile(r"[\w.-]+")  # at the beginning of a requirement


def installed_folders() -> Mapping[str, Path]:
    """Return the folders of an installed torchmill by their names in site-packages.

    With the .dist-info folders among them, pip knows what is installed and what that requires.
    Raises PackageNotFoundError if the package was copied, not installed.
    """
    folders = {PACKAGE.name: PACKAGE, CHECKOUT.name: CHECKOUT}
    for name in LIBRARIES:
        folders[name] = package_folder(name)
    for name in (PACKAGE.name, *LIBRARIES):
        folder = _info_folder(distribution(name))
        folders[folder.name] = folder
    return folders


def read_requirements() -> str:
    """Return the text of a requirements.txt with what the suite needs.

    In it, the libraries are paths in packages/, relative to the folder that `copy_part` filled.
    """
    if not IS_INSTALLED:
        return (CHECKOUT / REQUIREMENTS).read_text(encoding="utf-8")
    lines = [f"./{PACKAGES}/{_wheel_name(distribution(name))}" for name in LIBRARIES]
    for requirement in distribution(PACKAGE.name).requires or ():
        match = _PROJECT.match(requirement)
        is_library = match is not None and match[0] in LIBRARIES
        if not is_library and "extra ==" not in requirement:
            lines.append(requirement)
    return "".join(f"{line}\n" for line in lines)


def copy_part(name: str, target: Path) -> None:
    """Copy a file or folder of a checkout, such as "noxfile.py" or "packages", to a path.

    Nothing happens if the suite has no such part, as an installed one has no pyproject.toml.
    """
    source = PACKAGE if name == PACKAGE.name else CHECKOUT / name
    if name == REQUIREMENTS:
        target.write_text(read_requirements(), encoding="utf-8")
    elif name == PACKAGES and IS_INSTALLED:
        target.mkdir()
        for library in LIBRARIES:
            _write_wheel(distribution(library), target)
    elif source.is_dir():
        shutil.copytree(source, target, ignore=UNWANTED)
    elif source.exists():
        shutil.copyfile(source, target)


def _wheel_name(library: Distribution) -> str:
    return f"{library.metadata['Name']}-{library.version}-py3-none-any.whl"


def _info_folder(installed: Distribution) -> Path:
    name = f"{installed.metadata['Name']}-{installed.version}.dist-info"
    return Path(str(installed.locate_file(name)))


def _write_wheel(library: Distribution, folder: Path) -> None:
    """Write the wheel of an installed library into a folder."""
    info = f"{library.metadata['Name']}-{library.version}.dist-info"
    record = []
    with zipfile.ZipFile(folder / _wheel_name(library), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_list_files(library, info)):
            content = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}\n")
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]))


def _list_files(library: Distribution, info: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a library by their names in its wheel."""
    code = package_folder(library.metadata["Name"])
    for path in code.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(code.parent).as_posix(), path
    info_folder = _info_folder(library)
    info_paths = [info_folder / name for name in _INFO_FILES]
    info_paths += info_folder.glob(f"{_LICENCES}/**/*")
    for path in info_paths:
        if path.is_file():
            yield f"{info}/{path.relative_to(info_folder).as_posix()}", path
