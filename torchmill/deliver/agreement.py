"""Check that a wheel, its manifest, its statement and its SBOMs agree, field by field.

A wheel is sound if its contents match its RECORD and nothing about it is contradictory. A document
*vouches* for a wheel if it is a manifest or a statement of a known format that agrees with the
wheel: then it is known what the wheel was built from, as far as the document is to be trusted.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

from millpress import content_checks, file_names, record_file
from millpress.errors import InputError, WheelError
from millpress.zip_archive import ARCHIVE_ERRORS
from packaging.utils import canonicalize_name

from torchmill.core import formats
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import is_file
from torchmill.core.strict_json import parse_json_object, read_json_object
from torchmill.core.units import first_problems, format_bytes
from torchmill.deliver.differences import MAX_DIFFERENCES, ExpectedSource, document_differences
from torchmill.wheel import debug_archive, dist_files, finished_wheel, statement
from torchmill.wheel.finished_wheel import FinishedWheel

MAX_NOTES = 2  # of one check that are reported

# The names of the two checks that can vouch for a wheel.
MANIFEST = "manifest"
STATEMENT = "statement"

# The results of examining a wheel, as JSON has them.
VOUCHED = "ours"
SOUND = "sound"
WRONG = "wrong"
SENTENCES = {
    VOUCHED: "sound, and what its {voucher} says it is",
    SOUND: "sound, but nothing says who made it",
    WRONG: "not what it claims to be",
}

# The exceptions of reading a document that has another shape than torchmill's. Documents come from
# elsewhere, so they may hold anything.
DOCUMENT_ERRORS = (KeyError, TypeError, AttributeError, ValueError, RecursionError, csv.Error)


class DocumentReading(NamedTuple):
    """What a document says, compared with the wheel alone, without a manifest."""

    summary: str  # "" if the document is of another kind than its name says
    contradictions: Iterable[str]  # a clause for each; they are computed when they are iterated


ReadDocument = Callable[[FinishedWheel, Mapping[str, Any]], DocumentReading]

WHEEL = ExpectedSource("the wheel")


@dataclass(frozen=True, slots=True)
class AgreementCheck:
    """The result of one check of a wheel."""

    name: str
    summary: str  # printed if there are no problems
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # oddities that do no harm
    vouches: bool = False  # its document vouches for the wheel

    @property
    def text(self) -> str:
        """Return the check in one line."""
        text = first_problems(self.problems, MAX_DIFFERENCES) or self.summary
        if self.notes and not self.problems:
            text = f"{self.summary}; note: {first_problems(self.notes, MAX_NOTES)}"
        line = f"{self.name:10}  {text}"
        # Parts of the line were written by others, and could pretend to be further lines.
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


@dataclass(frozen=True, slots=True)
class AgreementVerdict:
    """All checks of one wheel."""

    wheel: Path  # its file
    checks: tuple[AgreementCheck, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the problems of all checks, each with the name of its check."""
        problems = []
        for check in self.checks:
            problems += [f"{check.name}: {problem}" for problem in check.problems]
        return tuple(problems)

    @property
    def status(self) -> str:
        """Return VOUCHED, SOUND or WRONG."""
        if self.problems:
            return WRONG
        return VOUCHED if self.voucher else SOUND

    @property
    def voucher(self) -> str:
        """Return the name of the document that vouches for the wheel: MANIFEST, STATEMENT or ""."""
        return next((check.name for check in self.checks if check.vouches), "")

    @property
    def sentence(self) -> str:
        """Return the status as a sentence without its full stop."""
        return SENTENCES[self.status].format(voucher=self.voucher)

    def require(self) -> None:
        """Raise DeliveryError if there is any problem."""
        if self.problems:
            raise DeliveryError(f"{self}: do not install or publish it", code="wheel-rejected")

    def __str__(self) -> str:
        return f"{self.wheel}: {first_problems(self.problems, MAX_DIFFERENCES)}"


