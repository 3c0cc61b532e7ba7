"""Repair a staged wheel: bundle the libraries that its tag does not promise, with their licences; mend run paths.

On macOS delocate does this (see `macos`). On Windows libraries lie beside the files that need them.
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
from typing import Any

from packageurl import PackageURL

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import VerifyError
from torchmill.core.lenient_paths import read_text
from torchmill.core.package_data import read_table_beside
from torchmill.core.units import first_problems
from torchmill.wheel.pack import bundling, elf, elf_edit, macos, metadata
from torchmill.wheel.pack.bundling import (
    BundledLibrary,
    Graft,
    LibrarySearch,
    PlainLinuxTarget,
    PlatformTarget,
)
from torchmill.wheel.pack.elf import ElfInfo
from torchmill.wheel.pack.elf_edit import ElfEdit
from torchmill.wheel.pack.staging import StagedWheel

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
_TEXTS = read_table_beside(__file__, "licences.toml")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What repair changed, for the manifest and the log."""

    bundled: tuple[BundledLibrary, ...] = ()
    lowest_tag: str | None = (
        None  # the oldest platform tag that holds; None for tags that are not judged
    )
    notes: tuple[str, ...] = ()


def repair_wheel(
    staged: StagedWheel,
    platform_tag: str,
    *,
    folders: Iterable[Path] = (),
    provided: frozenset[str] = frozenset(),
    installed_nvidia: Mapping[str, str] | None = None,
) -> RepairResult:
    """Bundle every library that `platform_tag` does not promise, and set the run paths.

    The plain linux tag is for systems like this one: what this system's loader finds by default is not bundled. Nor are
    libraries of NVIDIA in packages that the wheel requires: run paths lead to them. `folders` are searched for
    libraries before the system's own. `provided` names the libraries of the package that this one imports first, and
    `installed_nvidia` libraries of NVIDIA and their folders in site-packages (see `bundling.installed_nvidia_folders`):
    neither are bundled. Raises VerifyError where a library is nowhere, or a need is newer than the tag.
    """
    if platform_tag.startswith("win"):
        return RepairResult(
            notes=("Windows: libraries are beside the files that use them, nothing to repair",)
        )
    if platform_tag.startswith("macosx"):
        return RepairResult(macos.delocate_wheel(staged, platform_tag, provided))
    search = bundling.system_search(folders)
    arch = platform_tag.removeprefix(bundling.PLAIN_LINUX_PREFIX)
    target = (
        PlainLinuxTarget(arch, search)
        if arch != platform_tag
        else bundling.platform_target(platform_tag)
    )
    graft = _start_graft(staged, target, search, provided, installed_nvidia or {})
    bundling.bundle_libraries(graft)
    names = {library.name for library in graft.bundled.values()}
    for path, info in graft.files.items():
        edit = _needed_edit(graft, path, info, names)
        if edit != ElfEdit():
            elf_edit.edit_file(edit, path)
    lowest = None if isinstance(target, PlainLinuxTarget) else _judge_tag(graft, target)
    bundled = tuple(sorted(graft.bundled.values(), key=lambda library: library.name))
    return RepairResult(bundled, lowest, tuple(graft.notes))


def _start_graft(
    staged: StagedWheel,
    target: PlatformTarget | PlainLinuxTarget,
    search: LibrarySearch,
    provided: frozenset[str],
    installed_nvidia: Mapping[str, str],
) -> Graft:
    # what installers move elsewhere (scripts, headers) has no fixed path to the package's libraries
    moved = tuple(f"{folder}/" for folder in staged.root.glob("*.data"))
    binaries = elf.dynamic_files(staged.root)
    files = {path: info for path, info in binaries.items() if not str(path).startswith(moved)}
    for path, info in files.items():
        if not info.runs_on(target.arch):
            raise VerifyError(
                f"{path.relative_to(staged.root)} is built for {info.machine}, not for {target.arch}: "
                "clear the build tree and build again",
                code="wrong-machine",
            )
    return Graft(
        staged=staged,
        target=target,
        search=search,
        provided=provided,
        required_nvidia=bundling.required_nvidia_folders(metadata.wheel_requirements(staged)),
        installed_nvidia=installed_nvidia,
        folder=staged.root / f"{staged.package}.libs" if provided else staged.libraries,
        files=files,
        own=frozenset(path.name for path in files),
    )


def _needed_edit(graft: Graft, path: Path, info: ElfInfo, bundled: set[str]) -> ElfEdit:
    replaced = graft.replaced.get(path, {})
    needed = [replaced.get(name, name) for name in info.needed]
    is_bundled = path.name in bundled and path.parent == graft.folder
    required, installed = (
        {folder for name in needed if (folder := bundling.nvidia_folder(folders, name))}
        for folders in (graft.required_nvidia, graft.installed_nvidia)
    )
    looks_inside = bool(
        is_bundled or required or installed or (graft.own | bundled).intersection(needed)
    )
    folders = {file.parent for file in graft.files}
    libraries = [each for each in (graft.staged.libraries, graft.folder) if each in folders]
    # what libraries of a required package open by name may be in any of the other packages
    nvidia = {*graft.required_nvidia.values(), *installed}
    libraries += [graft.staged.root / folder for folder in sorted(nvidia)]
    rpath = elf_edit.run_path(path, info.rpath, looks_inside, graft.staged.root, libraries)
    return ElfEdit(
        replaced=tuple(sorted(replaced.items())),
        dropped=tuple(
            name for name in info.needed if bundling.INTERPRETER_LIBRARY.fullmatch(Path(name).name)
        ),
        soname=path.name if is_bundled and info.soname != path.name else None,
        rpath=None if rpath == info.rpath else rpath,
    )


def _judge_tag(graft: Graft, target: PlatformTarget) -> str:
    """Return the oldest tag that holds. Raises VerifyError where the target's own does not."""
    files = elf.dynamic_files(
        graft.staged.root
    )  # as edited, and those that installers move elsewhere
    needs = list(bundling.system_needs(graft.staged.root, files, target, graft.own))
    oldest = bundling.oldest_target(target, needs)
    if problems := bundling.policy_problems(target, needs):
        meets = f"the files as compiled meet {oldest.tag}: " if oldest else ""
        raise VerifyError(
            f"{first_problems(problems)}: {meets}build on a system as old as {target.tag}, with its "
            "own libstdc++, or with `--plat auto`, which takes the tag that holds",
            code="newer-than-tag",
        )
    return oldest.tag if oldest is not None and oldest.version < target.version else target.tag


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
                if row.search(read_text(record)):
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
