"""The files of a source tree: how they look, what they contain, and whether they can be built."""

import contextlib
import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from torchmill.core.digests import hash_file
from torchmill.core.errors import SourceError

_EXECUTABLE = 0o111
# Files at the top of a tree that state its version.
_VERSION_FILES = {
    "version.txt": re.compile(r"\A\s*(\S+)\s*\Z"),
    "PKG-INFO": re.compile(r"^Version: *(\S+)$", re.MULTILINE),
}


@dataclass(frozen=True, slots=True)
class TreeFingerprint:
    """A summary of a tree that shows that somebody has changed it, without reading its files."""

    files: int
    newest: int  # nanoseconds, the latest time of a file
    size: int  # bytes of all files


# Below, os.scandir and os.path are used and not pathlib, because a source has tens of thousands of
# files.


def walk_tree(tree: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files and links of a tree, in no order; git's own files are left out."""
    folders = [str(tree)]
    while folders:
        # A folder may be deleted while the tree is read.
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name == ".git":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry


def take_fingerprint(tree: Path) -> TreeFingerprint:
    """Return the fingerprint of a tree; git's own files are left out.

    A file that is deleted while the tree is read does not count. A tree that is missing has no
    files.
    """
    files = 0
    newest = 0
    size = 0
    for entry in walk_tree(tree):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        files += 1
        newest = max(newest, status.st_mtime_ns)
        size += status.st_size
    return TreeFingerprint(files, newest, size)


def digest_contents(tree: Path) -> str:
    """Return a sha256 of the names, modes and contents of a tree; git's own files are left out.

    For each file, by path: the path, a zero byte, the bits of its mode that make it executable in
    octal, a zero byte, and the digest of its content. The content of a link is its target. A file
    that is deleted while the tree is read does not count.
    """
    # A link and an executable file with the link's target as its text have the same digest. That is
    # harmless, and another format would make all recorded sources look changed.
    digest = hashlib.sha256()
    for path in sorted(entry.path for entry in walk_tree(tree)):
        try:
            mode = os.lstat(path).st_mode & _EXECUTABLE
            if os.path.islink(path):  # noqa: PTH114
                target = os.fsencode(os.readlink(path))  # noqa: PTH115
                content = hashlib.sha256(target).digest()
            else:
                content = bytes.fromhex(hash_file(path))
        except FileNotFoundError:
            continue
        name = os.fsencode(os.path.relpath(path, tree))
        mode_field = b"\0%o\0" % mode
        digest.update(name + mode_field + content)
    return digest.hexdigest()


def remove_repositories(tree: Path) -> None:
    """Remove git's folders and files from a tree that was unpacked from an archive.

    A build would ask git for the commit, and whoever made the archive may have put anything there.
    """
    for folder, subfolders, files in os.walk(tree):
        git = Path(folder, ".git")
        if ".git" in subfolders:
            subfolders.remove(".git")  # so that os.walk does not descend into it
        # os.walk lists a link to a folder among the subfolders. shutil.rmtree refuses links.
        if git.is_symlink() or ".git" in files:
            git.unlink()
        elif git.is_dir():
            shutil.rmtree(git)


def read_build_backend(tree: Path) -> str | None:
    """Return the backend of [build-system] in a tree's pyproject.toml; None if it names none.

    Raises SourceError if the file is not valid TOML.
    """
    file = tree / "pyproject.toml"
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        backend = document.get("build-system", {}).get("build-backend")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, AttributeError) as error:
        # An AttributeError is raised if build-system is not a table, a ValueError also for text
        # that is not UTF-8, and for a number of thousands of digits.
        raise SourceError(
            f"{file} cannot be read ({error}): fetch the source from somewhere else",
            code="unreadable-pyproject",
        ) from None
    return None if backend is None else str(backend)


def version_clause(tree: Path, version: str) -> str:
    """Return a clause on the version that a tree's own file states, if it is not `version`; else "".

    The file is version.txt, which torch and its companions have, or PKG-INFO, which source archives
    have. A pre-release of the version, such as the "2.4.1a0" in version.txt, is no other one.
    """
    for name, pattern in _VERSION_FILES.items():
        try:
            match = pattern.search((tree / name).read_text(encoding="utf-8"))
            stated = Version(match[1]) if match else None
        except (OSError, ValueError):  # also text that is not UTF-8, and no version
            continue
        if stated is None:
            continue
        # Trailing zeros make no other version.
        stated_release, release = (
            Version(".".join(map(str, parsed.release))) for parsed in (stated, Version(version))
        )
        return "" if stated_release == release else f"its {name} says {stated}, not {version}"
    return ""


def require_python_project(tree: Path, origin: str) -> None:
    """Raise SourceError if a tree, which comes from `origin`, is not the source of a package."""
    if any((tree / name).is_file() for name in ("setup.py", "pyproject.toml")):
        return
    hint = ""
    if (tree / "HEAD").is_file():
        hint = "; for a bare git repository use --mirror"
    raise SourceError(
        f"{origin} has neither setup.py nor pyproject.toml: give the top folder of a source, or an "
        f"archive of it{hint}",
        code="no-python-project",
    )
