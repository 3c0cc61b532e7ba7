"""GPU code read from libraries: made up, compiled by CUDA 13.0, and by the nvcc of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
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
from torchmill.wheel.verify.device_code import Fatbin, FatbinPiece, LibraryCode

FATBINS = Path(__file__).parents[1] / "golden" / "fatbins"
NVCC = shutil.which("nvcc")
CUOBJDUMP = shutil.which("cuobjdump")
TARGETS = (ArchTarget("7.0"), ArchTarget("8.6", ptx=True))


def library_code(path: Path, *fatbins: bytes) -> LibraryCode:
    library(path, {".nv_fatbin": b"".join(fatbins)})
    return device_code.read_device_code_of_files(path.parent, [path.name])


def read_pieces(path: Path) -> list[FatbinPiece]:
    pieces: list[FatbinPiece] = []
    for read_fatbin in device_code.read_device_code(path):
        pieces += read_fatbin.pieces
    return pieces


def full_fatbin(extra: bytes = b"") -> bytes:
    return fatbin(piece(70), piece(86), piece(86, PTX), extra)


def problems(*libraries: LibraryCode, targets: tuple[ArchTarget, ...] = TARGETS) -> list[str]:
    code: dict[str, Sequence[Fatbin]] = {}
    for library_of_test in libraries:
        code |= library_of_test
    return list(device_code.device_code_problems(code, targets))


def test_each_piece_has_its_capability_kind_and_size(tmp_path: Path) -> None:
    code = library_code(
        tmp_path / "lib.so",
        fatbin(piece(86, size=128), piece(90, flags=OWN), piece(100, flags=FAMILY, header=112)),
        fatbin(piece(120, PTX, header=80), piece(35), piece(90, kind=64)),
    )
    first, second = code["lib.so"]
    assert [(part.capability, part.kind, part.size) for part in first.pieces] == [
        ("8.6", "sass", 128),
        ("9.0a", "sass", 64),
        ("10.0f", "sass", 64),
    ]
    assert [(part.capability, part.kind, part.size) for part in second.pieces] == [
        ("12.0", "ptx", 64),
        ("3.5", "sass", 64),
        ("9.0", "kind 64", 64),
    ]


def test_room_between_fatbins_is_passed_over(tmp_path: Path) -> None:
    code = library_code(
        tmp_path / "lib.so", fatbin(piece(70)), bytes(24), fatbin(piece(86)), bytes(8)
    )
    assert len(code["lib.so"]) == 2


def test_code_that_nvlink_has_to_link_counts_too(tmp_path: Path) -> None:
    path = library(
        tmp_path / "lib.so",
        {
            ".text": b"code",
            "__nv_relfatbin": fatbin(piece(86, PTX)),
            ".nv_fatbin": full_fatbin(),
        },
    )
    _, second = device_code.read_device_code(path)
    assert second.pieces[-1].kind == "ptx"


def test_other_libraries_have_no_fatbins(tmp_path: Path) -> None:
    path = library(tmp_path / "lib.so", {".text": full_fatbin()})
    assert device_code.read_device_code(path) == []
    (tmp_path / "module.py").write_text("import torch")
    names = ["lib.so", "module.py", "nowhere.so"]
    assert device_code.read_device_code_of_files(tmp_path, names) == {}


def test_libraries_are_named_by_their_path(tmp_path: Path) -> None:
    library(tmp_path / "vision" / "_C.so", {".nv_fatbin": full_fatbin()})
    assert list(device_code.read_device_code_of_files(tmp_path, ["vision/_C.so"])) == [
        "vision/_C.so"
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (full_fatbin()[:-8], "goes beyond its section"),
        (fatbin(piece(70)[:-8]), "a piece of a fatbin goes beyond its end"),
        (fatbin(piece(70, header=0)), "a piece of a fatbin goes beyond its end"),
        (full_fatbin() + b"somethingelse" * 3, "no fatbin begins at 0x"),
    ],
)
def test_a_damaged_library_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = library(tmp_path / "lib.so", {".nv_fatbin": content})
    with refused("damaged-library") as caught:
        device_code.read_device_code(path)
    assert "lib.so: not a sound ELF file (" in str(caught.value)
    assert words in str(caught.value)


def test_a_fatbin_may_have_as_many_pieces_as_the_limit(tmp_path: Path) -> None:
    pieces = [piece(70, size=8)] * device_code.MOST_PIECES
    code = library_code(tmp_path / "lib.so", fatbin(*pieces))
    assert len(code["lib.so"][0].pieces) == device_code.MOST_PIECES
    with refused("damaged-library") as caught:
        library_code(tmp_path / "lib.so", fatbin(*pieces, piece(70)))
    assert f"more than {device_code.MOST_PIECES} pieces" in str(caught.value)


def test_a_scattered_fatbin_that_is_cut_off_does_not_count() -> None:
    whole = b"text" + full_fatbin()
    assert len(list(device_code.scattered_fatbins(whole))) == 1
    assert list(device_code.scattered_fatbins(whole[:-8])) == []


def test_exactly_the_requested_code_is_right(tmp_path: Path) -> None:
    code = library_code(tmp_path / "lib.so", full_fatbin(), full_fatbin(), fatbin(piece(86)))
    assert problems(code) == []


def test_missing_code_is_named_with_its_library(tmp_path: Path) -> None:
    partial = library_code(tmp_path / "partial.so", fatbin(piece(70), piece(86)))
    assert problems(partial) == ["partial.so lacks 8.6 PTX of 7.0, 8.6, 8.6 PTX"]
    # The other library is larger, so that the first may be a static library that was linked in.
    right = library_code(tmp_path / "right.so", full_fatbin(), full_fatbin())
    assert problems(partial, right) == []
    small = library_code(tmp_path / "small.so", fatbin(piece(70, size=8)))
    assert problems(partial, small) == problems(partial)


def test_the_code_of_magma_is_not_taken_for_that_of_torch(tmp_path: Path) -> None:
    """As in torch 1.13.1 for 8.6 alone, in which MAGMA has more code than all of torch's kernels."""
    linalg = library_code(
        tmp_path / device_code.MAGMA_LIBRARY, fatbin(piece(60, size=4096), piece(80, PTX))
    )
    torch = tmp_path / "libtorch_cuda.so"
    assert problems(linalg, library_code(torch, full_fatbin(), full_fatbin())) == []
    assert problems(linalg, library_code(torch, fatbin(piece(70)))) == [
        "libtorch_cuda.so lacks 8.6, 8.6 PTX of 7.0, 8.6, 8.6 PTX"
    ]
    assert problems(linalg) == problems()


