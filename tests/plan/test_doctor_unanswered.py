"""Why no GPU answers: the driver's state before the words of CUDA."""

from dataclasses import replace

import pytest

from torchmill.config.model import Facts, Gpu, Host
from torchmill.plan.doctor.gpu_driver import explain_no_gpu, why_no_gpu

LINUX = Host("x86_64", "linux", 4, 2**34, complete=True)
RTX, A100 = Gpu("NVIDIA GeForce RTX 3090", "8.6"), Gpu("NVIDIA A100-PCIE-40GB", "8.0")
HOME = replace(LINUX, gpus=(RTX,), driver="535.104.05", kernel_driver="535.104.05")
ERROR_804 = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
    "calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was "
    "attempted on non supported HW (__init__.py:229)"
)


def test_a_machine_without_a_gpu_is_not_asked() -> None:
    assert "there is no GPU" in (why_no_gpu(LINUX) or "")
    assert why_no_gpu(HOME) is None
    assert why_no_gpu(replace(LINUX, driver="535.104.05")) is None  # only asking tells


def test_a_container_without_the_drivers_library_is_told_so() -> None:
    assert "--gpus all" in (why_no_gpu(replace(LINUX, kernel_driver="535.104.05", gpus=(RTX,))) or "")


def test_halves_of_two_versions_come_first(shipped: Facts) -> None:
    updated = replace(HOME, driver="550.54.15", compat=("/cuda/compat",))
    told = explain_no_gpu(shipped, updated, "11.8", ERROR_804)
    assert told.startswith("RuntimeError: Unexpected error")
    assert told.endswith("library 550.54.15, kernel 535.104.05 are of two versions: sudo reboot")


def test_a_driver_older_than_the_toolkit_is_told_with_what_it_must_be(shipped: Facts) -> None:
    old = replace(HOME, driver="440.33", kernel_driver="440.33")
    told = explain_no_gpu(
        shipped, old, "11.8", "CUDA driver version is insufficient for CUDA runtime version"
    )
    assert "driver 440.33 is older than 450.80.02, the oldest that runs what CUDA 11.8 makes" in told
    with_compat = explain_no_gpu(shipped, replace(old, compat=("/cuda/compat",)), "11.8", ERROR_804)
    assert "/cuda/compat makes up for it only on GPUs of data centres" in with_compat
    centre = replace(old, gpus=(A100,), compat=("/cuda/compat",))
    assert "older" not in explain_no_gpu(shipped, centre, "11.8", "No CUDA GPUs are available")


def test_compatibility_libraries_on_a_consumers_gpu_are_error_804(shipped: Facts) -> None:
    told = explain_no_gpu(shipped, replace(HOME, compat=("/cuda/compat",)), "11.8", ERROR_804)
    assert "the loader finds /cuda/compat, and NVIDIA GeForce RTX 3090 may not use them" in told
    assert "grep -vxF /cuda/compat" in told


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("RuntimeError: ... Error 802: system not yet initialized", "nvidia-fabricmanager"),
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
            "nvidia_uvm",
        ),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "--arch-list"),
        ("RuntimeError: something never heard of", "`invoke doctor` shows"),
    ],
)
def test_words_are_explained_where_the_driver_looks_sound(shipped: Facts, said: str, cure: str) -> None:
    assert cure in explain_no_gpu(shipped, HOME, "11.8", said)


def test_an_unknown_toolkit_is_no_reason(shipped: Facts) -> None:
    assert explain_no_gpu(shipped, HOME, None, "") == (
        "no GPU answers: `invoke doctor` shows what is known of the GPU and its driver"
    )
