"""Find the packages that installed libraries, and copy their licence files into a wheel.

A wheel that bundles a library of somebody else has to come with its licence. The library's owner is
the package of pip, Debian or RPM that installed it on this machine. A purl (package URL) names a
package in the wheel's list of components, its SBOM: "pkg:deb/debian/zlib1g@1.2.13".
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from packageurl import PackageURL

from millpress.atomic_files import write_atomically
from millpress.staging import StagedWheel
from millpress.tables import read_table

# Paths below .dist-info; PEP 639 keeps subfolders in licenses/.
LICENCE_FILE = re.compile(
    r"^licenses/|(licen[cs]e|copying|notice|copyright|eula)[^/]*$", re.IGNORECASE
)
# At the top of a repository, source files may have such names, too: "copyright.py".
_TOP_FILE = re.compile(
    r"(un)?(licen[cs]e|copying|notice|copyright)(?!.*\.(py|sh|cc?|[ch]pp|h|in)$)", re.IGNORECASE
)
LICENCE_FOLDER = "licenses/bundled"  # below .dist-info; PEP 639 has the wheel's own in licenses/
# Folders of packages below a prefix whose lib/ has libraries that pip installed. RPM systems have
# lib64/, and Debian's own Python has dist-packages.
SITE_PACKAGES = (
    "lib/python*/site-packages",
    "lib64/python*/site-packages",
    "lib/python*/dist-packages",
)
_DPKG_FORMAT = "${Package}\t${Version}\t${Architecture}\n"
_RPM_FORMAT = "%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n"
_FIELD_COUNT = 3  # of both formats: name, version, architecture
_TEXTS = read_table("licences.toml")


@dataclass(frozen=True, slots=True)
class LicensedComponent:
    """A submodule, or the package that installed a library; with its licence files."""

    name: str  # "libopenblas0-pthread", "mkl-2022.2.1", "third_party/fmt"
    files: tuple[Path, ...]
    purl: PackageURL | None = field(default=None, compare=False)


class CopiedLicences(NamedTuple):
    """The licences that were copied into a wheel."""

    # By reference, for each component with licence files: "licence" (an SPDX identifier, "" if it
    # is not certain) and "files" (paths below .dist-info).
    licences: dict[str, dict[str, Any]]
    notes: tuple[str, ...]  # for the user; one names the libraries without a licence file


def copy_licences(
    staged: StagedWheel, components: Mapping[str, LicensedComponent | None]
) -> CopiedLicences:
    """Copy the licence files of components into .dist-info.

    The keys of `components` are the references by which an SBOM names them: "bundled
    library:spam.libs/libz-0a1b2c3d.so.1", "submodule:third_party/fmt". A component is None if
    nothing is known of it.
    """
    licences = {}
    unlicensed = []
    for reference, component in components.items():
        if component is None or not component.files:
            if "library:" in reference:
                unlicensed.append(re.split("[:/]", reference)[-1])
            continue
        copies = _distinct_names(component.files)
        for name, file in copies.items():
            copy = staged.dist_info / LICENCE_FOLDER / component.name / name
            write_atomically(copy, file.read_bytes(), 0o644)
        files = [f"{LICENCE_FOLDER}/{component.name}/{name}" for name in sorted(copies)]
        licences[reference] = {"licence": identify_licence(component.files), "files": files}
    notes = []
    if unlicensed:
        names = ", ".join(sorted(unlicensed))
        notes.append(f"no licence file was found for {names}: add it before you publish")
    return CopiedLicences(licences, tuple(notes))


def _distinct_names(files: Collection[Path]) -> dict[str, Path]:
    """Return the files, each by a name of its own.

    Files with the same name are named by their path below the common folder: "fmt-LICENSE" for
    fmt/LICENSE. If even that name is taken, a number is appended.
    """
    common_folder = os.path.commonpath([file.parent for file in files])
    counts = Counter(file.name for file in files)
    names = {}
    for file in files:
        name = file.name
        if counts[name] > 1:
            name = "-".join(file.relative_to(common_folder).parts)
        distinct_name = name
        number = 1
        while distinct_name in names:
            number += 1
            distinct_name = f"{name}-{number}"
        names[distinct_name] = file
    return names


def find_submodule(source: Path, path: str) -> LicensedComponent:
    """Return a submodule of a source, with the licence files at its top."""
    folder = source / path
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    files = tuple(file for file in paths if _TOP_FILE.match(file.name) and file.is_file())
    return LicensedComponent(path, files)


def identify_licence(files: Iterable[Path]) -> str:
    """Return the SPDX identifier of a licence, if the text in all of these files is that licence.

    Returns "" if that is not certain: the files have different licences, a text may be of two
    licences or is of an unknown one, or it says more than its licence does.
    """
    identifiers = set()
    for file in files:
        if file.name.lower().startswith("notice"):  # it names authors beside the licence's text
            continue
        text = file.read_text("utf-8", "replace")
        normalized = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
        matches = [name for name, rule in _TEXTS.items() if _is_licence(normalized, **rule)]
        if len(matches) != 1:
            return ""
        identifiers.add(matches[0])
    if len(identifiers) != 1:
        return ""
    return identifiers.pop()


def _is_licence(normalized: str, says: list[str], most: int, lacks: Collection[str] = ()) -> bool:
    """Tell whether a text is that of a licence in licences.toml, whose keys are the arguments.

    `normalized` is the text in lower case, without punctuation. It must have all the phrases
    `says`, the first of them once, none of the phrases `lacks`, and at most `most` words: a text
    with the first phrase twice may be of two licences, and a longer text says more than the licence
    does.
    """
    if normalized.count(says[0]) != 1 or normalized.count(" ") >= most:
        return False
    has_all = all(phrase in normalized for phrase in says)
    has_other = any(phrase in normalized for phrase in lacks)
    return has_all and not has_other


def find_owners(libraries: Iterable[Path]) -> dict[Path, LicensedComponent | None]:
    """Return the packages of pip, Debian or RPM that installed these libraries; None if unknown.

    dpkg-query runs twice for all libraries together, rpm once for each library that no other
    package manager knows.
    """
    paths = tuple(libraries)
    debian_owners = _debian_owners(paths)
    owners = {}
    for path in paths:
        owner = _pip_owner(path)
        if owner is None:
            owner = debian_owners.get(path)
        if owner is None:
            owner = _rpm_owner(path)
        owners[path] = owner
    return owners


def _pip_owner(library: Path) -> LicensedComponent | None:
    """Return the package of pip whose RECORD names a library, with its licence files."""
    for site in _sites(library):
        path = Path(os.path.relpath(library, site)).as_posix()
        row = re.compile(rf"^{re.escape(path)},", re.MULTILINE)
        for record in sorted(site.glob("*.dist-info/RECORD")):
            if row.search(_read_text(record)):
                return _pip_component(record.parent)
    return None


def _sites(library: Path) -> Iterator[Path]:
    """Yield each site-packages whose packages may have installed a library.

    These are the one that contains the library, and those of each prefix (/usr, or a virtual
    environment) that contains it: packages may install libraries into the prefix's lib/.
    """
    for prefix in library.parents:
        if prefix.name in {"site-packages", "dist-packages"}:
            yield prefix
        else:
            for pattern in SITE_PACKAGES:
                yield from prefix.glob(pattern)


def _pip_component(dist_info: Path) -> LicensedComponent:
    """Return the package of a .dist-info folder, with its licence files."""
    files = [
        path
        for path in sorted(dist_info.rglob("*"))
        if path.is_file() and LICENCE_FILE.search(path.relative_to(dist_info).as_posix())
    ]
    name, _, version = dist_info.name.removesuffix(".dist-info").partition("-")
    purl = PackageURL("pypi", None, name, version)
    return LicensedComponent(f"{name}-{version}", tuple(files), purl)


def _read_text(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read, such as another user's."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _debian_owners(libraries: Collection[Path]) -> dict[Path, LicensedComponent]:
    """Return the Debian packages of libraries, with two runs of dpkg-query; each takes a while."""
    if not libraries:
        return {}
    # /lib became a link to /usr/lib, and packages may still record a path without /usr
    spellings = {str(path).removeprefix("/usr"): path for path in libraries}
    spellings |= {str(path): path for path in libraries}
    names: dict[Path, str] = {}
    # it fails because of an unknown path, and prints the owners of the others all the same
    for line in _run_query("dpkg-query", "--search", *spellings).splitlines():
        packages, _, spelling = line.rpartition(": ")
        # a diversion says which package moved another one's file, not which package has it
        if spelling not in spellings or packages.startswith(("diversion by ", "local diversion ")):
            continue
        package = packages.partition(",")[0].partition(":")[0]  # "libc6:amd64, libc6:i386"
        names.setdefault(spellings[spelling], package)
    if not names:
        return {}
    purls: dict[str, PackageURL] = {}
    package_names = sorted(set(names.values()))
    listing = _run_query(
        "dpkg-query", "--show", f"--showformat={_DPKG_FORMAT}", *package_names
    ).splitlines()
    for line in listing:
        purl = _parse_purl("deb", line)
        if purl is not None:
            purls.setdefault(purl.name, purl)  # of several architectures the first
    owners = {}
    for path, name in names.items():
        copyright_file = Path("/usr/share/doc", name, "copyright")
        files = (copyright_file,) if copyright_file.is_file() else ()
        owners[path] = LicensedComponent(name, files, purls.get(name))
    return owners


def _rpm_owner(library: Path) -> LicensedComponent | None:
    """Return the RPM package of a library; its licence files are not searched for."""
    output = _run_query("rpm", "--query", "--queryformat", _RPM_FORMAT, "--file", str(library))
    purl = _parse_purl("rpm", output)
    return LicensedComponent(purl.name, (), purl) if purl else None


def _parse_purl(kind: str, output: str) -> PackageURL | None:
    """Return the purl of the package in the first line of `output`; None if the line has none.

    The line has the name, version and architecture, as _DPKG_FORMAT and _RPM_FORMAT ask for.
    """
    fields = output.partition("\n")[0].split("\t")
    if len(fields) != _FIELD_COUNT:
        return None
    name, version, arch = fields
    distribution: str | None = None
    with contextlib.suppress(OSError):
        distribution = platform.freedesktop_os_release()["ID"]  # "debian", "almalinux"
    return PackageURL(
        kind, namespace=distribution, name=name, version=version, qualifiers={"arch": arch}
    )


def _run_query(program: str, *arguments: str) -> str:
    """Return what a program prints in English, whatever its exit code is; "" if it is missing."""
    if shutil.which(program) is None:
        return ""
    english = {**os.environ, "LC_ALL": "C"}  # dpkg translates "diversion by"
    argv = [program, *arguments]
    done = subprocess.run(argv, env=english, capture_output=True, text=True, check=False)
    return done.stdout
