"""Which of its parts a toolkit has."""

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.machines import file
from torchmill.config.delivery_model import ToolkitPart
from torchmill.host.cuda_toolkits import format_part_names, is_spread_in_system, lacking_toolkit_parts

CUBLAS = ToolkitPart("cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), ("libcublas.so",), None, "", "")
NVTX = ToolkitPart("nvtx", "NVTX", "nvidia-nvtx", ("nvtx3/n.h",), (), SpecifierSet(">=12.9"), "", "")


@pytest.mark.parametrize(
    ("headers", "libraries"),
    [
        ("include", "lib64"),
        ("include/cccl", "lib"),
        ("targets/x86_64-linux/include", "targets/x86_64-linux/lib"),
        ("extras/CUPTI/include", "extras/CUPTI/lib64"),
        ("include", "lib/x86_64-linux-gnu"),
    ],
)
def test_a_part_is_there_with_its_header_and_its_library(
    headers: str, libraries: str, tmp_path: Path
) -> None:
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,)
    header = file(tmp_path / headers / "cublas_v2.h")
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,), "nothing to link with"
    library = file(tmp_path / libraries / "libcublas.so")
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == ()
    header.unlink()
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,), "as where it is for running alone"
    header.touch()
    library.unlink()
    library.symlink_to("libcublas.so.11")  # whose library has gone
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,)


def test_a_part_counts_for_the_toolkits_that_have_it(tmp_path: Path) -> None:
    assert lacking_toolkit_parts(tmp_path, "12.8", [NVTX]) == ()
    assert lacking_toolkit_parts(tmp_path, "12.9", [NVTX]) == (NVTX,)


def test_parts_are_called_by_their_names_each_once() -> None:
    assert format_part_names([CUBLAS, NVTX, NVTX]) == "cuBLAS, NVTX"


def test_the_folder_of_a_system_is_no_toolkits_own() -> None:
    assert is_spread_in_system(Path("/usr"))
    assert is_spread_in_system(Path("/usr/local"))
    assert not is_spread_in_system(Path("/usr/local/cuda-11.8"))
