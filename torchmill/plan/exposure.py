"""Which known vulnerabilities a wheel has: of a release, with the patches that a plan applies.

Facts say which releases have a vulnerability; rules of a package have the patches that fix one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torchmill.config.facts import Facts
from torchmill.config.rule import Rule
from torchmill.config.versions import format_bounds, is_within
from torchmill.config.vulnerability import Kind, Severity, Vulnerability
from torchmill.plan.build_options import SWITCHED_OFF, SecureChoice

State = Literal["affected", "fixed by a patch", "not affected", "cannot tell"]
STATES: tuple[State, ...] = get_args(State)

_SEVERITIES: tuple[Severity, ...] = get_args(Severity)
_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Exposure:
    """One known vulnerability, and whether a wheel has it."""

    vulnerability: Vulnerability
    state: State
    reason: str  # a clause
    patches: tuple[str, ...] = ()  # names below build_configs/patches that fix it
    proven: str | None = None  # the day on which a wheel with these patches was tried

    @property
    def is_fixed(self) -> bool:
        """Tell whether a proven patch fixes it."""
        return self.state == "fixed by a patch"

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        vulnerability = self.vulnerability
        # Programs rely on these keys, whatever the fields are called.
        return {
            "id": vulnerability.id,
            "aliases": list(vulnerability.aliases),
            "title": vulnerability.title,
            "severity": vulnerability.severity,
            "kind": vulnerability.kind,
            "part": vulnerability.part,
            "state": self.state,
            "because": self.reason,
            "patches": list(self.patches),
            "proven": self.proven,
            "fixed": vulnerability.fixed,
            "disputed": vulnerability.disputed,
            "disagreement": vulnerability.disagreement,
            "commits": list(vulnerability.commits),
            "sources": list(vulnerability.sources),
        }


def chosen_rules(rules: Iterable[Rule], secure: SecureChoice) -> list[Rule]:
    """Return the rules that count with a value of `--secure`.

    All rules that fix no vulnerability count.
    """
    chosen: list[Rule] = []
    for rule in rules:
        if not rule.fixes or secure == "all" or (secure == "proven" and rule.proven):
            chosen.append(rule)
    return chosen


def has_unproven_fix(rules: Iterable[Rule]) -> bool:
    """Tell whether rules have patches against vulnerabilities that only `--secure all` applies."""
    return any(rule.fixes and not rule.proven for rule in rules)


def assess(
    facts: Facts, package: str, version: str, rules: Iterable[Rule], variables: Mapping[str, str]
) -> tuple[Exposure, ...]:
    """Return whether a wheel has each known vulnerability of its package, the gravest first.

    `version` is that of the release, `rules` those that the plan applies, and `variables` those
    that the build sets, by which a part can be switched off.
    """
    fixes: dict[str, list[Rule]] = {}
    for rule in rules:
        for identifier in rule.fixes:
            fixes.setdefault(identifier, []).append(rule)
    exposures: list[Exposure] = []
    for vulnerability in facts.vulnerabilities.entries:
        if vulnerability.package == package:
            own_fixes = fixes.get(vulnerability.id, ())
            exposures.append(_assess_vulnerability(vulnerability, version, own_fixes, variables))
    return tuple(sorted(exposures, key=_gravity))


def _assess_vulnerability(
    vulnerability: Vulnerability, version: str, fixes: Sequence[Rule], variables: Mapping[str, str]
) -> Exposure:
    """Return whether a wheel has a vulnerability; `fixes` are the applied rules that fix it."""
    bounds = format_bounds(vulnerability.affected)
    in_bounds = is_within(vulnerability.affected, version)
    is_unclear = vulnerability.unclear is not None and is_within(vulnerability.unclear, version)
    if not in_bounds and not is_unclear:
        return Exposure(vulnerability, "not affected", f"only {bounds} has it")
    if _is_switched_off(vulnerability.switch, variables):
        reason = f"the build is without it: {vulnerability.switch} is off"
        return Exposure(vulnerability, "not affected", reason)
    if fixes:
        patches: list[str] = []
        for rule in fixes:
            patches.extend(f"{vulnerability.package}/{patch}" for patch in rule.patches)
        # All of them are needed, so the fix is as new as the newest proof.
        days = [rule.proven for rule in fixes if rule.proven]
        if len(days) < len(fixes):
            reason = f"{', '.join(patches)}: applied, but not proven for this release"
            return Exposure(vulnerability, "cannot tell", reason, tuple(patches))
        day = max(days)
        reason = f"proven on {day}"
        return Exposure(vulnerability, "fixed by a patch", reason, tuple(patches), day)
    if in_bounds:
        return Exposure(vulnerability, "affected", f"{bounds} has it")
    reason = vulnerability.disagreement or "no source says"
    return Exposure(vulnerability, "cannot tell", reason)


def _is_switched_off(switch: str, variables: Mapping[str, str]) -> bool:
    """Tell whether the variables of a build turn a switch off; "" is no switch."""
    return bool(switch) and variables.get(switch, "").upper() in SWITCHED_OFF


def _gravity(exposure: Exposure) -> tuple[int, bool, int, int, str]:
    """Return the place of a vulnerability among others: the gravest that a wheel has is first."""
    vulnerability = exposure.vulnerability
    return (
        STATES.index(exposure.state),
        bool(vulnerability.disputed),
        _SEVERITIES.index(vulnerability.severity),
        _KINDS.index(vulnerability.kind),
        vulnerability.id,
    )


def summarize(exposures: Sequence[Exposure], read: str | None) -> str:
    """Return the state of a wheel as one clause, with the worst that it has; "" without exposures.

    `exposures` are sorted, as `assess` returns them; `read` is the day on which the sources were
    read.
    """
    if not exposures:
        return ""
    affecting = [exposure for exposure in exposures if exposure.state == "affected"]
    fixed = [exposure for exposure in exposures if exposure.is_fixed]
    unclear = [exposure for exposure in exposures if exposure.state == "cannot tell"]
    clauses = [_describe_affecting(affecting)]
    if fixed:
        clauses.append(f"{len(fixed)} fixed by patches of torchmill")
    if unclear:
        clauses.append(f"{len(unclear)} more unclear")
    return f"{', '.join(clauses)} (sources of {read})"


def _describe_affecting(exposures: Sequence[Exposure]) -> str:
    """Return how many vulnerabilities a wheel has, and the worst of them, which is the first."""
    if not exposures:
        return "no known vulnerability"
    disputed = sum(bool(exposure.vulnerability.disputed) for exposure in exposures)
    worst = exposures[0].vulnerability
    count = f"{len(exposures)} known vulnerabilities"
    if len(exposures) == 1:
        count = "1 known vulnerability"
    doubt = f", {disputed} of them disputed" if disputed else ""
    return f"{count}{doubt}, the worst {worst.id} ({worst.severity}, {worst.kind})"


def describe(exposure: Exposure) -> str:
    """Return one line on a vulnerability, for people."""
    vulnerability = exposure.vulnerability
    disputed = "; disputed" if vulnerability.disputed else ""
    return (
        f"{exposure.state}: {vulnerability.id} ({vulnerability.severity}, {vulnerability.kind}"
        f"{disputed}): {vulnerability.title}; {exposure.reason}"
    )
