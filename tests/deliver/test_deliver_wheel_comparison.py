"""The comparison of two wheels' files: each difference is told, and none that is not there."""

import pytest

from torchmill.deliver.wheel_comparison import describe_difference


@pytest.mark.parametrize(
    ("before", "after"), [(b"a\r\nb\n", b"a\nb\n"), (b"a\n", b"a"), (b"a\n", b"a\r")]
)
def test_other_line_ends_are_told(before: bytes, after: bytes) -> None:
    assert describe_difference(before, after) == "the same lines, with other line ends"


def test_a_changed_line_that_looks_like_a_head_is_told() -> None:
    assert describe_difference(b"x\n--old\n", b"x\n++new\n") == "---old | +++new"


def test_many_changed_lines_are_counted() -> None:
    before = "".join(f"{number}\n" for number in range(20)).encode()
    assert describe_difference(before, b"").endswith("-11 and 8 lines more")


def test_the_first_other_byte_is_named() -> None:
    assert describe_difference(b"\xff\x01\x02", b"\xff\x01") == "3 and 2 bytes, from byte 2"
    assert describe_difference(b"\xff\x01", b"\xff\x02") == "2 and 2 bytes, from byte 1"
