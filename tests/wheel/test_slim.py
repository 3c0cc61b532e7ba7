"""Libraries slimmed for some GPUs: the code that stays, its place, and that nothing else changes."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from millpress import elf, elf_edit
from millpress.elf import open_elf

from tests.support import gpu_libraries
from tests.support.fatbins import FAMILY, OWN, PTX, SASS, fatbin, library, piece
from tests.support.made_up_magma import static
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.wheel import slim
from torchmill.wheel.slim import LibraryPlan, RequestedGpu, SlimRequest
from torchmill.wheel.verify import device_code, slimming

LARGE = 40_000  # bytes, several pages


def request(facts: Facts, *names: str) -> SlimRequest:
    gpus = []
    for name in names:
        capability = facts.capability(name.removesuffix("+PTX"))
        if capability is not None:
            gpus.append(RequestedGpu(capability, with_ptx=name.endswith("+PTX")))
    return SlimRequest(facts, tuple(gpus))


def slimmed(path: Path, slim_request: SlimRequest) -> tuple[Path, LibraryPlan]:
    plan = slim.plan_library(path, slim_request)
    assert plan is not None
    slim_path = path.with_name(f"slim-{path.name}")
    slim.write_library(path, slim_path, plan)
    return slim_path, plan


def piece_names(path: Path) -> list[str]:
    names = []
    for read_fatbin in device_code.read_device_code(path):
        names += [read_piece.name for read_piece in read_fatbin.pieces]
    return names


@pytest.mark.parametrize(
    ("code", "requested", "kept_code"),
    [
        ("8.0 8.6 9.0", "8.6", "8.6"),  # the newest code that runs
        ("8.0 9.0", "8.6", "8.0"),  # code for an earlier minor version runs, too
        ("7.0 8.0+PTX", "8.6", "8.0 PTX"),  # compiled by the driver, if nothing else runs
        ("8.6 8.0+PTX", "8.6", "8.6"),
        ("8.6 9.0+PTX", "8.6+PTX", "8.6 9.0 PTX"),  # for later GPUs, because there is no other PTX
        ("8.6 7.0+PTX 8.0+PTX 9.0+PTX", "8.6+PTX", "8.6 8.0 PTX"),
        ("9.0 9.0a 10.0", "9.0", "9.0 9.0a"),  # a driver may choose either
        # Code for a family runs on later minor versions, code for an architecture does not.
        ("10.0 10.0a 10.0f 12.0", "10.3", "10.0 10.0f"),
        ("8.0 8.6 9.0", "8.0 9.0", "8.0 9.0"),
        ("9.0 9.0a", "8.6", ""),  # nothing ran on it before
        ("8.0 8.6", "8.7", ""),  # not promised for a system on a chip
    ],
)
def test_code_that_a_driver_may_choose_is_kept(
    shipped: Facts, tmp_path: Path, code: str, requested: str, kept_code: str
) -> None:
    pieces = []
    for name in code.split():
        number = name.removesuffix("+PTX").rstrip("af").replace(".", "")
        flags = 0
        if "a" in name:
            flags = OWN
        elif "f" in name:
            flags = FAMILY
        kind = PTX if "+" in name else SASS
        pieces.append(piece(int(number), kind, flags=flags))
    original = library(tmp_path / "lib.so", {".nv_fatbin": fatbin(*pieces)})
    path, _ = slimmed(original, request(shipped, *requested.split()))
    assert " ".join(piece_names(path)) == kept_code


def large_fatbin(seed: int = 0) -> bytes:
    return fatbin(*(piece(arch, size=LARGE + 8 * seed) for arch in (70, 80, 86, 90)))


@pytest.mark.parametrize("section", [".nv_fatbin", "__nv_relfatbin"])
def test_pages_are_cut_out_and_pointers_follow(
    shipped: Facts, tmp_path: Path, section: str
) -> None:
    fatbins = [
        large_fatbin(0),
        fatbin(),
        large_fatbin(1),
        fatbin(piece(90, size=LARGE)),
        large_fatbin(2),
    ]
    path = gpu_libraries.shared(tmp_path / "lib.so", fatbins, section=section)
    small, plan = slimmed(path, request(shipped, "8.6"))
    assert plan.cuts.ranges
    assert path.stat().st_size - small.stat().st_size > 9 * LARGE
    assert list(slimming.library_differences(path, small)) == []
    assert piece_names(small) == ["8.6"] * 3
    loaded = ctypes.CDLL(str(small))
    loaded.fatbin.restype = ctypes.c_void_p
    loaded.name.restype = ctypes.c_char_p
    assert [loaded.name(number) for number in range(3)] == [b"zero", b"one", b"two"]
    sizes = [
        struct.unpack("<IHHQ", ctypes.string_at(loaded.fatbin(number), 16))[3]
        for number in range(5)
    ]
    assert sizes == [LARGE + 64, 0, LARGE + 72, 0, LARGE + 80]
    code = [ctypes.string_at(loaded.fatbin(number) + 80, 9) for number in (0, 2, 4)]
    assert code == [bytes([86]) * 9] * 3


def test_a_page_of_64_kilobytes_is_kept_whole(shipped: Facts, tmp_path: Path) -> None:
    path = gpu_libraries.shared(
        tmp_path / "lib.so", [large_fatbin()] * 4, "-Wl,-z,max-page-size=0x10000"
    )
    small, _ = slimmed(path, request(shipped, "8.6"))
    with open_elf(small) as image:
        for segment in image.segments:
            if segment.kind == elf.LOAD:
                assert segment.offset % segment.align == segment.address % segment.align
    assert list(slimming.library_differences(path, small)) == []
    assert ctypes.CDLL(str(small)).name(1)


def test_a_library_that_patchelf_edited_can_be_stripped_afterwards(
    shipped: Facts, tmp_path: Path
) -> None:
    path = gpu_libraries.shared(tmp_path / "lib.so", [large_fatbin()] * 3)
    subprocess.run(
        [elf_edit.find_patchelf(), "--set-rpath", "$ORIGIN/a/longer/path/than/before", path],
        check=True,
    )
    small, plan = slimmed(path, request(shipped, "8.6"))
    assert plan.cuts.ranges
    subprocess.run(["strip", path], check=True)
    subprocess.run(["strip", small], check=True)
    assert list(slimming.library_differences(path, small)) == []
    assert ctypes.CDLL(str(small)).name(1)


def test_slimming_again_for_fewer_leaves_fewer(shipped: Facts, tmp_path: Path) -> None:
    path = gpu_libraries.shared(tmp_path / "lib.so", [large_fatbin()] * 3)
    once, _ = slimmed(path, request(shipped, "8.6", "9.0"))
    twice, _ = slimmed(once, request(shipped, "9.0"))
    assert piece_names(twice) == ["9.0"] * 3
    assert list(slimming.library_differences(path, twice)) == []


def test_fatbins_that_something_else_refers_to_stay_in_place(
    shipped: Facts, tmp_path: Path
) -> None:
    path = library(
        tmp_path / "lib.so", {".nv_fatbin": large_fatbin() + bytes(200_000) + large_fatbin()}
    )
    small, plan = slimmed(path, request(shipped, "8.6"))
    assert not plan.cuts.ranges
    assert small.stat().st_size == path.stat().st_size
    assert small.stat().st_blocks < path.stat().st_blocks  # holes
    assert list(slimming.library_differences(path, small)) == []
    assert piece_names(small) == ["8.6"] * 2


def test_static_libraries_keep_their_layout(shipped: Facts, tmp_path: Path) -> None:
    path = static(tmp_path / "lib.a", [piece(70), piece(86)], [piece(86), piece(90, PTX)])
    small, _ = slimmed(path, request(shipped, "8.6"))
    assert small.stat().st_size == path.stat().st_size
    assert list(slimming.library_differences(path, small)) == []
    assert piece_names(small) == ["8.6", "8.6"]


@pytest.mark.parametrize("section", [".text", ".rodata", ".nvFatBinSegment", ".nv_fatbin"])
def test_any_other_difference_is_found(shipped: Facts, tmp_path: Path, section: str) -> None:
    path = gpu_libraries.shared(tmp_path / "lib.so", [large_fatbin()] * 3)
    small, _ = slimmed(path, request(shipped, "8.6"))
    with open_elf(small) as image:
        offset = next(image.sections_named(section)).offset
    if section == ".nv_fatbin":
        offset += 100  # behind the headers, in the code
    content = bytearray(small.read_bytes())
    content[offset] ^= 1
    small.write_bytes(content)
    assert list(slimming.library_differences(path, small))


def test_files_that_are_no_libraries_must_be_the_same(tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    first.write_bytes(b"torch\n")
    second.write_bytes(b"import a")
    assert list(slimming.library_differences(first, second)) == ["it is another file"]
    for path, content in ((first, b"BC bitcode"), (second, b"BC another")):
        member = b"a.o/".ljust(48) + str(len(content)).encode().ljust(10) + b"`\n" + content
        path.write_bytes(b"!<arch>\n" + member)
    assert list(slimming.library_differences(first, second)) == ["its member at 0x44 differs"]
    assert list(slimming.library_differences(first, first)) == []


def test_a_library_without_fatbins_has_no_plan(shipped: Facts, tmp_path: Path) -> None:
    path = library(tmp_path / "lib.so", {".text": large_fatbin()})
    assert slim.plan_library(path, request(shipped, "8.6")) is None


# The fields of a fatbin with two pieces of 64 bytes: their offset, their layout, and wrong values.
FIELDS = {
    "magic": (0, "I", (0, 1, 0xBA55ED51, 0xFFFFFFFF)),
    "version": (4, "H", (0, 2, 3, 0x101, 0xFFFF)),
    "header": (6, "H", (0, 1, 8, 15, 24, 4096, 0xFFFF)),
    "size": (8, "Q", (1, 63, 64, 100, 255, 264, 1 << 31, 1 << 40, (1 << 64) - 1)),
    "kind": (16, "H", (0, 3, 4, 7, 16, 64, 0xFFFF)),
    "piece header": (20, "I", (0, 1, 32, 63, 4096, 1 << 31, 0xFFFFFFFF)),
    "piece size": (24, "Q", (1, 63, 65, 500, 1 << 31, 1 << 40, (1 << 64) - 1)),
    "second kind": (144, "H", (0, 5, 128)),
    "second header": (148, "I", (0, 8, 60, 68, 1 << 20)),
    "second size": (152, "Q", (1, 63, 65, 72, 1 << 40)),
}


def damaged_sections() -> Iterator[tuple[str, bytes]]:
    """Yield damaged contents of a section, each with a name."""
    good = fatbin(piece(70), piece(86))
    for before, (name, field) in product((b"", good, good + bytes(8)), FIELDS.items()):
        offset, layout, values = field
        for value in values:
            content = bytearray(before + good)
            struct.pack_into("<" + layout, content, len(before) + offset, value)
            yield f"{name} {value} after {len(before)}", bytes(content)
    for end in range(17, len(good), 8):
        yield f"truncated at {end}", good[:end]
    for junk in (b"\x01", b"junk", bytes(7) + b"\x01", good[::-1]):
        yield f"followed by {len(junk)} bytes", good + junk.ljust(16, b"\x02")
    yield "endless pieces", fatbin(*(piece(86, size=0) for _ in range(device_code.MOST_PIECES + 1)))


def test_200_kinds_of_damage_are_refused(
    shipped: Facts, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    kinds = list(damaged_sections())
    assert len(kinds) >= 200
    for name, content in kinds:
        with subtests.test(name):
            path = library(tmp_path / "lib.so", {".nv_fatbin": content})
            before = path.read_bytes()
            with refused("damaged-library"):
                slim.plan_library(path, request(shipped, "8.6"))
            assert path.read_bytes() == before


@pytest.mark.parametrize("end", [100, 1000, 20_000, -1000, -64, -8])
def test_a_truncated_library_is_refused(shipped: Facts, tmp_path: Path, end: int) -> None:
    path = gpu_libraries.shared(tmp_path / "lib.so", [large_fatbin()])
    path.write_bytes(path.read_bytes()[:end])
    with refused("damaged-library"):
        slim.plan_library(path, request(shipped, "8.6"))
