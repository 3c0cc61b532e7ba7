"""What to fetch and from where, and the folder of what was fetched: its checks, publishing by rename."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torchmill.config.model import Facts, Package, Release, Source
from torchmill.core import formats
from torchmill.core.errors import ConfigError, SourceError
from torchmill.core.files import delete_paths, hash_file, parse_json, write_atomically
from torchmill.core.paths import Layout
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import StatCache, stat_folder
from torchmill.core.units import name_few
from torchmill.fetch.source import git_proof
from torchmill.fetch.source.git_command import git_folder, read_head, run_git, uncommitted_changes

WAIT_TIMEOUT_SECONDS = 600.0  # for another run to release a folder
RECORD = "source.json"
DEBIAN, PYPI = "debian", "pypi"  # the words after --from that name no path
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.lock$")


@dataclass(frozen=True, slots=True)
class TreeFingerprint:
    """Enough of a tree to see that somebody touched it, without reading its files."""

    files: int
    newest: int  # nanoseconds
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """What was fetched, what had been asked for, and how the tree looked then."""

    source: Source
    asked: Mapping[str, str | None]  # the request's ref and origin, and the state of a local origin
    fingerprint: TreeFingerprint


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source to fetch, and where it may come from."""

    package: Package
    release: Release
    ref: str | None = None  # a branch or a commit, in place of the release's tag
    mirror: str | None = None  # where the repositories are, in place of their own hosts
    origin: str | None = None  # a folder, an archive, its URL, "debian" or "pypi", in place of git
    sha256: str = ""  # of an archive or what its URL gives; "": not known
    discard: bool = False  # what was fetched before, and whatever was changed in it

    @property
    def what(self) -> str:
        """Return its name in messages."""
        return f"{self.package.name} {self.ref or self.release.tag}"

    def validate(self) -> None:
        """Raise ConfigError for options that are invalid, or exclude each other."""
        conflict = ""
        if self.origin is not None and self.mirror is not None:
            conflict = (
                "--from and --mirror exclude each other: a mirror holds git repositories; give one"
            )
        elif self.origin is not None and self.ref is not None:
            conflict = (
                f"--ref {self.ref} names something in git, which --from does not use; leave one out"
            )
        elif self.sha256 and self.origin in {None, DEBIAN, PYPI}:
            conflict = "--sha256 is for an archive: give it with --from PATH|URL"
        if conflict:
            raise ConfigError(conflict, code="conflicting-options")
        if self.sha256 and not _SHA256.fullmatch(self.sha256):
            raise ConfigError(
                f"--sha256 {self.sha256}: give the 64 hexadecimal digits that `sha256sum` prints",
                code="invalid-digest",
            )
        for name in (self.ref, self.release.tag):
            if name is not None and (
                not name or name.startswith("-") or _NOT_IN_A_REF.search(name)
            ):
                raise ConfigError(
                    f"'{name}' cannot be the name of a tag, branch or commit: check --tag and --ref",
                    code="invalid-ref",
                )
        if self.release.tag.startswith(".") or "/" in self.release.tag:
            raise ConfigError(
                f"the tag '{self.release.tag}' cannot name a folder: correct build_configs/releases",
                code="invalid-ref",
            )

    def alternatives(self) -> str:
        """Return what a user may do when the usual way to a source is closed."""
        ways = (
            ["name a mirror of the repositories (`--mirror URL`)"]
            if self.package.repository
            else []
        )
        ways.append("give a folder or an archive (`--from PATH|URL`)")
        if self.release.version in self.package.debian and self.origin != DEBIAN:
            ways.append("take it from Debian's source archive (`--from debian`)")
        if self.package.pypi and self.origin != PYPI:
            ways.append("take it from PyPI (`--from pypi`)")
        return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))


@dataclass(frozen=True, slots=True)
class SourceProof:
    """What a fetched tree was proven to be, and what it is only said to be."""

    commit: str | None = None  # whose files these are, by git's objects
    verified: bool = (
        False  # the facts record this commit, or the digest of this archive, for the release
    )
    submodules: Mapping[str, str] = field(
        default_factory=dict
    )  # path -> proven commit, "" where none is
    archive: str | None = None  # sha256 of the archive that was unpacked
    declared: str | None = None  # the commit that the archive or the folder names
    unproven: str = ""  # why there is no commit, as a clause


