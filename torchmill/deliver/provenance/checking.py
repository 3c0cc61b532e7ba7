"""Whether a wheel, its manifest, its statement and its SBOM agree, and the wheel is as it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.utils import canonicalize_name

from torchmill import artifact, jsonobject
from torchmill.deliver import distributions, provenance
from torchmill.deliver.distributions import Distribution
from torchmill.deliver.provenance import builder
from torchmill.deliver.provenance.differing import Judge, differences
from torchmill.errors import DeliveryError
from torchmill.quantity import format_bytes

WHEEL = Judge("the wheel")

DAMAGED = (KeyError, TypeError, AttributeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    said: str  # what was found, where nothing is wrong
    problems: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return it in one line."""
        return f"{self.name:9}  {'; '.join(self.problems) or self.said}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What follows from a manifest."""

    documents: Mapping[str, bytes]
    judge: Judge


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that was looked at of one wheel."""

    wheel: Path
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with it."""
        return tuple(f"{check.name}: {problem}" for check in self.checks for problem in check.problems)

    def require(self) -> None:
        """Raise DeliveryError where anything is wrong."""
        if self.problems:
            raise DeliveryError(
                f"{self.wheel}: {'; '.join(self.problems)}: neither install nor publish it so"
            )


def examine(wheel: Path) -> Verdict:
    """Return what a wheel is found to be: it is read to its end, several times."""
    try:
        found = distributions.read(wheel)
        contents = tuple(distributions.examine(wheel))
    except DeliveryError as error:
        return Verdict(wheel, (Check("wheel", "", (str(error).removeprefix(f"{wheel}: "),)),))
    with ZipFile(wheel) as archive:
        files = sum(not info.is_dir() for info in archive.infolist())
    told, unread = _read(artifact.manifest_of(wheel), "build the wheel again")
    manifest = _manifest(found, told, unread)
    made = _made(wheel, told) if told and not manifest.problems else None
    if isinstance(made, Check):
        manifest, made = made, None
    checks: tuple[Check, ...] = (
        Check("wheel", f"{found.name} {found.version}, {format_bytes(found.size)}, sha256 {found.sha256}"),
        Check("contents", f"{files} files are as RECORD says", contents),
        _tags(wheel),
        manifest,
        _sound("statement", lambda: _statement(found, made)),
        _sound("SBOM", lambda: _sbom(found, made)),
    )
    if not any(path.is_file() for path in artifact.beside(wheel)[:2]):
        silent = Check("origin", "", ("neither a manifest nor a statement says what it should be",))
        checks = (*checks, silent)
    return Verdict(wheel, checks)


def _tags(wheel: Path) -> Check:
    from torchmill.verify import tagged  # noqa: PLC0415 - slow to load

    said = [tag for tag in tagged.platforms(wheel.name) if tag.startswith(("manylinux", "musllinux"))]
    promise = f"its files need no more than {', '.join(said)}" if said else "its name promises no C library"
    return Check("tags", promise, tuple(tagged.problems(wheel)))


def _sound(name: str, check: Callable[[], Check]) -> Check:
    """Return what a check finds; a document may say anything, and have another shape than ours."""
    try:
        return check()
    except DAMAGED as error:
        return Check(name, "", (_misunderstood(error),))


def _made(wheel: Path, told: Mapping[str, Any]) -> Expected | Check:
    """Return what follows from a manifest, or what is wrong with it."""
    try:
        ours = told.get("builder", {}).get("torchmill") == builder.version()
        return Expected(provenance.documents(told, wheel), Judge("the manifest", whole=ours))
    except DAMAGED as error:
        return Check("manifest", "", (_misunderstood(error),))


def _misunderstood(error: Exception) -> str:
    said = f"lacks {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    return f"cannot be understood ({said})"


def _manifest(found: Distribution, told: Mapping[str, Any] | None, unread: tuple[str, ...]) -> Check:
    name = "manifest"
    if told is None:
        return Check(name, "none beside it: not compared", unread)
    # an older wheel has fewer words about it, but always these
    wanted = {"wheel": found.file, "sha256": found.sha256, "version": str(found.version)}
    wrong = [
        f"says {key} {told.get(key)!r}, the wheel is {value!r}"
        for key, value in wanted.items()
        if told.get(key) != value
    ]
    if told.get("size", found.size) != found.size:
        wrong.append(f"says {told['size']} bytes, the wheel has {found.size}")
    source = f"{told.get('package')} {told.get('tag')}, commit {told.get('commit') or 'unknown'}"
    return Check(name, f"{told.get('identifier')} of {source}", tuple(wrong))


