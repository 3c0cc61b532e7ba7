"""Where files of Debian's packages go."""

import pytest

from torchmill.fetch.toolkit.debian import place_compiler_file, relink, toolkit_placer


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("usr/lib/nvidia-cuda-toolkit/bin/nvcc", "bin/nvcc"),
        ("usr/lib/nvidia-cuda-toolkit/bin/cicc", "nvvm/bin/cicc"),
        ("usr/lib/nvidia-cuda-toolkit/bin/crt/link.stub", "bin/crt/link.stub"),
        ("usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"),
        ("usr/bin/cuobjdump", "bin/cuobjdump"),
        ("usr/bin/cudafe++", "bin/cudafe++"),
        ("usr/include/crt/host_config.h", "include/crt/host_config.h"),
        ("usr/include/nvvm.h", "nvvm/include/nvvm.h"),
        ("usr/lib/x86_64-linux-gnu/libcublas.so.11", "lib64/libcublas.so.11"),
        ("usr/lib/x86_64-linux-gnu/stubs/libcuda.so", "lib64/stubs/libcuda.so"),
        ("usr/lib/x86_64-linux-gnu/libnvvm.so.4", "nvvm/lib64/libnvvm.so.4"),
        ("usr/share/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        # what would mislead nvcc or CMake, and what no build needs
        ("usr/bin/nvcc", None),
        ("usr/lib/nvidia-cuda-toolkit/bin/g++", None),
        ("usr/lib/nvidia-cuda-toolkit/bin/nvcc.profile", None),
        ("etc/nvcc.profile", None),
        ("usr/lib/cuda/include/cuda.h", None),
        ("usr/lib/x86_64-linux-gnu/pkgconfig/cuda.pc", None),
        ("usr/lib/aarch64-linux-gnu/libcublas.so.11", None),
        ("usr/share/doc/libcublas11/copyright", None),
        ("usr/lib/nvidia-cuda-toolkit/compute-sanitizer/include/sanitizer.h", None),
    ],
)
def test_a_file_of_a_toolkit(path: str, new: str | None) -> None:
    assert toolkit_placer("x86_64")(path) == new


def test_another_machine() -> None:
    place = toolkit_placer("aarch64")
    assert place("usr/lib/aarch64-linux-gnu/libcudart_static.a") == "lib64/libcudart_static.a"
    assert place("usr/lib/x86_64-linux-gnu/libcudart_static.a") is None


def test_a_file_of_a_compiler() -> None:
    paths = ["usr/bin/g++-11", "usr/lib/gcc/x86_64-linux-gnu/11/cc1plus", "usr/include/c++/11/vector"]
    assert [place_compiler_file(path) for path in paths] == [path.removeprefix("usr/") for path in paths]
    assert place_compiler_file("usr/share/man/man1/g++-11.1.gz") is None
    assert place_compiler_file("etc/x") is None


@pytest.mark.parametrize(
    ("path", "target", "link"),
    [
        ("usr/lib/x86_64-linux-gnu/libcudart.so", "libcudart.so.11.0", "libcudart.so.11.0"),
        ("usr/lib/x86_64-linux-gnu/libnvvm.so", "libnvvm.so.4", "libnvvm.so.4"),
        ("usr/bin/cicc", "../lib/nvidia-cuda-toolkit/bin/cicc", "../nvvm/bin/cicc"),
        ("usr/bin/fatbinary", "/usr/lib/nvidia-cuda-toolkit/bin/fatbinary", "fatbinary"),
        ("usr/lib/x86_64-linux-gnu/libx.so", "../../share/doc/x", None),
        ("usr/bin/nvcc", "ptxas", None),
        ("usr/bin/x", "../../../../../usr/bin/ptxas", "ptxas"),
    ],
)
def test_a_link(path: str, target: str, link: str | None) -> None:
    assert relink(path, target, toolkit_placer("x86_64")) == link