class SourceDir:
    """The folder of one release: the tree and, beside it, the record."""

    def __init__(self, home: Path, tag: str) -> None:
        self.home, self.tag = home, tag  # the folder of the package
        self.folder = home / tag  # visible once all of it is there
        self.tree = self.folder / "tree"  # as it was fetched
        self.partial = (
            home / f".partial-{tag}"
        )  # where git works until the tree is complete; kept for the next try
        self.unpacked = (
            home / f".unpacked-{tag}"
        )  # where archives are unpacked; emptied at each try
        self.downloaded = (
            home / f".downloaded-{tag}"
        )  # of an archive that is being downloaded; kept for the next try
        self.old = home / f".old-{tag}"  # where the old tree is while the new one replaces it

    def recover(self) -> None:
        """Finish a change of trees that was cut off between its two renames."""
        if self.old.exists() and not self.folder.exists():
            self.old.rename(self.folder)
        shutil.rmtree(self.old, ignore_errors=True)

    def discard(self) -> None:
        """Remove the tree, and what unfinished fetches left."""
        delete_paths((self.folder, self.partial, self.unpacked, self.downloaded))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give where to unpack a tree, in a folder that is empty first and gone afterwards."""
        shutil.rmtree(self.unpacked, ignore_errors=True)
        self.unpacked.mkdir(parents=True)
        try:
            yield self.unpacked / "tree"
        finally:
            shutil.rmtree(self.unpacked, ignore_errors=True)

    def publish(
        self,
        made: Path,
        request: SourceRequest,
        provider: str,
        origin: str,
        *,
        proof: "SourceProof",
        asked: Mapping[str, str | None] | None = None,
    ) -> Source:
        """Move the folder `made`, with a complete tree, into place, and return its source.

        Its files get one date. Of two headers that are alike GCC skips the second, by `#pragma once`, where both are
        of one second: what is compiled, and found in a compiler cache, would depend on when git wrote each.
        """
        release, tree, now = request.release, made / "tree", int(time.time())
        for entry in (one for one in walk_tree(tree) if not one.is_symlink()):
            os.utime(entry.path, (now, now))
        source = Source(
            package=request.package.name,
            version=release.version,
            tag=release.tag,
            provider=provider,
            origin=origin,
            commit=proof.commit,
            path=self.tree,
            verified=proof.verified,
            submodules=proof.submodules,
            build_backend=build_backend(tree),
            contents=digest_contents(tree),
            archive=proof.archive,
            declared=proof.declared,
            unproven=proof.unproven,
        )
        asked = asked or {"ref": request.ref, "origin": request.origin}
        write_record(made, FetchRecord(source, asked, take_fingerprint(tree)))
        if self.folder.exists():
            self.folder.rename(self.old)
        made.rename(self.folder)
        for left in (self.old, self.partial, self.unpacked, self.downloaded):
            shutil.rmtree(left, ignore_errors=True)
        return source


def take_fingerprint(tree: Path) -> TreeFingerprint:
    """Walk a tree, git's own files left out."""
    files = newest = size = 0
    for entry in walk_tree(tree):
        seen = entry.stat(follow_symlinks=False)
        files += 1
        size += seen.st_size
        newest = max(newest, seen.st_mtime_ns)
    return TreeFingerprint(files, newest, size)


def digest_contents(tree: Path) -> str:
    """Return a digest of the names, modes and contents of a tree, git's own files left out."""
    whole = hashlib.sha256()
    for path in sorted(entry.path for entry in walk_tree(tree)):
        mode = os.lstat(path).st_mode & 0o111
        link = os.path.islink(path)  # noqa: PTH114
        if link:
            target = os.fsencode(os.readlink(path))  # noqa: PTH115
            held = hashlib.sha256(target).hexdigest()
        else:
            held = hash_file(path)
        whole.update(
            os.fsencode(os.path.relpath(path, tree)) + b"\0%o\0" % mode + bytes.fromhex(held)
        )
    return whole.hexdigest()


def walk_tree(tree: Path) -> Iterator[os.DirEntry[str]]:
    """Visit the files and links of a tree, git's own left out."""
    waiting = [str(tree)]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name == ".git":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def check_source(source: Source) -> FetchRecord:
    """Return the record; raise SourceError if the tree is missing, changed or moved."""
    record = read_record(source.path.parent)
    if record is None or not source.path.is_dir():
        raise SourceError(
            f"{source.path}: the source of {source.package} {source.tag} is missing or incomplete: "
            f"run {refetch_command(source)}",
            code="source-gone",
        )
    if (record.source.identity, record.source.provider) != (source.identity, source.provider):
        raise SourceError(
            f"{source.path} was replaced while it was in use, and is now {record.source.title}: run the command again",
            code="source-replaced",
        )
    if clause := moved_clause(record.source):
        raise SourceError(f"{clause}: run {refetch_command(source)}", code="source-moved")
    refuse_changes(record)
    return record


