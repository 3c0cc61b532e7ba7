"""Where things are kept."""

from pathlib import Path

import pytest

from torchwright.errors import ConfigError
from torchwright.layout import Layout


def test_a_home_that_is_a_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setenv("TORCHWRIGHT_HOME", str(home))
    with pytest.raises(ConfigError, match="home, which is a file: name a folder"):
        Layout.of(tmp_path)
