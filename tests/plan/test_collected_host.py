"""What `python -m torch.utils.collect_env` prints describes a machine."""

import pytest

from tests.support.refusals import refused
from torchmill.host.description import contradictions
from torchmill.host.host import Compiler
from torchmill.plan.diagnosis.collected_host import read_collected_host

TORCH = """\
Collecting environment information...
PyTorch version: 1.13.1+cu117
CUDA used to build PyTorch: 11.7

OS: Ubuntu 22.04.2 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Libc version: glibc-2.35

Python version: 3.10.9 (main, Jan 11 2023, 15:21:40) [GCC 11.2.0] (64-bit runtime)
Python platform: Linux-5.15.0-60-generic-x86_64-with-glibc2.35
CUDA runtime version: 11.6.124
GPU models and configuration:
GPU 0: NVIDIA GeForce RTX 3090
GPU 1: NVIDIA GeForce RTX 3090
Nvidia driver version: 525.85.12
CPU(s):                          32
Flags:                           fpu sse2 avx avx2
"""
DETECTRON = """\
sys.platform            linux
Python                  3.6.13 |Anaconda, Inc.| (default, Jun  4 2021) [GCC 7.5.0]
Compiler ($CXX)         c++ (Ubuntu 7.5.0-3ubuntu1~18.04) 7.5.0
CUDA compiler           Cuda compilation tools, release 9.1, V9.1.85
PyTorch                 1.8.0 @/x/site-packages/torch
GPU 0,1                 GeForce GTX 1080 Ti (arch=6.1)
Driver version          440.100
CUDA_HOME               /usr
"""


def test_a_collect_env_of_torch_describes_a_machine() -> None:
    collected = read_collected_host(TORCH.splitlines(), "env.txt")
    host = collected.host
    assert (host.system, host.arch, host.resources.cores) == ("linux", "x86_64", 32)
    assert host.compilers.default == Compiler("gcc", "11.4.0")
    assert host.platform.glibc == "2.35"
    assert str(host.platform.distribution) == "ubuntu 22.04"
    assert host.toolkits.homes == {"11.6": "/usr/local/cuda-11.6"}
    assert [gpu.name for gpu in host.gpus.devices] == ["GeForce RTX 3090"] * 2
    assert host.gpus.driver == "525.85.12"
    assert "avx2" in host.platform.processor_features
    assert list(contradictions(host)) == []
    assert collected.notes == (
        "env.txt does not say how much memory the machine has: 16 GiB are assumed",
    )


def test_a_collect_env_of_detectron_describes_a_machine() -> None:
    collected = read_collected_host(DETECTRON.splitlines(), "env.txt")
    host = collected.host
    assert host.compilers.default == Compiler("gcc", "7.5.0")
    assert host.toolkits.homes == {"9.1": "/usr"}
    assert [(gpu.name, gpu.capability) for gpu in host.gpus.devices] == [
        ("GeForce GTX 1080 Ti", "6.1")
    ] * 2
    assert host.interpreters.paths == {"3.6": "python3.6"}
    assert len(collected.notes) == 2


@pytest.mark.parametrize("cores", ["0", "9" * 30, "9" * 5000, "²", "many"])
def test_a_number_of_cores_that_no_machine_has_is_not_taken(cores: str) -> None:
    text = TORCH.replace("CPU(s):                          32", f"CPU(s): {cores}")
    collected = read_collected_host(text.splitlines(), "env.txt")
    assert collected.host.resources.cores == 8
    assert "env.txt does not say how many cores the machine has: 8 are assumed" in collected.notes


@pytest.mark.parametrize("text", ["", "error: no\n", "PyTorch version: 1.0.0\n", "\x00\x01"])
def test_another_text_is_refused(text: str) -> None:
    with refused("no-collect-env"):
        read_collected_host(text.splitlines(), "env.txt")