def verify_source(source: Source, cache: StatCache, *, extras: bool = False) -> None:
    """Raise SourceError unless the tree is what was fetched, by the contents of its files.

    With `extras`, a git tree may have further files that git ignores: no fetch loses them, but a build would use them.
    A tree that looks as at its last full check is not read again: it has files of the same numbers, sizes and times,
    one of which (ctime) no program can set.
    """
    seen = stat_folder(source.path)
    what, fetched = f"{source.path}{os.sep}", f"{source.provider} {source.origin} {source.identity}"
    if cache.lookup(what, seen) == fetched and moved_clause(source) is None:
        return
    check_source(source)
    if source.provider == "git":
        if git_proof.require_commit(
            source.path, source.commit or "", source.submodules, extras=extras
        ):
            return  # which a build has to refuse
    elif source.contents != digest_contents(source.path):
        raise SourceError(
            f"{source.path} was changed after it was fetched, though its files are as large and as old as "
            f"before: fetch it anew with {refetch_command(source, ' --discard')}",
            code="source-changed",
        )
    cache.store(what, seen, fetched)


def touched_since_check(folder: Path) -> bool:
    """Tell whether a file of the source in `folder` was changed in any way after its record was written or renewed."""
    return stat_folder(folder / "tree").since >= (folder / RECORD).stat().st_mtime_ns


def refetch_command(source: Source, more: str = "") -> str:
    """Return the command that brings the source back, with more options."""
    package = "" if source.package == "torch" else f" --package {source.package}"
    tag = "" if package else f" --tag {source.tag}"
    words = {"debian": " --from debian", "pypi": " --from pypi", "path": " --from PATH|URL"}
    origin = words.get(source.provider, "")
    return f"`invoke fetch{tag}{package}{origin}{more}`"


def moved_clause(source: Source) -> str | None:
    """Return what is not at the commit that was fetched (a clause), or None."""
    if source.provider != "git":
        return None
    if hasattr(os, "geteuid") and source.path.stat().st_uid != os.geteuid():
        with contextlib.suppress(CommandError):
            run_git(
                source.path, "rev-parse", "--git-dir"
            )  # with --git-dir=PATH git asks for no owner
    for path, commit in {"": source.commit, **source.submodules}.items():
        tree = source.path / path
        folder = git_folder(tree)
        if folder is None or not folder.is_dir():
            return f"{tree} is half-updated: it has no git folder"
        if (folder / "index.lock").exists():
            return f"{tree} is half-updated: git was stopped in the middle of it ({folder / 'index.lock'})"
        actual = read_head(tree)
        if actual != commit:
            return f"{tree} is at {actual or 'no commit'}, not at {commit} as fetched"
    return None


def refuse_changes(record: FetchRecord) -> TreeFingerprint:
    """Return how the tree looks now; raise SourceError, naming the files, where somebody changed it."""
    tree = record.source.path
    seen = take_fingerprint(tree)
    if seen == record.fingerprint or not tree.exists():
        return seen
    if record.source.provider == "git":
        refuse_uncommitted(tree)
        return seen
    if record.source.contents == digest_contents(tree):
        return seen  # a copy by tar or over a network has times of its own
    then = record.fingerprint
    newer = (
        one for one in walk_tree(tree) if one.stat(follow_symlinks=False).st_mtime_ns > then.newest
    )
    names = tuple(os.path.relpath(one.path, tree) for one in newer) or (
        f"{then.files} files and {then.size} bytes then, {seen.files} files and {seen.size} bytes now",
    )
    raise SourceError(
        f"{tree} was changed after it was fetched ({name_few(names)}): keep what you need of it, and fetch it "
        f"anew with {refetch_command(record.source, ' --discard')}",
        code="source-changed",
    )


def refuse_uncommitted(tree: Path) -> None:
    """Raise SourceError, naming the files, where a git tree has changes that are in no commit."""
    if git_folder(tree) is None:
        return  # nothing to ask; moved_clause says what is wrong with it
    names = uncommitted_changes(tree)
    if names:
        raise SourceError(
            f"{tree} has changes that are not committed ({name_few(names)}): commit or stash them there, or "
            "fetch it anew by `invoke fetch` with --discard, which drops them",
            code="uncommitted-changes",
        )


def refuse_unrecorded(slot: SourceDir) -> None:
    """Raise SourceError if the slot has a tree without a record that may hold somebody's work."""
    if not slot.tree.exists():
        return
    if git_folder(slot.tree) is None:
        raise SourceError(
            f"{slot.folder} has a tree without a record of its origin: keep what you need of it, and add "
            "--discard to fetch it anew",
            code="source-unrecorded",
        )
    refuse_uncommitted(slot.tree)


