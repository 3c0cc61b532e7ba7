from __future__ import annotations

from pathlib import Path

from torchmill.wheel.pack.compressor import _group_files
from torchmill.wheel.pack.zip_writer import BLOCK_BYTES, MemberSource


def units(sizes: dict[str, int]) -> list[tuple[str, ...]]:
    """Return the names of what is compressed together, in order."""
    files = [MemberSource(name, Path(), sizes[name], 0o644) for name in sorted(sizes)]
    made = list(_group_files(files))
    flat = [file for unit in made for file in (unit if isinstance(unit, list) else [unit])]
    assert flat == files
    return [tuple(file.name for file in unit) if isinstance(unit, list) else (unit.name,) for unit in made]


def test_large_files_are_alone_and_batches_have_an_end() -> None:
    sizes = {f"{number:04}.h": 3000 for number in range(2000)} | {"0777.so": BLOCK_BYTES + 1}
    made = units(sizes)
    assert ("0777.so",) in made
    assert 2000 // 100 < len(made) < 2000 // 40
    assert all(sum(sizes[name] for name in unit) <= BLOCK_BYTES or len(unit) == 1 for unit in made)
    assert len(units(dict.fromkeys(sizes, BLOCK_BYTES // 2 + 1))) == len(sizes)


def test_one_file_more_changes_one_batch() -> None:
    sizes = {f"{number:04}.h": 3000 for number in range(2000)}
    before = set(units(sizes))
    for more in ("0000.a", "0999.a", "1999.i"):
        assert len(set(units({**sizes, more: 9})) - before) <= 2
