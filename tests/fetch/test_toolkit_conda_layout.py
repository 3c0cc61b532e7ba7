"""Where files of conda packages go, and which packages are taken."""

import pytest

from torchmill.fetch.toolkit.conda import is_taken, place_conda_file


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("bin/nvcc", "bin/nvcc"),
        ("lib/libcudart.so.11.0", "lib64/libcudart.so.11.0"),
        ("lib/stubs/libcuda.so", "lib64/stubs/libcuda.so"),
        ("targets/x86_64-linux/lib/libcudart.so.12", "lib64/libcudart.so.12"),
        ("targets/sbsa-linux/include/cuda.h", "include/cuda.h"),
        ("targets/x86_64-linux/nvvm/libdevice/libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"),
        ("lib/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        ("lib/pkgconfig/cudart.pc", None),
        ("lib/python3.12/site-packages/x.py", None),
        ("etc/conda/activate.d/nvcc.sh", None),
        ("info/index.json", None),
        ("targets/x86_64-linux/lib64", None),
        ("LICENSE", None),
        ("lib/../../outside", None),
    ],
)
def test_files_go_where_a_toolkit_has_them(path: str, where: str | None) -> None:
    assert place_conda_file(path) == where


@pytest.mark.parametrize(
    "package",
    [
        "cuda-nvcc",
        "cuda-cccl_linux-64",
        "cuda-nvcc-dev_linux-64",
        "cuda-cudart-dev",
        "libcublas",
        "libcusparse-dev",
    ],
)
def test_the_compiler_and_the_libraries_are_taken(package: str) -> None:
    assert is_taken(package)


@pytest.mark.parametrize(
    "package",
    ["gcc_impl_linux-64", "libcurl", "libstdcxx-ng", "cuda-gdb", "cuda-nsight", "cuda-nvvp", "libnpp"],
)
def test_what_comes_along_is_not(package: str) -> None:
    assert not is_taken(package)
