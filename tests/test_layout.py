"""Where things are kept."""

from pathlib import Path

import pytest

from torchwright.errors import ConfigError
from torchwright.layout import Layout, environments


def test_a_home_that_is_a_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setenv("TORCHWRIGHT_HOME", str(home))
    with pytest.raises(ConfigError, match="home, which is a file: name a folder"):
        Layout.of(tmp_path)


def test_environments_are_where_nox_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOX_ENVDIR", str(tmp_path))
    assert environments() == tmp_path
    monkeypatch.delenv("NOX_ENVDIR")
    assert environments() == Path(__file__).parents[1] / ".nox"
