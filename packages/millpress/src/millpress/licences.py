"""Find the packages that installed libraries, and copy their licence files into a wheel."""

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
from typing import Any

from packageurl import PackageURL

from millpress.atomic_files import write_atomically
from millpress.staging import StagedWheel
from millpress.tables import read_table

LICENCE_FILE = re.compile(
    r"^licenses/|(licen[cs]e|copying|notice|copyright|eula)[^/]*$", re.IGNORECASE
)
# at the top of a repository, where a program may be called so, too
_TOP_FILE = re.compile(
    r"(un)?(licen[cs]e|copying|notice|copyright)(?!.*\.(py|sh|cc?|[ch]pp|h|in)$)", re.IGNORECASE
)
LICENCE_FOLDER = "licenses/bundled"  # below .dist-info; PEP 639 has the wheel's own in licenses/
SITE_PACKAGES = "lib/python*/site-packages"  # below a prefix with libraries of pip in lib/
_DPKG_FORMAT = "${Package}\t${Version}\t${Architecture}\n"
_RPM_FORMAT = "%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n"
_FIELD_COUNT = 3  # name, version, architecture
_TEXTS = read_table("licences.toml")


@dataclass(frozen=True, slots=True)
class LicenceHolder:
    """A package that installed a library, or a submodule, with its licence files."""

    name: str  # "libopenblas0-pthread", "mkl-2022.2.1", "third_party/fmt"
    files: tuple[Path, ...]
    purl: PackageURL | None = field(default=None, compare=False)


def copy_licences(
    staged: StagedWheel, holders: Mapping[str, LicenceHolder | None]
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Copy licence files into .dist-info, of holders by the SBOM's references to what is theirs.

    Return for each its `licence` ("" where it is not known) and `files` below .dist-info, and a note on libraries
    without any.
    """
    there = {reference: holder for reference, holder in holders.items() if holder and holder.files}
    named = sorted(
        re.split("[:/]", one)[-1] for one in holders.keys() - there.keys() if "library:" in one
    )
    told = {}
    for reference, holder in there.items():
        copies = _distinct_names(holder.files)
        for name, file in copies.items():
            write_atomically(
                staged.dist_info / LICENCE_FOLDER / holder.name / name, file.read_bytes(), 0o644
            )
        files = [f"{LICENCE_FOLDER}/{holder.name}/{name}" for name in sorted(copies)]
        told[reference] = {"licence": identify_licence(holder.files), "files": files}
    return told, (
        f"no licence file was found for {', '.join(named)}: add it before you publish",
    ) if named else ()


def _distinct_names(files: Collection[Path]) -> dict[str, Path]:
    """Return files by their names, those of one name by their paths below the folder that holds all."""
    common, count = (
        os.path.commonpath([file.parent for file in files]),
        Counter(file.name for file in files),
    )
    return {
        file.name if count[file.name] == 1 else "-".join(file.relative_to(common).parts): file
        for file in files
    }


def find_submodule(source: Path, path: str) -> LicenceHolder:
    """Return a submodule of a source, with the licence files at its top."""
    folder = source / path
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    return LicenceHolder(
        path, tuple(file for file in there if _TOP_FILE.match(file.name) and file.is_file())
    )


def identify_licence(files: Iterable[Path]) -> str:
    """Return the SPDX identifier of the one licence that some files are the text of; "" where that is not certain."""
    found = set()
    for file in (one for one in files if not one.name.lower().startswith("notice")):
        words = " ".join(re.findall(r"[a-z0-9]+", file.read_text("utf-8", "replace").lower()))
        found.add(" or ".join(name for name, text in _TEXTS.items() if _is_licence(words, **text)))
    return found.pop() if len(found) == 1 and " or " not in min(found) else ""


def _is_licence(words: str, says: list[str], most: int, lacks: Collection[str] = ()) -> bool:
    """Tell whether a text is that of a licence; one that grants twice may be of two of them."""
    fits = words.count(says[0]) == 1 and words.count(" ") < most
    return fits and all(one in words for one in says) and not any(one in words for one in lacks)


def find_owners(libraries: Iterable[Path]) -> dict[Path, LicenceHolder | None]:
    """Return the packages of pip, Debian or RPM that installed these libraries."""
    libraries = tuple(libraries)
    debian = _debian_owners(libraries)
    return {
        path: next(_pip_owners(path), None) or debian.get(path) or _rpm_owner(path)
        for path in libraries
    }


def _pip_owners(library: Path) -> Iterator[LicenceHolder]:
    for prefix in library.parents:
        sites = (
            [prefix]
            if prefix.name in {"site-packages", "dist-packages"}
            else prefix.glob(SITE_PACKAGES)
        )
        for site in sites:
            row = re.compile(
                rf"^{re.escape(Path(os.path.relpath(library, site)).as_posix())},", re.MULTILINE
            )
            for record in sorted(site.glob("*.dist-info/RECORD")):
                if row.search(_read_text(record)):
                    info = record.parent
                    files = (path for path in sorted(info.rglob("*")) if path.is_file())
                    licences = (
                        each
                        for each in files
                        if LICENCE_FILE.search(f"{each.parent.name}/{each.name}")
                    )
                    name, _, version = info.name.removesuffix(".dist-info").partition("-")
                    yield LicenceHolder(
                        f"{name}-{version}",
                        tuple(licences),
                        PackageURL("pypi", None, name, version),
                    )


def _read_text(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read, such as another user's."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _debian_owners(libraries: Iterable[Path]) -> dict[Path, LicenceHolder]:
    """Return the Debian packages of libraries, by two runs of dpkg-query, which take a while."""
    spellings = {str(path): path for path in libraries}
    # packages may record a path without the /usr that /lib became a link to
    spellings |= {name.removeprefix("/usr"): path for name, path in spellings.items()}
    names: dict[Path, str] = {}
    # fails for an unknown path, and prints the others
    for line in _query("dpkg-query", "--search", *spellings).splitlines() if spellings else ():
        packages, _, path = line.rpartition(": ")
        if path in spellings and not packages.startswith(("diversion by ", "local diversion ")):
            names.setdefault(spellings[path], packages.partition(",")[0].partition(":")[0])
    texts = {
        name: Path("/usr/share/doc", name, "copyright") for name in sorted(set(names.values()))
    }
    listing = (
        _query("dpkg-query", "--show", f"--showformat={_DPKG_FORMAT}", *texts) if texts else ""
    )
    found = filter(None, (_parse_purl("deb", line) for line in reversed(listing.splitlines())))
    purls = {purl.name: purl for purl in found}  # of several architectures the first
    return {
        path: LicenceHolder(name, (texts[name],) if texts[name].is_file() else (), purls.get(name))
        for path, name in names.items()
    }


def _rpm_owner(library: Path) -> LicenceHolder | None:
    purl = _parse_purl(
        "rpm", _query("rpm", "--query", "--queryformat", _RPM_FORMAT, "--file", str(library))
    )
    return LicenceHolder(purl.name, (), purl) if purl else None


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
    return subprocess.run(
        [program, *arguments], env=english, capture_output=True, text=True, check=False
    ).stdout
