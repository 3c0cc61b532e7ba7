"""The folders of a checkout, a user and a container."""

import os
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout, facts_folder, nox_environments_folder


def test_a_home_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.touch()
    monkeypatch.setenv("TORCHMILL_HOME", str(home))
    with pytest.raises(ConfigError, match="home, which is a file: name a folder"):
        Layout.of_checkout(tmp_path)


def test_a_relative_torchmill_home_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nox would resolve it in the checkout, invoke in the current folder."""
    monkeypatch.setenv("TORCHMILL_HOME", "elsewhere")
    with pytest.raises(
        ConfigError, match="is elsewhere, which is not the absolute path of a folder"
    ):
        Layout.of_checkout(tmp_path)


def test_a_user_without_a_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    # As in a container whose user has a number but no name.
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with refused("no-home"):
        Layout.of_checkout(tmp_path)


def test_a_relative_cache_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Layout.of_checkout(tmp_path).cache == tmp_path / ".cache" / "torchmill"


def test_the_folder_of_facts_may_be_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHMILL_CONFIGS", "facts")  # patches are applied in other folders
    assert facts_folder(Path("/checkout")) == tmp_path / "facts"
    monkeypatch.setenv("TORCHMILL_CONFIGS", "")
    assert facts_folder(Path("/checkout")) == Path("/checkout/build_configs")


def test_environments_are_where_nox_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOX_ENVDIR", str(tmp_path))
    assert nox_environments_folder() == tmp_path
    monkeypatch.delenv("NOX_ENVDIR")
    assert nox_environments_folder() == Path(__file__).parents[2] / ".nox"


def test_a_container_shares_nothing_but_sources_and_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHMILL_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    outer = Layout.of_checkout(tmp_path)
    monkeypatch.setenv("TORCHMILL_CONTAINER_ARCH", "aarch64")
    container = Layout.of_checkout(tmp_path)
    assert container.sources == outer.sources == tmp_path / ".torchmill" / "sources"
    assert container.dist == outer.dist
    assert container.trees == tmp_path / ".torchmill" / "aarch64" / "trees"
    assert container.selection != outer.selection
    assert (outer.cache.name, container.cache.name) == ("torchmill", "torchmill-aarch64")


def test_an_invalid_container_arch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_CONTAINER_ARCH", "../aarch64")
    with pytest.raises(
        ConfigError, match=r"TORCHMILL_CONTAINER_ARCH is '\.\./aarch64': name an arch"
    ):
        Layout.of_checkout(tmp_path)


def test_a_relative_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with refused("no-home"):
        Layout.of_checkout(tmp_path)