def test_code_that_was_not_requested_is_named(tmp_path: Path) -> None:
    fatbins = (full_fatbin(piece(80)), full_fatbin(piece(90, PTX)))
    assert problems(library_code(tmp_path / "lib.so", *fatbins)) == [
        "lib.so has 8.0, 9.0 PTX, not asked for, beside 7.0, 8.6, 8.6 PTX"
    ]


def test_a_library_that_was_linked_in_has_a_list_of_its_own(tmp_path: Path) -> None:
    linked = fatbin(piece(35), piece(60))
    assert problems(library_code(tmp_path / "lib.so", full_fatbin(), full_fatbin(), linked)) == []


def test_a_release_may_use_features_of_a_single_architecture(tmp_path: Path) -> None:
    code = library_code(tmp_path / "lib.so", fatbin(piece(90), piece(90, flags=OWN)))
    assert problems(code, targets=(ArchTarget("9.0"),)) == []
    assert problems(code, targets=(ArchTarget("9.0", "a"),)) == [
        "lib.so has 9.0, not asked for, beside 9.0a"
    ]


def test_a_build_without_any_code_left_cuda_out() -> None:
    assert problems() == [
        "no library has GPU code of torch: the build left CUDA out; its log says why"
    ]


def test_sizes_are_summed_by_capability(tmp_path: Path) -> None:
    code = library_code(tmp_path / "lib.so", full_fatbin(), fatbin(piece(120), piece(70, size=136)))
    sizes = device_code.device_code_sizes(code)
    assert sizes == {"lib.so": {"7.0": 200, "8.6": 64, "12.0": 64, "8.6 PTX": 64}}
    assert list(sizes["lib.so"]) == ["7.0", "8.6", "12.0", "8.6 PTX"]
    assert (
        device_code.format_device_code({"a.so": {"9.0": 64}, **sizes, "b.so": {"7.0": 824}})
        == "7.0 1.0 KiB, 8.6 64 B, 9.0 64 B, 12.0 64 B, 8.6 PTX 64 B"
    )
    assert device_code.format_device_code({}) == ""


def test_a_plan_has_the_requested_targets(small_facts: Facts) -> None:
    host = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
    release = find_release(small_facts, "base", "v1.0.0")
    cell = cell_lookup.find_cell(small_facts, "wheel-3.10-cu118", "x86_64", release)
    computed = build_plan.compute_plan(small_facts, cell, host, Options(arch_list="7.0 8.6+PTX"))
    wheel = computed.wheel
    assert device_code.requested_targets(small_facts, wheel, computed.arch_list) == TARGETS
    assert device_code.requested_targets(small_facts, wheel, "All") is None
    assert device_code.requested_targets(small_facts, wheel, "") is None
    windows = replace(wheel, platform_tag="win_amd64")
    assert device_code.requested_targets(small_facts, windows, computed.arch_list) is None