def build_backend(tree: Path) -> str | None:
    """Return the backend of [build-system] in a tree's pyproject.toml, or None.

    Raises SourceError for a file that is no TOML.
    """
    file = tree / "pyproject.toml"
    try:
        found = (
            tomllib.loads(file.read_text(encoding="utf-8"))
            .get("build-system", {})
            .get("build-backend")
        )
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise SourceError(
            f"{file} cannot be read ({error}): fetch the source from somewhere else",
            code="unreadable-pyproject",
        ) from None
    return str(found) if found is not None else None


def require_python_project(tree: Path, origin: str) -> None:
    """Raise SourceError where `tree`, which came from `origin`, cannot be the source of a Python package."""
    if not any((tree / name).is_file() for name in ("setup.py", "pyproject.toml")):
        hint = "; for a bare git repository use --mirror" if (tree / "HEAD").is_file() else ""
        raise SourceError(
            f"{origin} has neither setup.py nor pyproject.toml: give the top folder of a source, or an "
            f"archive of it{hint}",
            code="no-python-project",
        )


def load_source(layout: Layout, package: str, tag: str) -> Source | None:
    """Return a package's fetched source, None if there is none. Raises SourceError for a record that cannot be read."""
    record = read_record(layout.source(package) / tag)
    return record.source if record else None


def load_examined_source(layout: Layout, package: str, tag: str, cache: StatCache) -> Source | None:
    """Return a package's fetched source as `load_source` does, without a commit where its files are not that any more.

    Its `refusal` then says why a build would refuse it.
    """
    source = load_source(layout, package, tag)
    if source is None:
        return None
    try:
        verify_source(source, cache)
    except SourceError as error:
        unknown = dict.fromkeys(source.submodules, "")
        why = "it was changed after it was fetched"
        return replace(
            source,
            commit=None,
            verified=False,
            submodules=unknown,
            contents="",
            unproven=why,
            refusal=str(error),
        )
    finally:
        cache.save()
    return source


def list_fetched(home: Path) -> list[Path]:
    """Return the folders of a package's fetched sources, the one fetched last first."""
    found = [
        record for record in home.glob(f"*/{RECORD}") if not record.parent.name.startswith(".")
    ]
    return [
        one.parent for one in sorted(found, key=lambda one: one.stat().st_mtime_ns, reverse=True)
    ]


def read_record(folder: Path) -> FetchRecord | None:
    """Return the record in the folder of a source, or None where nothing was fetched.

    Raises SourceError for a record that cannot be read.
    """
    try:
        raw = parse_json((folder / RECORD).read_text(encoding="utf-8"))
        age = formats.judge_format(raw, formats.SOURCE_RECORD)
        if age == "same":
            del raw[formats.KEY]
            asked, seen = raw.pop("asked"), TreeFingerprint(**raw.pop("fingerprint"))
            return FetchRecord(Source(**raw, path=folder / "tree"), asked, seen)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        age = "invalid"
    why = {
        "newer": "was written by a newer torchmill",
        "older": "was written by an older torchmill",
    }
    raise SourceError(
        f"{folder / RECORD} {why.get(age, 'cannot be read')}: run the `invoke fetch` that brought the source again, "
        "with --discard if it says so",
        code="unreadable-source-record",
    )


def write_record(folder: Path, record: FetchRecord) -> None:
    """Write a record into the folder of a source."""
    asked, fingerprint = dict(record.asked), asdict(record.fingerprint)
    values = {
        formats.KEY: formats.SOURCE_RECORD,
        **asdict(record.source),
        "asked": asked,
        "fingerprint": fingerprint,
    }
    del values["path"]
    write_atomically(folder / RECORD, json.dumps(values, indent=2) + "\n")


def refresh_record(folder: Path, record: FetchRecord, seen: TreeFingerprint) -> None:
    """Record that the tree, as it looks now, is intact, and that it was requested last: also on a full disk."""
    if seen == record.fingerprint:
        os.utime(folder / RECORD)
    else:
        write_record(folder, replace(record, fingerprint=seen))


def source_requests(
    facts: Facts,
    releases: Sequence[Release],
    *,
    ref: str,
    mirror: str,
    origin: str,
    sha256: str = "",
    discard: bool = False,
) -> tuple[SourceRequest, ...]:
    """Return the requests for the sources of some releases.

    A package without a repository comes from PyPI unless `origin` says otherwise. Raises ConfigError for a
    ref, or a digest, of several packages.
    """
    if (sha256 or ref) and len(releases) > 1:
        given = "--sha256 is for one archive" if sha256 else "--ref names a commit of one package"
        raise ConfigError(f"{given}: fetch one package at a time", code="ref-of-several")
    requests = []
    for each in releases:
        package = facts.packages[each.package]
        in_git = bool(package.repository)
        source = origin or (None if in_git else PYPI)
        requests.append(
            SourceRequest(
                package, each, ref or None, (in_git and mirror) or None, source, sha256, discard
            )
        )
    return tuple(requests)
