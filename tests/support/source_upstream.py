"""Upstreams for tests of sources: bare repositories with submodules, also nested, made by git."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchmill.config.package import BuildSetup, DebianFacts, Package, PackageSource
from torchmill.config.release import Release, ReleaseProof
from torchmill.core.paths import Layout
from torchmill.fetch.source.request import SourceRequest

IDENTITY = (
    "-c",
    "user.name=t",
    "-c",
    "user.email=t@example.org",
    "-c",
    "protocol.file.allow=always",
)
BRANCH = "main"


def git(folder: Path, *arguments: str) -> str:
    """Return the output of git in a folder."""
    command = ["git", *IDENTITY, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Link:
    """A submodule as its parent records it."""

    path: str
    url: str
    commit: str
    name: str = ""


@dataclass
class Forge:
    """A folder of bare repositories, OWNER/NAME.git; .gitmodules files name them below `base`."""

    folder: Path
    base: str
    commits: dict[str, str] = field(default_factory=dict)

    def url(self, name: str) -> str:
        """Return the address that .gitmodules files use."""
        return f"{self.base}/{name}.git"

    def bare(self, name: str) -> Path:
        """Return the folder of a repository."""
        return self.folder / f"{name}.git"

    def commit(
        self,
        name: str,
        files: Mapping[str, str],
        links: tuple[Link, ...] = (),
        tag: str | None = None,
    ) -> str:
        """Add a commit with exactly these files and submodules, and return its id."""
        bare = self.bare(name)
        work = self.folder / "work" / name
        if not bare.exists():
            bare.mkdir(parents=True)
            work.mkdir(parents=True)
            git(bare, "init", "-q", "--bare", "-b", BRANCH)
        location = ("--git-dir", str(bare), "--work-tree", str(work))
        git(work, *location, "read-tree", "--empty")
        contents = dict(files)
        if links:
            contents[".gitmodules"] = modules(links)
        for path, text in contents.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text, encoding="utf-8")
        git(work, *location, "add", "--", *contents)
        for link in links:
            entry = f"160000,{link.commit},{link.path}"  # the mode of a submodule
            git(work, *location, "update-index", "--add", "--cacheinfo", entry)
        git(work, *location, "commit", "-q", "--allow-empty", "-m", f"{name} {tag or ''}")
        if tag:
            git(bare, "tag", "-a", "-f", "-m", tag, tag)
        return git(bare, "rev-parse", "HEAD")


def modules(links: tuple[Link, ...]) -> str:
    """Return a .gitmodules file."""
    sections = []
    for link in links:
        name = link.name or link.path
        sections.append(f'[submodule "{name}"]\n\tpath = {link.path}\n\turl = {link.url}\n')
    return "".join(sections)


def make_forge(folder: Path, base: str) -> Forge:
    """Make two releases of pytorch/torch.

    v1: third_party/middle (nested: deep) and third_party/near (relative address). v2: middle is at
    another address and commit, near is gone, fresh is new. No pinned commit is the tip of a branch.
    """
    forge = Forge(folder, base)
    deep = forge.commit("libs/deep", {"deep.h": "1\n"})
    nested = (Link("deps/deep", "../deep.git", deep),)
    middle = forge.commit("libs/middle", {"middle.h": "1\n"}, nested)
    near = forge.commit("pytorch/near", {"near.h": "1\n"})
    links = (
        Link("third_party/middle", forge.url("libs/middle"), middle, "the middle"),
        Link("third_party/near", "../near.git", near),
    )
    files = {
        "setup.py": "version = 1\n",
        ".gitignore": "*.pyc\n",
        "big.txt": "same in both\n" * 1000,
    }
    forge.commits["v1"] = forge.commit("pytorch/torch", files, links, "v1")
    nested = (Link("deps/deep", forge.url("libs/deep"), deep),)
    moved = forge.commit("elsewhere/middle", {"middle.h": "2\n"}, nested)
    fresh = forge.commit("libs/fresh", {"fresh.h": "1\n"})
    links = (
        Link("third_party/fresh", forge.url("libs/fresh"), fresh),
        Link("third_party/middle", forge.url("elsewhere/middle"), moved, "the middle"),
    )
    forge.commits["v2"] = forge.commit(
        "pytorch/torch", files | {"setup.py": "version = 2\n"}, links, "v2"
    )
    for name in (
        "libs/deep",
        "libs/middle",
        "libs/fresh",
        "elsewhere/middle",
        "pytorch/near",
        "pytorch/torch",
    ):
        forge.commit(name, {"setup.py": "tip\n"})
    forge.commits |= {"deep": deep, "middle": middle, "near": near, "moved": moved, "fresh": fresh}
    return forge


def package(repository: str, debian: Mapping[str, str] | None = None) -> Package:
    """Return a package in a repository."""
    return Package(
        name="torch",
        session="wheel",
        import_name="torch",
        after=None,
        source=PackageSource(repository=repository, debian=DebianFacts(sources=debian or {})),
        setup=BuildSetup(version_variables={}, memory_per_job=1, disk=1),
    )


def release(tag: str, commit: str | None) -> Release:
    """Return a release."""
    return Release(
        package="torch",
        version=tag.removeprefix("v"),
        tag=tag,
        torch=None,
        pythons=("3.11",),
        arches=("x86_64",),
        source="",
        proof=ReleaseProof(commit),
    )


def request(forge: Forge, tag: str = "v1", **options: Any) -> SourceRequest:
    """Return a request for a release of the forge's pytorch/torch, by default with its commit."""
    commit = options.pop("commit", forge.commits.get(tag))
    return SourceRequest(package(forge.url("pytorch/torch")), release(tag, commit), **options)


def layout(folder: Path) -> Layout:
    """Return a layout in a folder."""
    return Layout(folder / "suite", folder / "cache")
