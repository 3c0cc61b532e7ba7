"""The known vulnerabilities of a wheel in its SBOMs, as statements of CycloneDX (VEX).

A statement is made of an entry of the manifest's `vulnerabilities`. Those of a fixed one name the
patches, which are components of the same SBOM.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cyclonedx.model import Property, XsUri
from cyclonedx.model.component import Patch, PatchClassification
from cyclonedx.model.impact_analysis import ImpactAnalysisJustification, ImpactAnalysisState
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.model.vulnerability import (
    BomTarget,
    Vulnerability,
    VulnerabilityAdvisory,
    VulnerabilityAnalysis,
    VulnerabilityRating,
    VulnerabilitySeverity,
)

from torchmill.wheel import statement

FIXED = "fixed by a patch"  # the state of an entry that follows from the wheel's contents
PATCH_PROPERTY = "torchmill:patch"
ALIAS_PROPERTY = "torchmill:alias"
_STATES = {
    "affected": ImpactAnalysisState.EXPLOITABLE,
    FIXED: ImpactAnalysisState.RESOLVED_WITH_PEDIGREE,
    "not affected": ImpactAnalysisState.NOT_AFFECTED,
    "cannot tell": ImpactAnalysisState.IN_TRIAGE,
}


def make_statements(entries: Iterable[Mapping[str, Any]], subject: str) -> list[Vulnerability]:
    """Return the statements on vulnerabilities; `subject` is the reference of the wheel.

    `entries` are those of a manifest.
    """
    return [_make_statement(entry, subject) for entry in entries]


def _make_statement(entry: Mapping[str, Any], subject: str) -> Vulnerability:
    """Return the statement on one vulnerability."""
    state = _STATES[entry["state"]]
    detail = [entry["because"]]
    if entry["disputed"]:
        detail.append(f"disputed: {entry['disputed']}")
    if entry["disagreement"]:
        detail.append(f"sources disagree: {entry['disagreement']}")
    is_absent = state == ImpactAnalysisState.NOT_AFFECTED
    properties = [Property(name=PATCH_PROPERTY, value=patch) for patch in entry["patches"]]
    properties += [Property(name=ALIAS_PROPERTY, value=alias) for alias in entry["aliases"]]
    return Vulnerability(
        # cyclonedx makes up a random reference, which would differ in every build.
        bom_ref=f"vulnerability:{entry['id']}",
        id=entry["id"],
        description=entry["title"],
        ratings=[VulnerabilityRating(severity=VulnerabilitySeverity(entry["severity"]))],
        advisories=[VulnerabilityAdvisory(url=XsUri(source)) for source in entry["sources"]],
        analysis=VulnerabilityAnalysis(
            state=state,
            justification=ImpactAnalysisJustification.CODE_NOT_PRESENT if is_absent else None,
            detail="; ".join(detail),
        ),
        affects=[BomTarget(ref=subject)],
        properties=properties,
    )


def backported_patches(entries: Iterable[Mapping[str, Any]]) -> Iterator[Patch]:
    """Yield the patches of the wheel's pedigree: a backport for each vulnerability that is fixed."""
    for entry in entries:
        if entry["state"] == FIXED:
            issue = IssueType(
                type=IssueClassification.SECURITY, id=entry["id"], description=entry["title"]
            )
            yield Patch(type=PatchClassification.BACKPORT, resolves=[issue])


def statement_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each fix in an SBOM whose patches it does not list among the contents.

    Raises one of `agreement.DOCUMENT_ERRORS` for a document of another shape.
    """
    references = {component["bom-ref"] for component in document.get("components", ())}
    for entry in document.get("vulnerabilities", ()):
        if entry["analysis"]["state"] != ImpactAnalysisState.RESOLVED_WITH_PEDIGREE.value:
            continue
        properties = entry.get("properties", ())
        patches = [each["value"] for each in properties if each["name"] == PATCH_PROPERTY]
        if not patches:
            yield f"{entry['id']} is said to be fixed by no patch"
        for patch in patches:
            if f"{statement.PATCH_KIND}:{patch}" not in references:
                yield f"{entry['id']} is said to be fixed by {patch}, which is not in the wheel"


def count_states(document: Mapping[str, Any]) -> str:
    """Return how many vulnerabilities an SBOM has in each state: "2 exploitable, 1 not_affected".

    "" if it has none. Raises as `statement_problems` does.
    """
    counts = Counter(entry["analysis"]["state"] for entry in document.get("vulnerabilities", ()))
    words = [state.value for state in _STATES.values()]
    return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
