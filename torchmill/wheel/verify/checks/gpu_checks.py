"""Try torch, and torchvision where it is installed, on a GPU: results must be those of the CPU.

The first checks tell whether a GPU answers at all; where none does, the others only say so.
"""

# ruff: noqa: ARG001 (every check takes the expectations)

import os
import tempfile

from gpu_numerics import (
    check_convolution,
    check_fft,
    check_linalg,
    check_matmul,
    check_nms,
    check_random,
    check_roi_align,
    check_sparse,
)
from harness import CheckError, expect, expect_equal, run
from torch_cuda import check_cuda_version, check_cudnn, check_nccl

MEBIBYTE = 1 << 20


def check_import(expected):
    import torch

    return os.path.dirname(torch.__file__)


def check_device(expected):
    """Start CUDA, which fails with a driver that does not fit."""
    import torch

    torch.cuda.init()
    expect(torch.cuda.device_count() > 0, "No CUDA GPUs are available")
    total = torch.ones(8, device="cuda").sum().item()  # the first kernel: is there code for this GPU?
    expect_equal(total, 8.0, "a sum on the GPU")
    return "; ".join(describe_gpu(number) for number in range(torch.cuda.device_count()))


def describe_gpu(number):
    import torch

    found = torch.cuda.get_device_properties(number)
    return "{} ({}.{}), {} MiB".format(found.name, found.major, found.minor, found.total_memory // MEBIBYTE)


def on_gpu(check):
    """Return a check that runs only where a GPU answers."""

    def tried(expected):
        import torch

        if not torch.cuda.is_available():
            raise CheckError("no GPU answers")
        torch.manual_seed(0)
        return check(expected)

    return tried


def check_toolkit(expected):
    import torch

    return check_cuda_version(expected) if expected.get("cuda") else str(torch.version.cuda)


def check_code(expected):
    """Tell whether this GPU runs machine code of the wheel, or PTX that the driver compiled."""
    import torch

    if not hasattr(torch.cuda, "get_arch_list"):
        return "this release does not report its list"
    major, minor = torch.cuda.get_device_capability()
    names = [name[len("sm_") :].rstrip("af") for name in torch.cuda.get_arch_list() if name.startswith("sm_")]
    runs = [name for name in names if int(name) // 10 == major and int(name) % 10 <= minor]
    return "code of sm_{}".format(runs[-1]) if runs else "PTX, compiled by the driver"


def check_memory(expected):
    """Take 64 MiB and give them back."""
    import torch

    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    taken = torch.empty(64 * MEBIBYTE, dtype=torch.uint8, device="cuda")
    expect_equal(torch.cuda.memory_allocated() - before, 64 * MEBIBYTE, "the memory that was taken")
    del taken
    expect_equal(torch.cuda.memory_allocated(), before, "the memory after it was given back")
    return "at most {} MiB at a time so far".format(torch.cuda.max_memory_allocated() // MEBIBYTE)


def check_all_reduce(expected):
    """Sum over NCCL, with as many processes as one: it starts all that many would need."""
    import torch

    distributed = torch.distributed
    if not distributed.is_available() or not getattr(distributed, "is_nccl_available", bool)():
        return "NCCL is missing"
    with tempfile.TemporaryDirectory() as folder:
        meeting = "file://" + os.path.join(folder, "meeting")
        distributed.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
        try:
            value = torch.ones(4, device="cuda")
            distributed.all_reduce(value)
            expect_equal(value.tolist(), [1.0] * 4, "a sum over NCCL")
        finally:
            distributed.destroy_process_group()
    return ""


COMPUTED = [
    ("cuda version", check_toolkit),
    ("code", check_code),
    ("cuDNN", check_cudnn),
    ("NCCL", check_nccl),
    ("matmul", check_matmul),
    ("convolution", check_convolution),
    ("linalg", check_linalg),
    ("fft", check_fft),
    ("random", check_random),
    ("sparse", check_sparse),
    ("all_reduce", check_all_reduce),
    ("nms", check_nms),
    ("roi_align", check_roi_align),
    ("memory", check_memory),
]
CHECKS = [("import", check_import), ("device", check_device)]
CHECKS += [(name, on_gpu(check)) for name, check in COMPUTED]

if __name__ == "__main__":
    run(CHECKS)
