"""A drafted torch is paired with the newest release of an extension beyond its untried bound."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.declared import ONE, declared
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.plan.matrix import possible_cells
from torchmill.plan.trial import find_trial

DRAFT = """
    [base]
    version = "{version}"
    pythons = ["3.10", "3.13"]
    arches = ["x86_64"]
    drafted = true
    source = "test"
"""


def with_draft(configs: Path, text: str, version: str = "3.0.0") -> Facts:
    file = configs / "releases" / f"{version}.toml"
    file.write_text(dedent(DRAFT.format(version=version)), encoding="utf-8")
    return declared(configs, text)


def partner(facts: Facts, version: str) -> str | None:
    release = paired_release(facts, "tiny-scatter", find_release(facts, "base", version))
    return release.version if release else None


BOUNDED = ONE.replace('torch = ">=2"', 'torch = ">=2,<3"\n    built = ["cpu"]').replace(
    'torch = ">=1"', 'torch = ">=1,<2"'
)


def test_a_torch_beyond_the_bound_gets_the_newest_release(configs: Path) -> None:
    facts = with_draft(configs, BOUNDED)
    assert partner(facts, "2.0.0") == "1.10"
    assert partner(facts, "3.0.0") == "1.10"


def test_nobody_counts_as_having_built_against_a_drafted_torch(configs: Path) -> None:
    facts = with_draft(configs, BOUNDED)
    for version, standing in (("2.0.0", "tried"), ("3.0.0", "untried")):
        release = paired_release(facts, "tiny-scatter", find_release(facts, "base", version))
        assert release
        trials = [find_trial(facts, cell) for cell in possible_cells(facts, release, "x86_64")]
        assert trials[0].standing == standing
    assert "beyond the bounds of its facts, >=2,<3" in trials[0].text


def test_an_open_bound_is_no_report_either(configs: Path) -> None:
    facts = with_draft(configs, ONE.replace('torch = ">=2"', 'torch = ">=2"\n    built = ["cpu"]'))
    release = paired_release(facts, "tiny-scatter", find_release(facts, "base", "3.0.0"))
    assert release
    assert release.tried == {}
    trial = find_trial(facts, next(possible_cells(facts, release, "x86_64")))
    assert "beyond" not in trial.text


def test_a_completed_torch_beyond_the_bound_stays_alone(configs: Path) -> None:
    with_draft(configs, BOUNDED)
    file = configs / "releases" / "3.0.0.toml"
    file.write_text(file.read_text("utf-8").replace("drafted = true\n", ""), encoding="utf-8")
    assert partner(declared(configs, BOUNDED), "3.0.0") is None


def test_a_bound_below_the_newest_completed_torch_was_set_on_purpose(configs: Path) -> None:
    swapped = ONE.replace('torch = ">=2"', 'torch = ">=1,<2"')
    text = swapped.replace('torch = ">=1"\n', 'torch = ">=2"\n')
    facts = with_draft(configs, text)
    assert partner(facts, "1.0.0") == "1.10"
    assert partner(facts, "3.0.0") == "1.0", "it is in the bounds of the older one"
    closed = text.replace('torch = ">=2"', 'torch = ">=2,<3"')
    assert partner(with_draft(configs, closed), "3.0.0") is None


@pytest.mark.parametrize("version", ["1.5.0", "0.9.0"])
def test_a_drafted_torch_between_others_gets_no_exception(configs: Path, version: str) -> None:
    facts = with_draft(configs, BOUNDED.replace('">=1,<2"', '">=1,<1.1"'), version)
    assert partner(facts, version) is None
