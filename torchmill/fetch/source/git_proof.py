"""Prove that the files of a folder are those of a git commit, without trusting the repository.

A commit's id is the digest of its text, which contains the id of its tree. A tree's id is the
digest of its entries, which contain the ids of files. A file's id is the digest of its content
(https://git-scm.com/book/en/v2/Git-Internals-Git-Objects). Here commits and trees are read from a
repository, but their ids are computed anew, and the ids of files are computed from the disk. So a
forged object, or a changed file, gives another id somewhere.

Everything that can be made to lie is left aside: the index (assume-unchanged, skip-worktree,
dates), replaced objects, grafts, filters, and attributes. No file is read from the repository.
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
from torchmill.core.lenient_paths import read_text
from torchmill.fetch.source.git_command import git_environment, git_folder, is_commit

_READ_BYTES = 1 << 20
_THREADS = min(8, os.cpu_count() or 1)  # a digest is computed while other threads read
_BATCH_FILES = 256
_MOST_DESCRIBED = 3  # differences that a message names
# Modes in git's trees.
_EXECUTABLE = 0o100755
_REGULAR = 0o100644
_LINK = 0o120000
_SUBMODULE = 0o160000
_FOLDER = 0o040000
# An entry of a tree object: mode, name, and the 20 bytes of an id.
_TREE_ENTRY = re.compile(rb"([0-7]{1,6}) ([^\0]+)\0(.{20})", re.DOTALL)
_COMMIT_TREE = re.compile(rb"tree ([0-9a-f]{40})\n")
_SUBMODULE_PATH = re.compile(r'^[ \t]*path[ \t]*=[ \t]*"?([^"\n]*?)"?[ \t]*\r?$', re.MULTILINE)
# Returns the git folder of a submodule by its path, and that of the work tree by "". The copy of a
# work tree has none, and is compared with the repositories of the original.
RepositoryOf = Callable[[str], Path | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not as the commit has it."""

    path: str
    clause: str  # without subject: "is not in the commit"
    has_other_line_ends: bool = (
        False  # the file has CRLF in place of the commit's LF, and else is equal
    )
    is_extra: bool = False  # the file is not in the commit

    def __str__(self) -> str:
        return f"{self.path} {self.clause}"


@dataclass(frozen=True, slots=True)
class CommitContents:
    """The contents of a commit, by path below the top of its repository.

    Paths are bytes, because git does not say how they are encoded.
    """

    files: dict[bytes, tuple[int, str]] = field(default_factory=dict)  # path -> mode and id
    submodules: dict[bytes, str] = field(default_factory=dict)  # path -> pinned commit


class _ForgedObjectError(Exception):
    """An object of a repository is missing, or its content does not have the id of its name."""


def find_differences(
    tree: Path,
    commit: str,
    repository_of: RepositoryOf,
    submodules: dict[str, str] | None = None,
) -> Iterator[Difference]:
    """Yield the differences between a work tree and a commit, submodules included.

    That a repository is missing, damaged or forged is a difference, too. If there are none, the
    files of the tree are proven to be those of the commit. Empty folders do not count, because git
    does not record them. If `submodules` is given, the path and the pinned commit of each submodule
    are written into it as soon as its comparison begins.
    """
    compared = {} if submodules is None else submodules
    yield from _compare(tree, "", commit, repository_of, compared)


def worktree_repository(tree: Path) -> RepositoryOf:
    """Return a function that finds the repositories of a work tree and its submodules."""
    return lambda path: git_folder(tree / path)


def listed_submodules(folder: Path) -> list[str]:
    """Return the paths of the submodules that a folder's .gitmodules lists.

    Git is not asked: it would follow includes in the file, and there may be no repository.
    """
    paths = []
    for path in _SUBMODULE_PATH.findall(read_text(folder / ".gitmodules")):
        stripped = path.strip("/")
        if stripped:
            paths.append(stripped)
    return paths


