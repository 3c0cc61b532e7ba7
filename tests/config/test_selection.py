"""The release that commands use: selected, named by a variable, or the newest."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.refusals import refused
from torchmill.commands.session_matrix import list_sessions
from torchmill.config.facts import Facts
from torchmill.config.selection import select_release, selected_or_newest, selected_release
from torchmill.core.paths import Layout


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.delenv("TORCHMILL_TAG", raising=False)
    return Layout(tmp_path / "root", tmp_path / "cache")


def test_nothing_is_selected_at_first(small_facts: Facts, layout: Layout) -> None:
    assert selected_release(small_facts, layout) is None
    assert selected_or_newest(small_facts, layout) == small_facts.releases["base"][-1]


def test_the_selection_is_remembered(small_facts: Facts, layout: Layout) -> None:
    select_release(layout, small_facts.releases["base"][0])
    assert selected_release(small_facts, layout) == small_facts.releases["base"][0]
    assert selected_or_newest(small_facts, layout) == small_facts.releases["base"][0]


def test_the_environment_beats_the_record_and_the_command_line_both(
    small_facts: Facts, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = small_facts.releases["base"]
    select_release(layout, old)
    monkeypatch.setenv("TORCHMILL_TAG", new.tag)
    assert selected_release(small_facts, layout) == new
    assert selected_release(small_facts, layout, old.tag) == old


def test_a_damaged_record_is_refused(small_facts: Facts, layout: Layout) -> None:
    layout.state.mkdir(parents=True)
    for text in ("", "[]", '{"tag": 1}'):
        layout.selection.write_text(text)
        with refused("selection-invalid"):
            selected_release(small_facts, layout)
    layout.selection.unlink()
    layout.selection.mkdir()
    with refused("selection-invalid"):
        selected_release(small_facts, layout)


def test_a_tag_that_left_the_facts_is_refused(small_facts: Facts, layout: Layout) -> None:
    layout.state.mkdir(parents=True)
    layout.selection.write_text('{"tag": "v0.0.1"}')
    with refused("unknown-release"):
        selected_release(small_facts, layout)


def test_sessions_are_remembered_until_facts_or_selection_change(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = tmp_path / "configs"
    shutil.copytree(ROOT / "sample" / "build_configs", configs)
    for file in configs.rglob("*"):
        os.utime(file, (1e9, 1e9))
    monkeypatch.setenv("TORCHMILL_CONFIGS", str(configs))
    monkeypatch.setenv("TORCHMILL_HOME", str(layout.root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(layout.cache))
    # So that files which were written just now are remembered too.
    monkeypatch.setattr("torchmill.core.stat_cache.SETTLED_SECONDS", -3600)
    before = list_sessions(ROOT, "x86_64", None)
    with monkeypatch.context() as unread:
        unread.setattr(
            "torchmill.config.remembered_facts.load_facts", lambda _: pytest.fail("read again")
        )
        assert list_sessions(ROOT, "x86_64", None) == before
    assert {session.tag for session in list_sessions(ROOT, "x86_64", "v1.0.0").sessions} == {
        "v1.0.0",
        "v0.1.0",
    }
    next(file for file in configs.glob("releases/*.toml") if "1.1.0" in file.name).unlink()
    assert list_sessions(ROOT, "x86_64", None) == list_sessions(ROOT, "x86_64", "v1.0.0") != before
