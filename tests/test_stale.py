"""Rules without effect: found in small facts, and none in those that ship."""

from pathlib import Path

import pytest

from torchmill import facts, stale
from torchmill.errors import ConfigError
from torchmill.model import Facts


def added(configs: Path, rule: str) -> Facts:
    path = configs / "packages" / "base.toml"
    path.write_text(f"{path.read_text(encoding='utf-8')}\n[[rule]]\n{rule}\n", encoding="utf-8")
    return facts.load(configs)


def test_the_shipped_rules_all_match_something(shipped: Facts) -> None:
    stale.check(shipped)


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
    known = added(configs, f'reason = "never"\nwhen = {when}\nset = {{ A = "1" }}')
    with pytest.raises(ConfigError, match=r"base\.toml: rule 6: matches no build \(never\)"):
        stale.check(known)


def test_a_setting_for_a_build_that_conflicts_forbid_is_found(configs: Path) -> None:
    forbidden = 'when = { python = "==3.10", cuda = "==11.8", arch = "aarch64", release = "<2" }'
    known = added(configs, f'reason = "in vain"\n{forbidden}\nset = {{ A = "1" }}')
    with pytest.raises(ConfigError, match="in vain"):
        stale.check(known)


def test_a_compiler_is_no_axis(configs: Path) -> None:
    stale.check(added(configs, 'reason = "seen"\nwhen = { gcc = ">=12" }\nset = { A = "1" }'))
