"""Compressing files into members, and the cache of compressed members."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from millpress.wheel_writer import MemberCache, _group_files
from millpress.zip_archive import BLOCK_BYTES, MemberSource

CONTENT = hashlib.sha256(b"what it holds").digest()
PARTS = [b"compressed " * 1000, b"bytes" * 400000]


@pytest.fixture
def cache(tmp_path: Path) -> MemberCache:
    return MemberCache(tmp_path / "members", "zlib-1-level-6")


def cached_path(cache: MemberCache) -> Path:
    path = cache.path(CONTENT)
    assert path is not None
    return path


def test_a_stored_member_is_found(cache: MemberCache) -> None:
    assert cache.find(CONTENT) is None
    assert list(cache.store(CONTENT, PARTS)) == PARTS
    assert b"".join(cache.find(CONTENT) or ()) == b"".join(PARTS)
    assert [path.name for path in cached_path(cache).parent.iterdir()] == [CONTENT.hex()]


def test_another_codec_has_members_of_its_own(cache: MemberCache) -> None:
    list(cache.store(CONTENT, PARTS))
    assert MemberCache(cache.folder, "zlib-2-level-6").find(CONTENT) is None


def test_finding_a_member_updates_its_time(cache: MemberCache) -> None:
    list(cache.store(CONTENT, PARTS))
    os.utime(cached_path(cache), (1, 1))
    assert list(cache.find(CONTENT) or ())
    assert cached_path(cache).stat().st_mtime > 1


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
def test_a_damaged_member_is_removed(cache: MemberCache, damage: Callable[[bytes], bytes]) -> None:
    list(cache.store(CONTENT, PARTS))
    cached_path(cache).write_bytes(damage(cached_path(cache).read_bytes()))
    assert cache.find(CONTENT) is None
    assert not cached_path(cache).exists()


def test_a_member_under_the_name_of_another_is_removed(cache: MemberCache) -> None:
    other = hashlib.sha256(b"something else").digest()
    list(cache.store(other, PARTS))
    path = cache.path(other)
    assert path is not None
    cached_path(cache).parent.mkdir()
    path.rename(cached_path(cache))
    assert cache.find(CONTENT) is None
    assert not cached_path(cache).exists()


def test_without_a_folder_nothing_is_cached() -> None:
    nowhere = MemberCache(None, "zlib")
    assert list(nowhere.store(CONTENT, PARTS)) == PARTS
    assert nowhere.find(CONTENT) is None


def test_without_a_writable_folder_nothing_is_cached(tmp_path: Path) -> None:
    (tmp_path / "members").write_text("a file in the way")
    cache = MemberCache(tmp_path / "members", "zlib")
    assert list(cache.store(CONTENT, PARTS)) == PARTS
    assert cache.find(CONTENT) is None


def test_a_member_whose_compression_fails_is_not_cached(cache: MemberCache) -> None:
    def parts() -> Iterator[bytes]:
        yield PARTS[0]
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the one above
        list(cache.store(CONTENT, parts()))
    assert list(cached_path(cache).parent.iterdir()) == []


def units(sizes: dict[str, int]) -> list[tuple[str, ...]]:
    """Return the names of the files that are compressed together, in order."""
    files = [MemberSource(name, Path(), sizes[name], 0o644) for name in sorted(sizes)]
    names = []
    grouped_files = []
    for unit in _group_files(files):
        unit_files = unit if isinstance(unit, list) else [unit]
        grouped_files += unit_files
        names.append(tuple(file.name for file in unit_files))
    assert grouped_files == files
    return names


def test_large_files_are_alone_and_batches_are_limited() -> None:
    sizes = {f"{number:04}.h": 3000 for number in range(2000)} | {"0777.so": BLOCK_BYTES + 1}
    groups = units(sizes)
    assert ("0777.so",) in groups
    assert 2000 // 100 < len(groups) < 2000 // 40
    for unit in groups:
        assert len(unit) == 1 or sum(sizes[name] for name in unit) <= BLOCK_BYTES
    assert len(units(dict.fromkeys(sizes, BLOCK_BYTES // 2 + 1))) == len(sizes)


def test_an_additional_file_changes_one_batch() -> None:
    sizes = {f"{number:04}.h": 3000 for number in range(2000)}
    before = set(units(sizes))
    for added in ("0000.a", "0999.a", "1999.i"):
        assert len(set(units({**sizes, added: 9})) - before) <= 2
