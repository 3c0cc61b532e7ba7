"""Why no GPU answers, as `invoke gpu` explains it."""

from dataclasses import replace

import pytest

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.host.host import Host, HostGpus, HostResources
from torchmill.plan.doctor.absent_gpu import absence_reason, explain_no_gpu

A100 = Gpu("NVIDIA A100-PCIE-40GB", "8.0")
RTX_3090 = Gpu("NVIDIA GeForce RTX 3090", "8.6")
WITHOUT_GPU = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
HOME = replace(
    WITHOUT_GPU,
    gpus=HostGpus(devices=(RTX_3090,), driver="535.104.05", kernel_driver="535.104.05"),
)
ERROR_804 = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? Error 804: forward "
    "compatibility was attempted on non supported HW (__init__.py:229)"
)


def test_a_machine_without_a_gpu_is_not_asked() -> None:
    assert "no NVIDIA GPU" in (absence_reason(WITHOUT_GPU) or "")


def test_a_machine_with_a_driver_is_asked() -> None:
    assert absence_reason(HOME) is None
    # Whether there is a GPU, only the driver tells.
    assert absence_reason(change_host(WITHOUT_GPU, gpus={"driver": "535.104.05"})) is None


def test_a_container_without_the_library_of_the_driver_is_started_otherwise() -> None:
    host = change_host(HOME, gpus={"driver": None})
    assert "--gpus all" in (absence_reason(host) or "")


def test_a_driver_of_two_versions_is_the_first_reason(shipped: Facts) -> None:
    host = change_host(HOME, gpus={"driver": "550.54.15", "compat_folders": ("/cuda/compat",)})
    sentence = explain_no_gpu(shipped, host, "11.8", ERROR_804)
    assert sentence.startswith("RuntimeError: Unexpected error")
    assert sentence.endswith(
        "library 550.54.15, kernel 535.104.05 are of two versions: "
        "restart the machine: `sudo reboot`"
    )


OLD_DRIVER = {"driver": "440.33", "kernel_driver": "440.33"}


def test_the_oldest_driver_of_a_toolkit_is_named(shipped: Facts) -> None:
    message = "CUDA driver version is insufficient for CUDA runtime version"
    sentence = explain_no_gpu(shipped, change_host(HOME, gpus=OLD_DRIVER), "11.8", message)
    reason = "driver 440.33 is older than 450.80.02, the oldest that runs what CUDA 11.8 makes"
    assert reason in sentence


def test_forward_compatibility_makes_up_for_an_old_driver_in_data_centres_only(
    shipped: Facts,
) -> None:
    gpus = {**OLD_DRIVER, "compat_folders": ("/cuda/compat",)}
    sentence = explain_no_gpu(shipped, change_host(HOME, gpus=gpus), "11.8", ERROR_804)
    assert "/cuda/compat makes up for it only on data-centre GPUs" in sentence
    centre = change_host(HOME, gpus={**gpus, "devices": (A100,)})
    sentence = explain_no_gpu(shipped, centre, "11.8", "No CUDA GPUs are available")
    assert "older" not in sentence


def test_compatibility_libraries_on_a_gpu_for_consumers_are_error_804(shipped: Facts) -> None:
    host = change_host(HOME, gpus={"compat_folders": ("/cuda/compat",)})
    sentence = explain_no_gpu(shipped, host, "11.8", ERROR_804)
    assert "the loader finds /cuda/compat, and NVIDIA GeForce RTX 3090 may not use them" in sentence
    assert "grep -vxF /cuda/compat" in sentence


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("RuntimeError: ... Error 802: system not yet initialized", "nvidia-fabricmanager"),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set", "nvidia_uvm"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "--arch-list",
        ),
        ("RuntimeError: something never heard of", "`invoke doctor` shows"),
    ],
)
def test_the_message_is_explained_if_the_driver_looks_sound(
    shipped: Facts, message: str, cure: str
) -> None:
    assert cure in explain_no_gpu(shipped, HOME, "11.8", message)


def make_board(device: Gpu, l4t: str, driver: str | None = None) -> Host:
    return change_host(
        WITHOUT_GPU,
        platform={"distribution": LinuxDistribution("ubuntu", "20.04", (), l4t)},
        gpus={"devices": (device,), "driver": driver},
        arch="aarch64",
    )


def test_the_reason_on_a_board_is_its_jetpack(shipped: Facts) -> None:
    orin = make_board(Gpu("Orin", "8.7"), "35.4.1")
    sentence = explain_no_gpu(shipped, orin, "12.6", "no GPU")
    assert "the driver of ubuntu 20.04 (JetPack 5) does not run what CUDA 12.6 makes" in sentence
    assert "JetPack" not in explain_no_gpu(shipped, orin, "11.4", "no GPU")


def test_the_driver_of_a_thor_is_not_compared_with_those_of_graphics_cards(
    shipped: Facts,
) -> None:
    thor = make_board(Gpu("Orin", "8.7"), "38.2.0", "580.00")
    assert "580" not in explain_no_gpu(shipped, thor, "13.0", "no GPU")


def test_an_unknown_toolkit_is_no_reason(shipped: Facts) -> None:
    assert explain_no_gpu(shipped, HOME, None, "") == (
        "no GPU answers: `invoke doctor` shows what is known of the GPU and its driver"
    )
