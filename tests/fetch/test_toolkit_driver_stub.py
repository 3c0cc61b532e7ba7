"""What a stub of the driver's library defines (that programs link with it: test_toolkit_pypi)."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.fetch.toolkit.layout import add_driver_stub, driver_functions, stub_source

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


def test_all_names_that_code_may_ask_for_are_found() -> None:
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


def test_functions_only_say_that_they_are_stubs() -> None:
    assert stub_source(["cuInit"]) == "int cuInit(void) { return 34; }\n"


def test_a_stub_that_is_there_stays(tmp_path: Path) -> None:
    stub = tmp_path / "lib64/stubs/libcuda.so"
    stub.parent.mkdir(parents=True)
    stub.write_text("NVIDIA's own")
    add_driver_stub(tmp_path)
    assert stub.read_text() == "NVIDIA's own"


def test_without_a_compiler_the_way_to_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("no-c-compiler"):
        add_driver_stub(tmp_path)
