"""Bytes and durations as people write them."""

import pytest

from torchmill.core.units import (
    format_bytes,
    format_duration,
    format_share,
    parse_bytes,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1024", 1024),
        ("2.5 GiB", 5 * 2**29),
        ("500 MB", 500_000_000),
        (" 8G ", 2**33),
        ("32gib", 2**35),
        ("1.5kB", 1500),
        ("2 TiB", 2**41),
    ],
)
def test_quantities_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1 GiB", "1 GiBs", "1,5 GB", "1e9", "two GB", "1 GB 2", "9" * 400]
)
def test_any_other_text_is_quoted_and_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity of bytes") as caught:
        parse_bytes(text)
    assert f"'{text}'" in str(caught.value)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (3 * 2**40, "3.0 TiB")],
)
def test_quantities_are_written_in_their_largest_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (5.2 * 2**30, 7.8 * 2**30, "5.2 of 7.8 GiB"),
        (300 * 2**20, 2**33, "0.3 of 8.0 GiB"),
        (2**31, 2**30, "2.0 of 1.0 GiB"),
        (0, 330 * 2**20, "0.0 of 330.0 MiB"),
        (2**39, 2**40, "0.5 of 1.0 TiB"),
        (3, 7, "3 of 7 B"),
    ],
)
def test_a_share_is_in_the_unit_of_the_whole(part: float, whole: float, text: str) -> None:
    assert format_share(part, whole) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("45min", 2700), ("12 h", 43200), ("30d", 2592000), ("1.5W", 907200)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "-3d", "3 m", "d", "3d 2x", "three days"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 30d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "a second"),
        (2, "2 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (172800, "2 days"),
        (20 * 86400, "2 weeks"),
    ],
)
def test_durations_are_written_in_units_of_which_there_are_two(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