def examine_wheel(
    path: Path, original: Path | None = None, wheel: FinishedWheel | None = None
) -> AgreementVerdict:
    """Return all checks of the wheel at `path`, which is read to its end several times.

    A wheel that was slimmed is compared with its `original`, by default the file of that name
    beside it. `wheel` is what `read_wheel` returned for the path, if the caller has called it. A
    file that cannot be read as a wheel gets one check, which has the problem.
    """
    try:
        wheel = wheel or finished_wheel.read_wheel(path)
        problems = tuple(content_checks.wheel_problems(path))
        oddities = tuple(content_checks.wheel_oddities(path))
    except WheelError as error:
        problem = str(error).removeprefix(f"{path}: ")
        return AgreementVerdict(path, (AgreementCheck("wheel", "", (problem,)),))
    with ZipFile(path) as archive:
        file_count = sum(not info.is_dir() for info in archive.infolist())
    title = f"{wheel.name} {wheel.version}"
    summary = f"{title}, {format_bytes(wheel.size)}, sha256 {wheel.sha256}"
    contents = AgreementCheck("contents", f"{file_count} files match RECORD", problems, oddities)
    manifest, expected = _check_manifest(wheel)
    # The name and the digest of the wheel that a slim wheel was made of; empty for other wheels.
    named_original = _object_at(wheel.manifest, "original")
    if original is None:
        # Only the file name counts: a manifest from elsewhere must not name a path. A file "?" does
        # not exist, so that the original counts as missing if the manifest does not name it.
        original = path.with_name(Path(str(named_original.get("wheel"))).name or "?")
    if named_original:
        tags = _slimmed_tags(original)
    else:
        tags = _check_tags(path, vouched=manifest.vouches)
    statement_suffix = dist_files.STATEMENT_SUFFIX
    sbom_suffix = dist_files.SBOM_SUFFIX
    read_sbom = partial(_read_sbom, sha256=wheel.sha256)
    checks = [
        AgreementCheck("wheel", summary),
        contents,
        tags,
        manifest,
        _check_document(STATEMENT, statement_suffix, wheel, expected, _read_statement),
        _check_document("SBOM", sbom_suffix, wheel, expected, read_sbom),
        _check_inner_sbom(wheel),
        _check_vulnerabilities(wheel),
    ]
    if wheel.variant:
        checks.append(_check_variant(wheel))
    if named_original:
        checks.append(_check_original(path, named_original, original))
    debug_file = dist_files.document_path(path, dist_files.DEBUG_SUFFIX)
    if is_file(debug_file):
        checks.append(_check_debug_archive(debug_file, wheel))
    return AgreementVerdict(path, tuple(checks))


def _slimmed_tags(original: Path) -> AgreementCheck:
    """Return the check of the tags of a slimmed wheel, which has those of its original."""
    basis = "as" if is_file(original) else "not judged: said to be"
    return AgreementCheck("tags", f"{basis} those of the wheel that it was made from")


def _check_tags(wheel: Path, *, vouched: bool) -> AgreementCheck:
    """Return the check of the promises in a wheel's name.

    A broken promise is a problem in a wheel that a manifest vouches for, and a note in any other:
    installers believe the name. PyPI has wheels that are named manylinux1 and need a newer glibc,
    and wheels whose WHEEL file has another platform than their name.
    """
    from millpress import library_checks

    tags = library_checks.platform_tags(wheel.name)
    libc_tags = [tag for tag in tags if tag.startswith(("manylinux", "musllinux"))]
    promised = ", ".join(libc_tags)
    summary = "its name promises no C library"
    if promised:
        summary = f"its files need no more than {promised}"
    judgement = library_checks.judge_tags(wheel)
    broken = list(judgement.broken_promises)
    renamed = content_checks.renamed_platform(wheel)
    if renamed:
        broken.append(renamed)
    if vouched:
        return AgreementCheck("tags", summary, (*judgement.contradictions, *broken))
    if judgement.broken_promises:
        summary = f"its files need more than {promised}"
    return AgreementCheck("tags", summary, judgement.contradictions, tuple(broken))


def _check_manifest(wheel: FinishedWheel) -> tuple[AgreementCheck, ExpectedSource | None]:
    """Return the check of a wheel's manifest, and the documents that follow from the manifest.

    The documents are None without a manifest, for a manifest of another format, and for one that
    contradicts the wheel.
    """
    manifest, problems = _read_object(dist_files.manifest_path(wheel.path), "build the wheel again")
    if manifest is None:
        return AgreementCheck(MANIFEST, "none beside it: not compared", problems), None
    age = formats.judge_format(manifest, formats.MANIFEST)
    # In a newer format, the fields may mean something else: nothing is compared.
    if age == "newer":
        clause = formats.newer_clause(manifest, formats.MANIFEST)
        return AgreementCheck(MANIFEST, f"it {clause}"), None
    problems = tuple(_manifest_problems(manifest, wheel))
    if age == "invalid":
        problems += (f"has the invalid format {manifest.get(formats.KEY)!r}",)
    release = f"{manifest.get('package')} {manifest.get('tag')}"
    source = _describe_source(manifest, current=age == "same")
    summary = f"{manifest.get('identifier')} of {release}, {source}"
    check = AgreementCheck(MANIFEST, summary, problems, vouches=not problems)
    if problems:
        return check, None
    # An older torchmill composed other documents from the same manifest.
    if age == "older":
        summary += "; written by an older torchmill: "
        summary += "statement and SBOM are compared with the wheel alone"
        return replace(check, summary=summary), None
    try:
        documents = dist_files.compose_documents(manifest, wheel.path)
    except DOCUMENT_ERRORS as error:
        return damaged_check(MANIFEST, error), None
    return check, ExpectedSource("the manifest", documents)


