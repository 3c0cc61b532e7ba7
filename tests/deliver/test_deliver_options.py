"""What stands after -- for that which is made of a wheel."""

import pytest

from tests.support.refusals import refused
from torchmill.deliver.products import ProductOptions, parse_conda_options, parse_no_options

PROG = "nox -s conda-3.10-cpu --"


@pytest.mark.parametrize(
    ("words", "number", "rest"),
    [
        ([], None, []),
        (["--label", "none"], None, ["--label", "none"]),
        (["--build-number", "0"], 0, []),
        (["--label=git", "--build-number=12", "--jobs", "3"], 12, ["--label=git", "--jobs", "3"]),
        (["--build-number", "999999999"], 999_999_999, []),
    ],
)
def test_the_build_number_is_taken_and_the_rest_left(
    words: list[str], number: int | None, rest: list[str]
) -> None:
    own, left = parse_conda_options(words, PROG)
    assert (own.number, left) == (number, rest)
    assert parse_conda_options([*own.words, *rest], PROG) == (own, rest), "what is passed on says the same"


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", "٣", "1_0", " 1", "+1", "1000000000", "9" * 5000])
def test_what_is_no_build_number_is_refused(text: str) -> None:
    with refused("invalid-build-number") as caught:
        parse_conda_options([f"--build-number={text}"], PROG)
    assert len(str(caught.value)) < 200


def test_a_build_number_that_is_left_out_is_refused() -> None:
    with refused("invalid-build-number"):
        parse_conda_options(["--build-number"], PROG)


def test_what_has_no_options_of_its_own_leaves_all_to_the_wheel() -> None:
    assert parse_no_options(["--build-number", "1"], PROG) == (ProductOptions(), ["--build-number", "1"])


def test_help_tells_of_it_before_it_tells_of_the_wheels(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_conda_options(["--help"], PROG) == (ProductOptions(), ["--help"])
    assert "--build-number N" in capsys.readouterr().out
