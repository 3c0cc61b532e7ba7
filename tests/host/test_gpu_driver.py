"""The driver, compatibility libraries and GPUs, by made-up files and a made-up nvidia-smi."""

from pathlib import Path

import pytest

from tests.support.machines import file, made_up_programs, only, program, script
from torchmill.config.gpu import Gpu
from torchmill.host import gpu_driver
from torchmill.host.programs import make_runner

KERNEL = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:\n"
)

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (u@h)\n"


def library(folder: Path, name: str, version: str) -> None:
    file(folder / f"{name}.{version}")
    (folder / f"{name}.1").symlink_to(f"{name}.{version}")


def test_the_version_of_the_library_is_in_its_file_name(tmp_path: Path) -> None:
    assert gpu_driver.driver_library_version({}, tmp_path) is None
    library(tmp_path / "usr/lib/x86_64-linux-gnu", "libnvidia-ml.so", "535.104.05")
    assert gpu_driver.driver_library_version({}, tmp_path) == "535.104.05"
    library(tmp_path / "opt/driver", "libcuda.so", "550.54.15")
    assert (
        gpu_driver.driver_library_version({"LD_LIBRARY_PATH": "/nowhere:/opt/driver"}, tmp_path)
        == "550.54.15"
    )


def test_the_library_of_a_jetson_has_no_version(tmp_path: Path) -> None:
    file(tmp_path / "usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1")
    (tmp_path / "usr/lib/aarch64-linux-gnu/libcuda.so.1").symlink_to("tegra/libcuda.so.1.1")
    assert gpu_driver.driver_library_version({}, tmp_path) is None


@pytest.mark.parametrize(
    ("text", "version"), [(KERNEL, "535.104.05"), (OPEN, "570.86.10"), ("", None)]
)
def test_the_kernel_reports_its_driver(tmp_path: Path, text: str, version: str | None) -> None:
    file(tmp_path / "proc/driver/nvidia/version", text)
    assert gpu_driver.kernel_driver_version(tmp_path) == version


def test_compatibility_libraries_are_no_driver(tmp_path: Path) -> None:
    library(tmp_path / "usr/local/cuda-12.4/compat", "libcuda.so", "550.54.15")
    (tmp_path / "usr/local/cuda").symlink_to(tmp_path / "usr/local/cuda-12.4")
    library(tmp_path / "usr/lib64", "libcuda.so", "470.57.02")
    environ = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}
    assert gpu_driver.compat_folders(environ, tmp_path) == ("/usr/local/cuda/compat",)
    assert gpu_driver.compat_driver_version(environ, tmp_path) == "550.54.15"
    assert gpu_driver.compat_driver_version({}, tmp_path) is None
    assert gpu_driver.driver_library_version(environ, tmp_path) == "470.57.02"
    assert gpu_driver.compat_folders({}, tmp_path) == ()
    assert gpu_driver.compat_folders({"LD_LIBRARY_PATH": "/usr/lib64"}, tmp_path) == ()


def test_the_configuration_of_the_loader_is_followed(tmp_path: Path) -> None:
    library(tmp_path / "usr/local/cuda-12.4/compat", "libcuda.so", "550.54.15")
    file(
        tmp_path / "etc/ld.so.conf",
        "# the system's\ninclude /etc/ld.so.conf.d/*.conf\n/opt/driver  # ours\n",
    )
    file(tmp_path / "etc/ld.so.conf.d/000_cuda.conf", "/usr/local/cuda-12.4/compat\n")
    file(tmp_path / "etc/ld.so.conf.d/README", "/opt/compat\n")
    library(tmp_path / "opt/driver", "libcuda.so", "535.104.05")
    assert gpu_driver.compat_folders({}, tmp_path) == ("/usr/local/cuda-12.4/compat",)
    assert gpu_driver.driver_library_version({}, tmp_path) == "535.104.05"


def test_settings_of_the_loader_may_include_themselves(tmp_path: Path) -> None:
    file(tmp_path / "etc/ld.so.conf", "include ld.so.conf.d/*.conf\n/opt/my driver\n")
    file(tmp_path / "etc/ld.so.conf.d/all.conf", "include /etc/ld.so.conf.d/*.conf\n")
    library(tmp_path / "opt/my driver", "libcuda.so", "535.104.05")
    assert gpu_driver.driver_library_version({}, tmp_path) == "535.104.05"


