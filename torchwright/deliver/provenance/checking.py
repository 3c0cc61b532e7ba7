"""Whether a wheel, its manifest, its statement and its SBOM agree, and the wheel is as it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from torchwright import artifact
from torchwright.deliver import distributions, provenance
from torchwright.deliver.distributions import Distribution
from torchwright.errors import DeliveryError
from torchwright.quantity import format_bytes

Documents = Mapping[str, bytes]

_MOST = 8  # differences of one document that are named
_DAMAGED = (KeyError, TypeError, AttributeError, ValueError, RecursionError)


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
    told = artifact.record(wheel)
    manifest = _manifest(found, told)
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
    from torchwright.verify import tagged  # noqa: PLC0415 - slow to load

    said = [tag for tag in tagged.platforms(wheel.name) if tag.startswith(("manylinux", "musllinux"))]
    promise = f"its files need no more than {', '.join(said)}" if said else "its name promises no C library"
    return Check("tags", promise, tuple(tagged.problems(wheel)))


def _sound(name: str, check: Callable[[], Check]) -> Check:
    """Return what a check finds; a document may say anything, and have another shape than ours."""
    try:
        return check()
    except _DAMAGED as error:
        return Check(name, "", (f"cannot be understood ({type(error).__name__}: {error})",))


def _made(wheel: Path, told: Mapping[str, Any]) -> Documents | Check:
    """Return the documents that follow from a manifest, or what is wrong with it."""
    try:
        return provenance.documents(told, wheel)
    except _DAMAGED as error:
        return Check("manifest", "", (f"cannot be understood ({type(error).__name__}: {error})",))


def _manifest(found: Distribution, told: Mapping[str, Any]) -> Check:
    name = "manifest"
    if not artifact.manifest_of(found.path).is_file():
        return Check(name, "none beside it: not compared")
    if not told:
        return Check(name, "", ("cannot be read: build the wheel again",))
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


def _statement(found: Distribution, made: Documents | None) -> Check:
    name = "statement"
    said, missing = _read(found.path, artifact.STATEMENT, made)
    if said is None:
        return Check(name, "none beside it: not compared", missing)
    from torchwright.deliver.provenance import statement  # noqa: PLC0415 - slow to load

    types = said.get("_type"), said.get("predicateType")
    if types != (statement.TYPE, statement.PREDICATE):
        return Check(name, "", (f"is of type {types[0]} with {types[1]}, which is no provenance of SLSA 1",))
    subject = [{"name": found.file, "digest": {"sha256": found.sha256}}]
    wrong = [] if said.get("subject") == subject else [f"is about {said.get('subject')}"]
    definition = _under(said, "predicate", "buildDefinition")
    if definition.get("buildType") != statement.BUILD_TYPE:
        wrong.append(f"has the buildType {definition.get('buildType')}, which is not {statement.BUILD_TYPE}")
    elif made is not None:
        ours = _under(json.loads(made[artifact.STATEMENT]), "predicate", "buildDefinition")
        paths = _first(definition, ours)
        wrong += [f"its buildDefinition{path} is not what the manifest says" for path in paths]
    builder = _under(said, "predicate", "runDetails", "builder").get("id")
    made_of = definition.get("resolvedDependencies") or ()
    return Check(name, f"this digest, built by {builder} of {len(made_of)} things, not signed", tuple(wrong))


def _sbom(found: Distribution, made: Documents | None) -> Check:
    name = "SBOM"
    said, missing = _read(found.path, artifact.SBOM, made)
    if said is None:
        return Check(name, "none beside it: not compared", missing)
    if said.get("bomFormat") != "CycloneDX":
        return Check(name, "", ("is not of CycloneDX",))
    wrong = []
    hashes = _under(said, "metadata", "component").get("hashes")
    if hashes != [{"alg": "SHA-256", "content": found.sha256}]:
        wrong.append(f"is about {hashes}")
    parts = _parts(said)
    wrong += _of_contents(found.path, parts)
    if made is not None:
        ours = _parts(json.loads(made[artifact.SBOM]))
        wrong += [f"its component{path} is not what the manifest says" for path in _first(parts, ours)]
    return Check(name, f"CycloneDX {said.get('specVersion')}, {len(parts)} components", tuple(wrong))


def _read(
    wheel: Path, suffix: str, made: Documents | None
) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return a document beside a wheel, or why there is none although there should be."""
    file = artifact.document_of(wheel, suffix)
    if not file.is_file():
        cure = "is missing: `invoke verify --write` makes it of the manifest"
        return None, ((cure,) if made is not None else ())
    try:
        said = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return None, (f"cannot be read ({error})",)
    return (said, ()) if isinstance(said, dict) else (None, ("is no JSON object",))


def _parts(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the components of an SBOM by their references."""
    every = said.get("components")
    listed = [one for one in every if isinstance(one, dict)] if isinstance(every, list) else []
    return {str(one.get("bom-ref")): one for one in listed}


def _of_contents(wheel: Path, parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each bundled library of an SBOM that the wheel does not hold as it is said."""
    from torchwright.deliver.provenance import sbom  # noqa: PLC0415 - slow to load

    held = sbom.recorded(provenance.inside(wheel)[1])
    for one in parts.values():
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


def _first(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two documents differ, the first such places."""
    return [where for where, _ in zip(_differences(one, other, path), range(_MOST), strict=False)]


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in _both(one, other):
            yield from _differences(one.get(name), other.get(name), f"{path}.{name}" if path else f".{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{number}]")
    elif one != other:
        yield path


def _both(one: Iterable[str], other: Iterable[str]) -> list[str]:
    return sorted({*one, *other})
