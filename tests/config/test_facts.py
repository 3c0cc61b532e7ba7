"""Facts: what loads, and what each mistake in a TOML file says."""

import re
from pathlib import Path

import pytest

from torchmill.config import facts_reader, matrix
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError


def edit(configs: Path, file: str, old: str, new: str) -> None:
    path = configs / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_loads_releases_oldest_first_and_pairs_dependents(known: Facts) -> None:
    assert [one.version for one in known.releases["base"]] == ["1.0.0", "2.0.0"]
    addon = known.releases["addon"][0]
    assert (addon.torch, addon.tag) == ("1.0.0", "v0.1.0")
    assert addon.pythons == ("3.9", "3.10"), "a dependent release defaults to its partner's axes"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "releases/1.0.0.toml",
            '"3.9", "3.10"',
            '"3.9", 3.10',
            r"1\.0\.0\.toml: base: 'pythons' holds the number 3\.1; quote it, as in \"3\.10\"",
        ),
        (
            "packages/base.toml",
            'reason = "numpy 2 came later"',
            'reeson = "numpy 2 came later"',
            r"base\.toml: rule 3: unknown key 'reeson'; did you mean 'reason'\?",
        ),
        (
            "packages/base.toml",
            'when = { variant = "cpu" }',
            'when = { varient = "cpu" }',
            r"base\.toml: rule 1: when: unknown key 'varient'; did you mean 'variant'\?",
        ),
        (
            "packages/base.toml",
            'release = "<2"',
            'release = "before 2"',
            r"base\.toml: rule 3: when: 'release' is 'before 2', which is no version specifier",
        ),
        (
            "packages/base.toml",
            'memory_per_job = "2 GiB"',
            'memory_per_job = "two"',
            r"base\.toml: 'memory_per_job': .*two",
        ),
        (
            "releases/2.0.0.toml",
            '"x86_64", "aarch64"',
            '"x86_64", "riscv"',
            r"base 2\.0\.0: unknown arch 'riscv'; arches\.toml has x86_64, aarch64, arm64",
        ),
        (
            "packages/base.toml",
            'requires = ["wheel", "numpy"]',
            'patches = ["absent.patch"]',
            r"base\.toml: rule 2: patch 'absent\.patch' is not in patches/base/",
        ),
        (
            "packages/base.toml",
            'disk = "1 GiB"',
            'disk = "1 GiB"\ncompilers = "make"',
            r"base\.toml: 'compilers' is 'make', expected one of cmake, path",
        ),
        ("toolkits.toml", '["10.2"]', '["10.2"', r"toolkits\.toml: .*line \d+"),
    ],
)
def test_each_mistake_is_told_with_its_place(
    configs: Path, file: str, old: str, new: str, message: str
) -> None:
    edit(configs, file, old, new)
    with pytest.raises(ConfigError) as error:
        facts_reader.read_facts(configs)
    assert re.search(message, str(error.value)), str(error.value)


def test_all_problems_come_in_one_message(configs: Path) -> None:
    edit(configs, "packages/base.toml", 'session = "wheel"', "session = 1")
    edit(configs, "packages/addon.toml", 'disk = "1 GiB"', 'disc = "1 GiB"')
    with pytest.raises(ConfigError) as error:
        facts_reader.read_facts(configs)
    text = str(error.value)
    assert "base.toml: 'session' holds 1, expected a string" in text
    assert "addon.toml: key 'disk' is missing" in text
    assert "addon.toml: unknown key 'disc'; did you mean 'disk'?" in text


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no packages/\*\.toml"):
        facts_reader.read_facts(tmp_path)


def test_a_rule_that_matches_nothing_is_an_error(configs: Path) -> None:
    edit(configs, "packages/base.toml", 'release = ">=2"', 'release = ">=3"')
    with pytest.raises(ConfigError, match=r"base\.toml: rule 4: matches no build"):
        matrix.refuse_unused_rules(facts_reader.read_facts(configs))
