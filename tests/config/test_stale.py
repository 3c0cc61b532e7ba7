"""Rules without effect are found; the shipped facts have none."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from tools.unused_rules import refuse_unused_rules
from torchmill.config import facts_reader
from torchmill.config.facts import Facts


def facts_with_rule(configs: Path, rule: str) -> Facts:
    path = configs / "packages" / "base.toml"
    path.write_text(f"{path.read_text(encoding='utf-8')}\n[[rule]]\n{rule}\n", encoding="utf-8")
    return facts_reader.read_facts(configs)


def test_the_shipped_rules_all_match_something(shipped: Facts) -> None:
    refuse_unused_rules(shipped)


@pytest.mark.parametrize(
    "when",
    [
        '{ release = ">=3" }',
        '{ python = "==3.13", release = "<2" }',
        '{ cuda = "<11", release = ">=2" }',
        '{ arch = "arm64", cuda = ">=0" }',
        '{ variant = "cu999" }',
    ],
)
def test_a_rule_outside_every_axis_is_found(configs: Path, when: str) -> None:
    facts = facts_with_rule(configs, f'reason = "never"\nwhen = {when}\nset = {{ A = "1" }}')
    with refused("rule-without-effect") as caught:
        refuse_unused_rules(facts)
    assert "base.toml: rule 6: matches no build (never)" in str(caught.value)


def test_a_rule_for_a_forbidden_build_is_found(configs: Path) -> None:
    forbidden = 'when = { python = "==3.10", cuda = "==11.8", arch = "aarch64", release = "<2" }'
    facts = facts_with_rule(configs, f'reason = "in vain"\n{forbidden}\nset = {{ A = "1" }}')
    with refused("rule-without-effect") as caught:
        refuse_unused_rules(facts)
    assert "in vain" in str(caught.value)


def test_a_compiler_is_no_axis(configs: Path) -> None:
    refuse_unused_rules(
        facts_with_rule(configs, 'reason = "seen"\nwhen = { gcc = ">=12" }\nset = { A = "1" }')
    )


def test_a_rule_of_a_kind_needs_a_build_of_one_of_its_packages(configs: Path) -> None:
    (configs / "kinds").mkdir()
    (configs / "kinds" / "tiny.toml").write_text(
        """
[[rule]]
when = { release = ">=2" }
set = { A = "1" }
reason = "of one package"

[[rule]]
when = { release = ">=99" }
set = { A = "1" }
reason = "of no release"
""",
        encoding="utf-8",
    )
    for name in ("base", "addon"):
        path = configs / "packages" / f"{name}.toml"
        text = path.read_text(encoding="utf-8")
        path.write_text(f'kind = "tiny"\n{text}', encoding="utf-8")
    with refused("rule-without-effect") as caught:
        refuse_unused_rules(facts_reader.read_facts(configs))
    problems = str(caught.value).splitlines()[1:]
    assert problems == ["  tiny.toml: rule 2: matches no build (of no release)"]
