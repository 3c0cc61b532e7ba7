"""Which package of the system, or of PyPI, a library that came along belongs to."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

from packageurl import PackageURL

from torchmill.pack import licences

_RELEASE = Path("/etc/os-release")
_DEB = "${Package}\t${Version}\t${Architecture}\n"
_RPM = "%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n"
_PARTS = 3  # name, version, architecture


def of(files: Iterable[Path]) -> dict[str, str]:
    """Return the package of each file that has one, as a purl, by the file's path.

    It asks dpkg or rpm, whichever is there, and what pip noted; a file that nobody knows is left out.
    """
    every = tuple(files)
    debian = _of_debian(every)
    found = {}
    for file in every:
        package = _from_pip(file) or debian.get(file) or _from_rpm(file)
        if package is not None:
            found[str(file)] = package.to_string()
    return found


def _from_pip(file: Path) -> PackageURL | None:
    site = next((one for one in file.parents if one.name in {"site-packages", "dist-packages"}), None)
    if site is None:
        return None
    name = file.relative_to(site).as_posix()
    for one in distributions(path=[str(site)]):
        if any(path.as_posix() == name for path in one.files or ()):
            return PackageURL("pypi", name=one.metadata["Name"], version=one.version)
    return None


def _of_debian(files: Iterable[Path]) -> dict[Path, PackageURL]:
    names = {file: owner.name for file, owner in licences.of_debian(files).items()}
    shown: dict[str, PackageURL] = {}
    if names:
        said = _said("dpkg-query", "--show", f"--showformat={_DEB}", *sorted(set(names.values())))
        for line in said.splitlines():
            if package := _package("deb", line):
                shown.setdefault(package.name, package)  # of several architectures the first
    return {file: shown[name] for file, name in names.items() if name in shown}


def _from_rpm(file: Path) -> PackageURL | None:
    return _package("rpm", _said("rpm", "--query", "--queryformat", _RPM, "--file", str(file)))


def _package(kind: str, said: str) -> PackageURL | None:
    parts = said.partition("\n")[0].split("\t")
    if len(parts) != _PARTS:
        return None
    name, version, arch = parts
    return PackageURL(kind, namespace=_distro(), name=name, version=version, qualifiers={"arch": arch})


def _said(program: str, *arguments: str) -> str:
    """Return what a program prints; nothing where it is not there, or knows no answer."""
    if shutil.which(program) is None:
        return ""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _distro() -> str | None:
    """Return the ID of os-release(5): "debian", "almalinux"."""
    try:
        lines = _RELEASE.read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((line[3:].strip('"') for line in lines if line.startswith("ID=")), None)
