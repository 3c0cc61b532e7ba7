"""Facts are read once, and remembered until one of their files, or the code that reads them, changes."""

import json
import os
import pickle
from pathlib import Path

import pytest

from torchmill.config import remembered_facts
from torchmill.core.errors import ConfigError


@pytest.fixture
def memory(tmp_path: Path, configs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the user's cache; files count as settled as soon as they are written."""
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", -3600.0)
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(configs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchmill"


def test_the_second_reading_opens_no_file_of_facts(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(memory)
    monkeypatch.setattr(
        "torchmill.config.facts_reader.read_usable_facts", lambda *_: pytest.fail("read again")
    )
    assert remembered_facts.load_facts(memory) == first


def test_files_that_did_not_change_are_not_parsed_again(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(memory)
    (memory / "facts.pickle").unlink()
    monkeypatch.setattr("tomllib.loads", lambda _: pytest.fail("it was parsed again"))
    assert remembered_facts.load_facts(memory) == first


def test_a_changed_file_is_read_again(memory: Path, configs: Path) -> None:
    remembered_facts.load_facts(memory)
    file = configs / "arches.toml"
    file.write_text(file.read_text() + '[riscv64]\nsystem = "linux"\nplatfrom_tag = "x"\n')
    with pytest.raises(ConfigError) as caught:
        remembered_facts.load_facts(memory)
    assert "did you mean platform_tag?" in str(caught.value)


def test_a_new_file_is_read(memory: Path, configs: Path) -> None:
    first = remembered_facts.load_facts(memory)
    newest = (configs / "releases" / "2.0.0.toml").read_text()
    (configs / "releases" / "3.0.0.toml").write_text(newest.replace("2.0.0", "3.0.0"))
    second = remembered_facts.load_facts(memory)
    assert len(second.releases["base"]) == len(first.releases["base"]) + 1


def test_facts_that_were_just_written_are_not_remembered(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", 3600.0)
    remembered_facts.load_facts(memory)
    assert not (memory / "facts.pickle").exists()


class RunsCode:
    """What a hostile pickle holds: reading it runs a command."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def test_a_pickle_that_would_run_code_is_not_obeyed(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(memory)
    canary = tmp_path / "canary"
    monkeypatch.setattr(remembered_facts, "_digest", lambda *_: b"")  # as if it were ours
    monkeypatch.setattr(remembered_facts, "_DIGEST_BYTES", 0)
    for hostile in (RunsCode(canary), None, ["not facts"]):
        (memory / "facts.pickle").write_bytes(pickle.dumps(hostile))
        assert remembered_facts.load_facts(memory) == first
    assert not canary.exists()


@pytest.mark.parametrize(
    "content", [b"ctorchmill.config.absent\nFacts\n.", b"ctorchmill.config.facts\nAbsent\n.", b"."]
)
def test_a_pickle_that_cannot_be_read_is_ignored(
    content: bytes, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remembered_facts.load_facts(memory)
    monkeypatch.setattr(remembered_facts, "_digest", lambda *_: b"")  # as if it were ours
    monkeypatch.setattr(remembered_facts, "_DIGEST_BYTES", 0)
    (memory / "facts.pickle").write_bytes(content)
    assert remembered_facts.load_facts(memory) == first


@pytest.mark.parametrize("content", [b"", b"{", b"0" * 32, pickle.dumps(None)])
def test_a_damaged_pickle_is_ignored(memory: Path, content: bytes) -> None:
    first = remembered_facts.load_facts(memory)
    (memory / "facts.pickle").write_bytes(content)
    assert remembered_facts.load_facts(memory) == first


def test_a_pickle_that_was_cut_off_is_ignored(memory: Path) -> None:
    first = remembered_facts.load_facts(memory)
    whole = (memory / "facts.pickle").read_bytes()
    for length in range(0, len(whole), len(whole) // 20):
        (memory / "facts.pickle").write_bytes(whole[:length])
        assert remembered_facts.load_facts(memory) == first


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"x": 1})])
def test_a_damaged_cache_of_parsed_files_is_ignored(memory: Path, text: str) -> None:
    first = remembered_facts.load_facts(memory)
    (memory / "facts.pickle").unlink()
    (memory / "facts.json").write_text(text)
    assert remembered_facts.load_facts(memory) == first


def test_a_cache_of_another_form_is_ignored(memory: Path) -> None:
    first = remembered_facts.load_facts(memory)
    (memory / "facts.pickle").unlink()
    cache = memory / "facts.json"
    entries = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: [stat, "[1]"] for key, (stat, _) in entries.items()}))
    assert remembered_facts.load_facts(memory) == first
