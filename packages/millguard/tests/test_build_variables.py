"""Variables that let a build start as many compilers as can be admitted."""

import pytest
from millguard.build_variables import choose_variables


def test_an_environment_without_wishes_gets_every_variable() -> None:
    chosen = choose_variables({}, 8)
    assert chosen.added == {
        "MAX_JOBS": "8",
        "CMAKE_BUILD_PARALLEL_LEVEL": "8",
        "CARGO_BUILD_JOBS": "8",
        "NVCC_THREADS": "1",
        "MAKEFLAGS": "-j8",
    }
    assert chosen.messages == ()


@pytest.mark.parametrize(
    ("name", "value", "is_told"),
    [
        ("MAX_JOBS", "2", True),
        ("MAX_JOBS", "8", False),
        ("MAX_JOBS", "64", False),  # more than can run at a time: the guard admits as many as fit
        ("CMAKE_BUILD_PARALLEL_LEVEL", "1", True),
        ("MAX_JOBS", "many", False),  # not ours to judge
        ("MAKEFLAGS", "-k", False),
        ("NVCC_THREADS", "4", False),
    ],
)
def test_what_the_user_set_stays(name: str, value: str, is_told: bool) -> None:
    chosen = choose_variables({name: value}, 8)
    assert name not in chosen.added
    assert bool(chosen.messages) is is_told
    assert all(f"{name} is {value}" in message for message in chosen.messages)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert choose_variables({"MAX_JOBS": " "}, 4).added["MAX_JOBS"] == "4"
