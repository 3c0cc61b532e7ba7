"""Whether a wheel, its manifest, its statement and its SBOM agree, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.utils import canonicalize_name

from torchmill.core.errors import DeliveryError
from torchmill.core.files import parse_json_object, read_json_object
from torchmill.core.units import format_bytes
from torchmill.wheel import builder, dist_files, wheel_file
from torchmill.wheel.wheel_file import Distribution

MOST_DIFFERENCES = 8  # differences of one document that are named
LONGEST_VALUE_CHARACTERS = 80  # letters of a value


@dataclass(frozen=True, slots=True)
class Reference:
    """What a document is held against."""

    name: str  # says what it should be: "the manifest"
    complete: bool = True  # else only fields that both have count: another release may write other ones


def document_differences(found: Any, expected: Any, reference: Reference, path: str = "") -> list[str]:
    """Return a clause for each of the first MOST_DIFFERENCES fields that are not as expected.

    `path` is where in the document the two are.
    """
    return list(islice(_value_differences(found, expected, reference, path), MOST_DIFFERENCES))


def _value_differences(found: Any, expected: Any, reference: Reference, path: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted({*found, *expected}):
            yield from _member_differences(
                found, expected, name, reference, f"{path}.{name}" if path else str(name)
            )
    elif isinstance(found, list) and isinstance(expected, list):
        yield from _list_differences(found, expected, reference, path)
    elif type(found) is not type(expected) or found != expected:  # True is 1 in Python, and not in JSON
        yield f"{path or 'it'} is {_format_value(found)}, {reference.name} says {_format_value(expected)}"


def _member_differences(
    found: dict[str, Any], expected: dict[str, Any], name: str, reference: Reference, path: str
) -> Iterator[str]:
    if name in found and name in expected:
        yield from _value_differences(found[name], expected[name], reference, path)
    elif reference.complete and name in expected:
        yield f"{path} is missing, {reference.name} says {_format_value(expected[name])}"
    elif reference.complete:
        yield f"{path} is {_format_value(found[name])}, of which {reference.name} says nothing"


def _list_differences(
    found: list[Any], expected: list[Any], reference: Reference, path: str
) -> Iterator[str]:
    """Compare lists by what their entries are called, where all have names of their own, else one by one."""
    one, other = _by_name(found), _by_name(expected)
    if one is not None and other is not None:
        for name in sorted({*one, *other}):
            yield from _member_differences(one, other, name, reference, f"{path}[{name}]")
    elif len(found) != len(expected):
        yield f"{path or 'it'} has {len(found)} entries, {reference.name} says {len(expected)}"
    else:
        for number, (left, right) in enumerate(zip(found, expected, strict=True)):
            yield from _value_differences(left, right, reference, f"{path}[{number}]")


def _by_name(entries: Sequence[Any]) -> dict[str, Any] | None:
    """Return entries by their names; None where one has none, or two have the same."""
    entries_by_name = {name: entry for entry in entries if (name := _entry_name(entry))}
    return entries_by_name if len(entries_by_name) == len(entries) else None


def _entry_name(entry: Any) -> str:
    """Return what an entry of a list is called: a text by itself, an object as documents name theirs."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return ""
    kind = entry["annotations"].get("kind") if isinstance(entry.get("annotations"), dict) else None
    names = (entry.get(key) for key in ("bom-ref", "ref", "name", "alg"))
    name = next((one for one in names if isinstance(one, str)), "")
    return f"{kind} {name}" if isinstance(kind, str) and name else name


def _format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE_CHARACTERS else f"{text[:LONGEST_VALUE_CHARACTERS]}…"


WHEEL = Reference("the wheel")

