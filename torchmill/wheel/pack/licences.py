"""Which package of the system, or of PyPI, a library that came along belongs to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packageurl import PackageURL

from torchmill.wheel.pack.bundling import BundledLibrary
from torchmill.wheel.pack.staging import StagedWheel

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|eula)", re.IGNORECASE)
LICENCE_FOLDER = "licenses/bundled"  # below .dist-info; PEP 639 has the wheel's own in licenses/
SITE_PACKAGES = (
    "lib/python*/site-packages"  # below a prefix, of which lib/ holds libraries that pip installed
)


@dataclass(frozen=True, slots=True)
class LibraryOwner:
    """The package that installed a library, and its licence files."""

    name: str  # "libopenblas0-pthread", "mkl-2022.2.1"
    files: tuple[Path, ...]


def copy_licences(
    staged: StagedWheel, bundled: Iterable[BundledLibrary], owner: Callable[[Path], LibraryOwner | None]
) -> tuple[str, ...]:
    """Copy the licence files of what came along into .dist-info, and return a note on what has none.

    `owner` finds the package of a library: see `owner_of`.
    """
    lacking = []
    for one in bundled:
        found = owner(one.source)
        if found is None or not found.files:
            lacking.append(one.source.name)
            continue
        folder = staged.dist_info / LICENCE_FOLDER / found.name
        folder.mkdir(parents=True, exist_ok=True)
        for file in found.files:
            shutil.copyfile(file, folder / file.name)
            (folder / file.name).chmod(0o644)
    if not lacking:
        return ()
    return (f"no licence file was found for {', '.join(sorted(set(lacking)))}: see to it before you publish",)


def find_owner(library: Path) -> LibraryOwner | None:
    """Return who installed a library of this machine: pip, or Debian; None where nobody knows."""
    return owner_finder([library])(library)


def owner_finder(libraries: Iterable[Path]) -> Callable[[Path], LibraryOwner | None]:
    """Return `owner_of` for these libraries; Debian, which takes a while, is asked once for all of them."""
    debian = debian_owners(libraries)
    return lambda library: next(_pip_owners(library), None) or debian.get(library)


def _pip_owners(library: Path) -> Iterator[LibraryOwner]:
    for prefix in library.parents:
        sites = [prefix] if prefix.name == "site-packages" else prefix.glob(SITE_PACKAGES)
        for site in sites:
            for record in sorted(site.glob("*.dist-info/RECORD")):
                if re.search(rf"(^|/){re.escape(library.name)},", record.read_text("utf-8"), re.MULTILINE):
                    info = record.parent
                    files = (path for path in sorted(info.rglob("*")) if path.is_file())
                    yield LibraryOwner(
                        info.name.removesuffix(".dist-info"), tuple(filter(_is_licence, files))
                    )


def _is_licence(path: Path) -> bool:
    return LICENCE_FILE.search(path.name) is not None or path.parent.name == "licenses"


def debian_owners(libraries: Iterable[Path]) -> dict[Path, LibraryOwner]:
    """Return the packages of dpkg's that libraries belong to; the answer to one question takes a while."""
    spelled = {str(path): library for library in libraries for path in _path_spellings(library)}
    if not spelled or shutil.which("dpkg-query") is None:
        return {}
    command = ["dpkg-query", "--search", *spelled]  # fails where a path is not known, and tells of the others
    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False
    )
    found: dict[Path, LibraryOwner] = {}
    for line in done.stdout.splitlines():
        packages, _, path = line.rpartition(": ")
        if path in spelled and not packages.startswith(("diversion by ", "local diversion ")):
            found.setdefault(spelled[path], _debian_owner(packages.partition(",")[0].partition(":")[0]))
    return found


def _debian_owner(name: str) -> LibraryOwner:
    copyright_ = Path("/usr/share/doc", name, "copyright")
    return LibraryOwner(name, (copyright_,) if copyright_.is_file() else ())


def _path_spellings(library: Path) -> Iterator[Path]:
    """Yield a path as packages may record it: with /usr, and as before /lib became a link to it."""
    yield library
    if library.is_relative_to("/usr"):
        yield Path("/") / library.relative_to("/usr")


_OS_RELEASE = Path("/etc/os-release")
_DPKG_FORMAT = "${Package}\t${Version}\t${Architecture}\n"
_RPM_FORMAT = "%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n"
_FIELD_COUNT = 3  # name, version, architecture


def library_purls(files: Iterable[Path]) -> dict[str, str]:
    """Return the package of each file that has one, as a purl, by the file's path.

    It asks dpkg or rpm, whichever is there, and what pip noted; a file that nobody knows is left out.
    """
    every = tuple(files)
    debian = _debian_purls(every)
    found = {}
    for file in every:
        package = _pip_purl(file) or debian.get(file) or _rpm_purl(file)
        if package is not None:
            found[str(file)] = package.to_string()
    return found


def _pip_purl(file: Path) -> PackageURL | None:
    site = next((one for one in file.parents if one.name in {"site-packages", "dist-packages"}), None)
    if site is None:
        return None
    name = file.relative_to(site).as_posix()
    for one in distributions(path=[str(site)]):
        if any(path.as_posix() == name for path in one.files or ()):
            return PackageURL("pypi", name=one.metadata["Name"], version=one.version)
    return None


def _debian_purls(files: Iterable[Path]) -> dict[Path, PackageURL]:
    names = {file: owner.name for file, owner in debian_owners(files).items()}
    shown: dict[str, PackageURL] = {}
    if names:
        said = _query("dpkg-query", "--show", f"--showformat={_DPKG_FORMAT}", *sorted(set(names.values())))
        for line in said.splitlines():
            if package := _parse_purl("deb", line):
                shown.setdefault(package.name, package)  # of several architectures the first
    return {file: shown[name] for file, name in names.items() if name in shown}


def _rpm_purl(file: Path) -> PackageURL | None:
    return _parse_purl("rpm", _query("rpm", "--query", "--queryformat", _RPM_FORMAT, "--file", str(file)))


def _parse_purl(kind: str, said: str) -> PackageURL | None:
    parts = said.partition("\n")[0].split("\t")
    if len(parts) != _FIELD_COUNT:
        return None
    name, version, arch = parts
    return PackageURL(kind, namespace=_distro(), name=name, version=version, qualifiers={"arch": arch})


def _query(program: str, *arguments: str) -> str:
    """Return what a program prints; nothing where it is not there, or knows no answer."""
    if shutil.which(program) is None:
        return ""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _distro() -> str | None:
    """Return the ID of os-release(5): "debian", "almalinux"."""
    try:
        lines = _OS_RELEASE.read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((line[3:].strip('"') for line in lines if line.startswith("ID=")), None)
