"""The links of a toolkit, and the stub of the driver's library."""

import ctypes
import shutil
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.fetch.toolkit.layout import (
    add_driver_stub,
    add_links,
    add_unversioned_names,
    driver_functions,
)
from torchmill.host.native import native_arch


def home(folder: Path) -> Path:
    """Return a toolkit as packages leave it."""
    for name in ("include/cuda.h", "lib64/libcudart.so.13", "lib64/libcudart_static.a", "bin/nvcc"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return folder


def test_a_toolkit_gets_the_links_of_nvidias_toolkits(tmp_path: Path) -> None:
    whole = home(tmp_path / "making")
    add_links(whole, "x86_64")
    add_links(whole, "x86_64")  # changes nothing
    whole = whole.rename(tmp_path / "made")
    for name in (
        "targets/x86_64-linux/include/cuda.h",
        "targets/x86_64-linux/bin/nvcc",
        "lib/libcudart.so",
    ):
        assert (whole / name).is_file(), name
    assert not (whole / "targets/x86_64-linux/nvvm").is_symlink(), "the toolkit has none"
    assert (whole / "targets/x86_64-linux/lib/libcudart.so").read_text() == "lib64/libcudart.so.13"


def test_the_profiling_interface_is_linked_for_torch(tmp_path: Path) -> None:
    add_links(home(tmp_path), "x86_64")
    assert not (tmp_path / "extras").exists(), "the toolkit has none"
    (tmp_path / "include/cupti.h").touch()
    add_links(tmp_path, "x86_64")
    assert (tmp_path / "extras/CUPTI/include/cupti.h").is_file()
    assert (tmp_path / "extras/CUPTI/lib64/libcudart.so").is_file()


def test_servers_with_arm_have_another_target(tmp_path: Path) -> None:
    add_links(home(tmp_path), "aarch64")
    assert (tmp_path / "targets/sbsa-linux/include/cuda.h").is_file()


def test_existing_links_stay(tmp_path: Path) -> None:
    for name in ("liba.so.1", "liba.so.2", "libnvrtc-builtins.so.13.0"):
        (tmp_path / name).touch()
    (tmp_path / "liba.so").symlink_to("liba.so.2")
    add_unversioned_names(tmp_path)
    assert (tmp_path / "liba.so").readlink() == Path("liba.so.2")
    assert (tmp_path / "libnvrtc-builtins.so").readlink() == Path("libnvrtc-builtins.so.13.0")


HEADER = """
    #define __CUDA_API_PTDS(api) api ## _ptds
#define cuDeviceTotalMem                    cuDeviceTotalMem_v2
#define cuMemcpyHtoD                        __CUDA_API_PTDS(cuMemcpyHtoD_v2)
#define cuStreamSync                        __CUDA_API_PTSZ(cuStreamSync)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI
    cuDeviceTotalMem(size_t *bytes, CUdevice dev);
 * \\sa ::cuMentioned
"""


def test_functions_of_the_driver_are_found_by_all_names() -> None:
    assert driver_functions([HEADER, "void CUDAAPI cuGLInit(void);"]) == (
        "cuDeviceTotalMem",
        "cuDeviceTotalMem_v2",
        "cuGLInit",
        "cuInit",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoD_v2_ptds",
        "cuStreamSync",
        "cuStreamSync_ptsz",
    )


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_functions_of_a_stub_return_its_error(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda.h").write_text("CUresult CUDAAPI cuInit(unsigned int flags);\n")
    add_driver_stub(tmp_path, native_arch())
    assert ctypes.CDLL(str(tmp_path / "lib64/stubs/libcuda.so")).cuInit() == 34


def test_an_existing_stub_stays(tmp_path: Path) -> None:
    stub = tmp_path / "lib64/stubs/libcuda.so"
    stub.parent.mkdir(parents=True)
    stub.write_text("NVIDIA's own")
    add_driver_stub(tmp_path, native_arch())
    assert stub.read_text() == "NVIDIA's own"


def test_a_missing_c_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("no-c-compiler"):
        add_driver_stub(tmp_path, native_arch())
