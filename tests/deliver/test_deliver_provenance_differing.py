"""Where two documents differ."""

from typing import Any

import pytest

from torchmill.deliver.agreement import MOST_DIFFERENCES, Reference, document_differences

X = Reference("X")


@pytest.mark.parametrize(
    ("said", "wanted", "told"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b is 1, X says 2"]),
        ({"a": True}, {"a": 1}, ["a is True, X says 1"]),
        ({"a": 1.0}, {"a": 1}, ["a is 1.0, X says 1"]),
        ({}, {"a": None}, ["a is missing, X says None"]),
        ({"a": None}, {}, ["a is None, of which X says nothing"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a has 2 entries, X says 1"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1] is 2, X says 3"]),
        (
            {"a": ["x", "y"]},
            {"a": ["y", "z"]},
            ["a[x] is 'x', of which X says nothing", "a[z] is missing, X says 'z'"],
        ),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "x", "v": 2}]}, ["a[x].v is 1, X says 2"]),
        (
            {"a": [{"name": "x", "annotations": {"kind": "patch"}}]},
            {"a": []},
            ["a[patch x] is {'name': 'x', 'annotations': {'kind': 'patch'}}, of which X says nothing"],
        ),
        ({"a": [{"name": "x"}, {"name": "x"}]}, {"a": [{"name": "x"}]}, ["a has 2 entries, X says 1"]),
        ({"a": [{"name": "y"}, {"name": "x"}]}, {"a": [{"name": "x"}, {"name": "y"}]}, []),
        ([], {}, ["it is [], X says {}"]),
    ],
)
def test_each_field_is_told_with_both_sides(said: Any, wanted: Any, told: list[str]) -> None:
    assert document_differences(said, wanted, X) == told


def test_what_is_long_or_many_is_cut() -> None:
    (clause,) = document_differences({"a": "x" * 1000}, {"a": 1}, X)
    assert len(clause) < 120
    assert len(document_differences(dict.fromkeys("abcdefghijklmnop", 1), {}, X)) == MOST_DIFFERENCES


def test_of_documents_of_another_release_only_what_both_say_counts() -> None:
    judge = Reference("X", complete=False)
    assert (
        document_differences({"a": 1, "old": 2, "b": [{"name": "y"}]}, {"a": 1, "new": 3, "b": []}, judge)
        == []
    )
    assert document_differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 2}}, judge) == ["a.b is 1, X says 2"]
