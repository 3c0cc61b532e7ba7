"""The history of a package, and git's bisect in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.refusals import refused
from tests.support.source_upstream import Forge, git, package, release, request
from torchmill.fetch.source.history import CommitHistory
from torchmill.fetch.source.request import SourceRequest


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """Return an upstream: n0 to n9 on the main branch, and v1 on a branch that begins at n2."""
    forge = Forge(tmp_path / "up", (tmp_path / "up").as_uri())
    for number in range(10):
        forge.commits[f"n{number}"] = forge.commit(
            "pytorch/torch", {"setup.py": f"{number}"}, tag=f"n{number}"
        )
    bare = forge.bare("pytorch/torch")
    git(bare, "config", "uploadpack.allowFilter", "true")
    tree = git(bare, "rev-parse", "n0^{tree}")
    forge.commits["v1"] = git(
        bare, "commit-tree", tree, "-p", forge.commits["n2"], "-m", "a release"
    )
    git(bare, "tag", "v1", forge.commits["v1"])
    return forge


@pytest.fixture
def history(forge: Forge, tmp_path: Path) -> CommitHistory:
    history = CommitHistory(tmp_path / "history.git")
    history.fetch(SourceRequest(package(forge.url("pytorch/torch")), release("n0", None)))
    return history


def search(history: CommitHistory, verdict: Callable[[str], str]) -> list[str]:
    """Carry a search out, and return the subjects of the commits that were tried."""
    tried = []
    commit, _ = history.next_step()
    while commit:
        tried.append(history.describe(commit).split()[-1])
        history.bisect(verdict(commit), commit)
        commit, _ = history.next_step()
    return tried


def test_the_first_bad_commit_is_found_without_the_server(
    history: CommitHistory, forge: Forge
) -> None:
    forge.folder.rename(
        forge.folder.with_name("away")
    )  # git would fetch the files of the commit to show them
    bad = {forge.commits[f"n{number}"] for number in range(6, 10)}
    history.start(good=forge.commits["n0"], bad=forge.commits["n9"])
    tried = search(history, lambda commit: "bad" if commit in bad else "good")
    assert history.suspects() == [forge.commits["n6"]]
    assert {"n5", "n6"} <= {*tried}
    assert len(tried) == 3
    assert history.next_step() == ("", ""), "the search remains at its end"


def test_the_number_of_remaining_commits_is_reported(history: CommitHistory, forge: Forge) -> None:
    history.start(good=forge.commits["n0"], bad=forge.commits["n9"])
    assert (
        history.next_step()[1] == "Bisecting: 4 revisions left to test after this (roughly 2 steps)"
    )


def test_skipped_commits_leave_several_suspects(history: CommitHistory, forge: Forge) -> None:
    skipped = {forge.commits[name] for name in ("n5", "n6")}
    bad = {forge.commits[name] for name in ("n6", "n7", "n8", "n9")}

    def verdict(commit: str) -> str:
        if commit in skipped:
            return "skip"
        return "bad" if commit in bad else "good"

    history.start(good=forge.commits["n0"], bad=forge.commits["n9"])
    search(history, verdict)
    assert history.suspects() == [forge.commits[name] for name in ("n7", "n6", "n5")]


def test_a_merge_base_of_two_branches_is_tried_first(history: CommitHistory, forge: Forge) -> None:
    history.start(good=forge.commits["v1"], bad=forge.commits["n9"])
    commit, message = history.next_step()
    assert (commit, message) == (forge.commits["n2"], "Bisecting: a merge base must be tested")
    with refused("bisect-refused"):
        history.bisect("bad", commit)


def test_impossible_ends_are_refused(history: CommitHistory, forge: Forge) -> None:
    for good, bad in (("n5", "n5"), ("n9", "n5")):
        with refused("bisect-refused"):
            history.start(good=forge.commits[good], bad=forge.commits[bad])


def test_commits_are_found_by_tag_branch_and_short_id(history: CommitHistory, forge: Forge) -> None:
    commit = forge.commits["n9"]
    for name in ("n9", "main", commit, commit[:9]):
        assert history.find_commit(name) == commit
    for name in ("n10", "--all", "", "n9..n8", "0" * 40):
        with refused("unknown-ref"):
            history.find_commit(name)


def test_a_damaged_history_names_the_command_that_removes_it(tmp_path: Path) -> None:
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    forge.commits["v1"] = forge.commit("pytorch/torch", {"setup.py": "\n"}, (), "v1")
    history = tmp_path / "history.git"
    (history / "refs/heads").mkdir(parents=True)
    (history / "refs/heads/main.lock").touch()
    with refused("git-failed") as caught:
        CommitHistory(history).fetch(request(forge))
    assert "invoke clean --kind bisect" in str(caught.value)
