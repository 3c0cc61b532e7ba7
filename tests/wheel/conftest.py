"""Wheels that several test files look at, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest
from press_support import compiled_wheels as tiny


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> tiny.Raw:
    """Return the raw wheels of tinytorch and tinyvision; not to be changed."""
    return tiny.build(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="session")
def torch_wheel(raw: tiny.Raw, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the repaired and packed wheel of tinytorch; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    return tiny.finish(raw.torch, folder / "dist", folder / "stage", folders=(raw.outside,))[0]
