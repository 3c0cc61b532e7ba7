"""Which of NVIDIA's libraries keep their names, and which come with packages that a wheel requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_wheels as tiny
from torchmill.wheel.pack import bundling, elf
from torchmill.wheel.pack.bundling import is_bundled
from torchmill.wheel.pack.repair import repair_wheel
from torchmill.wheel.pack.staging import unpack_wheel


@pytest.mark.parametrize(
    ("library", "kept"),
    [
        ("libcudnn.so.8", True),
        ("libcudnn_ops_infer.so.8", True),
        ("libcublasLt.so.11", True),
        ("libnvrtc-builtins.so.11.7", True),
        ("libcudart.so.11.0", False),
        ("libnccl.so.2", False),
        ("libtorch_cuda.so", False),
    ],
)
def test_what_others_open_by_name_keeps_it(library: str, kept: bool) -> None:
    assert bundling.keeps_name(library) == kept


def test_what_came_along_is_known_by_its_name() -> None:
    names = (
        "libcudnn.so.8",
        "libcudart-e409450e.so.11.0",
        "libtorch_cuda.so",
        "_C.cpython-310-x86_64-linux-gnu.so",
    )
    assert [is_bundled(name) for name in names] == [True, True, False, False]


@pytest.mark.parametrize(
    ("requirement", "library", "folder"),
    [
        ("nvidia-cublas-cu11==11.10.3.66", "libcublasLt.so.11", "nvidia/cublas/lib"),
        ("nvidia-cuda-runtime-cu12==12.4.127", "libcudart.so.12", "nvidia/cuda_runtime/lib"),
        ("nvidia-cudnn-cu13==9.19.0.56", "libcudnn_graph.so.9", "nvidia/cudnn/lib"),
        ("nvidia-nccl-cu12==2.21.5", "libnccl.so.2", "nvidia/nccl/lib"),
        ("cuda-toolkit[cublas,nvrtc]==13.0.2", "libnvrtc.so.13", "nvidia/cu13/lib"),
        ("cuda-toolkit[cublas,nvrtc]==13.0.2", "libcufft.so.12", None),
        ("nvidia-cusparse-cu12==12.3.1.170", "libcusparseLt.so.0", None),
        ("nvidia-cublas-cu11==11.10.3.66; sys_platform == 'plan9'", "libcublas.so.11", None),
        ("numpy", "libcublas.so.11", None),
    ],
)
def test_required_packages_bring_their_libraries(requirement: str, library: str, folder: str | None) -> None:
    assert bundling.nvidia_folder(bundling.required_nvidia_folders([requirement]), library) == folder


@tiny.needs_compiler
def test_a_library_comes_with_what_it_opens_by_name(tmp_path: Path) -> None:
    away = tmp_path / "cudnn" / "lib"
    away.mkdir(parents=True)
    for name in ("libcudnn.so.8", "libcudnn_ops_infer.so.8", "libcudnn_cnn_infer.so.8"):
        tiny.shared("", away / name)
    (away / "libcudnn_ops_infer.so").symlink_to("libcudnn_ops_infer.so.8")  # for linkers, never opened
    package = tmp_path / "tree" / "tinytorch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    tiny.shared("", package / "lib" / "libtiny.so", away / "libcudnn.so.8")
    raw = tiny.raw_wheel(tmp_path / "tree", "tinytorch", "1.0+cu118", tmp_path)
    staged = unpack_wheel(raw, tmp_path / "stage")
    repaired = repair_wheel(staged, tiny.PLATFORM, folders=[away])
    assert [each.path for each in repaired.bundled] == [
        "tinytorch/lib/libcudnn.so.8",
        "tinytorch/lib/libcudnn_cnn_infer.so.8",
        "tinytorch/lib/libcudnn_ops_infer.so.8",
    ]
    opened = elf.read_elf(staged.libraries / "libcudnn_ops_infer.so.8")
    assert opened is not None
    assert (opened.soname, opened.rpath) == ("libcudnn_ops_infer.so.8", ("$ORIGIN",))


@tiny.needs_compiler
def test_cudnn_8_finds_nvrtc_by_its_bare_name(tmp_path: Path) -> None:
    away = tmp_path / "toolkit"
    away.mkdir()
    for name in ("libcudnn.so.8", "libnvrtc.so.11.2", "libnvrtc-builtins.so.11.8"):
        tiny.shared("", away / name)
    package = tmp_path / "tree" / "tinytorch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    tiny.shared("", package / "lib" / "libtiny.so", away / "libcudnn.so.8", away / "libnvrtc.so.11.2")
    raw = tiny.raw_wheel(tmp_path / "tree", "tinytorch", "1.0", tmp_path)
    staged = unpack_wheel(raw, tmp_path / "stage")
    repaired = repair_wheel(staged, tiny.PLATFORM, folders=[away])
    names = [each.name for each in repaired.bundled]
    assert names == ["libcudnn.so.8", "libnvrtc-builtins.so.11.8", "libnvrtc.so", "libnvrtc.so.11.2"]
    second = elf.read_elf(staged.libraries / "libnvrtc.so")
    assert second is not None
    assert (second.soname, second.rpath) == ("libnvrtc.so", ("$ORIGIN",))


@tiny.needs_compiler
def test_what_a_required_package_brings_is_not_bundled(tmp_path: Path) -> None:
    away = tmp_path / "toolkit"
    away.mkdir()
    for name in ("libcublas.so.11", "libcudart.so.11.0"):
        tiny.shared("", away / name)
    package = tmp_path / "tree" / "tinytorch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    tiny.shared("", package / "lib" / "libtiny.so", away / "libcublas.so.11", away / "libcudart.so.11.0")
    raw = tiny.raw_wheel(tmp_path / "tree", "tinytorch", "1.0", tmp_path, "nvidia-cublas-cu11==11.10.3.66")
    staged = unpack_wheel(raw, tmp_path / "stage")
    repaired = repair_wheel(staged, tiny.PLATFORM, folders=[away])
    (runtime,) = repaired.bundled
    assert runtime.name.startswith("libcudart-")
    facts = elf.read_elf(staged.libraries / "libtiny.so")
    assert facts is not None
    assert facts.needed[:2] == ("libcublas.so.11", runtime.name)
    assert facts.rpath == ("$ORIGIN", "$ORIGIN/../../nvidia/cublas/lib")


@tiny.needs_compiler
def test_what_lies_beside_torch_is_used_there_but_for_the_runtime(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("cusparse/lib/libcusparse.so.11", "cuda_runtime/lib/libcudart.so.11.0"):
        (site / "nvidia" / name).parent.mkdir(parents=True)
        tiny.shared("", site / "nvidia" / name)
    beside = bundling.installed_nvidia_folders(site)
    assert beside == {"libcusparse.so.11": "nvidia/cusparse/lib"}
    package = tmp_path / "tree" / "tinyvision"
    package.mkdir(parents=True)
    needed = [site / "nvidia" / folder for folder in ("cusparse/lib", "cuda_runtime/lib")]
    tiny.shared("", package / "_C.so", *(path for folder in needed for path in folder.iterdir()))
    raw = tiny.raw_wheel(tmp_path / "tree", "tinyvision", "1.0", tmp_path)
    staged = unpack_wheel(raw, tmp_path / "stage")
    repaired = repair_wheel(
        staged, tiny.PLATFORM, folders=needed, provided=frozenset(["libc10.so"]), installed_nvidia=beside
    )
    (runtime,) = repaired.bundled
    facts = elf.read_elf(staged.root / "tinyvision" / "_C.so")
    assert facts is not None
    assert facts.needed[:2] == ("libcusparse.so.11", runtime.name)
    assert facts.rpath == ("$ORIGIN", "$ORIGIN/../tinyvision.libs", "$ORIGIN/../nvidia/cusparse/lib")
