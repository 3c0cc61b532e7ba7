"""Find libraries, and their versions by the macros in their headers."""

from pathlib import Path

import pytest

from tests.support.machines import file
from torchmill.host import libraries

CUDNN = "#define CUDNN_MAJOR {}\n#define CUDNN_MINOR {}\n#define CUDNN_PATCHLEVEL {}\n"


def test_each_toolkit_has_its_own_cudnn(tmp_path: Path) -> None:
    old = tmp_path / "usr/local/cuda-11.8"
    new = tmp_path / "usr/local/cuda-12.4"
    file(old / "include/cudnn_version.h", CUDNN.format(8, 6, 0))
    file(new / "include/cudnn_version.h", CUDNN.format(9, 1, 0))
    file(
        tmp_path / "usr/include/x86_64-linux-gnu/cudnn.h", CUDNN.format(7, 6, 5)
    )  # before cuDNN 8, the version was in this header
    versions = libraries.find_libraries({}, tmp_path, {"11.8": str(old), "12.4": str(new)})
    assert versions == {"cudnn": "7.6.5", "cudnn@11.8": "8.6.0", "cudnn@12.4": "9.1.0"}


def test_toolkits_of_conda_have_headers_by_target(tmp_path: Path) -> None:
    header = tmp_path / "cuda/targets/x86_64-linux/include/cufile.h"
    header.parent.mkdir(parents=True)
    header.touch()
    toolkits = {"12.8": str(tmp_path / "cuda"), "12.6": str(tmp_path / "other")}
    assert libraries.find_libraries({}, tmp_path / "root", toolkits) == {"cufile@12.8": ""}


def test_a_library_named_by_a_variable_is_listed_by_its_folder(tmp_path: Path) -> None:
    file(tmp_path / "mine/include/cudnn_version.h", CUDNN.format(8, 9, 7))
    file(tmp_path / "usr/include/cudnn_version.h", CUDNN.format(8, 6, 0))
    folder = str(tmp_path / "mine")
    assert libraries.find_libraries({"CUDNN_ROOT": folder}, tmp_path, {}) == {
        "cudnn": "8.6.0",
        f"cudnn@{folder}": "8.9.7",
    }
    assert libraries.find_libraries({}, tmp_path, {}) == {"cudnn": "8.6.0"}


@pytest.mark.parametrize(
    ("path", "text", "versions"),
    [
        (
            "usr/include/nccl.h",
            "#define NCCL_MAJOR 2\n#define NCCL_MINOR 14\n#define NCCL_PATCH 3\n",
            {"nccl": "2.14.3"},
        ),
        (
            "usr/include/aarch64-linux-gnu/openblas-pthread/openblas_config.h",
            '#define OPENBLAS_VERSION " OpenBLAS 0.3.21 "\n',
            {"openblas": "0.3.21"},
        ),
        (
            "usr/include/openblas_config.h",
            '#define OPENBLAS_VERSION " OpenBLAS 0.3.30.dev "\n',
            {"openblas": "0.3.30"},
        ),
        (
            "opt/intel/oneapi/mkl/latest/include/mkl_version.h",
            (
                "#define __INTEL_MKL__ 2023\n"
                "#define __INTEL_MKL_MINOR__ 2\n"
                "#define __INTEL_MKL_UPDATE__ 0\n"
            ),
            {"mkl": "2023.2.0"},
        ),
        ("usr/include/numa.h", "#define LIBNUMA_API_VERSION 2\n", {"numa": ""}),
        ("usr/local/include/png.h", '#define PNG_LIBPNG_VER_STRING "1.6.39"\n', {"png": "1.6.39"}),
        ("opt/homebrew/opt/libomp/include/omp.h", "", {"libomp": ""}),
        ("usr/include/nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR\n14\n", {"nccl": ""}),
    ],
)
def test_versions_are_read_in_headers(
    tmp_path: Path, path: str, text: str, versions: dict[str, str]
) -> None:
    file(tmp_path / path, text)
    assert libraries.find_libraries({}, tmp_path, {}) == versions


def test_a_header_with_a_version_is_preferred(tmp_path: Path) -> None:
    file(tmp_path / "usr/include/jpeglib.h")
    file(
        tmp_path / "usr/include/x86_64-linux-gnu/jconfig.h", "#define LIBJPEG_TURBO_VERSION 2.1.5\n"
    )
    assert libraries.find_libraries({}, tmp_path, {}) == {"jpeg": "2.1.5"}


def test_the_libraries_that_ld_library_path_puts_first_are_found(tmp_path: Path) -> None:
    for name in (
        "opt/a/libcudnn.so.8",
        "opt/b/libcudnn.so.8",
        "opt/b/libnccl.so.2",
        "opt/b/libx.so.1",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    environ = {"LD_LIBRARY_PATH": "/opt/a:relative:/gone::/opt/b"}
    assert libraries.loader_libraries(environ, tmp_path) == {
        "libcudnn.so.8": "/opt/a",
        "libnccl.so.2": "/opt/b",
    }
    assert libraries.loader_libraries({}, tmp_path) == {}
