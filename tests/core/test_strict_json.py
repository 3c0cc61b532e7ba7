"""JSON objects are read; any other text is refused with a reason."""

import os
from pathlib import Path

import pytest

from torchmill.core.strict_json import LARGEST_JSON_BYTES, parse_json_object, read_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": {"b": [1, null]}}')
    assert read_json_object(tmp_path / "x") == {"a": {"b": [1, None]}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b" ", "it is empty"),
        (b"{", "it is not JSON"),
        (b"3", "it is not a JSON object"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "it says 'b' twice"),
        (b'{"a": NaN}', "it says NaN"),
        (b"\xfe", "not UTF-8 text"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_any_other_text_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json_object(content)


def test_pipes_and_gigabytes_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST_JSON_BYTES + 1)
    for name, reason in {"pipe": "not a file", "large": "larger than"}.items():
        with pytest.raises(ValueError, match=reason):
            read_json_object(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "nowhere")
