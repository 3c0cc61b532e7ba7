"""Prove that the files of a folder are those of a git commit, without believing anything that can be told to lie.

The index (assume-unchanged, skip-worktree, dates), replaced objects, grafts, filters and attributes are not asked.
The id of a commit is the digest of its text, which has the id of its tree; the id of a tree is the digest of its
entries, which have the ids of files; the id of a file is the digest of its contents
(https://git-scm.com/book/en/v2/Git-Internals-Git-Objects). Commit and trees are read from a repository, their ids are
computed anew, and the ids of files are computed from the disk. No file is read from the repository.
"""

import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchmill.core.errors import HostError, SourceError
from torchmill.core.files import read_text
from torchmill.fetch.source.git_command import git_environment, git_folder, is_commit

_READ_BYTES = 1 << 20
_THREADS = min(8, os.cpu_count() or 1)  # a digest is computed while other threads read
_BATCH_FILES = 256
_EXECUTABLE, _REGULAR, _LINK, _SUBMODULE, _FOLDER = 0o100755, 0o100644, 0o120000, 0o160000, 0o040000
_TREE_ENTRY = re.compile(rb"([0-7]{1,6}) ([^\0]+)\0(.{20})", re.DOTALL)
_COMMIT_TREE = re.compile(rb"tree ([0-9a-f]{40})\n")
_SUBMODULE_PATH = re.compile(r'^[ \t]*path[ \t]*=[ \t]*"?([^"\n]*?)"?[ \t]*\r?$', re.MULTILINE)
RepositoryOf = Callable[
    [str], Path | None
]  # the git folder of a submodule, by its path; "" for the folder itself


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not as the commit has it."""

    path: str
    what: str  # a clause without subject: "is not in the commit"
    line_ends: bool = False  # it has CRLF where the commit has LF, and is the same otherwise
    extra: bool = False  # it is not in the commit

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


@dataclass(frozen=True, slots=True)
class CommitContents:
    """What a commit holds, by path below the top of its repository."""

    files: dict[bytes, tuple[int, str]] = field(default_factory=dict)  # mode and id
    submodules: dict[bytes, str] = field(default_factory=dict)  # commit


class _ForgedObjectError(Exception):
    """An object of a repository is missing, or is not what its id says."""


def find_differences(
    tree: Path,
    commit: str,
    repository_of: RepositoryOf,
    submodules: Mapping[str, str] | None = None,
) -> Iterator[Difference]:
    """Yield what in `tree` is not as `commit` has it, submodules included; nothing where it is proven to be the commit.

    The commit of each submodule that was compared is written into `submodules`, if that is given a dict. Folders
    without files do not count, as git knows none.
    """
    yield from _compare(
        tree, "", commit, repository_of, submodules if isinstance(submodules, dict) else {}
    )


def worktree_repository(tree: Path) -> RepositoryOf:
    """Return where the repositories of a work tree and its submodules are."""
    return lambda path: git_folder(tree / path)


def listed_submodules(folder: Path) -> list[str]:
    """Return the paths of the submodules that .gitmodules in a folder lists."""
    return [
        path.strip("/")
        for path in _SUBMODULE_PATH.findall(read_text(folder / ".gitmodules"))
        if path.strip("/")
    ]


def hash_blob(path: Path | str, size: int) -> str:
    """Return the id that git gives a regular file of `size` bytes, by its contents as they are."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - ten thousands of them
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _compare(
    tree: Path, prefix: str, commit: str, repository_of: RepositoryOf, submodules: dict[str, str]
) -> Iterator[Difference]:
    top = tree / prefix
    repository = repository_of(prefix)
    if repository is None or not is_commit(commit):
        why = (
            "has no git repository"
            if repository is None
            else f"is at {commit}, which is no commit of 40 digits"
        )
        yield Difference(prefix or ".", why)
        return
    try:
        expected = read_commit(repository, commit)
    except _ForgedObjectError as error:
        yield Difference(prefix or ".", f"cannot be compared with {commit}: {error}")
        return
    folders = {os.fsdecode(path) for path in expected.submodules}
    found = dict(_list_files(top, folders))
    for difference in _compare_files(top, found, expected):
        yield replace(difference, path=os.path.join(prefix, difference.path))  # noqa: PTH118
    listed = set(listed_submodules(top))
    for raw, pinned in sorted(expected.submodules.items()):
        path = os.fsdecode(raw)
        inside = os.path.join(prefix, path)  # noqa: PTH118
        if (top / path).is_dir() and any((top / path).iterdir()):
            submodules[inside] = pinned
            yield from _compare(tree, inside, pinned, repository_of, submodules)
        elif path in listed:
            yield Difference(inside, "is a submodule without files")


