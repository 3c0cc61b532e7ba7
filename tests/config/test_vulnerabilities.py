"""Mistakes in vulnerabilities.toml, and in rules that claim to fix something, are named."""

import shutil
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.core.paths import CHECKOUT

ENTRY = """
[[vulnerability]]
id = "{id}"
package = "torch"
title = "a file runs code"
affected = "<2.0"
severity = "critical"
kind = "code execution"
sources = ["https://example.org/1"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the shipped facts without known vulnerabilities, to add mistakes to."""
    copy = tmp_path / "build_configs"
    shutil.copytree(CHECKOUT / "build_configs", copy)
    torch = copy / "packages" / "torch.toml"
    lines = torch.read_text("utf-8").splitlines(keepends=True)
    other_lines = [line for line in lines if not line.startswith(("fixes = ", "proven = "))]
    torch.write_text("".join(other_lines), "utf-8")
    (copy / "vulnerabilities.toml").unlink()
    return copy


def write(folder: Path, text: str) -> None:
    """Write the file of vulnerabilities."""
    (folder / "vulnerabilities.toml").write_text(text, "utf-8")


def problems(folder: Path) -> str:
    """Return what is said about the mistakes of a folder of facts."""
    with refused("facts-invalid") as caught:
        facts_reader.read_facts(folder)
    return str(caught.value)


def test_without_the_file_nothing_is_known(folder: Path) -> None:
    facts = facts_reader.read_facts(folder).vulnerabilities
    assert (facts.entries, facts.read) == ((), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("CVE-2000-1", "cve-2000"), "'cve-2000' is no identifier"),
        (('"torch"', '"torhc"'), "unknown package 'torhc'"),
        (('"critical"', '"grave"'), "'severity' is 'grave', expected one of critical"),
        (("affected =", "afected ="), "did you mean"),
        (('affected = "<2.0"', ""), "'affected' is missing"),
        (
            ("https://example.org/1", "example.org"),
            "'sources' has 'example.org', expected an address",
        ),
        (("title =", 'fixed = "1.9"\ntitle ='), "'fixed' is 1.9, which 'affected' has as well"),
        (('["https://example.org/1"]', "[]"), "'sources' is empty"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    folder: Path, change: tuple[str, str], message: str
) -> None:
    write(folder, 'read = "2026-12-01"' + ENTRY.format(id="CVE-2000-1").replace(*change))
    assert message in problems(folder)


def test_two_with_one_identifier_are_a_mistake(folder: Path) -> None:
    entry = ENTRY.format(id="CVE-2000-1")
    write(folder, f'read = "2026-12-01"{entry}{entry}')
    assert "'CVE-2000-1' is also that of CVE-2000-1" in problems(folder)


def test_the_day_of_reading_is_required(folder: Path) -> None:
    write(folder, ENTRY.format(id="CVE-2000-1"))
    assert "'read' is missing" in problems(folder)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('fixes = ["CVE-1999-9"]\npatches = ["fmt-9.patch"]', "'fixes' names 'CVE-1999-9'"),
        ('fixes = ["CVE-2000-1"]', "it has 'fixes', but no 'patches'"),
        ('proven = "2026-12-01"', "it has 'proven', but no 'fixes'"),
    ],
)
def test_a_rule_that_fixes_nothing_known_is_a_mistake(
    folder: Path, keys: str, message: str
) -> None:
    write(folder, 'read = "2026-12-01"' + ENTRY.format(id="CVE-2000-1"))
    torch = folder / "packages" / "torch.toml"
    rule = f'\n[[rule]]\nreason = "r"\nsource = "s"\n{keys}\n'
    torch.write_text(torch.read_text("utf-8") + rule, "utf-8")
    assert message in problems(folder)


def test_each_fixed_release_is_one_that_exists(shipped: Facts) -> None:
    for vulnerability in shipped.vulnerabilities.entries:
        versions = [release.version for release in shipped.releases[vulnerability.package]]
        assert vulnerability.fixed is None or vulnerability.fixed in versions
