"""Which torch on an index is new, and what the user is told if none is."""

import pytest

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.fetch.package_index import IndexFile
from torchmill.plan.new_torch import (
    IndexTorch,
    choose_torch,
    describe_no_news,
    new_torches,
    newest_completed,
    torch_of_tag,
    torches_on_index,
)

LINUX = "manylinux_2_28_x86_64"


def index_file(version: str, tag: str, *, yanked: bool = False) -> IndexFile:
    name = f"base-{version}-{tag}.whl"
    return IndexFile(name, f"https://example/{name}", None, None, yanked)


def torches_among(facts: Facts, *files: IndexFile) -> list[IndexTorch]:
    return torches_on_index(facts, files, "x86_64")


def test_a_release_has_the_pythons_of_its_wheels_for_the_machine(small_facts: Facts) -> None:
    files = [
        index_file("3.0.0", f"cp313-cp313t-{LINUX}"),
        index_file("3.0.0", f"cp313-cp313-{LINUX}"),
        index_file("3.0.0", f"cp39-cp39-{LINUX}"),
        index_file("3.0.0", "cp310-cp310-manylinux_2_28_aarch64"),
        index_file("3.0.0", "cp311-cp311-win_amd64"),
    ]
    assert torches_among(small_facts, *files) == [IndexTorch("3.0.0", ("3.9", "3.13", "3.13t"))]


def test_pre_releases_withdrawn_files_and_archives_are_no_release(small_facts: Facts) -> None:
    archive = IndexFile("base-3.0.0.tar.gz", "https://example/a", None, None, False)
    files = [
        index_file("3.0.0rc1", f"cp310-cp310-{LINUX}"),
        index_file("3.1.0.dev20261130", f"cp310-cp310-{LINUX}"),
        index_file("3.2.0", f"cp310-cp310-{LINUX}", yanked=True),
        index_file("not a version", f"cp310-cp310-{LINUX}"),
        archive,
    ]
    assert torches_among(small_facts, *files) == []


def test_what_is_newer_than_the_completed_facts_is_new(small_facts: Facts) -> None:
    assert newest_completed(small_facts).version == "2.0.0"
    torches = [IndexTorch(version, ("3.10",)) for version in ("10.0.0", "2.0.1", "2.0.0", "1.9.9")]
    assert [torch.version for torch in new_torches(small_facts, torches)] == ["10.0.0", "2.0.1"]


def test_the_newest_with_a_wheel_for_a_python_is_chosen() -> None:
    uploading = IndexTorch("3.1.0", ("3.13",))
    elsewhere = IndexTorch("3.2.0", ())
    whole = IndexTorch("3.0.0", ("3.12", "3.13"))
    torches = [elsewhere, uploading, whole]
    assert choose_torch(torches, ["3.12", "3.9"]) == whole
    assert choose_torch(torches, []) == uploading
    assert choose_torch(torches, ["3.9"]) is None


def test_a_sentence_says_why_there_is_nothing_to_build(small_facts: Facts) -> None:
    def sentence(*news: IndexTorch, pythons: tuple[str, ...] = ("3.9",)) -> str:
        return describe_no_news(small_facts, news, pythons, "x86_64", "https://i/simple")

    assert sentence() == "nothing is new: https://i/simple has no base that is newer than 2.0.0"
    assert "wheel for Python 3.9 on x86_64 (it has wheels for 3.10)" in sentence(
        IndexTorch("3.0.0", ("3.10",))
    )
    assert "wheel for x86_64 (it has none yet)" in sentence(IndexTorch("3.0.0", ()), pythons=())


@pytest.mark.parametrize("tag", ["v3.0.0", "3.0.0"])
def test_a_tag_names_a_new_torch(small_facts: Facts, tag: str) -> None:
    torches = [IndexTorch("4.0.0", ("3.10",)), IndexTorch("3.0.0", ("3.10",))]
    assert torch_of_tag(small_facts, torches, tag).version == "3.0.0"


def test_a_tag_of_a_known_or_unknown_torch_is_refused(small_facts: Facts) -> None:
    with refused("torch-not-new"):
        torch_of_tag(small_facts, [IndexTorch("2.0.0", ("3.10",))], "v2.0.0")
    with refused("unknown-release") as caught:
        torch_of_tag(small_facts, [IndexTorch("3.0.0", ("3.10",))], "v3.0.0rc1")
    assert "the newest that counts is 3.0.0" in str(caught.value)