def _compare_files(
    top: Path, found: Mapping[bytes, os.stat_result], expected: CommitContents
) -> Iterator[Difference]:
    for path in sorted(expected.files.keys() - found.keys()):
        yield Difference(os.fsdecode(path), "is missing")
    for path in sorted(found.keys() - expected.files.keys()):
        yield Difference(os.fsdecode(path), "is not in the commit", extra=True)
    common = sorted(found.keys() & expected.files.keys())
    ids = _hash_files(top, [(path, found[path]) for path in common])
    for path, (mode, blob) in zip(common, ids, strict=True):
        wanted_mode, wanted = expected.files[path]
        name = os.fsdecode(path)
        if blob != wanted:
            crlf = stat.S_ISREG(found[path].st_mode) and _has_only_other_line_ends(
                top / name, wanted
            )
            yield Difference(
                name, "has other line ends" if crlf else "has other contents", line_ends=crlf
            )
        elif mode != wanted_mode and os.name != "nt":  # where files have no such modes
            yield Difference(name, f"has the mode {mode:o}, not {wanted_mode:o}")


def _list_files(top: Path, submodules: set[str]) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield what lies in a work tree, without the git folder at its top and the contents of submodules."""
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(top / inside) as entries:
            for entry in entries:
                path = f"{inside}/{entry.name}" if inside else entry.name
                if path == ".git":
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    yield os.fsencode(path), entry.stat(follow_symlinks=False)
                elif path not in submodules:
                    waiting.append(path)


def _hash_files(top: Path, files: list[tuple[bytes, os.stat_result]]) -> Iterator[tuple[int, str]]:
    """Yield mode and id of each file, as git would write them into a tree."""
    batches = [files[start : start + _BATCH_FILES] for start in range(0, len(files), _BATCH_FILES)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in pool.map(lambda some: [_hash_file(top, *one) for one in some], batches):
            yield from batch


def _hash_file(top: Path, path: bytes, seen: os.stat_result) -> tuple[int, str]:
    place = os.path.join(top, os.fsdecode(path))  # noqa: PTH118
    if stat.S_ISLNK(seen.st_mode):
        target = os.fsencode(os.readlink(place))  # noqa: PTH115
        return _LINK, _object_id(b"blob", target)
    if not stat.S_ISREG(seen.st_mode):
        return stat.S_IFMT(seen.st_mode), "none"  # a pipe or a device, which no commit holds
    return _EXECUTABLE if seen.st_mode & stat.S_IXUSR else _REGULAR, hash_blob(place, seen.st_size)


def _has_only_other_line_ends(file: Path, wanted: str) -> bool:
    return _object_id(b"blob", with_unix_line_ends(file.read_bytes())) == wanted


def with_unix_line_ends(content: bytes) -> bytes:
    """Return the content with LF in place of CRLF, as git stores a text that a checkout gave CRLF."""
    return content.replace(b"\r\n", b"\n")


def read_commit(repository: Path, commit: str) -> CommitContents:
    """Return what a commit in a git folder holds. Each object that is read is proven to be of its id."""
    text = _read_objects(repository, [commit])[commit]
    match = _COMMIT_TREE.match(text)
    if match is None:
        raise _ForgedObjectError("it is no commit")
    root = match[1].decode()
    listed = _git(repository, "ls-tree", "-r", "-t", "-z", "--full-tree", root).split(b"\0")
    trees = [entry.split()[2].decode() for entry in listed if entry.startswith(b"040000 tree ")]
    objects = _read_objects(repository, [root, *dict.fromkeys(trees)])
    contents = CommitContents()
    waiting = [(b"", root)]
    while waiting:
        prefix, name = waiting.pop()
        if name not in objects:
            raise _ForgedObjectError(f"its tree {name} is missing")
        for mode, entry, identifier in _parse_tree(objects[name]):
            path = prefix + entry
            if mode == _FOLDER:
                waiting.append((path + b"/", identifier))
            elif mode == _SUBMODULE:
                contents.submodules[path] = identifier
            else:  # old commits have files of the mode 100664
                plain = mode if mode == _LINK else _EXECUTABLE if mode & stat.S_IXUSR else _REGULAR
                contents.files[path] = plain, identifier
    return contents


def _parse_tree(data: bytes) -> Iterator[tuple[int, bytes, str]]:
    """Yield mode, name and id of the entries of a tree object."""
    end = 0
    for match in _TREE_ENTRY.finditer(data):
        if match.start() != end:
            break
        end = match.end()
        yield int(match[1], 8), match[2], match[3].hex()
    if end != len(data):
        raise _ForgedObjectError("a tree of it cannot be read")


def _read_objects(repository: Path, ids: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of commits and trees by their ids, each of which is computed anew."""
    asked = list(ids)
    answer = _git(
        repository, "cat-file", "--batch", given="".join(f"{name}\n" for name in asked).encode()
    )
    objects, position = {}, 0
    for name in asked:
        end = answer.index(b"\n", position)
        words = answer[position:end].split()
        if len(words) != 3:  # noqa: PLR2004 - "ID missing"
            raise _ForgedObjectError(f"its object {name} is missing")
        start, size = end + 1, int(words[2])
        content, position = answer[start : start + size], start + size + 1
        if _object_id(words[1], content) != name:
            raise _ForgedObjectError(f"its object {name} holds something else")
        objects[name] = content
    return objects


