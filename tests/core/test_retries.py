"""Repetitions of steps that need the network: how many, after which pauses, and when none."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.support.refusals import refused
from torchmill.core import retries
from torchmill.core.errors import NetworkError
from torchmill.core.retries import PassingFailure, repeat, requested_pause, tries_allowed


class BrokenError(Exception):
    """A connection that broke."""


def judge(error: Exception) -> PassingFailure | None:
    """Let every BrokenError pass; its argument is the pause that a server asks for."""
    if not isinstance(error, BrokenError):
        return None
    return PassingFailure("it broke", error.args[0] if error.args else 0.0)


class Step:
    """A step that fails some times, and then returns "done"."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.pauses: list[float] = []

    def run(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def repeat(self, advanced: Callable[[], bool] = lambda: False) -> str:
        return repeat(self.run, judge, "host", advanced=advanced, sleep=self.pauses.append)


@pytest.fixture(autouse=True)
def usual_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(retries.TRIES_VARIABLE, raising=False)


def test_a_step_that_fails_now_and_then_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    step = Step(BrokenError(), BrokenError())
    assert step.repeat() == "done"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "host: tried again (2 of 8): it broke",
        "host: tried again (3 of 8): it broke",
    ]


def test_the_pauses_grow_to_a_limit() -> None:
    step = Step(*[BrokenError()] * 7)
    assert step.repeat() == "done"
    first, *others = step.pauses
    assert first == 0
    for pause, least in zip(others, (0.5, 1, 2, 4, 8, 8), strict=True):
        assert least <= pause <= least + 0.25
    assert max(others) <= retries.LONGEST_PAUSE_SECONDS


def test_the_last_error_is_raised() -> None:
    step = Step(*[BrokenError(0.0, number) for number in range(9)])
    with pytest.raises(BrokenError) as caught:
        step.repeat()
    assert caught.value.args == (0.0, 7)
    assert len(step.failures) == 1


def test_a_failure_that_lasts_is_not_repeated() -> None:
    step = Step(ValueError("wrong digest"))
    with pytest.raises(ValueError, match="wrong digest"):
        step.repeat()
    assert step.pauses == []


def test_a_server_is_given_the_pause_that_it_asks_for() -> None:
    step = Step(BrokenError(30.0))
    assert step.repeat() == "done"
    assert step.pauses == [30.0]


def test_a_pause_of_an_hour_is_not_made() -> None:
    step = Step(BrokenError(3600.0))
    with pytest.raises(BrokenError):
        step.repeat()
    assert step.pauses == []


def test_tries_are_counted_anew_after_progress() -> None:
    step = Step(*[BrokenError()] * 20)
    assert step.repeat(advanced=lambda: True) == "done"


def test_no_try_begins_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is silent for a minute is not asked eight times."""
    now = 0.0

    def wait_a_minute() -> str:
        nonlocal now
        now += 60.0
        raise BrokenError

    monkeypatch.setattr("torchmill.core.retries.time.monotonic", lambda: now)
    waits: list[float] = []
    with pytest.raises(BrokenError):
        repeat(wait_a_minute, judge, "host", sleep=waits.append)
    assert len(waits) == 2


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "101", "1_0", "٣"])
def test_a_wrong_number_of_tries_is_refused(text: str) -> None:
    with refused("invalid-tries"):
        tries_allowed({retries.TRIES_VARIABLE: text})


def test_the_user_sets_the_number_of_tries() -> None:
    assert tries_allowed({retries.TRIES_VARIABLE: "3"}) == 3
    assert tries_allowed({}) == retries.TRIES


def test_retry_after_is_seconds_or_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90))
    assert requested_pause({"Retry-After": "7"}) == 7
    assert 80 < requested_pause({"Retry-After": soon}) <= 90
    for text in ("soon", "", "-5", "Sun, 99 Foo 2026", "9" * 400):
        assert requested_pause({"Retry-After": text}) >= 0
    assert requested_pause({}) == 0


def test_a_date_is_compared_with_the_servers_own() -> None:
    """The clock of this machine may be a day behind, or ahead."""
    now = datetime.now(UTC) + timedelta(days=1)
    headers = {
        "Retry-After": format_datetime(now + timedelta(seconds=7), usegmt=True),
        "Date": format_datetime(now, usegmt=True),
    }
    assert requested_pause(headers) == 7
    assert requested_pause({**headers, "Date": "soon"}) == 0


def test_an_error_of_torchmill_says_itself_that_it_may_pass() -> None:
    error = NetworkError("host is away (no answer): try again", code="host-unreachable")
    assert retries.judge_error(error) is None
    error.retry_after = 2.0
    assert retries.judge_error(error) == PassingFailure("host is away (no answer)", 2.0)
