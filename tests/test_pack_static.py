"""The objects in static libraries."""

import subprocess
from pathlib import Path

import pytest
from fatbins import piece
from made_up_magma import static as made

from torchmill.errors import BuildError
from torchmill.pack import static


def test_every_object_is_read(tmp_path: Path) -> None:
    path = made(tmp_path / "lib.a", [piece(70)], [piece(86), piece(90)])
    text = tmp_path / "readme"
    text.write_text("odd")  # members begin at even places
    subprocess.run(["ar", "rs", path, text], check=True, capture_output=True)
    subprocess.run(["ar", "q", path, text], check=True)
    assert static.is_static(path)
    assert [len(list(one.named(".nv_fatbin"))) for one in static.objects(path)] == [1, 1]
    text.write_bytes(b"\x7fELF")
    assert not static.is_static(text)


@pytest.mark.parametrize(("cut", "words"), [(-8, "it ends too soon"), (90, "ends too soon|begins no member")])
def test_a_damaged_one_is_named(tmp_path: Path, cut: int, words: str) -> None:
    path = made(tmp_path / "lib.a", [piece(70)])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BuildError, match=rf"lib\.a: not a sound static library \(.*({words})"):
        list(static.objects(path))
    path.write_bytes(static.MAGIC + b"nothing" * 20)
    with pytest.raises(BuildError, match="0x8 begins no member"):
        list(static.objects(path))