def _object_id(kind: bytes, content: bytes) -> str:
    return hashlib.sha1(
        b"%b %d\0" % (kind, len(content)) + content, usedforsecurity=False
    ).hexdigest()


def _git(repository: Path, *arguments: str, given: bytes = b"") -> bytes:
    """Return the bytes that git writes. No replacement of an object is followed."""
    argv = ["git", f"--git-dir={repository}", *arguments]
    try:
        done = subprocess.run(
            argv, input=given, capture_output=True, env=git_environment(os.environ), check=False
        )
    except FileNotFoundError:
        raise HostError(
            "`git` is not on PATH: install it (`invoke deps` names the package)",
            code="program-missing",
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").splitlines()
        raise _ForgedObjectError(
            f"git cannot read it ({lines[-1].strip() if lines else 'it printed nothing'})"
        )
    return done.stdout


def require_commit(
    tree: Path, commit: str, submodules: Mapping[str, str], *, extras: bool = False
) -> bool:
    """Raise SourceError where a work tree with its submodules is not what the commits hold.

    With `extras`, further files are allowed, and what is returned tells whether there are any.
    """
    seen: dict[str, str] = {}
    found = list(find_differences(tree, commit, worktree_repository(tree), seen))
    found += [
        Difference(path, "is not a submodule of the commit")
        for path in submodules.keys() - seen.keys()
    ]
    differences = [one for one in found if not (extras and one.extra)]
    if differences:
        raise SourceError(
            f"{tree} is not what the commit {commit} holds ({describe_differences(differences)}): commit or stash "
            "changes there, remove files that git does not have (`git clean -ffdx`), or fetch it anew by "
            "`invoke fetch` with --discard, which drops them",
            code="uncommitted-changes",
        )
    return bool(found)


def describe_differences(differences: Iterable[Difference], most: int = 3) -> str:
    """Return the first differences as a clause, and how many more there are."""
    found = list(differences)
    more = f", and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(map(str, found[:most])) + more
