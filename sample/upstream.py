"""Make the sample's upstream: git repositories whose every byte, and so every commit, is always the same.

`python sample/upstream.py DIR` writes DIR/tiny/{tinybits,tinymath,tinytorch,tinyvision}.git and prints the
commits, which are the ones that sample/build_configs/releases/ records.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "upstream"
MAIN = "refs/heads/main"
WHO = "Tiny Upstream <upstream@tiny.invalid>"
MADE_LOCALLY = {"__pycache__", "build", "dist"}


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit to make: folders of SOURCES laid over one another, and submodules at commits of theirs."""

    message: str
    time: int  # seconds since 1970, UTC
    folders: tuple[str, ...]
    removed: tuple[str, ...] = ()
    submodules: Mapping[str, tuple[str, int]] = field(
        default_factory=dict
    )  # path -> repository, which commit
    tag: str | None = None
    annotated: bool = False  # both kinds of tag exist out there


# A repository stands after the ones that it points to.
HISTORY: Mapping[str, tuple[Commit, ...]] = {
    "tinybits": (Commit("Powers of two", 1_600_000_000, ("third_party_tinybits",)),),
    "tinymath": (
        Commit(
            "Sum pairwise",
            1_600_100_000,
            ("third_party_tinymath",),
            submodules={"third_party/tinybits": ("tinybits", 0)},
        ),
        Commit(
            "Hypotenuse without overflow",
            1_610_000_000,
            ("third_party_tinymath", "third_party_tinymath-1.1"),
            submodules={"third_party/tinybits": ("tinybits", 0)},
        ),
    ),
    "tinytorch": (
        Commit(
            "tinytorch 1.0.0",
            1_600_200_000,
            ("tinytorch",),
            submodules={"third_party/tinymath": ("tinymath", 0)},
            tag="v1.0.0",
        ),
        Commit(
            "tinytorch 1.1.0: diagonals, and scikit-build-core",
            1_610_200_000,
            ("tinytorch", "tinytorch-1.1.0"),
            removed=("tools/cmake.py", "tools/submodules.py"),
            submodules={"third_party/tinymath": ("tinymath", 1)},
            tag="v1.1.0",
            annotated=True,
        ),
    ),
    "tinyvision": (
        Commit("tinyvision 0.1.0", 1_600_300_000, ("tinyvision",), tag="v0.1.0"),
        Commit(
            "tinyvision 0.2.0: diagonals",
            1_610_300_000,
            ("tinyvision", "tinyvision-0.2.0"),
            tag="v0.2.0",
        ),
    ),
}


def create(directory: Path) -> None:
    """Write the bare repositories under `directory`/tiny; what is there already becomes the same again.

    Raises FileNotFoundError without git, subprocess.CalledProcessError when git fails.
    """
    commits: dict[str, tuple[str, ...]] = {}
    for name, history in HISTORY.items():
        repository = directory / "tiny" / f"{name}.git"
        _git("init", "--quiet", "--bare", str(repository))
        _git("symbolic-ref", "HEAD", MAIN, at=repository)
        for setting in (
            "uploadpack.allowAnySHA1InWant",
            "uploadpack.allowFilter",
        ):  # as GitHub does
            _git("config", setting, "true", at=repository)
        stream = b"".join(_stream(history, commits))
        _git("fast-import", "--quiet", "--force", at=repository, text=stream)
        commits[name] = tuple(_git("rev-list", "--reverse", MAIN, at=repository).decode().split())


def _git(*arguments: str, at: Path = SOURCES, text: bytes = b"") -> bytes:
    """Run git with none of the user's settings, which could change a commit."""
    mine = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_DEFAULT_HASH": "sha1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *arguments],
        cwd=at,
        env=inherited | mine,
        input=text,
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout


def _stream(history: tuple[Commit, ...], commits: Mapping[str, tuple[str, ...]]) -> Iterator[bytes]:
    """Yield the history of one repository in the language of `git fast-import`."""
    for number, commit in enumerate(history, 1):
        signature = f"{WHO} {commit.time} +0000\n"
        yield f"commit {MAIN}\nmark :{number}\nauthor {signature}committer {signature}".encode()
        yield _data(commit.message.encode())
        yield f"from :{number - 1}\ndeleteall\n".encode() if number > 1 else b""
        for path, text in sorted(_files(commit).items()):
            yield f"M 100644 inline {path}\n".encode() + _data(text)
        for path, (repository, which) in commit.submodules.items():
            yield f"M 160000 {commits[repository][which]} {path}\n".encode()
        if commit.annotated:
            yield f"tag {commit.tag}\nfrom :{number}\ntagger {signature}".encode() + _data(
                b"Release"
            )
        elif commit.tag:
            yield f"reset refs/tags/{commit.tag}\nfrom :{number}\n\n".encode()


def _data(text: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(text), text)


def _files(commit: Commit) -> dict[str, bytes]:
    """Return what the commit holds, path to text, with line ends that no checkout has changed."""
    files = {}
    for folder in commit.folders:
        for path in (SOURCES / folder).rglob("*"):
            inside = path.relative_to(SOURCES / folder)
            if path.is_file() and MADE_LOCALLY.isdisjoint(inside.parts):
                files[inside.as_posix()] = path.read_bytes().replace(b"\r\n", b"\n")
    for name in commit.removed:
        del files[name]
    return files


def commit_of(directory: Path, repository: str, revision: str) -> str:
    """Return the commit that a tag or branch of a created repository leads to."""
    at = directory / "tiny" / f"{repository}.git"
    return _git("rev-parse", "--verify", f"{revision}^{{commit}}", at=at).decode().strip()


def main() -> None:
    """Create the upstream where the command line says, and list its releases."""
    if len(sys.argv) != 2:  # noqa: PLR2004
        sys.exit("usage: python sample/upstream.py DIR")
    directory = Path(sys.argv[1]).resolve()
    create(directory)
    for name, history in HISTORY.items():
        for commit in history:
            if commit.tag:
                sys.stdout.write(f"{name} {commit.tag} {commit_of(directory, name, commit.tag)}\n")


if __name__ == "__main__":
    main()