def hash_blob(path: Path | str, size: int) -> str:
    """Return the id that git gives a regular file of `size` bytes, by its content on the disk."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - called for tens of thousands
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _compare(
    tree: Path, prefix: str, commit: str, repository_of: RepositoryOf, submodules: dict[str, str]
) -> Iterator[Difference]:
    """Yield the differences of one repository's work tree from a commit, and of its submodules.

    `prefix` is the path of the repository in the whole tree, "" for the top. The submodules that
    are compared are written into `submodules`.
    """
    top = tree / prefix
    repository = repository_of(prefix)
    if repository is None:
        yield Difference(prefix or ".", "has no git repository")
        return
    if not is_commit(commit):
        # A branch would not do: the repository, which is not trusted, says which commit it is.
        yield Difference(prefix or ".", f"is at {commit}, which is no commit of 40 digits")
        return
    try:
        expected = read_commit(repository, commit)
    except _ForgedObjectError as error:
        yield Difference(prefix or ".", f"cannot be compared with {commit}: {error}")
        return
    submodule_folders = {os.fsdecode(path) for path in expected.submodules}
    actual = dict(_list_files(top, submodule_folders))
    for difference in _compare_files(top, actual, expected):
        path = os.path.join(prefix, difference.path)  # noqa: PTH118 - no Path: "" must stay ""
        yield replace(difference, path=path)
    listed = set(listed_submodules(top))
    for raw_path, pinned in sorted(expected.submodules.items()):
        relative = os.fsdecode(raw_path)
        path = os.path.join(prefix, relative)  # noqa: PTH118
        folder = top / relative
        if folder.is_dir() and any(folder.iterdir()):
            submodules[path] = pinned
            yield from _compare(tree, path, pinned, repository_of, submodules)
        elif relative in listed:
            # A submodule that .gitmodules does not list has no URL and cannot be fetched by anyone:
            # it may be empty.
            yield Difference(path, "is a submodule without files")


def _compare_files(
    top: Path, actual: Mapping[bytes, os.stat_result], expected: CommitContents
) -> Iterator[Difference]:
    """Yield the differences of the files of one repository; paths are relative to its top."""
    for path in sorted(expected.files.keys() - actual.keys()):
        yield Difference(os.fsdecode(path), "is missing")
    for path in sorted(actual.keys() - expected.files.keys()):
        yield Difference(os.fsdecode(path), "is not in the commit", is_extra=True)
    common = sorted(actual.keys() & expected.files.keys())
    hashed = _hash_files(top, [(path, actual[path]) for path in common])
    for path, (mode, blob) in zip(common, hashed, strict=True):
        expected_mode, expected_blob = expected.files[path]
        name = os.fsdecode(path)
        if blob != expected_blob:
            is_regular = stat.S_ISREG(actual[path].st_mode)
            if is_regular and _differs_in_line_ends(top / name, expected_blob):
                yield Difference(name, "has other line ends", has_other_line_ends=True)
            else:
                yield Difference(name, "has other contents")
        elif mode != expected_mode and os.name != "nt":  # files of Windows have no such modes
            yield Difference(name, f"has the mode {mode:o}, not {expected_mode:o}")


def _list_files(top: Path, submodules: set[str]) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield the files and links of a work tree with their stat results.

    Left out are the git folder at its top and the contents of submodules, which are compared with
    their own commits. A folder or file named .git anywhere else counts: no commit can have one.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(top / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if path == ".git":
                    continue
                # A link is never followed: it is a file for git, whatever it points at.
                if not entry.is_dir(follow_symlinks=False):
                    yield os.fsencode(path), entry.stat(follow_symlinks=False)
                elif path not in submodules:
                    pending.append(path)


def _hash_files(top: Path, files: list[tuple[bytes, os.stat_result]]) -> Iterator[tuple[int, str]]:
    """Yield the mode and id of each file, as git would write them into a tree."""

    def hash_batch(batch: list[tuple[bytes, os.stat_result]]) -> list[tuple[int, str]]:
        return [_hash_file(top, path, status) for path, status in batch]

    batches = [files[start : start + _BATCH_FILES] for start in range(0, len(files), _BATCH_FILES)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for results in pool.map(hash_batch, batches):
            yield from results


def _hash_file(top: Path, path: bytes, status: os.stat_result) -> tuple[int, str]:
    """Return the mode and id of one file, as git would write them into a tree.

    What git would not take, such as a pipe, has the id "none", which no commit has.
    """
    full_path = os.path.join(top, os.fsdecode(path))  # noqa: PTH118
    if stat.S_ISLNK(status.st_mode):
        target = os.fsencode(os.readlink(full_path))  # noqa: PTH115
        return _LINK, _object_id(b"blob", target)
    if not stat.S_ISREG(status.st_mode):
        # A pipe or a device. No commit contains one, and reading it might never end.
        return stat.S_IFMT(status.st_mode), "none"
    # Of the permissions, git records only whether the owner may execute the file.
    mode = _EXECUTABLE if status.st_mode & stat.S_IXUSR else _REGULAR
    return mode, hash_blob(full_path, status.st_size)


def _differs_in_line_ends(file: Path, expected_blob: str) -> bool:
    """Tell whether a file is the expected one if its CRLF are read as LF."""
    return _object_id(b"blob", with_unix_line_ends(file.read_bytes())) == expected_blob


def with_unix_line_ends(content: bytes) -> bytes:
    """Return the content with LF in place of CRLF, as git stores a text checked out with CRLF."""
    return content.replace(b"\r\n", b"\n")


def read_commit(repository: Path, commit: str) -> CommitContents:
    """Return the contents of a commit in a git folder.

    The id of each object that is read is computed anew. Raises _ForgedObjectError if an object is
    missing, or has another id.
    """
    text = _read_objects(repository, [commit])[commit]
    match = _COMMIT_TREE.match(text)
    if match is None:
        raise _ForgedObjectError("it is no commit")
    root = match[1].decode()
    # This listing is not trusted. It only says which objects to read by one call of git. The walk
    # below follows the ids in verified trees, and notices every tree that the listing leaves out.
    listing = _git(repository, "ls-tree", "-r", "-t", "-z", "--full-tree", root).split(b"\0")
    trees = [entry for entry in listing if entry.startswith(b"040000 tree ")]
    tree_ids = [entry.split()[2].decode() for entry in trees]
    objects = _read_objects(repository, dict.fromkeys([root, *tree_ids]))
    contents = CommitContents()
    pending = [(b"", root)]
    while pending:
        prefix, tree_id = pending.pop()
        if tree_id not in objects:
            raise _ForgedObjectError(f"its tree {tree_id} is missing")
        for mode, name, identifier in _parse_tree(objects[tree_id]):
            path = prefix + name
            if mode == _FOLDER:
                pending.append((path + b"/", identifier))
            elif mode == _SUBMODULE:
                contents.submodules[path] = identifier
            else:
                contents.files[path] = _normal_mode(mode), identifier
    return contents


def _normal_mode(mode: int) -> int:
    """Return the mode with which git checks out a file; old commits have modes such as 100664."""
    if mode == _LINK:
        return _LINK
    return _EXECUTABLE if mode & stat.S_IXUSR else _REGULAR


def _parse_tree(data: bytes) -> Iterator[tuple[int, bytes, str]]:
    """Yield mode, name and id of the entries of a tree object.

    Raises _ForgedObjectError unless the entries cover the whole object without a gap: finditer
    would skip over anything that is not an entry.
    """
    end = 0
    for match in _TREE_ENTRY.finditer(data):
        if match.start() != end:
            break
        end = match.end()
        yield int(match[1], 8), match[2], match[3].hex()
    if end != len(data):
        raise _ForgedObjectError("a tree of it cannot be read")


def _read_objects(repository: Path, ids: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of commits and trees by their ids, each of which is computed anew.

    Raises _ForgedObjectError for an object that is missing or has another id.
    """
    names = list(ids)
    question = "".join(f"{name}\n" for name in names).encode()
    answer = _git(repository, "cat-file", "--batch", stdin=question)
    objects = {}
    position = 0
    for name in names:
        # the answer for each object: "ID KIND SIZE\nCONTENT\n", or "ID missing\n"
        head_end = answer.index(b"\n", position)
        words = answer[position:head_end].split()
        if len(words) != 3:  # noqa: PLR2004 - "ID missing"
            raise _ForgedObjectError(f"its object {name} is missing")
        kind = words[1]
        start = head_end + 1
        end = start + int(words[2])
        content = answer[start:end]
        position = end + 1
        if _object_id(kind, content) != name:
            raise _ForgedObjectError(f"its object {name} holds something else")
        objects[name] = content
    return objects