def _manifest_problems(manifest: Mapping[str, Any], wheel: FinishedWheel) -> Iterator[str]:
    """Yield a clause for each field in which a manifest contradicts the wheel.

    Only fields that manifests of all formats have are compared.
    """
    expected = {
        "wheel": wheel.path.name,
        "sha256": wheel.sha256,
        "version": str(wheel.version),
    }
    for key, value in expected.items():
        if manifest.get(key) != value:
            yield f"says {key} {manifest.get(key)!r}, the wheel is {value!r}"
    size = manifest.get("size", wheel.size)
    if size != wheel.size:
        yield f"says {size} bytes, the wheel has {wheel.size}"


def _describe_source(manifest: Mapping[str, Any], *, current: bool) -> str:
    """Return the source that a manifest names.

    A manifest that is not of the `current` format names a commit, but does not prove it.
    """
    commit = manifest.get("commit")
    if not current:
        return f"said to be commit {commit}" if commit else "no commit"
    parts = []
    if commit:
        parts.append(f"commit {commit}")
    caveat = statement.source_caveat(manifest)
    if caveat:
        parts.append(caveat)
    contents = manifest.get("contents")
    if contents and not commit:
        parts.append(f"contents {contents}")
    return ", ".join(parts)


def _check_original(
    wheel: Path, named_original: Mapping[str, Any], original: Path
) -> AgreementCheck:
    """Return the check of a slimmed wheel against its original: only code for GPUs may be gone.

    `named_original` has the name and the digest that the manifest gives for the original.
    """
    from torchmill.wheel.verify import slimming

    name = "original"
    title = f"{named_original.get('wheel')}, sha256 {named_original.get('sha256')}"
    if not is_file(original):
        return AgreementCheck(name, f"made of {title}: not compared, name it with --original")
    if hash_file(original) != named_original.get("sha256"):
        return AgreementCheck(name, "", (f"{original} is not {title}",))
    plain_name, label = file_names.split_label(wheel.name)
    original_name = str(named_original.get("wheel"))
    if label:  # what a variant is for follows the tags of its original
        original_name, _ = file_names.split_label(original_name)
    if plain_name.split("-")[2:] != original_name.split("-")[2:]:
        return AgreementCheck(name, "", (f"{wheel.name} has other tags than {title}",))
    try:
        problems = tuple(slimming.wheel_differences(original, wheel))
    except (InputError, WheelError, *ARCHIVE_ERRORS, *DOCUMENT_ERRORS) as error:
        problems = (str(error),)
    return AgreementCheck(name, f"all of {title} except code for GPUs", problems)


def _check_debug_archive(archive: Path, wheel: FinishedWheel) -> AgreementCheck:
    """Return the check of the archive with debug information beside a wheel."""
    name = "debug info"
    problems = tuple(
        debug_archive.archive_problems(archive, wheel.sha256, wheel.manifest.get("debug_info"))
    )
    if problems:
        return AgreementCheck(name, "", problems)
    index = debug_archive.read_index(archive)
    count = len(index["libraries"])
    return AgreementCheck(name, f"of this wheel, {index.get('level')}, {count} libraries")


def _check_variant(wheel: FinishedWheel) -> AgreementCheck:
    """Return the check of what a wheel variant is for: its metadata, and what its manifest says."""
    from torchmill.wheel import variant_metadata

    name = "variant"
    try:
        variant = variant_metadata.read_variant(wheel.path)
    except DeliveryError as error:
        problem = str(error).removeprefix(f"{wheel.path.name}: ")
        return AgreementCheck(name, "", (problem,))
    declared = _object_at(wheel.manifest, "wheel_variant")
    if variant is None or not declared:
        return AgreementCheck(name, str(variant))
    properties = [str(required) for required in variant.properties]
    if (declared.get("label"), declared.get("properties")) != (variant.label, properties):
        problem = f"the manifest says {declared.get('label')} {declared.get('properties')}"
        return AgreementCheck(name, "", (f"{problem}, the wheel {variant}",))
    return AgreementCheck(name, f"{variant}, by {declared.get('library')}")


