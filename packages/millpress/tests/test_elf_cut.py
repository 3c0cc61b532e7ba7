"""Parts of a file are copied to their new places, without the ranges that are cut out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from millpress import elf_cut
from millpress.elf_cut import Cuts, Extent


def test_extents_are_moved_and_the_cut_range_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.write_bytes(b"headunusedtail")
    extents = [Extent(0, 0, 4), Extent(at=12, source=10, size=4)]
    elf_cut.write_extents(source, tmp_path / "new", extents, Cuts(ranges=((4, 10),)))
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
