"""GPU code read from libraries: made up, by an old nvcc, and by the one installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import ChainMap
from dataclasses import replace
from pathlib import Path

import pytest
from millpress import elf

from tests.support.fatbins import FAMILY, OWN, PTX, fatbin, library, piece
from tests.support.made_up_magma import static
from tests.support.refusals import refused
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.host import Host, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.wheel.verify import device_code
from torchmill.wheel.verify.device_code import FatbinPiece, LibraryCode

FATBINS = Path(__file__).parents[1] / "golden" / "fatbins"
NVCC, CUOBJDUMP = shutil.which("nvcc"), shutil.which("cuobjdump")
WANTED = (ArchTarget("7.0"), ArchTarget("8.6", ptx=True))


def code(path: Path, *fatbins: bytes) -> LibraryCode:
    library(path, {".nv_fatbin": b"".join(fatbins)})
    return device_code.read_device_code_of_files(path.parent, [path.name])


def pieces(path: Path) -> list[FatbinPiece]:
    return [piece for each in device_code.read_device_code(path) for piece in each.pieces]


def whole(extra: bytes = b"") -> bytes:
    return fatbin(piece(70), piece(86), piece(86, PTX), extra)


def wrong(*found: LibraryCode, wanted: tuple[ArchTarget, ...] = WANTED) -> list[str]:
    return list(
        device_code.device_code_problems(dict(ChainMap(*map(dict, reversed(found)))), wanted)
    )


def test_each_piece_says_what_it_is(tmp_path: Path) -> None:
    found = code(
        tmp_path / "lib.so",
        fatbin(piece(86, size=128), piece(90, flags=OWN), piece(100, flags=FAMILY, header=112)),
        fatbin(piece(120, PTX, header=80), piece(35), piece(90, kind=64)),
    )
    assert [
        [(one.capability, one.kind, one.size) for one in each.pieces] for each in found["lib.so"]
    ] == [
        [("8.6", "sass", 128), ("9.0a", "sass", 64), ("10.0f", "sass", 64)],
        [("12.0", "ptx", 64), ("3.5", "sass", 64), ("9.0", "kind 64", 64)],
    ]


def test_room_between_fatbins_is_passed_over(tmp_path: Path) -> None:
    found = code(tmp_path / "lib.so", fatbin(piece(70)), bytes(24), fatbin(piece(86)), bytes(8))
    assert len(found["lib.so"]) == 2


def test_what_is_still_to_be_linked_counts_too(tmp_path: Path) -> None:
    path = library(
        tmp_path / "lib.so",
        {".text": b"code", "__nv_relfatbin": fatbin(piece(86, PTX)), ".nv_fatbin": whole()},
    )
    assert [each.pieces[-1].kind for each in device_code.read_device_code(path)][1:] == ["ptx"]


def test_other_libraries_hold_none(tmp_path: Path) -> None:
    assert device_code.read_device_code(library(tmp_path / "lib.so", {".text": whole()})) == []
    (tmp_path / "module.py").write_text("import torch")
    assert (
        device_code.read_device_code_of_files(tmp_path, ["lib.so", "module.py", "nowhere.so"]) == {}
    )


def test_libraries_are_named_by_their_path(tmp_path: Path) -> None:
    library(tmp_path / "vision" / "_C.so", {".nv_fatbin": whole()})
    assert list(device_code.read_device_code_of_files(tmp_path, ["vision/_C.so"])) == [
        "vision/_C.so"
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (whole()[:-8], "goes beyond its section"),
        (fatbin(piece(70)[:-8]), "a piece of a fatbin goes beyond its end"),
        (fatbin(piece(70, header=0)), "a piece of a fatbin goes beyond its end"),
        (whole() + b"somethingelse" * 3, "no fatbin begins at 0x"),
    ],
)
def test_a_damaged_library_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = library(tmp_path / "lib.so", {".nv_fatbin": content})
    with refused("damaged-library") as caught:
        device_code.read_device_code(path)
    assert "lib.so: not a sound ELF file (" in str(caught.value)
    assert words in str(caught.value)


def test_exactly_what_was_asked_for_is_right(tmp_path: Path) -> None:
    assert wrong(code(tmp_path / "lib.so", whole(), whole(), fatbin(piece(86)))) == []


def test_what_is_missing_is_named_with_its_library(tmp_path: Path) -> None:
    one = code(tmp_path / "one.so", fatbin(piece(70), piece(86)))
    assert wrong(one) == ["one.so lacks 8.6 PTX of 7.0, 8.6, 8.6 PTX"]
    assert wrong(one, code(tmp_path / "right.so", whole(), whole())) == []  # nothing but MAGMA, say
    assert wrong(one, code(tmp_path / "small.so", fatbin(piece(70, size=8)))) == wrong(one)


def test_the_code_of_magma_is_not_taken_for_that_of_torch(tmp_path: Path) -> None:
    """As in torch 1.13.1 for 8.6 alone: MAGMA's code for its own list is larger than all of torch's."""
    linalg = code(tmp_path / device_code.MAGMA_ALONE, fatbin(piece(60, size=4096), piece(80, PTX)))
    assert wrong(linalg, code(tmp_path / "libtorch_cuda.so", whole(), whole())) == []
    assert wrong(linalg, code(tmp_path / "libtorch_cuda.so", fatbin(piece(70)))) == [
        "libtorch_cuda.so lacks 8.6, 8.6 PTX of 7.0, 8.6, 8.6 PTX"
    ]
    assert wrong(linalg) == wrong()


def test_what_was_not_asked_for_is_named(tmp_path: Path) -> None:
    assert wrong(code(tmp_path / "lib.so", whole(piece(80)), whole(piece(90, PTX)))) == [
        "lib.so has 8.0, 9.0 PTX, not asked for, beside 7.0, 8.6, 8.6 PTX"
    ]


def test_a_library_that_was_linked_in_has_a_list_of_its_own(tmp_path: Path) -> None:
    assert wrong(code(tmp_path / "lib.so", whole(), whole(), fatbin(piece(35), piece(60)))) == []


def test_a_release_may_use_what_only_a_listed_capability_has(tmp_path: Path) -> None:
    found = code(tmp_path / "lib.so", fatbin(piece(90), piece(90, flags=OWN)))
    assert wrong(found, wanted=(ArchTarget("9.0"),)) == []
    assert wrong(found, wanted=(ArchTarget("9.0", "a"),)) == [
        "lib.so has 9.0, not asked for, beside 9.0a"
    ]


def test_a_build_without_any_code_left_cuda_out() -> None:
    assert wrong() == [
        "no library has GPU code of torch: the build left CUDA out; its log says why"
    ]


def test_sizes_are_summed_by_capability(tmp_path: Path) -> None:
    found = code(tmp_path / "lib.so", whole(), fatbin(piece(120), piece(70, size=136)))
    sizes = device_code.device_code_sizes(found)
    assert sizes == {"lib.so": {"7.0": 200, "8.6": 64, "12.0": 64, "8.6 PTX": 64}}
    assert list(sizes["lib.so"]) == ["7.0", "8.6", "12.0", "8.6 PTX"]
    assert (
        device_code.format_device_code({"a.so": {"9.0": 64}, **sizes, "b.so": {"7.0": 824}})
        == "7.0 1.0 KiB, 8.6 64 B, 9.0 64 B, 12.0 64 B, 8.6 PTX 64 B"
    )
    assert device_code.format_device_code({}) == ""


def test_a_plan_says_what_was_asked_for(small_facts: Facts) -> None:
    host = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
    cell = cell_lookup.find_cell(
        small_facts, "wheel-3.10-cu118", "x86_64", find_release(small_facts, "base", "v1.0.0")
    )
    computed = build_plan.compute_plan(small_facts, cell, host, Options(arch_list="7.0 8.6+PTX"))
    wheel = computed.wheel
    assert device_code.requested_targets(small_facts, wheel, computed.arch_list) == WANTED
    assert device_code.requested_targets(small_facts, wheel, "All") is None
    assert device_code.requested_targets(small_facts, wheel, "") is None
    windows = replace(wheel, platform_tag="win_amd64")
    assert device_code.requested_targets(small_facts, windows, computed.arch_list) is None


def test_what_nvcc_made_is_read(tmp_path: Path) -> None:
    """Read what CUDA 13.0 made of kernel.cu: see the command there."""
    path = library(tmp_path / "kernel.so", {".nv_fatbin": (FATBINS / "kernel.fatbin").read_bytes()})
    assert {(one.kind, one.capability) for one in pieces(path)} == {
        ("sass", "7.5"),
        ("sass", "8.6"),
        ("sass", "9.0a"),
        ("sass", "10.0f"),
        ("ptx", "8.6"),
    }
    found = device_code.read_device_code_of_files(tmp_path, ["kernel.so"])
    assert wrong(
        found, wanted=(ArchTarget("7.5"), ArchTarget("8.6", ptx=True), ArchTarget("9.0"))
    ) == [
        "kernel.so lacks 9.0 of 7.5, 8.6, 9.0, 8.6 PTX",
        "kernel.so has 10.0f, not asked for, beside 7.5, 8.6, 9.0, 8.6 PTX",
    ]


@pytest.mark.skipif(
    NVCC is None or shutil.which("c++") is None, reason="needs nvcc and a C++ compiler"
)
@pytest.mark.parametrize("flags", [[], ["-Xfatbin", "-compress-all"], ["-rdc=true"]])
def test_what_nvcc_makes_here_is_read(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "kernel.so"
    lists = [
        "-gencode=arch=compute_75,code=sm_75",
        "-gencode=arch=compute_86,code=[sm_86,compute_86]",
    ]
    words = ["-shared", "-Xcompiler=-fPIC", "-cudart=none", *lists, *flags, "-o", str(path)]
    made = subprocess.run(
        [str(NVCC), *words, FATBINS / "kernel.cu"], capture_output=True, text=True, check=False
    )
    if "unsupported" in made.stderr:
        pytest.skip(
            "this nvcc does not take the C++ compiler, or is too old or too new for the list"
        )
    assert made.returncode == 0, made.stderr
    found = device_code.read_device_code_of_files(tmp_path, [path.name])
    assert wrong(found, wanted=(ArchTarget("7.5"), ArchTarget("8.6", ptx=True))) == []
    if CUOBJDUMP is not None and flags[:1] != ["-rdc=true"]:
        said = subprocess.run(
            [CUOBJDUMP, "-lelf", "-lptx", path], capture_output=True, text=True, check=True
        )
        listed = re.findall(r"\.sm_(\d+)(\d)([af]?)\.(cubin|ptx)$", said.stdout, re.MULTILINE)
        kinds = {"cubin": "sass", "ptx": "ptx"}
        theirs = sorted(
            (kinds[kind], f"{major}.{minor}{suffix}") for major, minor, suffix, kind in listed
        )
        assert sorted((one.kind, one.capability) for one in pieces(path)) == theirs


def test_a_static_library_is_read_object_by_object(tmp_path: Path) -> None:
    both = (piece(70), piece(86, PTX))
    path = static(tmp_path / "lib.a", both, both, (*both, piece(90, flags=OWN)))
    found = device_code.read_device_code(path)
    assert [len(each.pieces) for each in found] == [2, 2, 3]
    assert device_code.common_arch_list(found) == "7.0;8.6+PTX"
    assert (
        device_code.common_arch_list(
            device_code.read_device_code(static(tmp_path / "own.a", (piece(90, flags=OWN),)))
        )
        == "9.0a"
    )
    assert (
        device_code.common_arch_list(
            device_code.read_device_code(static(tmp_path / "big.a", (piece(120),), (piece(86),)))
        )
        == ""
    )
    assert device_code.common_arch_list(()) == ""


def test_a_damaged_object_in_a_static_library_is_named(tmp_path: Path) -> None:
    path = static(tmp_path / "lib.a", (piece(70, header=0),))
    with refused("damaged-library"):
        device_code.read_device_code(path)
    content = bytearray(static(path, (piece(70),)).read_bytes())
    sections = (
        content.index(elf.ELF_MAGIC) + 40
    )  # where the object says that the table of sections is
    content[sections : sections + 8] = b"\xff" * 8
    path.write_bytes(content)
    with refused("damaged-library"):
        device_code.read_device_code(path)
