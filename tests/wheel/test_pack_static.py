"""The objects in static libraries."""

import subprocess
from pathlib import Path

import pytest

from tests.support.fatbins import piece
from tests.support.made_up_magma import static as made
from torchmill.core.errors import BuildError
from torchmill.wheel.pack import elf


def test_every_object_is_read(tmp_path: Path) -> None:
    path = made(tmp_path / "lib.a", [piece(70)], [piece(86), piece(90)])
    text = tmp_path / "readme"
    text.write_text("odd")  # members begin at even places
    subprocess.run(["ar", "rs", path, text], check=True, capture_output=True)
    subprocess.run(["ar", "q", path, text], check=True)
    assert elf.is_static_library(path)
    assert [len(list(one.sections_named(".nv_fatbin"))) for one in elf.static_objects(path)] == [1, 1]
    text.write_bytes(b"\x7fELF")
    assert not elf.is_static_library(text)


@pytest.mark.parametrize(("cut", "words"), [(-8, "it ends too soon"), (90, "ends too soon|begins no member")])
def test_a_damaged_one_is_named(tmp_path: Path, cut: int, words: str) -> None:
    path = made(tmp_path / "lib.a", [piece(70)])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BuildError, match=rf"lib\.a: not a sound static library \(.*({words})"):
        list(elf.static_objects(path))
    path.write_bytes(elf.AR_MAGIC + b"nothing" * 20)
    with pytest.raises(BuildError, match="0x8 begins no member"):
        list(elf.static_objects(path))