DAMAGED = (KeyError, TypeError, AttributeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class AgreementCheck:
    """One thing that was looked at."""

    name: str
    said: str  # what was found, where nothing is wrong
    problems: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return it in one line."""
        return f"{self.name:9}  {'; '.join(self.problems) or self.said}"


@dataclass(frozen=True, slots=True)
class ExpectedDocuments:
    """What follows from a manifest."""

    documents: Mapping[str, bytes]
    judge: Reference


@dataclass(frozen=True, slots=True)
class AgreementVerdict:
    """All that was looked at of one wheel."""

    wheel: Path
    checks: tuple[AgreementCheck, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with it."""
        return tuple(f"{check.name}: {problem}" for check in self.checks for problem in check.problems)

    def require(self) -> None:
        """Raise DeliveryError where anything is wrong."""
        if self.problems:
            raise DeliveryError(
                f"{self.wheel}: {'; '.join(self.problems)}: neither install nor publish it so",
                code="wheel-rejected",
            )


def examine_wheel(wheel: Path) -> AgreementVerdict:
    """Return what a wheel is found to be: it is read to its end, several times."""
    try:
        found = wheel_file.read_wheel(wheel)
        contents = tuple(wheel_file.wheel_problems(wheel))
    except DeliveryError as error:
        return AgreementVerdict(
            wheel, (AgreementCheck("wheel", "", (str(error).removeprefix(f"{wheel}: "),)),)
        )
    with ZipFile(wheel) as archive:
        files = sum(not info.is_dir() for info in archive.infolist())
    told, unread = _read(dist_files.manifest_path(wheel), "build the wheel again")
    manifest = _manifest(found, told, unread)
    made = _made(wheel, told) if told and not manifest.problems else None
    if isinstance(made, AgreementCheck):
        manifest, made = made, None
    checks: tuple[AgreementCheck, ...] = (
        AgreementCheck(
            "wheel", f"{found.name} {found.version}, {format_bytes(found.size)}, sha256 {found.sha256}"
        ),
        AgreementCheck("contents", f"{files} files are as RECORD says", contents),
        _tags(wheel),
        manifest,
        _sound("statement", lambda: _statement(found, made)),
        _sound("SBOM", lambda: _sbom(found, made)),
    )
    if not any(path.is_file() for path in dist_files.companion_paths(wheel)[:2]):
        silent = AgreementCheck("origin", "", ("neither a manifest nor a statement says what it should be",))
        checks = (*checks, silent)
    return AgreementVerdict(wheel, checks)


def _tags(wheel: Path) -> AgreementCheck:
    from torchmill.wheel.verify import library_checks

    said = [
        tag for tag in library_checks.platform_tags(wheel.name) if tag.startswith(("manylinux", "musllinux"))
    ]
    promise = f"its files need no more than {', '.join(said)}" if said else "its name promises no C library"
    return AgreementCheck("tags", promise, tuple(library_checks.tag_problems(wheel)))


def _sound(name: str, check: Callable[[], AgreementCheck]) -> AgreementCheck:
    """Return what a check finds; a document may say anything, and have another shape than ours."""
    try:
        return check()
    except DAMAGED as error:
        return AgreementCheck(name, "", (_misunderstood(error),))


def _made(wheel: Path, told: Mapping[str, Any]) -> ExpectedDocuments | AgreementCheck:
    """Return what follows from a manifest, or what is wrong with it."""
    try:
        ours = told.get("builder", {}).get("torchmill") == builder.suite_version()
        return ExpectedDocuments(
            dist_files.compose_documents(told, wheel), Reference("the manifest", complete=ours)
        )
    except DAMAGED as error:
        return AgreementCheck("manifest", "", (_misunderstood(error),))


def _misunderstood(error: Exception) -> str:
    said = f"lacks {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    return f"cannot be understood ({said})"


def _manifest(found: Distribution, told: Mapping[str, Any] | None, unread: tuple[str, ...]) -> AgreementCheck:
    name = "manifest"
    if told is None:
        return AgreementCheck(name, "none beside it: not compared", unread)
    # an older wheel has fewer words about it, but always these
    wanted = {"wheel": found.file_name, "sha256": found.sha256, "version": str(found.version)}
    wrong = [
        f"says {key} {told.get(key)!r}, the wheel is {value!r}"
        for key, value in wanted.items()
        if told.get(key) != value
    ]
    if told.get("size", found.size) != found.size:
        wrong.append(f"says {told['size']} bytes, the wheel has {found.size}")
    source = f"{told.get('package')} {told.get('tag')}, commit {told.get('commit') or 'unknown'}"
    return AgreementCheck(name, f"{told.get('identifier')} of {source}", tuple(wrong))


def _statement(found: Distribution, made: ExpectedDocuments | None) -> AgreementCheck:
    name = "statement"
    said, missing = _document(found.path, dist_files.STATEMENT_SUFFIX, made)
    if said is None:
        return AgreementCheck(name, "none beside it: not compared", missing)
    from torchmill.wheel import statement

    types = said.get("_type"), said.get("predicateType")
    if types != (statement.STATEMENT_TYPE, statement.PREDICATE_TYPE):
        return AgreementCheck(
            name, "", (f"is of type {types[0]} with {types[1]}, which is no provenance of SLSA 1",)
        )
    definition = _under(said, "predicate", "buildDefinition")
    if definition.get("buildType") != statement.BUILD_TYPE:
        wrong = [f"has the buildType {definition.get('buildType')}, which is not {statement.BUILD_TYPE}"]
    else:
        subject = [{"name": found.file_name, "digest": {"sha256": found.sha256}}]
        of_wheel = document_differences(said.get("subject"), subject, WHEEL, "subject")
        wrong = _told(said, dist_files.STATEMENT_SUFFIX, made, of_wheel)
    who = _under(said, "predicate", "runDetails", "builder").get("id")
    things = _count(definition.get("resolvedDependencies"))
    return AgreementCheck(name, f"this digest, built by {who} of {things} things, not signed", tuple(wrong))


def _sbom(found: Distribution, made: ExpectedDocuments | None) -> AgreementCheck:
    name = "SBOM"
    said, missing = _document(found.path, dist_files.SBOM_SUFFIX, made)
    if said is None:
        return AgreementCheck(name, "none beside it: not compared", missing)
    if said.get("bomFormat") != "CycloneDX":
        return AgreementCheck(name, "", ("is not of CycloneDX",))
    wrong = _told(
        said, dist_files.SBOM_SUFFIX, made, chain(_of_wheel(found, said), _of_contents(found.path, said))
    )
    parts = _count(said.get("components"))
    return AgreementCheck(name, f"CycloneDX {said.get('specVersion')}, {parts} components", tuple(wrong))


def _told(
    said: Mapping[str, Any], suffix: str, made: ExpectedDocuments | None, of_wheel: Iterable[str]
) -> list[str]:
    """Return a clause for each way in which a document is not what follows from manifest and wheel."""
    if made is None:
        return list(of_wheel)
    found = document_differences(said, parse_json_object(made.documents[suffix]), made.judge)
    return found if made.judge.complete else [*found, *of_wheel]


def _count(entries: Any) -> int:
    return len(entries) if isinstance(entries, list) else 0


def _document(
    wheel: Path, suffix: str, made: ExpectedDocuments | None
) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return a document beside a wheel, or why there is none although there should be."""
    cure = "`invoke verify --write` makes it of the manifest"
    said, unread = _read(
        dist_files.document_path(wheel, suffix),
        f"remove it, {cure}" if made is not None else "fetch it again",
    )
    if said is None and not unread and made is not None:
        unread = (f"is missing: {cure}",)
    return said, unread


def _read(file: Path, cure: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return the JSON in a file, None and why where it cannot be had; no file is no reason."""
    try:
        return read_json_object(file), ()
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
    return document_differences(said, wanted, WHEEL, "metadata.component")


def _of_contents(wheel: Path, bom: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each bundled library of an SBOM that the wheel does not hold as it is said."""
    from torchmill.wheel import sbom

    held = sbom.recorded_digests(dist_files.read_metadata_and_record(wheel)[1])
    for one in bom.get("components", ()):
        paths = [
            said["value"] for said in one.get("properties", ()) if said.get("name") == sbom.PATH_PROPERTY
        ]
        for path in paths:
            if [said.get("content") for said in one.get("hashes", ())] != [held.get(path)]:
                yield f"{path} in the wheel is another file than it says"


def _under(said: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return what lies below some names; nothing where it is something else."""
    here: Any = said
    for name in names:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}