def _object_id(kind: bytes, content: bytes) -> str:
    """Return the id of a git object: the SHA-1 of its header and content."""
    header = b"%b %d\0" % (kind, len(content))
    # Without the flag, systems in FIPS mode refuse SHA-1.
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def _git(repository: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Return the bytes that git writes for a repository.

    `git_environment` keeps git from following replaced objects. Raises HostError if there is no
    git, _ForgedObjectError if it cannot read the repository.
    """
    argv = ["git", f"--git-dir={repository}", *arguments]
    environment = git_environment(os.environ)
    try:
        result = subprocess.run(
            argv, input=stdin, capture_output=True, env=environment, check=False
        )
    except FileNotFoundError:
        raise HostError(
            "`git` is not on PATH: install it (`invoke deps` names the package)",
            code="program-missing",
        ) from None
    if result.returncode != 0:
        lines = result.stderr.decode("utf-8", "replace").splitlines()
        complaint = lines[-1].strip() if lines else "it printed nothing"
        raise _ForgedObjectError(f"git cannot read it ({complaint})")
    return result.stdout


def require_commit(
    tree: Path, commit: str, submodules: Mapping[str, str], *, allow_extra: bool = False
) -> bool:
    """Raise SourceError unless a work tree has the files of a commit and of its submodules.

    `submodules` are the paths that the commit must pin. With `allow_extra`, files beyond those of
    the commit are allowed, and True is returned if there are any.
    """
    compared: dict[str, str] = {}
    all_differences = list(find_differences(tree, commit, worktree_repository(tree), compared))
    for path in sorted(submodules.keys() - compared.keys()):
        all_differences.append(Difference(path, "is not a submodule of the commit"))
    differences = all_differences
    if allow_extra:
        differences = [difference for difference in all_differences if not difference.is_extra]
    if differences:
        raise SourceError(
            f"{tree} is not what the commit {commit} holds ({describe_differences(differences)}): "
            "commit or stash changes there, remove files that git does not have "
            "(`git clean -ffdx`), or fetch it anew by `invoke fetch` with --discard, which drops "
            "them",
            code="uncommitted-changes",
        )
    return bool(all_differences)


def describe_differences(differences: Iterable[Difference], most: int = _MOST_DESCRIBED) -> str:
    """Return the first differences as a clause, and how many more there are."""
    clauses = [str(difference) for difference in differences]
    clause = ", ".join(clauses[:most])
    if len(clauses) > most:
        clause += f", and {len(clauses) - most} more"
    return clause
