"""A JSON object, or why there is none."""

import os
from pathlib import Path

import pytest

from torchmill.core.strict_json import LARGEST_JSON_BYTES, parse_json_object, read_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": {"b": [1, null]}}')
    assert read_json_object(tmp_path / "x") == {"a": {"b": [1, None]}}


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_what_is_none_is_told(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json_object(content)


def test_nobody_waits_for_a_pipe_or_reads_gigabytes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST_JSON_BYTES + 1)
    for name, said in {"pipe": "not a file", "large": "larger than"}.items():
        with pytest.raises(ValueError, match=said):
            read_json_object(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "nowhere")
