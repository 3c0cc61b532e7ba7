"""What git says of its progress."""

import pytest

from torchmill.fetch.source.git_command import parse_git_progress


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "Receiving objects:  45% (1234/2743), 10.20 MiB | 3.10 MiB/s",
            (1234, 2743, "Receiving objects, 10.20 MiB | 3.10 MiB/s"),
        ),
        ("remote: Counting objects: 100% (8/8), done.        ", (8, 8, "Counting objects")),
        ("Updating files:   3% (3/100)", (3, 100, "Updating files")),
        (" * [new tag]   v1 -> v1", None),
        ("remote: Enumerating objects: 10, done.", None),
    ],
)
def test_progress_of_git(line: str, step: tuple[int, int, str] | None) -> None:
    assert parse_git_progress(line) == step
