"""All that a wheel was made of, as its manifest tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from packageurl import PackageURL

SOURCE, SUBMODULE, PATCH = "source", "submodule", "patch"
BUNDLED, TOOLKIT = "bundled library", "toolkit"
INTERPRETER, REQUIREMENT = "interpreter", "requirement"

_SHA256 = re.compile(r"\bsha256 ([0-9a-f]{64})\b")
_REMOTE = re.compile(r"(https?|git|ssh|file)://\S+")
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True, slots=True)
class Material:
    """One thing that went into a wheel, or was needed to make it."""

    kind: str
    name: str
    version: str = ""
    purl: PackageURL | None = None
    uri: str = ""  # where it was fetched from, if that is not what `purl` says
    digest: Mapping[str, str] = field(default_factory=dict)  # "gitCommit" or "sha256" -> hexadecimal
    notes: Mapping[str, str] = field(default_factory=dict)


def of(told: Mapping[str, Any]) -> Iterator[Material]:
    """Yield all that a manifest names, in a fixed order."""
    yield _source(told)
    yield from _submodules(told)
    yield from _patches(told)
    yield from _interpreter(told)
    yield from _toolkit(told)
    yield from _requirements(told)
    yield from _bundled(told)


def _source(told: Mapping[str, Any]) -> Material:
    """Return what was fetched: by its commit, and by the archive's digest where it was one."""
    origin, commit = str(told.get("source") or ""), told.get("commit")
    package, tag = str(told.get("package")), str(told.get("tag"))
    digest = {"gitCommit": str(commit)} if commit else {}
    if found := _SHA256.search(origin):
        digest["sha256"] = found[1]
    remote = _REMOTE.match(origin)
    proven = "yes" if told.get("commit_verified") else "no"
    return Material(
        SOURCE,
        package,
        tag,
        purl=_of_repository(package, tag, remote[0] if remote else "", commit),
        uri=f"git+{remote[0]}@{tag}" if remote and remote[0].endswith(".git") else "",
        digest=digest,
        notes={"origin": origin, "commit proven": proven},
    )


def _of_repository(package: str, tag: str, remote: str, commit: str | None) -> PackageURL:
    github = _GITHUB.fullmatch(remote)
    if github and commit:
        return PackageURL("github", namespace=github[1], name=github[2], version=commit)
    return PackageURL("generic", name=package, version=commit or tag)


def _submodules(told: Mapping[str, Any]) -> Iterator[Material]:
    for path, commit in sorted(told.get("submodules", {}).items()):
        where = PurePath(path)
        namespace = where.parent.as_posix() if len(where.parts) > 1 else None
        purl = PackageURL("generic", namespace=namespace, name=where.name, version=commit)
        yield Material(SUBMODULE, path, commit, purl=purl, digest={"gitCommit": commit})


def _patches(told: Mapping[str, Any]) -> Iterator[Material]:
    parts = told.get("stages", {}).get("compile", {}).get("parts", {})
    for name in told.get("patches", ()):
        sha256 = parts.get(f"patch {name}")
        yield Material(PATCH, name, digest={"sha256": sha256} if sha256 else {})


def _interpreter(told: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the program, and the libraries and header that decide about what is compiled for it."""
    tools = dict(told.get("tools", {}))
    version = str(tools.pop("version", "")).partition(" ")[0]
    for name, sha256 in sorted(tools.items()):
        purl = PackageURL("generic", name="python", version=version, subpath=name)
        yield Material(INTERPRETER, name, version, purl=purl, digest={"sha256": sha256})


def _toolkit(told: Mapping[str, Any]) -> Iterator[Material]:
    pieces = {"cuda": told["toolkit"]} if told.get("toolkit") else {}
    for name, version in {**pieces, **dict(sorted(told.get("libraries", {}).items()))}.items():
        yield Material(TOOLKIT, name, version, purl=PackageURL("generic", name=name, version=version))


def _requirements(told: Mapping[str, Any]) -> Iterator[Material]:
    """Yield what was installed for the build."""
    for line in sorted(told.get("requirements", ())):
        name, _, version = line.partition("==")
        yield Material(
            REQUIREMENT, name, version, purl=PackageURL("pypi", name=name, version=version or None)
        )


def _bundled(told: Mapping[str, Any]) -> Iterator[Material]:
    """Yield the libraries of the machine that came along, as they were there."""
    origins = told.get("origins", {})
    for one in sorted(told.get("bundled", ()), key=lambda one: one["path"]):
        package = origins.get(one["source"])
        purl = PackageURL.from_string(package) if package else None
        yield Material(
            BUNDLED,
            PurePath(one["source"]).name,
            (purl.version or "") if purl else "",
            purl=purl,
            digest={"sha256": one["sha256"]},
            notes={"path": one["path"]},
        )