def damaged_check(name: str, error: Exception) -> AgreementCheck:
    """Return the check of a document that raised `error`, one of DOCUMENT_ERRORS."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, KeyError):
        reason = f"lacks {error}"
    return AgreementCheck(name, "", (f"cannot be understood ({reason})",))


def _check_document(
    name: str,
    suffix: str,
    wheel: FinishedWheel,
    expected: ExpectedSource | None,
    read: ReadDocument,
) -> AgreementCheck:
    """Return the check of a document beside a wheel, whose name ends in `suffix`.

    If the manifest says what must be in the document (`expected`), the document is compared with
    that field by field. Otherwise only the contradictions to the wheel that `read` finds count.
    """
    remedy = "`invoke verify --write` writes it from the manifest"
    file = dist_files.document_path(wheel.path, suffix)
    if expected:
        document, problems = _read_object(file, f"remove it, {remedy}")
    else:
        document, problems = _read_object(file, "fetch it again")
    if document is None:
        if expected and not problems:
            problems = (f"is missing: {remedy}",)
        return AgreementCheck(name, "none beside it: not compared", problems)
    try:
        reading = read(wheel, document)
        # A document of another kind would differ in nearly every field: the one contradiction that
        # `read` finds says more.
        if expected and reading.summary:
            expected_document = parse_json_object(expected.documents[suffix])
            differences = document_differences(document, expected_document, expected)
            return AgreementCheck(name, reading.summary, tuple(differences))
        problems = tuple(reading.contradictions)
        vouches = name == STATEMENT and not problems and _has_known_format(document)
        return AgreementCheck(name, reading.summary, problems, vouches=vouches)
    except DOCUMENT_ERRORS as error:
        return damaged_check(name, error)


def _has_known_format(statement_document: Mapping[str, Any]) -> bool:
    """Tell if a statement is of a format that this torchmill knows."""
    parameters = _object_at(
        statement_document, "predicate", "buildDefinition", "internalParameters"
    )
    return formats.judge_format(parameters, formats.STATEMENT) in {"same", "older"}


def _read_statement(wheel: FinishedWheel, document: Mapping[str, Any]) -> DocumentReading:
    """Return a summary of a statement, and how it differs from the wheel."""
    document_type = document.get("_type")
    predicate_type = document.get("predicateType")
    if (document_type, predicate_type) != (statement.STATEMENT_TYPE, statement.PREDICATE_TYPE):
        types = f"{document_type} with {predicate_type}"
        return DocumentReading("", [f"is of type {types}, which is not SLSA 1 provenance"])
    definition = _object_at(document, "predicate", "buildDefinition")
    build_type = definition.get("buildType")
    if build_type != statement.BUILD_TYPE:
        problem = f"has the buildType {build_type}, which is not {statement.BUILD_TYPE}"
        return DocumentReading("", [problem])
    builder = _object_at(document, "predicate", "runDetails", "builder").get("id")
    inputs = _count(definition.get("resolvedDependencies"))
    subject = [{"name": wheel.path.name, "digest": {"sha256": wheel.sha256}}]
    return DocumentReading(
        f"this digest, built by {builder} from {inputs} inputs",
        document_differences(document.get("subject"), subject, WHEEL, "subject"),
    )


def _read_sbom(
    wheel: FinishedWheel, document: Mapping[str, Any], *, sha256: str | None
) -> DocumentReading:
    """Return a summary of an SBOM, and how it differs from the wheel.

    `sha256` is the digest of the wheel that it should have; None for the SBOM inside the wheel,
    which cannot have the digest.
    """
    from torchmill.wheel import sbom

    if document.get("bomFormat") != "CycloneDX":
        return DocumentReading("", ["is not a CycloneDX document"])
    component = _object_at(document, "metadata", "component")
    claimed = {
        "name": canonicalize_name(str(component.get("name"))),
        "version": component.get("version"),
        "hashes": component.get("hashes"),
    }
    actual = {
        "name": wheel.name,
        "version": str(wheel.version),
        "hashes": [{"alg": "SHA-256", "content": sha256}] if sha256 else None,
    }
    # It follows from the wheel's digest, or in the inner SBOM from all other fields: so it shows
    # that one of these was edited.
    serial_number = sbom.serial_number(document, sha256)
    components = _count(document.get("components"))
    return DocumentReading(
        f"CycloneDX {document.get('specVersion')}, {components} components",
        chain(
            document_differences(
                document.get("serialNumber"), serial_number, WHEEL, "serialNumber"
            ),
            document_differences(claimed, actual, WHEEL, "metadata.component"),
            _library_differences(wheel.path, document),
        ),
    )


def _check_inner_sbom(wheel: FinishedWheel) -> AgreementCheck:
    """Return the check of the SBOM inside a wheel.

    It is compared with the wheel, and with the SBOM beside the wheel. The latter has a check of its
    own, against the manifest.
    """
    from torchmill.wheel import sbom

    name = "inner SBOM"
    try:
        content = record_file.read_dist_info_file(wheel.path, sbom.INNER_PATH)
        if content is None:
            problems = []
            # Manifests have this field since wheels have an SBOM inside.
            if "licences" in wheel.manifest:
                problems.append("is missing: build the wheel again")
            return AgreementCheck(name, "none in it: not compared", tuple(problems))
        document = parse_json_object(content)
        reading = _read_sbom(wheel, document, sha256=None)
        problems = list(reading.contradictions)
        outer, _ = _read_object(dist_files.document_path(wheel.path, dist_files.SBOM_SUFFIX), "")
        if reading.summary and outer:
            problems += document_differences(
                _wheel_components(document),
                _wheel_components(outer),
                ExpectedSource("the SBOM beside it"),
                "components",
            )
        return AgreementCheck(name, reading.summary, tuple(problems))
    except (*ARCHIVE_ERRORS, *DOCUMENT_ERRORS) as error:
        return damaged_check(name, error)


def _check_vulnerabilities(wheel: FinishedWheel) -> AgreementCheck:
    """Return the check of what the SBOMs of a wheel say about known vulnerabilities.

    The SBOM beside the wheel says more than the one inside, which counts if there is no other.
    """
    from torchmill.wheel import sbom, sbom_vulnerabilities

    name = "advisories"
    try:
        document, _ = _read_object(dist_files.document_path(wheel.path, dist_files.SBOM_SUFFIX), "")
        if document is None:
            content = record_file.read_dist_info_file(wheel.path, sbom.INNER_PATH)
            document = parse_json_object(content) if content is not None else {}
        summary = sbom_vulnerabilities.count_states(document)
        problems = tuple(sbom_vulnerabilities.statement_problems(document))
        return AgreementCheck(name, summary or "no SBOM names any", problems)
    except (*ARCHIVE_ERRORS, *DOCUMENT_ERRORS) as error:
        return damaged_check(name, error)


def _wheel_components(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the components of an SBOM that are in the wheel, without the origin of its source.

    Components with a scope are not in the wheel: it was built with them, or requires them. The SBOM
    in the wheel does not depend on the place that its source was fetched from.
    """
    source_prefix = f"{statement.SOURCE_KIND}:"
    components = []
    for component in document["components"]:
        omitted = {"purl", "externalReferences"}
        if str(component["bom-ref"]).startswith(source_prefix):
            omitted.add("hashes")  # of the archive that the source was fetched in
        if "scope" not in component:
            components.append({key: component[key] for key in component.keys() - omitted})
    return components