@made_up_programs
def test_nvidia_smi_reports_gpus_and_their_capability(tmp_path: Path) -> None:
    program(
        tmp_path / "bin", "nvidia-smi", "NVIDIA GeForce RTX 3090, 8.6", "Tesla V100-SXM2-16GB, 7.0"
    )
    run = make_runner(only(tmp_path / "bin"))
    assert gpu_driver.find_host_gpus(tmp_path, run) == (
        Gpu("NVIDIA GeForce RTX 3090", "8.6"),
        Gpu("Tesla V100-SXM2-16GB", "7.0"),
    )


@made_up_programs
def test_an_old_nvidia_smi_reports_no_capability(tmp_path: Path) -> None:
    script(
        tmp_path / "bin",
        "nvidia-smi",
        'case "$*" in *compute_cap*) '
        'echo "Field \\"compute_cap\\" is not a valid field"; exit 2;; esac\n'
        "echo Tesla K80",
    )
    assert gpu_driver.find_host_gpus(tmp_path, make_runner(only(tmp_path / "bin"))) == (
        Gpu("Tesla K80"),
    )


@made_up_programs
def test_the_board_of_a_jetson_is_preferred_to_nvidia_smi(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", "Orin (nvgpu), [N/A]")
    run = make_runner(only(tmp_path / "bin"))
    assert gpu_driver.find_host_gpus(tmp_path, run) == (Gpu("Orin (nvgpu)"),)
    file(tmp_path / "proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
    assert gpu_driver.find_host_gpus(tmp_path, run) == (
        Gpu("NVIDIA Jetson AGX Orin Developer Kit"),
    )


@made_up_programs
def test_a_graphics_card_beside_a_jetson_is_kept(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", "NVIDIA RTX A6000, 8.6", "Orin (nvgpu), [N/A]")
    file(tmp_path / "proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
    assert gpu_driver.find_host_gpus(tmp_path, make_runner(only(tmp_path / "bin"))) == (
        Gpu("NVIDIA RTX A6000", "8.6"),
        Gpu("NVIDIA Jetson AGX Orin Developer Kit"),
    )


@pytest.mark.parametrize(
    ("compatible", "name"),
    [
        ("seeed,j4012\0nvidia,p3767-0000\0nvidia,tegra234\0nvidia,tegra23x\0", "Jetson Orin"),
        ("nvidia,p2972-0000\0nvidia,tegra194\0", "Jetson Xavier"),
        ("nvidia,tegra264\0", "Jetson Thor"),
        ("nvidia,jetson-nano\0nvidia,tegra210\0", "Tegra X1"),
    ],
)
def test_a_carrier_with_a_model_of_its_own_is_known_by_its_chip(
    tmp_path: Path, compatible: str, name: str
) -> None:
    file(tmp_path / "proc/device-tree/model", "Seeed reComputer\0")
    file(tmp_path / "proc/device-tree/compatible", compatible)
    run = make_runner(only(tmp_path / "bin"))
    assert gpu_driver.find_host_gpus(tmp_path, run) == (Gpu(name),)


def test_without_nvidia_smi_files_of_the_kernel_are_read(tmp_path: Path) -> None:
    run = make_runner(only(tmp_path / "bin"))
    assert gpu_driver.find_host_gpus(tmp_path, run) == ()
    file(tmp_path / "proc/device-tree/model", "Raspberry Pi 4\0")
    assert gpu_driver.find_host_gpus(tmp_path, run) == ()
    file(tmp_path / "proc/device-tree/model", "NVIDIA Jetson Xavier NX\0")
    assert gpu_driver.find_host_gpus(tmp_path, run) == (Gpu("NVIDIA Jetson Xavier NX"),)
    file(
        tmp_path / "proc/device-tree/model", "NVIDIA Orin NX Developer Kit\0"
    )  # as JetPack 5 names it
    assert gpu_driver.find_host_gpus(tmp_path, run) == (Gpu("NVIDIA Jetson Orin NX Developer Kit"),)
    file(
        tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t\t NVIDIA A100-PCIE-40GB\nIRQ: 1\n",
    )
    assert gpu_driver.find_host_gpus(tmp_path, run) == (Gpu("NVIDIA A100-PCIE-40GB"),)


def test_a_stub_counts_if_it_has_the_drivers_name(tmp_path: Path) -> None:
    folder = "/usr/local/cuda/lib64/stubs"
    environ = {"LD_LIBRARY_PATH": f"{folder}:/usr/lib"}
    stub = tmp_path / folder.lstrip("/") / "libcuda.so"
    stub.parent.mkdir(parents=True)
    stub.touch()
    assert gpu_driver.stub_folders(environ, tmp_path) == ()
    stub.with_name("libcuda.so.1").touch()
    assert gpu_driver.stub_folders(environ, tmp_path) == (folder,)