def _statement(found: Distribution, made: Expected | None) -> Check:
    name = "statement"
    said, missing = _document(found.path, artifact.STATEMENT, made)
    if said is None:
        return Check(name, "none beside it: not compared", missing)
    from torchmill.deliver.provenance import statement  # noqa: PLC0415 - slow to load

    types = said.get("_type"), said.get("predicateType")
    if types != (statement.TYPE, statement.PREDICATE):
        return Check(name, "", (f"is of type {types[0]} with {types[1]}, which is no provenance of SLSA 1",))
    definition = _under(said, "predicate", "buildDefinition")
    if definition.get("buildType") != statement.BUILD_TYPE:
        wrong = [f"has the buildType {definition.get('buildType')}, which is not {statement.BUILD_TYPE}"]
    else:
        subject = [{"name": found.file, "digest": {"sha256": found.sha256}}]
        of_wheel = differences(said.get("subject"), subject, WHEEL, "subject")
        wrong = _told(said, artifact.STATEMENT, made, of_wheel)
    who = _under(said, "predicate", "runDetails", "builder").get("id")
    things = _count(definition.get("resolvedDependencies"))
    return Check(name, f"this digest, built by {who} of {things} things, not signed", tuple(wrong))


def _sbom(found: Distribution, made: Expected | None) -> Check:
    name = "SBOM"
    said, missing = _document(found.path, artifact.SBOM, made)
    if said is None:
        return Check(name, "none beside it: not compared", missing)
    if said.get("bomFormat") != "CycloneDX":
        return Check(name, "", ("is not of CycloneDX",))
    wrong = _told(said, artifact.SBOM, made, chain(_of_wheel(found, said), _of_contents(found.path, said)))
    parts = _count(said.get("components"))
    return Check(name, f"CycloneDX {said.get('specVersion')}, {parts} components", tuple(wrong))


def _told(said: Mapping[str, Any], suffix: str, made: Expected | None, of_wheel: Iterable[str]) -> list[str]:
    """Return a clause for each way in which a document is not what follows from manifest and wheel."""
    if made is None:
        return list(of_wheel)
    found = differences(said, jsonobject.parsed(made.documents[suffix]), made.judge)
    return found if made.judge.whole else [*found, *of_wheel]


def _count(entries: Any) -> int:
    return len(entries) if isinstance(entries, list) else 0


def _document(
    wheel: Path, suffix: str, made: Expected | None
) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return a document beside a wheel, or why there is none although there should be."""
    cure = "`invoke verify --write` makes it of the manifest"
    said, unread = _read(
        artifact.document_of(wheel, suffix), f"remove it, {cure}" if made is not None else "fetch it again"
    )
    if said is None and not unread and made is not None:
        unread = (f"is missing: {cure}",)
    return said, unread


def _read(file: Path, cure: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return the JSON in a file, None and why where it cannot be had; no file is no reason."""
    try:
        return jsonobject.read(file), ()
    except FileNotFoundError:
        return None, ()
    except OSError as error:
        return None, (f"cannot be read ({error.strerror or error}): {cure}",)
    except ValueError as error:
        return None, (f"cannot be read ({error}): {cure}",)


def _of_wheel(found: Distribution, bom: Mapping[str, Any]) -> list[str]:
    """Return a clause for each way in which an SBOM is about another wheel."""
    about = _under(bom, "metadata", "component")
    said: dict[str, Any] = {"name": canonicalize_name(str(about.get("name")))}
    said |= {name: about.get(name) for name in ("version", "hashes")}
    hashes = [{"alg": "SHA-256", "content": found.sha256}]
    wanted = {"name": found.name, "version": str(found.version), "hashes": hashes}
    return differences(said, wanted, WHEEL, "metadata.component")


def _of_contents(wheel: Path, bom: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each bundled library of an SBOM that the wheel does not hold as it is said."""
    from torchmill.deliver.provenance import sbom  # noqa: PLC0415 - slow to load

    held = sbom.recorded(provenance.inside(wheel)[1])
    for one in bom.get("components", ()):
        paths = [said["value"] for said in one.get("properties", ()) if said.get("name") == sbom.PATH]
        for path in paths:
            if [said.get("content") for said in one.get("hashes", ())] != [held.get(path)]:
                yield f"{path} in the wheel is another file than it says"


def _under(said: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return what lies below some names; nothing where it is something else."""
    here: Any = said
    for name in names:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}
