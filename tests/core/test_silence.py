"""A silent sender is ended; a sender whose reader was stopped is not."""

import time
from collections.abc import Iterator
from itertools import count

import pytest

from torchmill.core.silence import SILENCE_VARIABLE, SilentError, answer_limit, watch_for_silence


@pytest.mark.parametrize("size", [None, lambda _: 1 << 20])
def test_a_reader_that_was_stopped_for_longer_than_the_limit_goes_on(
    monkeypatch: pytest.MonkeyPatch, size: object
) -> None:
    """Ctrl-Z stops the process, and clocks go on."""
    monkeypatch.setenv(SILENCE_VARIABLE, "1")
    items = watch_for_silence(count(), "a host", size)  # type: ignore[arg-type]
    for _ in range(3):
        next(items)
    time.sleep(1.5)
    assert [next(items) for _ in range(20)][-1] == 22
    items.close()


def test_a_sender_of_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SILENCE_VARIABLE, "1")

    def silent() -> Iterator[int]:
        yield 1
        time.sleep(30)

    items = watch_for_silence(silent(), "a host")
    assert next(items) == 1
    with pytest.raises(SilentError, match="a host has sent nothing"):
        next(items)


def test_none_is_an_item() -> None:
    assert list(watch_for_silence([1, None, 2], "a host")) == [1, None, 2]


def test_a_program_has_the_same_limit_on_windows() -> None:
    assert answer_limit("nvidia-smi.exe", {}) == answer_limit("nvidia-smi", {}) == 30
    assert answer_limit("gcc.exe", {}) == answer_limit("gcc", {}) == 20
