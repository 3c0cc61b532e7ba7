from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchmill.wheel.pack.compressor import MemberCache, SpoiledMemberError

CONTENT = hashlib.sha256(b"what it holds").digest()
PARTS = [b"compressed " * 1000, b"bytes" * 400000]


@pytest.fixture
def kept(tmp_path: Path) -> MemberCache:
    return MemberCache(tmp_path / "members", "zlib-1-level-6")


def place(kept: MemberCache) -> Path:
    path = kept.path(CONTENT)
    assert path is not None
    return path


def test_what_was_kept_comes_back(kept: MemberCache) -> None:
    assert kept.find(CONTENT) is None
    assert list(kept.store(CONTENT, PARTS)) == PARTS
    assert kept.read(CONTENT) == b"".join(PARTS)
    assert [path.name for path in place(kept).parent.iterdir()] == [CONTENT.hex()]


def test_another_codec_has_members_of_its_own(kept: MemberCache) -> None:
    list(kept.store(CONTENT, PARTS))
    assert MemberCache(kept.folder, "zlib-2-level-6").find(CONTENT) is None


def test_a_use_is_noted(kept: MemberCache) -> None:
    list(kept.store(CONTENT, PARTS))
    os.utime(place(kept), (1, 1))
    kept.read(CONTENT)
    assert place(kept).stat().st_mtime > 1


def flipped(data: bytes) -> bytes:
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: data + b"more",
        lambda _: b"",
        lambda data: b"x" + data[1:],
        lambda data: data[:-5] + b"wrong",
    ],
)
def test_a_spoiled_member_is_told_and_removed(kept: MemberCache, damage: Callable[[bytes], bytes]) -> None:
    list(kept.store(CONTENT, PARTS))
    place(kept).write_bytes(damage(place(kept).read_bytes()))
    found = kept.find(CONTENT)
    assert found is not None
    with pytest.raises(SpoiledMemberError):
        list(found)
    assert not place(kept).exists()
    assert kept.read(CONTENT) is None


def test_a_member_under_the_name_of_another_is_spoiled(kept: MemberCache) -> None:
    other = hashlib.sha256(b"something else").digest()
    list(kept.store(other, PARTS))
    path = kept.path(other)
    assert path is not None
    place(kept).parent.mkdir()
    path.rename(place(kept))
    assert kept.read(CONTENT) is None
    assert not place(kept).exists()


def test_without_a_folder_nothing_is_kept() -> None:
    nowhere = MemberCache(None, "zlib")
    assert list(nowhere.store(CONTENT, PARTS)) == PARTS
    assert nowhere.read(CONTENT) is None


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "members").write_text("a file in the way")
    kept = MemberCache(tmp_path / "members", "zlib")
    assert list(kept.store(CONTENT, PARTS)) == PARTS
    assert kept.read(CONTENT) is None


def test_what_ends_early_is_not_kept(kept: MemberCache) -> None:
    def parts() -> Iterator[bytes]:
        yield PARTS[0]
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the one above
        list(kept.store(CONTENT, parts()))
    assert list(place(kept).parent.iterdir()) == []
