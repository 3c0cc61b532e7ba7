"""What versions and version modules call a source: a commit only if that was proven, and nobody changed it."""

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from tests.support.source_upstream import release
from torchmill.fetch.source.source import Source
from torchmill.plan.wheel_name import name_source

COMMIT, OTHER = "49444c3e" + "0" * 32, "7118d887" + "0" * 32
PROVEN = Source(
    "torch", "1", "v1", "git", "url", COMMIT, Path("/tree"), verified=True, contents="0123456789"
)
UNPROVEN = replace(PROVEN, provider="path", commit=None, verified=False)


@pytest.mark.parametrize(
    ("source", "recorded", "modified", "label", "git_version"),
    [
        (None, COMMIT, False, "git49444c3", COMMIT),
        (None, None, False, "", None),
        (PROVEN, None, False, "git49444c3", COMMIT),
        (PROVEN, COMMIT, True, "git49444c3.modified", "49444c3+modified"),
        (UNPROVEN, COMMIT, False, "src0123456.unverified", "49444c3+unverified"),
        (UNPROVEN, COMMIT, True, "src0123456.unverified", "49444c3+unverified"),
        (
            replace(UNPROVEN, declared=OTHER),
            None,
            False,
            "src0123456.unverified",
            "7118d88+unverified",
        ),
        (UNPROVEN, None, False, "src0123456.unverified", None),
    ],
)
def test_what_a_source_is_called(
    source: Source | None, recorded: str | None, modified: bool, label: str, git_version: str | None
) -> None:
    named = name_source(release("v1", recorded), source, modified=modified)
    assert (named.label, named.git_version) == (label, git_version)
    if label:
        assert str(Version(f"1.0+{label}")) == f"1.0+{label}", (
            "no installer spells it in another way"
        )


def test_an_unproven_source_is_no_commit_whatever_the_facts_record() -> None:
    named = name_source(release("v1", COMMIT), UNPROVEN, modified=False)
    assert named.commit is None
    assert named.title == "no proven commit, contents 01234567"
