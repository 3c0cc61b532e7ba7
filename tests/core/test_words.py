"""Messages about unknown words and long lists; damaged files of torchmill count as empty."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.core.errors import did_you_mean, parse_option, require_choice
from torchmill.core.strict_json import load_object
from torchmill.core.units import name_few, parse_bytes

ENGINES = ("slurm", "gitlab", "kubernetes")


@pytest.mark.parametrize(
    ("word", "suggestion"), [("Slrum ", "slurm"), ("slurm", "slurm"), ("kubernets", "kubernetes")]
)
def test_a_similar_word_is_suggested(word: str, suggestion: str) -> None:
    assert did_you_mean(word, ENGINES) == f"; did you mean {suggestion}?"
    assert did_you_mean("x", ENGINES) == did_you_mean(word, ()) == ""


def test_an_unknown_choice_is_refused_with_the_known_ones() -> None:
    assert require_choice("--engine", "gitlab", ENGINES, "unknown-engine") == "gitlab"
    with refused("unknown-engine") as caught:
        require_choice("--engine", "gitlap", ENGINES, "unknown-engine")
    assert str(caught.value).endswith("choose from slurm, gitlab, kubernetes; did you mean gitlab?")


def test_an_option_that_cannot_be_read_is_named() -> None:
    assert parse_option("--free", "2 KiB", parse_bytes, "invalid-free") == 2048
    with refused("invalid-free") as caught:
        parse_option("--free", "much", parse_bytes, "invalid-free")
    assert str(caught.value).startswith("--free: 'much' is not a quantity")


def test_a_few_of_many_names_are_listed() -> None:
    assert name_few(["a", "b"], 2) == "a, b"
    assert name_few(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize("text", [None, "", "[1]", "{", "[" * 100_000])
def test_a_missing_or_damaged_file_counts_as_an_empty_object(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "cache.json"
    if text is not None:
        file.write_text(text)
    assert load_object(file) == {}
    file.write_text('{"a": 1}')
    assert load_object(file) == {"a": 1}
