"""Facts are parsed once, and cached until one of their files changes."""

import json
from pathlib import Path

import pytest

from torchmill.config import facts_reader
from torchmill.core.errors import ConfigError


@pytest.fixture
def memory(tmp_path: Path, configs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", -3600.0)
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(configs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchmill" / "facts.json"


def test_the_second_reading_parses_nothing(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = facts_reader.load_facts(memory)
    monkeypatch.setattr("tomllib.loads", lambda _: pytest.fail("it was parsed again"))
    assert facts_reader.load_facts(memory) == first


def test_a_changed_file_is_read_again(memory: Path, configs: Path) -> None:
    facts_reader.load_facts(memory)
    file = configs / "arches.toml"
    file.write_text(file.read_text() + '[riscv64]\nsystem = "linux"\nplatfrom_tag = "x"\n')
    with pytest.raises(ConfigError) as caught:
        facts_reader.load_facts(memory)
    assert "did you mean platform_tag?" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"x": 1})])
def test_a_damaged_cache_is_ignored(memory: Path, text: str) -> None:
    first = facts_reader.load_facts(memory)
    memory.write_text(text)
    assert facts_reader.load_facts(memory) == first


def test_a_cache_of_another_form_is_ignored(memory: Path) -> None:
    first = facts_reader.load_facts(memory)
    entries = json.loads(memory.read_text())
    memory.write_text(json.dumps({key: [look, "[1]"] for key, (look, _) in entries.items()}))
    assert facts_reader.load_facts(memory) == first
