"""Which known vulnerabilities a wheel has, with the patches that its plan applies."""

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.changed_facts import change_facts, change_groups
from tests.support.plans import options_of, plan_torch
from torchmill.config.facts import Facts
from torchmill.config.rule import Rule, When
from torchmill.config.vulnerability import Vulnerability, VulnerabilityFacts
from torchmill.plan import exposure, render
from torchmill.plan.exposure import Exposure

READ = "2026-12-01"
KNOWN = Vulnerability(
    id="CVE-2000-1",
    package="torch",
    title="a file runs code",
    affected=SpecifierSet("<2.0"),
    severity="critical",
    kind="code execution",
    sources=("https://example.org/1",),
    unclear=SpecifierSet(">=2.0,<2.2"),
    disagreement="one says 2.0, another 2.2",
)
FIX = Rule(name="rule 1", when=When(), reason="", fixes=("CVE-2000-1",), patches=("a.patch",))


def states(
    shipped: Facts, *vulnerabilities: Vulnerability, version: str, rules: tuple[Rule, ...] = ()
) -> list[Exposure]:
    """Return the exposures of a release of torch, built without CUDA, if these are all known."""
    facts = replace(shipped, vulnerabilities=VulnerabilityFacts(vulnerabilities, READ))
    return list(exposure.assess(facts, "torch", version, rules, {"USE_CUDA": "0"}))


def test_a_release_in_bounds_has_it_and_a_later_one_has_not(shipped: Facts) -> None:
    assert states(shipped, KNOWN, version="1.13.1")[0].state == "affected"
    assert states(shipped, KNOWN, version="2.2.0")[0].state == "not affected"


def test_where_sources_differ_nobody_can_tell(shipped: Facts) -> None:
    result = states(shipped, KNOWN, version="2.1.0")[0]
    assert (result.state, result.reason) == ("cannot tell", KNOWN.disagreement)


def test_one_of_another_package_does_not_count(shipped: Facts) -> None:
    assert not states(shipped, replace(KNOWN, package="torchvision"), version="1.13.1")


def test_one_of_a_part_that_is_switched_off_is_not_in_the_wheel(shipped: Facts) -> None:
    """An advisory that covers half a release: its builds with CUDA."""
    result = states(shipped, replace(KNOWN, switch="USE_CUDA"), version="1.13.1")[0]
    assert result.state == "not affected"
    assert "USE_CUDA" in result.reason
    result = states(shipped, replace(KNOWN, switch="USE_MKLDNN"), version="1.13.1")[0]
    assert result.state == "affected"


def test_a_patch_that_is_not_proven_fixes_nothing_for_certain(shipped: Facts) -> None:
    result = states(shipped, KNOWN, version="1.13.1", rules=(FIX,))[0]
    assert (result.state, result.patches, result.proven) == (
        "cannot tell",
        ("torch/a.patch",),
        None,
    )
    proven = replace(FIX, proven="2026-11-01")
    result = states(shipped, KNOWN, version="1.13.1", rules=(proven,))[0]
    assert (result.state, result.proven) == ("fixed by a patch", "2026-11-01")


def test_a_fix_of_two_patches_is_proven_if_both_are(shipped: Facts) -> None:
    proven = replace(FIX, proven="2026-11-01")
    other = replace(FIX, patches=("b.patch",))
    result = states(shipped, KNOWN, version="1.13.1", rules=(proven, other))[0]
    assert result.patches == ("torch/a.patch", "torch/b.patch")
    assert result.proven is None
    proven_rules = (proven, replace(other, proven="2026-11-02"))
    assert states(shipped, KNOWN, version="1.13.1", rules=proven_rules)[0].proven == "2026-11-02"


def test_a_patch_does_not_make_a_later_release_affected(shipped: Facts) -> None:
    assert states(shipped, KNOWN, version="2.2.0", rules=(FIX,))[0].state == "not affected"


def test_secure_chooses_rules_that_fix_something() -> None:
    usual = Rule(name="rule 2", when=When(), reason="")
    proven = replace(FIX, proven="2026-11-01")
    rules = [usual, FIX, proven]
    assert exposure.chosen_rules(rules, "proven") == [usual, proven]
    assert exposure.chosen_rules(rules, "all") == rules
    assert exposure.chosen_rules(rules, "none") == [usual]


def test_the_summary_names_the_worst_that_is_not_disputed(shipped: Facts) -> None:
    disputed = replace(KNOWN, disputed="its existence is doubted")
    mild = replace(KNOWN, id="CVE-2000-2", severity="low", kind="denial of service")
    result = states(shipped, disputed, mild, version="1.13.1")
    assert exposure.summarize(result, READ) == (
        "2 known vulnerabilities, 1 of them disputed, the worst CVE-2000-2 (low, denial of "
        "service) (sources of 2026-12-01)"
    )
    proven = replace(FIX, proven="2026-11-01")
    result = states(shipped, KNOWN, version="1.13.1", rules=(proven,))
    assert exposure.summarize(result, READ).startswith("no known vulnerability, 1 fixed by")
    assert exposure.summarize([], READ) == ""


def test_the_plan_applies_what_secure_chooses(shipped: Facts) -> None:
    """The patch is in the tree's inputs, because it is among the plan's patches."""
    torch = shipped.packages["torch"]
    rules = (*torch.rules, replace(FIX, proven="2026-11-01"))
    packages = {**shipped.packages, "torch": change_groups(torch, rules=rules)}
    facts = replace(shipped, packages=packages, vulnerabilities=VulnerabilityFacts((KNOWN,), READ))
    plan = plan_torch(facts, "wheel-3.10-cpu", "v1.13.1")
    assert "torch/a.patch" in plan.tree.patches
    data = render.plan_as_data(plan)["vulnerabilities"]
    assert [entry["state"] for entry in data] == ["fixed by a patch"]
    none = plan_torch(facts, "wheel-3.10-cpu", "v1.13.1", options=options_of("--secure=none"))
    assert "torch/a.patch" not in none.tree.patches
    assert none.vulnerabilities[0].state == "affected"


def test_every_release_of_torch_is_assessed(shipped: Facts) -> None:
    """The newest release is affected by nothing that has a fixed release; old ones are."""
    newest = exposure.assess(shipped, "torch", "2.15.0", (), {})
    assert not [result for result in newest if result.state == "affected"]
    old = {
        result.vulnerability.id: result.state
        for result in exposure.assess(shipped, "torch", "1.13.1", (), {})
    }
    assert old["CVE-2025-32434"] == "affected"
    assert old["CVE-2022-45907"] == "not affected"
    assert old["CVE-2025-55557"] == "not affected"  # there is no Inductor
    assert old["CVE-2025-2148"] == "cannot tell"


def test_facts_of_nothing_say_nothing(shipped: Facts) -> None:
    facts = change_facts(shipped, vulnerabilities={"entries": ()})
    plan = plan_torch(facts, "wheel-3.10-cpu", "v1.13.1")
    assert plan.vulnerabilities == ()


@pytest.mark.parametrize(
    ("secure", "label"), [("none", "gitee1b680"), ("all", "gitee1b680.modified")]
)
def test_a_version_after_a_commit_tells_that_unproven_patches_changed_it(
    shipped: Facts, secure: str, label: str
) -> None:
    options = options_of(f"--secure={secure}", "--label=git")
    torch = plan_torch(shipped, "wheel-3.10-cpu", "v2.4.1", options=options)
    assert torch.wheel.version == f"2.4.1+{label}"
    audio = plan_torch(shipped, "audio-3.10-cpu", "v2.4.1", options=options)
    assert audio.wheel.torch == f"torch==2.4.1+{label}"
