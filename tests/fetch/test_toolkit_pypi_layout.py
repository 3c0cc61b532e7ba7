"""Where members of wheels go."""

import pytest

from torchmill.fetch.toolkit.pypi import place_wheel_member


@pytest.mark.parametrize(
    ("member", "where"),
    [
        ("nvidia/cu13/lib/libcudart.so.13", "lib64/libcudart.so.13"),
        ("nvidia/cublas/include/cublas_v2.h", "include/cublas_v2.h"),
        ("cusparselt/lib/libcusparseLt.so.0", "lib64/libcusparseLt.so.0"),
        ("nvidia/cuda_cupti/extras/CUPTI/include/cupti.h", "include/cupti.h"),
        ("nvidia/cu13/bin/crt/link.stub", "bin/crt/link.stub"),
        ("nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so", "nvvm/lib64/libnvvm.so"),
        ("nvidia/cu13/lib/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        ("nvidia/cu13/include/cccl/lib/x.h", "include/cccl/lib/x.h"),
        ("a-1.dist-info/licenses/License.txt", "licenses/a-1/License.txt"),
        ("cusparselt/LICENSE.txt", "licenses/cusparselt/LICENSE.txt"),
        ("a-1.dist-info/RECORD", None),
        ("nvidia/__init__.py", None),
        ("nvidia/cudnn/include/__init__.py", None),
        ("nvidia/cu13/.metadata/sizes.txt", None),
        ("nvidia/cu13/include/", None),
        ("lib/nothing/of/a/package.so", None),
        ("nvidia/cu13/lib/../../../../outside", None),
    ],
)
def test_members_go_where_a_toolkit_has_them(member: str, where: str | None) -> None:
    assert place_wheel_member(member, "lib64") == where


def test_a_library_of_its_own_keeps_lib() -> None:
    assert place_wheel_member("nvidia/nccl/lib/libnccl.so.2", "lib") == "lib/libnccl.so.2"
