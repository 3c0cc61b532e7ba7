"""The packages of pip, dpkg or rpm that installed bundled libraries, and their licence files."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packageurl import PackageURL

from torchmill.wheel.pack.bundling import BundledLibrary
from torchmill.wheel.pack.staging import StagedWheel

LICENCE_FILE = re.compile(r"^licenses/|(licen[cs]e|copying|notice|copyright|eula)[^/]*$", re.IGNORECASE)
LICENCE_FOLDER = "licenses/bundled"  # below .dist-info; PEP 639 has the wheel's own in licenses/
SITE_PACKAGES = "lib/python*/site-packages"  # below a prefix with libraries of pip in lib/
_DPKG_FORMAT = "${Package}\t${Version}\t${Architecture}\n"
_RPM_FORMAT = "%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n"
_FIELD_COUNT = 3  # name, version, architecture


@dataclass(frozen=True, slots=True)
class LibraryOwner:
    """The package that installed a library, and its licence files."""

    name: str  # "libopenblas0-pthread", "mkl-2022.2.1"
    files: tuple[Path, ...]


def copy_licences(staged: StagedWheel, bundled: Iterable[BundledLibrary]) -> tuple[str, ...]:
    """Copy the licence files of bundled libraries into .dist-info, and return a note on those without one."""
    lacking = set()
    for library, owner in find_owners([library.source for library in bundled]).items():
        if owner is None or not owner.files:
            lacking.add(library.name)
            continue
        folder = staged.dist_info / LICENCE_FOLDER / owner.name
        folder.mkdir(parents=True, exist_ok=True)
        for file in owner.files:
            shutil.copyfile(file, folder / file.name)
            (folder / file.name).chmod(0o644)
    names = ", ".join(sorted(lacking))
    return (f"no licence file was found for {names}: add it before you publish",) if lacking else ()


def find_owners(libraries: Iterable[Path]) -> dict[Path, LibraryOwner | None]:
    """Return the packages of pip or Debian that installed these libraries."""
    debian = _debian_owners(libraries)
    return {path: next(_pip_owners(path), None) or debian.get(path) for path in libraries}


def _debian_owners(libraries: Iterable[Path]) -> dict[Path, LibraryOwner]:
    """Return the Debian packages of libraries, by one run of dpkg-query, which takes a while."""
    spellings = {str(path): path for path in libraries}
    # packages may record a path without the /usr that /lib became a link to
    spellings |= {name.removeprefix("/usr"): path for name, path in spellings.items()}
    owners: dict[Path, LibraryOwner] = {}
    # fails for an unknown path, and prints the others
    for line in _query("dpkg-query", "--search", *spellings).splitlines() if spellings else ():
        packages, _, path = line.rpartition(": ")
        if path in spellings and not packages.startswith(("diversion by ", "local diversion ")):
            name = packages.partition(",")[0].partition(":")[0]
            text = Path("/usr/share/doc", name, "copyright")
            owners.setdefault(spellings[path], LibraryOwner(name, (text,) if text.is_file() else ()))
    return owners


def library_purls(files: Iterable[Path]) -> dict[str, str]:
    """Return the package of each file as a purl, by path; files of no package are left out."""
    files = tuple(files)
    debian = _debian_purls(files)
    purls = {str(file): _pip_purl(file) or debian.get(file) or _rpm_purl(file) for file in files}
    return {file: purl.to_string() for file, purl in purls.items() if purl is not None}


def _pip_owners(library: Path) -> Iterator[LibraryOwner]:
    for prefix in library.parents:
        sites = [prefix] if prefix.name == "site-packages" else prefix.glob(SITE_PACKAGES)
        for site in sites:
            for record in sorted(site.glob("*.dist-info/RECORD")):
                if re.search(rf"(^|/){re.escape(library.name)},", record.read_text("utf-8"), re.MULTILINE):
                    info = record.parent
                    files = (path for path in sorted(info.rglob("*")) if path.is_file())
                    licences = (each for each in files if LICENCE_FILE.search(f"{each.parent.name}/{each.name}"))
                    yield LibraryOwner(info.name.removesuffix(".dist-info"), tuple(licences))


def _pip_purl(file: Path) -> PackageURL | None:
    site = next((each for each in file.parents if each.name in {"site-packages", "dist-packages"}), None)
    if site is None:
        return None
    name = file.relative_to(site).as_posix()
    for distribution in distributions(path=[str(site)]):
        if any(path.as_posix() == name for path in distribution.files or ()):
            return PackageURL("pypi", name=distribution.metadata["Name"], version=distribution.version)
    return None


def _debian_purls(files: Iterable[Path]) -> dict[Path, PackageURL]:
    names = {file: owner.name for file, owner in _debian_owners(files).items()}
    packages = sorted(set(names.values()))
    listing = _query("dpkg-query", "--show", f"--showformat={_DPKG_FORMAT}", *packages) if packages else ""
    purls: dict[str, PackageURL] = {}
    for line in listing.splitlines():
        if purl := _parse_purl("deb", line):
            purls.setdefault(purl.name, purl)  # of several architectures the first
    return {file: purls[name] for file, name in names.items() if name in purls}


def _rpm_purl(file: Path) -> PackageURL | None:
    return _parse_purl("rpm", _query("rpm", "--query", "--queryformat", _RPM_FORMAT, "--file", str(file)))


def _parse_purl(kind: str, output: str) -> PackageURL | None:
    """Return the purl of the first line, in one of the formats above; None where it is another line."""
    fields = output.partition("\n")[0].split("\t")
    if len(fields) != _FIELD_COUNT:
        return None
    name, version, arch = fields
    distro: str | None = None
    with contextlib.suppress(OSError):
        distro = platform.freedesktop_os_release()["ID"]  # "debian", "almalinux"
    return PackageURL(kind, namespace=distro, name=name, version=version, qualifiers={"arch": arch})


def _query(program: str, *arguments: str) -> str:
    """Return what a program prints in English; "" where it is missing."""
    if shutil.which(program) is None:
        return ""
    english = {**os.environ, "LC_ALL": "C"}
    return subprocess.run([program, *arguments], env=english, capture_output=True, text=True, check=False).stdout
