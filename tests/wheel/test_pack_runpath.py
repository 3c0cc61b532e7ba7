from __future__ import annotations

from pathlib import Path

import pytest

from torchmill.wheel.pack.elf_edit import run_path

ROOT = Path("/stage")
LIB = ROOT / "torch/lib"
BUNDLE = ROOT / "torchvision.libs"


@pytest.mark.parametrize(
    ("file", "libraries", "expected"),
    [
        ("torch/_C.cpython-310-x86_64-linux-gnu.so", [LIB], ("$ORIGIN", "$ORIGIN/lib")),
        ("torch/lib/libtorch_cpu.so", [LIB], ("$ORIGIN",)),
        ("torch/bin/torch_shm_manager", [LIB], ("$ORIGIN", "$ORIGIN/../lib")),
        ("functorch/_C.cpython-310-x86_64-linux-gnu.so", [LIB], ("$ORIGIN", "$ORIGIN/../torch/lib")),
        ("torchvision/_C.so", [BUNDLE], ("$ORIGIN", "$ORIGIN/../torchvision.libs")),
        ("torchvision.libs/libjpeg-01234567.so.62", [BUNDLE], ("$ORIGIN",)),
    ],
)
def test_each_place_has_its_run_path(file: str, libraries: list[Path], expected: tuple[str, ...]) -> None:
    assert run_path(ROOT / file, (), True, ROOT, libraries) == expected


def test_paths_of_the_build_go_and_those_that_move_along_stay() -> None:
    present = (
        "/build/lib",
        "/home/me/.pyenv/versions/3.10.13/lib",
        "$ORIGIN/../../nvidia/cublas/lib",
        "${ORIGIN}/../lib",
        "$ORIGIN/../../../elsewhere",
        "build/lib",
    )
    assert run_path(LIB / "libtorch_cuda.so", present, True, ROOT, [LIB]) == (
        "$ORIGIN",
        "$ORIGIN/../../nvidia/cublas/lib",
    )


def test_a_file_that_needs_nothing_of_the_wheel_is_left_alone() -> None:
    assert run_path(LIB / "libstub.so", (), False, ROOT, [LIB]) == ()
