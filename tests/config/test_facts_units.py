"""units.toml: what is read, and what is refused."""

from pathlib import Path

import pytest

from torchmill.config import facts_reader
from torchmill.config.model import Facts, KnownUnit
from torchmill.core.errors import ConfigError

UNIT = '[[unit]]\npackage = "base"\npattern = "a/*.cpp"\npeak = "2 GiB"\n{rest}\nsource = "seen"\n'


def test_a_unit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "units.toml"
    file.write_text(UNIT.format(rest="seconds = 5"))
    problems: list[str] = []
    assert facts_reader.read_units(file, problems) == (
        KnownUnit("a/*.cpp", 2 * 2**30, 5, "base", None, "seen"),
    )
    assert problems == []


def test_mistakes_are_told(tmp_path: Path) -> None:
    file = tmp_path / "units.toml"
    file.write_text(UNIT.format(rest='secnds = 5\nrelease = "new"').replace("2 GiB", "much"))
    problems: list[str] = []
    facts_reader.read_units(file, problems)
    told = "\n".join(problems)
    assert "unknown key 'secnds'; did you mean 'seconds'?" in told
    assert "'release' is 'new', which is no version specifier" in told
    assert "'peak': 'much' is no quantity of bytes" in told


def test_a_package_that_is_not_there_is_told(configs: Path) -> None:
    (configs / "units.toml").write_text(UNIT.format(rest="").replace("base", "bass"))
    with pytest.raises(ConfigError, match=r"'a/\*\.cpp': unknown package 'bass'; packages/ has .*base"):
        facts_reader.read_facts(configs)


def test_without_the_file_there_is_nothing(tmp_path: Path) -> None:
    assert facts_reader.read_units(tmp_path / "units.toml", []) == ()


def test_what_is_shipped_is_sensible(shipped: Facts) -> None:
    assert len(shipped.units) > 30
    assert [one.pattern for one in shipped.units if not one.source or not 2**27 < one.peak < 2**33] == []
    assert len({one.pattern for one in shipped.units}) == len(shipped.units)
