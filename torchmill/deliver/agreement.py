"""Whether a wheel, its manifest, its statement and its SBOMs agree, field by field."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.utils import canonicalize_name

from torchmill.core import formats
from torchmill.core.errors import BuildError, DeliveryError
from torchmill.core.files import hash_file, is_file, parse_json_object, read_json_object
from torchmill.core.units import first_problems, format_bytes
from torchmill.wheel import dist_files, statement, wheel_file
from torchmill.wheel.pack.zip_archive import ARCHIVE_ERRORS
from torchmill.wheel.wheel_file import Distribution

MAX_DIFFERENCES = 8  # of one document that are named
MAX_NOTES = 2
LONGEST_VALUE_CHARACTERS = 80
MANIFEST, STATEMENT = "manifest", "statement"  # the checks of what says who made a wheel
VOUCHED, SOUND, WRONG = "ours", "sound", "wrong"  # what a wheel is found to be
SENTENCES = {
    VOUCHED: "sound, and what its {voucher} says it is",
    SOUND: "sound, but nothing says who made it",
    WRONG: "not what it claims to be",
}
# what reading a document raises that has another shape than ours
DOCUMENT_ERRORS = (KeyError, TypeError, AttributeError, ValueError, RecursionError, csv.Error)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a document is held against."""

    name: str  # says what it should be: "the manifest"
    documents: Mapping[str, bytes] = field(default_factory=dict)  # that follow from it, by suffix


def document_differences(
    found: Any, expected: Any, reference: Reference, path: str = ""
) -> list[str]:
    """Return a clause for each of the first MAX_DIFFERENCES fields that are not as expected.

    `path` is where in the document the two are.
    """
    return list(islice(_differences(found, expected, reference, path), MAX_DIFFERENCES))


