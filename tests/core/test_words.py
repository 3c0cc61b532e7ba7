"""What is told of words that are unknown, of lists that are long, and of files of ours that are spoiled."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.core.errors import did_you_mean, parse_option, require_choice
from torchmill.core.strict_json import load_object
from torchmill.core.units import name_few, parse_bytes

ENGINES = ("slurm", "gitlab", "kubernetes")


@pytest.mark.parametrize(
    ("word", "near"), [("Slrum ", "slurm"), ("slurm", "slurm"), ("kubernets", "kubernetes")]
)
def test_a_word_is_told_what_is_near_it(word: str, near: str) -> None:
    assert did_you_mean(word, ENGINES) == f"; did you mean {near}?"
    assert did_you_mean("x", ENGINES) == did_you_mean(word, ()) == ""


def test_a_choice_is_one_of_those_there_are() -> None:
    assert require_choice("--engine", "gitlab", ENGINES, "unknown-engine") == "gitlab"
    with refused("unknown-engine") as caught:
        require_choice("--engine", "gitlap", ENGINES, "unknown-engine")
    assert str(caught.value).endswith("choose from slurm, gitlab, kubernetes; did you mean gitlab?")


def test_an_option_that_cannot_be_read_is_named() -> None:
    assert parse_option("--free", "2 KiB", parse_bytes, "invalid-free") == 2048
    with refused("invalid-free") as caught:
        parse_option("--free", "much", parse_bytes, "invalid-free")
    assert str(caught.value).startswith("--free: 'much' is not a quantity")


def test_of_many_names_a_few_are_told() -> None:
    assert name_few(["a", "b"], 2) == "a, b"
    assert name_few(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize("text", [None, "", "[1]", "{", "[" * 100_000])
def test_a_file_of_ours_that_is_gone_or_spoiled_holds_nothing(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "kept.json"
    if text is not None:
        file.write_text(text)
    assert load_object(file) == {}
    file.write_text('{"a": 1}')
    assert load_object(file) == {"a": 1}