def _library_differences(wheel: Path, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each library of an SBOM whose digest differs from the wheel's RECORD."""
    from torchmill.wheel import sbom

    recorded = record_file.recorded_digests(wheel)
    for component in document.get("components", ()):
        digests = [entry.get("content") for entry in component.get("hashes", ())]
        for entry in component.get("properties", ()):
            if entry.get("name") != sbom.PATH_PROPERTY:
                continue
            path = entry["value"]
            if digests != [recorded.get(path)]:
                yield f"{path} in the wheel is not the file that it lists"


def _count(entries: Any) -> int:
    """Return the length of a list in a document; 0 for a value of another type."""
    return len(entries) if isinstance(entries, list) else 0


def _read_object(file: Path, remedy: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return the JSON object in a file, and problems with it.

    The object is None if it cannot be read. A file need not exist: that is not a problem.
    """
    try:
        return read_json_object(file), ()
    except FileNotFoundError:
        return None, ()
    except OSError as error:
        return None, (f"cannot be read ({error.strerror or error}): {remedy}",)
    except ValueError as error:
        return None, (f"cannot be read ({error}): {remedy}",)


def _object_at(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the object at a path of names in a document; an empty one if there is none."""
    value: Any = document
    for name in names:
        if not isinstance(value, dict):
            return {}
        value = value.get(name)
    return value if isinstance(value, dict) else {}