def _differences(found: Any, expected: Any, reference: Reference, path: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        yield from _member_differences(found, expected, reference, f"{path}." if path else "", "")
    elif isinstance(found, list) and isinstance(expected, list):
        ours, theirs = _by_name(found), _by_name(expected)
        if ours is None or theirs is None:
            if len(found) != len(expected):
                yield f"{path or 'it'} has {len(found)} entries, {reference.name} says {len(expected)}"
                return
            ours, theirs = dict(enumerate(found)), dict(enumerate(expected))
        yield from _member_differences(ours, theirs, reference, f"{path}[", "]")
    elif (
        type(found) is not type(expected) or found != expected
    ):  # True is 1 in Python, and not in JSON
        yield f"{path or 'it'} is {_format_value(found)}, {reference.name} says {_format_value(expected)}"


def _member_differences(
    found: Mapping[Any, Any],
    expected: Mapping[Any, Any],
    reference: Reference,
    before: str,
    after: str,
) -> Iterator[str]:
    """Compare what has the same name on both sides; `before` and `after` stand around it in a path."""
    for name in sorted({*found, *expected}):
        path = f"{before}{name}{after}"
        if name in found and name in expected:
            yield from _differences(found[name], expected[name], reference, path)
        elif name in expected:
            yield f"{path} is missing, {reference.name} says {_format_value(expected[name])}"
        else:
            yield f"{path} is {_format_value(found[name])}, which {reference.name} does not mention"


def _by_name(entries: list[Any]) -> dict[Any, Any] | None:
    """Return entries by their names; None where one has none, or two have the same."""
    entries_by_name = {name: entry for entry in entries if (name := _entry_name(entry))}
    return entries_by_name if len(entries_by_name) == len(entries) else None


def _entry_name(entry: Any) -> str:
    """Return what an entry of a list is called: a text by itself, an object as documents name theirs."""
    if not isinstance(entry, dict):
        return entry if isinstance(entry, str) else ""
    kind = _object_at(entry, "annotations").get("kind")
    names = (entry.get(key) for key in ("bom-ref", "ref", "name", "alg"))
    name = next((one for one in names if isinstance(one, str)), "")
    return f"{kind} {name}" if isinstance(kind, str) and name else name


def _format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE_CHARACTERS else f"{text[:LONGEST_VALUE_CHARACTERS]}…"


WHEEL = Reference("the wheel")


@dataclass(frozen=True, slots=True)
class AgreementCheck:
    """One thing that was examined."""

    name: str
    summary: str  # what was found, where nothing is wrong
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what is odd, and no harm
    vouches: bool = False  # it read a document about this very wheel, whose format it knows

    @property
    def text(self) -> str:
        """Return it in one line."""
        told = (
            f"{self.summary}; note: {first_problems(self.notes, MAX_NOTES)}"
            if self.notes
            else self.summary
        )
        text = f"{self.name:10}  {first_problems(self.problems, MAX_DIFFERENCES) or told}"
        return "".join(
            one if one.isprintable() else "\ufffd" for one in text
        )  # others' words, which could be lines


@dataclass(frozen=True, slots=True)
class AgreementVerdict:
    """All checks of one wheel."""

    wheel: Path
    checks: tuple[AgreementCheck, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with it."""
        return tuple(
            f"{check.name}: {problem}" for check in self.checks for problem in check.problems
        )

    @property
    def status(self) -> str:
        """Return VOUCHED, SOUND or WRONG."""
        if self.problems:
            return WRONG
        return VOUCHED if self.voucher else SOUND

    @property
    def voucher(self) -> str:
        """Return which document says what the wheel is: MANIFEST, STATEMENT, or "" for none."""
        return next((check.name for check in self.checks if check.vouches), "")

    @property
    def sentence(self) -> str:
        """Return the word as a sentence without its full stop."""
        return SENTENCES[self.status].format(voucher=self.voucher)

    def require(self) -> None:
        """Raise DeliveryError where anything is wrong."""
        if self.problems:
            raise DeliveryError(f"{self}: do not install or publish it", code="wheel-rejected")

    def __str__(self) -> str:
        """Return the wheel and the first problems with it."""
        return f"{self.wheel}: {first_problems(self.problems, MAX_DIFFERENCES)}"


def examine_wheel(
    wheel: Path, original: Path | None = None, distribution: Distribution | None = None
) -> AgreementVerdict:
    """Return the checks of a wheel: it is read to its end, several times.

    One that was slimmed is compared with its `original`, by default the one beside it. `distribution` is
    what was read of the wheel before.
    """
    try:
        found = distribution or wheel_file.read_wheel(wheel)
        contents, odd = (
            tuple(wheel_file.wheel_problems(wheel)),
            tuple(wheel_file.wheel_oddities(wheel)),
        )
    except DeliveryError as error:
        return AgreementVerdict(
            wheel, (AgreementCheck("wheel", "", (str(error).removeprefix(f"{wheel}: "),)),)
        )
    with ZipFile(wheel) as archive:
        files = sum(not info.is_dir() for info in archive.infolist())
    manifest, expected = _check_manifest(found)
    made_of = _object_at(found.manifest, "original")
    original = original or wheel.with_name(Path(str(made_of.get("wheel"))).name or "?")
    kept = f"{'as' if is_file(original) else 'not judged: said to be'} those of the wheel that it was made from"
    checks = [
        AgreementCheck(
            "wheel",
            f"{found.name} {found.version}, {format_bytes(found.size)}, sha256 {found.sha256}",
        ),
        AgreementCheck("contents", f"{files} files match RECORD", contents, odd),
        AgreementCheck("tags", kept) if made_of else _check_tags(wheel, ours=manifest.vouches),
        manifest,
        _check_document(STATEMENT, dist_files.STATEMENT_SUFFIX, found, expected, _read_statement),
        _check_document(
            "SBOM",
            dist_files.SBOM_SUFFIX,
            found,
            expected,
            partial(_read_sbom, sha256=found.sha256),
        ),
        _check_inner_sbom(found),
    ]
    if made_of:
        checks.append(_check_original(wheel, made_of, original))
    return AgreementVerdict(wheel, tuple(checks))


def _check_tags(wheel: Path, *, ours: bool) -> AgreementCheck:
    """Return the check of what the wheel's name promises. A promise that others break is a note: installers believe it.

    Wheels of PyPI are named manylinux1 that need a newer glibc, and say another platform in WHEEL than in their name.
    """
    from torchmill.wheel.verify import static_checks

    tags = static_checks.platform_tags(wheel.name)
    promised = ", ".join(tag for tag in tags if tag.startswith(("manylinux", "musllinux")))
    promise = (
        f"its files need no more than {promised}" if promised else "its name promises no C library"
    )
    judgement, renamed = static_checks.judge_tags(wheel), wheel_file.renamed_platform(wheel)
    broken = (*judgement.broken_promises, *filter(None, [renamed]))
    if ours:
        return AgreementCheck("tags", promise, (*judgement.contradictions, *broken))
    said = f"its files need more than {promised}" if judgement.broken_promises else promise
    return AgreementCheck("tags", said, judgement.contradictions, broken)


def _check_manifest(found: Distribution) -> tuple[AgreementCheck, Reference | None]:
    """Return the check of a wheel's manifest, and what follows from a sound one."""
    name = MANIFEST
    manifest, problems = _read(dist_files.manifest_path(found.path), "build the wheel again")
    if manifest is None:
        return AgreementCheck(name, "none beside it: not compared", problems), None
    age = formats.judge_format(manifest, formats.MANIFEST)
    if age == "newer":
        return AgreementCheck(name, f"it {formats.newer_clause(manifest, formats.MANIFEST)}"), None
    # an older wheel has fewer words about it, but always these
    expected = {"wheel": found.path.name, "sha256": found.sha256, "version": str(found.version)}
    wrong = [
        f"says {key} {manifest.get(key)!r}, the wheel is {value!r}"
        for key, value in expected.items()
        if manifest.get(key) != value
    ]
    if manifest.get("size", found.size) != found.size:
        wrong.append(f"says {manifest['size']} bytes, the wheel has {found.size}")
    if age == "invalid":
        wrong.append(f"says format {manifest.get(formats.KEY)!r}, which is none")
    source = f"{manifest.get('package')} {manifest.get('tag')}, {_describe_source(manifest, known=age == 'same')}"
    check = AgreementCheck(
        name, f"{manifest.get('identifier')} of {source}", tuple(wrong), vouches=not wrong
    )
    if wrong:
        return check, None
    if age == "older":
        alone = "statement and SBOM are compared with the wheel alone"
        return replace(
            check, summary=f"{check.summary}; written by an older torchmill: {alone}"
        ), None
    try:
        return check, Reference("the manifest", dist_files.compose_documents(manifest, found.path))
    except DOCUMENT_ERRORS as error:
        return damaged_check(name, error), None


def _describe_source(manifest: Mapping[str, Any], *, known: bool) -> str:
    """Return what a manifest says of the source; one that was written before there were formats proves no commit."""
    commit = manifest.get("commit")
    if not known:
        return f"said to be commit {commit}" if commit else "no commit"
    caveat = statement.source_caveat(manifest)
    parts = [f"commit {commit}"] if commit else []
    parts += [caveat] if caveat else []
    if not commit and manifest.get("contents"):
        parts.append(f"contents {manifest['contents']}")
    return ", ".join(parts)


def _check_original(wheel: Path, made_of: Mapping[str, Any], original: Path) -> AgreementCheck:
    from torchmill.wheel.verify import slimming

    name, title = "original", f"{made_of.get('wheel')}, sha256 {made_of.get('sha256')}"
    if not is_file(original):
        return AgreementCheck(name, f"made of {title}: not compared, name it with --original")
    if hash_file(original) != made_of.get("sha256"):
        return AgreementCheck(name, "", (f"{original} is not {title}",))
    if wheel.name.split("-")[2:] != str(made_of.get("wheel")).split("-")[2:]:
        return AgreementCheck(name, "", (f"{wheel.name} has other tags than {title}",))
    try:
        problems = tuple(slimming.wheel_differences(original, wheel))
    except (DeliveryError, BuildError, *ARCHIVE_ERRORS, *DOCUMENT_ERRORS) as error:
        problems = (str(error),)
    return AgreementCheck(name, f"all of {title} except code for GPUs", problems)


def damaged_check(name: str, error: Exception) -> AgreementCheck:
    """Return the check of a document that has another shape than ours: `error` is of DOCUMENT_ERRORS."""
    reason = f"lacks {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    return AgreementCheck(name, "", (f"cannot be understood ({reason})",))


def _check_document(
    name: str,
    suffix: str,
    found: Distribution,
    expected: Reference | None,
    read: Callable[[Distribution, Mapping[str, Any]], tuple[str, Iterable[str]]],
) -> AgreementCheck:
    """Return the check of a document: against the manifest, and the wheel where that does not say enough.

    `read` returns what a document says in short, and in which ways it is not about the wheel; where it is not
    of the kind that its name says, "" and the reason.
    """
    remedy = "`invoke verify --write` makes it of the manifest"
    file = dist_files.document_path(found.path, suffix)
    document, problems = _read(file, f"remove it, {remedy}" if expected else "fetch it again")
    if document is None:
        if expected and not problems:
            problems = (f"is missing: {remedy}",)
        return AgreementCheck(name, "none beside it: not compared", problems)
    try:
        summary, not_of_wheel = read(found, document)
        if expected is None or not summary:
            wrong = tuple(not_of_wheel)
            parameters = _object_at(document, "predicate", "buildDefinition", "internalParameters")
            known = name == STATEMENT and formats.judge_format(parameters, formats.STATEMENT) in {
                "same",
                "older",
            }
            return AgreementCheck(name, summary, wrong, vouches=known and not wrong)
        wrong = tuple(
            document_differences(document, parse_json_object(expected.documents[suffix]), expected)
        )
        return AgreementCheck(name, summary, wrong)
    except DOCUMENT_ERRORS as error:  # a document may say anything
        return damaged_check(name, error)


def _read_statement(found: Distribution, document: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    types = document.get("_type"), document.get("predicateType")
    if types != (statement.STATEMENT_TYPE, statement.PREDICATE_TYPE):
        return "", [f"is of type {types[0]} with {types[1]}, which is not SLSA 1 provenance"]
    definition = _object_at(document, "predicate", "buildDefinition")
    if (kind := definition.get("buildType")) != statement.BUILD_TYPE:
        return "", [f"has the buildType {kind}, which is not {statement.BUILD_TYPE}"]
    who = _object_at(document, "predicate", "runDetails", "builder").get("id")
    dependencies = _count(definition.get("resolvedDependencies"))
    subject = [{"name": found.path.name, "digest": {"sha256": found.sha256}}]
    return (
        f"this digest, built by {who} from {dependencies} inputs",
        document_differences(document.get("subject"), subject, WHEEL, "subject"),
    )


def _read_sbom(
    found: Distribution, document: Mapping[str, Any], *, sha256: str | None
) -> tuple[str, Iterable[str]]:
    """Return what an SBOM says in short, and how it does not fit the wheel, of which it should give this digest."""
    from torchmill.wheel import sbom

    if document.get("bomFormat") != "CycloneDX":
        return "", ["is not a CycloneDX document"]
    about = _object_at(document, "metadata", "component")
    name = canonicalize_name(str(about.get("name")))
    claimed = {"name": name, "version": about.get("version"), "hashes": about.get("hashes")}
    hashes, serial = (
        [{"alg": "SHA-256", "content": sha256}] if sha256 else None,
        sbom.serial_number(document, sha256),
    )
    actual = {"name": found.name, "version": str(found.version), "hashes": hashes}
    return (
        f"CycloneDX {document.get('specVersion')}, {_count(document.get('components'))} components",
        chain(
            document_differences(document.get("serialNumber"), serial, WHEEL, "serialNumber"),
            document_differences(claimed, actual, WHEEL, "metadata.component"),
            _library_differences(found.path, document),
        ),
    )


def _check_inner_sbom(found: Distribution) -> AgreementCheck:
    """Return the check of the SBOM in a wheel, by itself and against the one beside it, which the manifest judges."""
    from torchmill.wheel import sbom

    name = "inner SBOM"
    try:
        content = dist_files.read_described(found.path, sbom.INNER_PATH)
        if content is None:
            wrong = ("is missing: build the wheel again",) if "licences" in found.manifest else ()
            return AgreementCheck(name, "none in it: not compared", wrong)
        document = parse_json_object(content)
        summary, problems = _read_sbom(found, document, sha256=None)
        if summary and (
            beside := _read(dist_files.document_path(found.path, dist_files.SBOM_SUFFIX), "")[0]
        ):
            other = Reference("the SBOM beside it")
            problems = [
                *problems,
                *document_differences(_parts(document), _parts(beside), other, "components"),
            ]
        return AgreementCheck(name, summary, tuple(problems))
    except (*ARCHIVE_ERRORS, *DOCUMENT_ERRORS) as error:
        return damaged_check(name, error)


def _parts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the components of an SBOM that are in the wheel, without where they were fetched from."""
    source = f"{statement.SOURCE_KIND}:"  # whose digest is that of an archive
    parts = []
    for one in document["components"]:
        fetched = {
            "purl",
            "externalReferences",
            *(["hashes"] if str(one["bom-ref"]).startswith(source) else []),
        }
        if "scope" not in one:  # neither built with, nor required
            parts.append({key: one[key] for key in one.keys() - fetched})
    return parts


def _library_differences(wheel: Path, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each bundled library of an SBOM that the wheel does not hold in this form."""
    from torchmill.wheel import sbom

    held = dist_files.recorded_digests(wheel)
    for component in document.get("components", ()):
        digests = [one.get("content") for one in component.get("hashes", ())]
        for one in component.get("properties", ()):
            if one.get("name") == sbom.PATH_PROPERTY and digests != [held.get(one["value"])]:
                yield f"{one['value']} in the wheel is not the file that it lists"


def _count(entries: Any) -> int:
    return len(entries) if isinstance(entries, list) else 0


def _read(file: Path, remedy: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return the JSON in a file; None where there is none, with the reason unless the file is missing."""
    try:
        return read_json_object(file), ()
    except FileNotFoundError:
        return None, ()
    except (OSError, ValueError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        return None, (f"cannot be read ({reason}): {remedy}",)


def _object_at(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the object below some names; an empty one where there is something else."""
    here: Any = document
    for name in names:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}
