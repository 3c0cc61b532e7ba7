"""The suite's own code and requirements, for a container or an image that runs it.

In a checkout everything lies in one folder, with the libraries millguard and millpress in
packages/. An installed torchmill consists of folders in site-packages: the package, the folder
torchmill_suite with the rest of the suite, and the libraries. A container sees these folders. An
image gets the libraries as wheels, which are made again of the installed folders.
"""

import base64
import hashlib
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from torchmill.core.errors import HostError
from torchmill.core.paths import CHECKOUT, IS_INSTALLED, PACKAGE
from torchmill.core.stat_cache import package_folder

LIBRARIES = ("millguard", "millpress")
REQUIREMENTS = "requirements.txt"
PACKAGES = "packages"  # the folder of the libraries
_ONLY_IN_CHECKOUTS = ("pyproject.toml", "LICENSE")
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")  # not copied, for copytree
# The files of a .dist-info folder that come from the wheel. pip adds others, which describe the
# installation.
_INFO_FILES = ("METADATA", "WHEEL", "entry_points.txt")
_LICENCES = "licenses"  # the folder in .dist-info that also comes from the wheel
_PROJECT = re.compile(r"[\w.-]+")  # the name at the beginning of a requirement


def installed_folders() -> Mapping[str, Path]:
    """Return the folders of an installed torchmill by their names in site-packages.

    The .dist-info folders are among them, by which pip knows the installed versions and their
    requirements. Raises PackageNotFoundError if the package was copied and not installed.
    """
    folders = {PACKAGE.name: PACKAGE, CHECKOUT.name: CHECKOUT}
    for name in LIBRARIES:
        folders[name] = package_folder(name)
    for name in (PACKAGE.name, *LIBRARIES):
        folder = _info_folder(distribution(name))
        folders[folder.name] = folder
    return folders


def read_requirements() -> str:
    """Return the text of a requirements.txt with all requirements of the suite.

    millguard and millpress are paths in packages/, relative to the folder that `copy_part` fills.
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
    """Copy a file or folder of the suite to a path, by its name in a checkout ("noxfile.py").

    If torchmill is installed, "requirements.txt" and "packages" are made anew, and nothing is copied
    of a part that an installed torchmill lacks, as pyproject.toml. Raises HostError if any other
    part is missing.
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
    elif source.is_file():
        shutil.copyfile(source, target)
    elif not (IS_INSTALLED and name in _ONLY_IN_CHECKOUTS):
        raise HostError(
            f"{source} is missing, and belongs to torchmill: install torchmill again, or restore "
            "the file in its checkout",
            code="incomplete-suite",
        )


def _wheel_name(library: Distribution) -> str:
    """Return the file name of a library's wheel, which fits any platform."""
    return f"{library.metadata['Name']}-{library.version}-py3-none-any.whl"


def _info_folder(installed: Distribution) -> Path:
    """Return the .dist-info folder of an installed distribution."""
    name = f"{installed.metadata['Name']}-{installed.version}.dist-info"
    return Path(str(installed.locate_file(name)))


def _write_wheel(library: Distribution, folder: Path) -> None:
    """Write the wheel of an installed library into a folder, from its installed files."""
    info = f"{library.metadata['Name']}-{library.version}.dist-info"
    record = []
    with zipfile.ZipFile(folder / _wheel_name(library), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_list_files(library, info)):
            content = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}\n")
            archive.writestr(_undated(name), content)
        rows = "".join([*record, f"{info}/RECORD,,\n"])
        archive.writestr(_undated(f"{info}/RECORD"), rows)


def _undated(name: str) -> zipfile.ZipInfo:
    """Return a member without a time: the same library makes the same bytes, and the same image."""
    member = zipfile.ZipInfo(name)  # dated 1980-01-01, the first day that a zip can name
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o644 << 16  # the mode of the file
    return member


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
