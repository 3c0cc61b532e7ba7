"""Parts of a file are copied to their new places, without the ranges that are cut out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from millpress import elf_cut
from millpress.elf import ByteRange, ElfImage
from millpress.elf_cut import Cuts, Extent
from millpress.errors import InputError


def test_extents_are_moved_and_the_cut_range_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.write_bytes(b"headunusedtail")
    extents = [Extent(0, 0, 4), Extent(moved_offset=12, old_offset=10, size=4)]
    cuts = Cuts(ranges=(ByteRange(4, 10),))
    elf_cut.write_extents(source, tmp_path / "new", extents, cuts)
    assert (tmp_path / "new").read_bytes() == b"head\0\0tail"


def test_a_write_that_the_system_cuts_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "old"
    source.write_bytes(b"0123456789")
    whole_write = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, offset: whole_write(file, data[:3], offset)
    )
    elf_cut.write_extents(source, tmp_path / "new", [Extent(0, 0, 10)], Cuts())
    assert (tmp_path / "new").read_bytes() == b"0123456789"


def test_a_file_that_ends_inside_an_extent_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.write_bytes(b"0123456789")
    with pytest.raises(InputError, match=r"ends at 10, and its headers name content up to 12"):
        elf_cut.write_extents(
            source, tmp_path / "new", [Extent(moved_offset=0, old_offset=4, size=8)], Cuts()
        )


def test_headers_stay_if_nothing_is_cut_out() -> None:
    # Without a range, `table_offset` is 0: a table of segments there would replace the file's header.
    assert list(elf_cut.plan_headers(ElfImage(b""), Cuts(), {})) == []


def test_new_offsets_leave_out_the_ranges_before_them() -> None:
    cuts = Cuts(ranges=(ByteRange(4, 10), ByteRange(20, 30)))
    offsets = (0, 4, 7, 10, 19, 20, 30, 31)
    assert [cuts.new_offset(offset) for offset in offsets] == [0, 4, 4, 4, 13, 14, 14, 15]
    assert cuts.remaining_parts(ByteRange(0, 40)) == [(0, 4), (10, 20), (30, 40)]
    assert cuts.remaining_parts(ByteRange(5, 25)) == [(10, 20)]
    assert Cuts().remaining_parts(ByteRange(5, 25)) == [(5, 25)]
