"""What is said of extensions and torch is held to evidence: builds, compilers, ranges of the facts."""

from dataclasses import replace

import pytest
from packaging.version import Version

from tests.support.plans import find_torch_cell
from tools.extensions_page import OLDEST_TORCH, extensions_page, package_states
from torchmill.config.costs import CostFacts
from torchmill.config.facts import Facts
from torchmill.config.parsed import ParsedSource, parsed_with
from torchmill.config.release_lookup import base_package
from torchmill.plan.trial import find_trial

# torchsort has no wheel of upstream's, and no report of a build with this torch.
SORT = ParsedSource("torchsort", "0.1.9", "cpu", "3.12", "g++ 12.2.0", "2026-12-01", 1, 0)


def without_evidence(facts: Facts, *parsed: ParsedSource) -> Facts:
    release = facts.packages[SORT.package].editions[-1].version
    of_release = tuple(replace(source, release=release) for source in parsed)
    return replace(facts, costs=CostFacts(), parsed=of_release)


def state_of(facts: Facts, package: str, torch: str) -> str:
    return dict(package_states(facts, package))[torch]


def test_a_file_that_parses_is_not_built(shipped: Facts) -> None:
    nothing = without_evidence(shipped)
    assert state_of(nothing, "torchsort", "2.15.0") == "untried"
    parsed = without_evidence(shipped, replace(SORT, accepted=("2.15.0",)))
    assert state_of(parsed, "torchsort", "2.15.0") == "parses"
    assert state_of(parsed, "torchsort", "2.14.1") == "untried"
    trial = find_trial(parsed, find_torch_cell(parsed, "sort-3.12-cpu", "v2.15.0"))
    assert (trial.standing, trial.witness) == ("untried", None)
    assert "its C++ files parse against the headers of this torch" in trial.text
    trial = find_trial(parsed, find_torch_cell(parsed, "sort-3.12-cpu", "v2.14.1"))
    assert "parse" not in trial.text


def test_a_refusal_shows_the_error_of_the_compiler(shipped: Facts) -> None:
    error = "torchsort/isotonic_cpu.cpp:9: no member named 'type' | in Tensor"
    facts = without_evidence(shipped, replace(SORT, refused={"2.15.0": error}))
    assert state_of(facts, "torchsort", "2.15.0") == "refused"
    page = extensions_page(facts)
    assert ", cpu | 2.15.0 | `torchsort/isotonic_cpu.cpp:9: no member named 'type' \\| in" in page


def test_a_build_is_stronger_than_a_parse(shipped: Facts) -> None:
    assert state_of(shipped, "torch-scatter", "2.15.0") == "built"


def test_what_was_parsed_is_of_the_facts(shipped: Facts) -> None:
    """A claim of a torch that a package goes with stands against no error of a compiler."""
    torches = {release.version for release in shipped.releases[base_package(shipped).name]}
    for source in shipped.parsed:
        assert source.files > 0
        assert not set(source.accepted) & set(source.refused)
        assert {*source.accepted, *source.refused} <= torches
        versions = {release.version for release in shipped.releases[source.package]}
        assert source.release in versions
    for package in shipped.packages.values():
        for release in shipped.releases[package.name]:
            for source in parsed_with(shipped.parsed, release):
                claim = f"{release} goes with torch {release.torch} by its facts"
                assert release.torch in source.accepted, claim


@pytest.mark.parametrize("state", ["built", "parses"])
def test_every_claim_has_evidence(shipped: Facts, state: str) -> None:
    """Without the recorded builds and parses, nothing but upstream's own builds is claimed."""
    nothing = without_evidence(shipped)
    for package in shipped.packages.values():
        if not package.editions:
            continue
        built = {}
        for edition in package.editions:
            built[edition.version] = edition.built
        releases = {release.torch: release for release in shipped.releases[package.name]}
        for torch, known in package_states(nothing, package.name):
            if known == state:
                release = releases[torch]
                assert state == "built", f"{release} against torch {torch} was not parsed"
                assert built[release.version], f"{release} against torch {torch} was not built"
                assert release.tried


def test_nothing_is_refused_without_a_compiler(shipped: Facts) -> None:
    """A cell of an extension is refused by a range of torch, or by the error of a compiler."""
    parsed = {(source.package, torch) for source in shipped.parsed for torch in source.refused}
    for package in shipped.packages.values():
        if not package.editions:
            continue
        for torch, state in package_states(shipped, package.name):
            assert Version(torch) >= OLDEST_TORCH
            if state == "refused":
                assert (package.name, torch) in parsed
