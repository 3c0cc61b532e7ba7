"""Facts are read once, and remembered until one of their files, or the code that reads them, changes."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from torchmill.config import remembered_facts
from torchmill.core.errors import ConfigError
from torchmill.core.paths import FactsMemory, Layout


@pytest.fixture
def memory(tmp_path: Path, configs: Path, monkeypatch: pytest.MonkeyPatch) -> FactsMemory:
    """Return the memory of the small facts; files count as settled as soon as they are written."""
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", -3600.0)
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(configs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Layout.of_checkout(ROOT).facts_memory(configs)


@pytest.mark.usefixtures("memory")
def test_the_second_reading_opens_no_file_of_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = remembered_facts.load_facts(ROOT)
    monkeypatch.setattr(
        "torchmill.config.facts_reader.read_usable_facts", lambda *_: pytest.fail("read again")
    )
    assert remembered_facts.load_facts(ROOT) == first


def test_files_that_did_not_change_are_not_parsed_again(
    memory: FactsMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(ROOT)
    memory.facts.unlink()
    monkeypatch.setattr("tomllib.loads", lambda _: pytest.fail("it was parsed again"))
    assert remembered_facts.load_facts(ROOT) == first


@pytest.mark.usefixtures("memory")
def test_a_changed_file_is_read_again(configs: Path) -> None:
    remembered_facts.load_facts(ROOT)
    file = configs / "arches.toml"
    file.write_text(file.read_text() + '[riscv64]\nsystem = "linux"\nplatfrom_tag = "x"\n')
    with pytest.raises(ConfigError) as caught:
        remembered_facts.load_facts(ROOT)
    assert "did you mean platform_tag?" in str(caught.value)


@pytest.mark.usefixtures("memory")
def test_a_new_file_is_read(configs: Path) -> None:
    first = remembered_facts.load_facts(ROOT)
    newest = (configs / "releases" / "2.0.0.toml").read_text()
    (configs / "releases" / "3.0.0.toml").write_text(newest.replace("2.0.0", "3.0.0"))
    second = remembered_facts.load_facts(ROOT)
    assert len(second.releases["base"]) == len(first.releases["base"]) + 1


def test_facts_that_were_just_written_are_not_remembered(
    memory: FactsMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", 3600.0)
    remembered_facts.load_facts(ROOT)
    assert not memory.facts.exists()


class RunsCode:
    """What a hostile pickle holds: reading it runs a command."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def test_a_pickle_that_would_run_code_is_not_obeyed(
    memory: FactsMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(ROOT)
    canary = tmp_path / "canary"
    monkeypatch.setattr(remembered_facts, "_digest", lambda *_: b"")  # as if it were ours
    monkeypatch.setattr(remembered_facts, "_DIGEST_BYTES", 0)
    for hostile in (RunsCode(canary), None, ["not facts"]):
        memory.facts.write_bytes(pickle.dumps(hostile))
        assert remembered_facts.load_facts(ROOT) == first
    assert not canary.exists()


@pytest.mark.parametrize(
    "content", [b"ctorchmill.config.absent\nFacts\n.", b"ctorchmill.config.facts\nAbsent\n.", b"."]
)
def test_a_pickle_that_cannot_be_read_is_ignored(
    content: bytes, memory: FactsMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(ROOT)
    monkeypatch.setattr(remembered_facts, "_digest", lambda *_: b"")  # as if it were ours
    monkeypatch.setattr(remembered_facts, "_DIGEST_BYTES", 0)
    memory.facts.write_bytes(content)
    assert remembered_facts.load_facts(ROOT) == first


@pytest.mark.parametrize("content", [b"", b"{", b"0" * 32, pickle.dumps(None)])
def test_a_damaged_pickle_is_ignored(memory: FactsMemory, content: bytes) -> None:
    first = remembered_facts.load_facts(ROOT)
    memory.facts.write_bytes(content)
    assert remembered_facts.load_facts(ROOT) == first


def test_a_pickle_that_was_cut_off_is_ignored(memory: FactsMemory) -> None:
    first = remembered_facts.load_facts(ROOT)
    whole = memory.facts.read_bytes()
    for length in range(0, len(whole), len(whole) // 20):
        memory.facts.write_bytes(whole[:length])
        assert remembered_facts.load_facts(ROOT) == first


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"x": 1})])
def test_a_damaged_cache_of_parsed_files_is_ignored(memory: FactsMemory, text: str) -> None:
    first = remembered_facts.load_facts(ROOT)
    memory.facts.unlink()
    memory.parsed_files.write_text(text)
    assert remembered_facts.load_facts(ROOT) == first


def test_a_cache_of_another_form_is_ignored(memory: FactsMemory) -> None:
    first = remembered_facts.load_facts(ROOT)
    memory.facts.unlink()
    cache = memory.parsed_files
    entries = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: [stat, "[1]"] for key, (stat, _) in entries.items()}))
    assert remembered_facts.load_facts(ROOT) == first


@pytest.mark.usefixtures("memory")
def test_two_folders_of_facts_are_remembered_side_by_side(
    tmp_path: Path, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(ROOT)
    other = tmp_path / "other_configs"
    shutil.copytree(configs, other)
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(other))
    remembered_facts.load_facts(ROOT)
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(configs))
    monkeypatch.setattr(
        "torchmill.config.facts_reader.read_usable_facts", lambda *_: pytest.fail("read again")
    )
    assert remembered_facts.load_facts(ROOT) == first


def test_the_oldest_of_many_folders_is_forgotten(
    memory: FactsMemory, tmp_path: Path, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered_facts.load_facts(ROOT)
    os.utime(memory.folder, ns=(1, 1))
    for number in range(8):
        assert memory.facts.exists()
        other = tmp_path / f"configs_{number}"
        shutil.copytree(configs, other)
        monkeypatch.setenv("TORCHMILL_CONFIGS", str(other))
        remembered_facts.load_facts(ROOT)
    memories = list(memory.folder.parent.iterdir())
    assert len(memories) == 8
    assert memory.folder not in memories
