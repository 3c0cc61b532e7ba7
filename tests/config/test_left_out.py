"""A mistake in the file of a package or release stops only its own builds."""

from pathlib import Path

import pytest

from tests.support.declared import ONE
from tests.support.refusals import refused
from torchmill.commands.session_matrix import list_sessions
from torchmill.config.facts import Facts
from torchmill.config.facts_reader import read_facts, read_usable_facts
from torchmill.config.release_lookup import find_release, partner_releases
from torchmill.plan import cell_lookup

BROKEN = 'name = "mine'  # invalid TOML
OTHER = """
name = "other"
session = "other"
pypi = "other"
import_name = "other"
checks = "sample"
after = "base"
imports = ["tiny-scatter"]
memory_per_job = "1 GiB"
disk = "1 GiB"

[version_variables]

[[release]]
version = "1.0"
torch = ">=1"
source = "test"
"""


def left_out(configs: Path, file: str, text: str) -> Facts:
    """Write a file with mistakes, and return the facts that can still be used."""
    (configs / file).write_text(text, encoding="utf-8")
    with refused("facts-invalid"):
        read_facts(configs)
    return read_usable_facts(configs)


@pytest.mark.parametrize("text", [BROKEN, ONE.replace('disk = "', 'dusk = "'), "name = 1"])
def test_a_package_with_mistakes_is_left_out_alone(
    text: str, small_facts: Facts, configs: Path
) -> None:
    facts = left_out(configs, "packages/tiny-scatter.toml", text)
    assert facts.packages == small_facts.packages
    assert facts.releases == small_facts.releases
    (file,) = facts.left_out
    assert len(file.problems) == 1 or text != BROKEN
    assert file.name == "packages/tiny-scatter.toml"
    assert "packages/tiny-scatter.toml" in file.warning
    assert "\n" not in file.warning
    with refused("facts-invalid"):
        cell_lookup.find_cell(facts, "tiny-scatter-3.10-cpu", "x86_64", None)
    with refused("facts-invalid"):
        partner_releases(facts, facts.releases["base"][0], ["tiny-scatter"])
    assert cell_lookup.find_cell(facts, "wheel-3.10-cpu", "x86_64", None).is_possible


def test_a_package_left_out_is_known_by_its_session(configs: Path) -> None:
    facts = left_out(configs, "packages/tiny-scatter.toml", ONE.replace('disk = "', 'dusk = "'))
    with refused("facts-invalid"):
        cell_lookup.find_cell(facts, "scatter-3.10-cpu", "x86_64", None)


def test_a_base_package_that_cannot_be_read_puts_no_blame_on_releases(configs: Path) -> None:
    (configs / "packages" / "base.toml").write_text(BROKEN, encoding="utf-8")
    with refused("facts-invalid") as caught:
        read_facts(configs)
    files = {line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]}
    assert files == {"addon.toml", "base.toml"}


@pytest.mark.parametrize("text", [BROKEN, "nonsense = 1"])
def test_dependents_of_a_package_left_out_are_left_out_too(text: str, configs: Path) -> None:
    (configs / "packages" / "tiny-scatter.toml").write_text(text, encoding="utf-8")
    facts = left_out(configs, "packages/other.toml", OTHER)
    problems = {file.name: file.problems for file in facts.left_out}
    assert set(problems) == {"packages/tiny-scatter.toml", "packages/other.toml"}
    (unknown_name,) = problems["packages/other.toml"]
    choices = unknown_name.partition("packages/ has ")[2].split(", ")
    assert "" not in choices, "a file without a name is no choice"


def test_a_package_with_the_session_of_the_base_does_not_stop_the_base(configs: Path) -> None:
    conflicting = ONE.replace('session = "scatter"', 'session = "wheel"')
    facts = left_out(configs, "packages/tiny-scatter.toml", conflicting)
    assert cell_lookup.find_cell(facts, "wheel-3.10-cpu", "x86_64", None).is_possible


@pytest.mark.parametrize(("old", "new"), [("[base]", "[base"), ('"x86_64"', '"riscv"')])
def test_a_release_with_mistakes_is_left_out_alone(
    old: str, new: str, small_facts: Facts, configs: Path
) -> None:
    text = (configs / "releases" / "1.0.0.toml").read_text("utf-8")
    facts = left_out(configs, "releases/1.0.0.toml", text.replace(old, new, 1))
    assert facts.releases["base"] == small_facts.releases["base"][1:]
    assert facts.releases["addon"] == ()
    for name in ("v1.0.0", "1.0.0"):
        with refused("facts-invalid"):
            find_release(facts, "base", name)


@pytest.mark.parametrize("file", ["packages/base.toml", "arches.toml", "gpus.toml"])
def test_mistakes_in_a_file_that_every_build_needs_stop_all(file: str, configs: Path) -> None:
    (configs / file).write_text(BROKEN, encoding="utf-8")
    with refused("facts-invalid"):
        read_usable_facts(configs)


def test_the_list_of_sessions_names_what_is_left_out_each_time(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configs / "packages" / "mine.toml").write_text(BROKEN, encoding="utf-8")
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(configs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", -3600)
    first = list_sessions(tmp_path, "x86_64", None)
    assert first.sessions
    assert len(first.warnings) == 1
    assert list_sessions(tmp_path, "x86_64", None) == first
