"""Sessions of builds for another architecture: crossed, or in a container."""

import platform

import pytest

from torchmill.commands.session_choice import OtherSessions, list_other_sessions, read_call
from torchmill.core.paths import CHECKOUT, Layout

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="crosses from x86_64")


def sessions(*words: str, **environ: str) -> OtherSessions:
    """Return the sessions for other architectures of a command line of nox."""
    return list_other_sessions(read_call(words, environ), Layout.of_checkout(CHECKOUT))


@pytest.fixture(autouse=True)
def selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select a release, whatever the checkout has selected."""
    monkeypatch.setenv("TORCHMILL_TAG", "v2.13.0")


def test_an_extension_is_crossed() -> None:
    chosen = sessions("nox", "-s", "scatter-3.11-cu130-aarch64", "--", "--torch", "PyPI")
    assert chosen.contained == []
    (session,) = chosen.crossed
    assert session.name == "scatter-3.11-cu130-aarch64"
    assert (session.python, session.variant, session.tag) == ("3.11", "cu130", "v2.1.2")


def test_torch_is_built_in_a_container() -> None:
    chosen = sessions("nox", "-s", "wheel-3.11-cpu-aarch64")
    assert chosen.crossed == []
    assert [name for _, _, name in chosen.contained] == ["wheel-3.11-cpu"]


@pytest.mark.parametrize("words", [("--engine", "podman"), ("--image=mine",)])
def test_a_named_engine_or_image_asks_for_a_container(words: tuple[str, ...]) -> None:
    chosen = sessions("nox", "-s", "scatter-3.11-cu130-aarch64", "--", *words)
    assert chosen.crossed == []
    assert [name for _, _, name in chosen.contained] == ["scatter-3.11-cu130"]


def test_an_image_in_the_environment_asks_for_a_container() -> None:
    chosen = sessions("nox", "-s", "scatter-3.11-cu130-aarch64", TORCHMILL_IMAGE="mine")
    assert chosen.crossed == []


def test_a_product_of_a_wheel_is_made_in_a_container() -> None:
    chosen = sessions("nox", "-s", "conda-scatter-3.11-cu130-aarch64")
    assert chosen.crossed == []
    assert [name for _, _, name in chosen.contained] == ["conda-scatter-3.11-cu130"]


def test_other_calls_have_neither() -> None:
    assert sessions("nox", "-s", "scatter-3.11-cu130") == OtherSessions([], [])