def test_fatbins_of_cuda_13_are_read(tmp_path: Path) -> None:
    """The file was made of kernel.cu, by the command in it."""
    path = library(tmp_path / "kernel.so", {".nv_fatbin": (FATBINS / "kernel.fatbin").read_bytes()})
    assert {(part.kind, part.capability) for part in read_pieces(path)} == {
        ("sass", "7.5"),
        ("sass", "8.6"),
        ("sass", "9.0a"),
        ("sass", "10.0f"),
        ("ptx", "8.6"),
    }
    code = device_code.read_device_code_of_files(tmp_path, ["kernel.so"])
    targets = (ArchTarget("7.5"), ArchTarget("8.6", ptx=True), ArchTarget("9.0"))
    assert problems(code, targets=targets) == [
        "kernel.so lacks 9.0 of 7.5, 8.6, 9.0, 8.6 PTX",
        "kernel.so has 10.0f, not asked for, beside 7.5, 8.6, 9.0, 8.6 PTX",
    ]


@pytest.mark.skipif(
    NVCC is None or shutil.which("c++") is None, reason="needs nvcc and a C++ compiler"
)
@pytest.mark.parametrize("flags", [[], ["-Xfatbin", "-compress-all"], ["-rdc=true"]])
def test_fatbins_of_the_nvcc_of_this_machine_are_read(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "kernel.so"
    lists = [
        "-gencode=arch=compute_75,code=sm_75",
        "-gencode=arch=compute_86,code=[sm_86,compute_86]",
    ]
    words = ["-shared", "-Xcompiler=-fPIC", "-cudart=none", *lists, *flags, "-o", str(path)]
    compilation = subprocess.run(
        [str(NVCC), *words, FATBINS / "kernel.cu"], capture_output=True, text=True, check=False
    )
    if "unsupported" in compilation.stderr:
        pytest.skip(
            "this nvcc does not take the C++ compiler, or is too old or too new for the list"
        )
    assert compilation.returncode == 0, compilation.stderr
    code = device_code.read_device_code_of_files(tmp_path, [path.name])
    assert problems(code, targets=(ArchTarget("7.5"), ArchTarget("8.6", ptx=True))) == []
    if CUOBJDUMP is not None and flags[:1] != ["-rdc=true"]:
        dump = subprocess.run(
            [CUOBJDUMP, "-lelf", "-lptx", path], capture_output=True, text=True, check=True
        )
        matches = re.findall(r"\.sm_(\d+)(\d)([af]?)\.(cubin|ptx)$", dump.stdout, re.MULTILINE)
        kinds = {"cubin": "sass", "ptx": "ptx"}
        expected = [
            (kinds[kind], f"{major}.{minor}{suffix}") for major, minor, suffix, kind in matches
        ]
        actual = [(part.kind, part.capability) for part in read_pieces(path)]
        assert sorted(actual) == sorted(expected)


def test_a_static_library_is_read_object_by_object(tmp_path: Path) -> None:
    both = (piece(70), piece(86, PTX))
    path = static(tmp_path / "lib.a", both, both, (*both, piece(90, flags=OWN)))
    fatbins = device_code.read_device_code(path)
    assert [len(read_fatbin.pieces) for read_fatbin in fatbins] == [2, 2, 3]
    assert device_code.common_arch_list(fatbins) == "7.0;8.6+PTX"
    specific = static(tmp_path / "specific.a", (piece(90, flags=OWN),))
    assert device_code.common_arch_list(device_code.read_device_code(specific)) == "9.0a"
    different = static(tmp_path / "different.a", (piece(120),), (piece(86),))
    assert device_code.common_arch_list(device_code.read_device_code(different)) == ""
    assert device_code.common_arch_list(()) == ""
    # The driver compiles the PTX of the second object, but no later GPU can run the first.
    mixed = static(tmp_path / "mixed.a", (piece(86), piece(90, PTX)), (piece(86, PTX),))
    assert device_code.common_arch_list(device_code.read_device_code(mixed)) == "8.6"


def test_a_damaged_object_in_a_static_library_is_named(tmp_path: Path) -> None:
    path = static(tmp_path / "lib.a", (piece(70, header=0),))
    with refused("damaged-library"):
        device_code.read_device_code(path)
    content = bytearray(static(path, (piece(70),)).read_bytes())
    field = content.index(elf.ELF_MAGIC) + 40  # e_shoff, the offset of the table of sections
    content[field : field + 8] = b"\xff" * 8
    path.write_bytes(content)
    with refused("damaged-library"):
        device_code.read_device_code(path)
