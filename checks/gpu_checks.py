"""Try torch, and torchvision where it is installed, on a GPU: results must be those of the CPU.

The first checks tell whether a GPU answers at all; where none does, the others only say so.
"""

# ruff: noqa: ARG001 (every check takes the expectations)

import os
import tempfile

from harness import CheckError, LazyModule, expect, expect_close, expect_equal, run
from torch_checks import check_cuda_version, check_cudnn, check_nccl, solve

torch, torchvision = LazyModule("torch"), LazyModule("torchvision")
MEBIBYTE = 1 << 20
FACTORS = {
    "float32": 1e-4,
    "float16": 2e-2,
}  # the largest difference allowed, relative to the largest result
WORDS = ("a convolution", "its gradient by the image", "its gradient by the kernel")


def check_import(expected):
    return os.path.dirname(torch.__file__)


def check_device(expected):
    """Start CUDA, which fails with a driver that does not fit."""
    torch.cuda.init()
    expect(torch.cuda.device_count() > 0, "No CUDA GPUs are available")
    total = (
        torch.ones(8, device="cuda").sum().item()
    )  # the first kernel: is there code for this GPU?
    expect_equal(total, 8.0, "a sum on the GPU")
    return "; ".join(describe_gpu(number) for number in range(torch.cuda.device_count()))


def describe_gpu(number):
    gpu = torch.cuda.get_device_properties(number)
    return "{} ({}.{}), {} MiB".format(gpu.name, gpu.major, gpu.minor, gpu.total_memory // MEBIBYTE)


def on_gpu(check):
    """Return a check that runs only where a GPU answers."""

    def tried(expected):
        if not torch.cuda.is_available():
            raise CheckError("no GPU answers")
        torch.manual_seed(0)
        return check(expected)

    return tried


def check_toolkit(expected):
    return check_cuda_version(expected) if expected.get("cuda") else str(torch.version.cuda)


def check_code(expected):
    """Tell whether this GPU runs machine code of the wheel, or PTX that the driver compiled."""
    if not hasattr(torch.cuda, "get_arch_list"):
        return "this release does not report its list"
    major, minor = torch.cuda.get_device_capability()
    names = [
        name[len("sm_") :].rstrip("af")
        for name in torch.cuda.get_arch_list()
        if name.startswith("sm_")
    ]
    runs = [name for name in names if int(name) // 10 == major and int(name) % 10 <= minor]
    return "code of sm_{}".format(runs[-1]) if runs else "PTX, compiled by the driver"


def expect_alike(one, other, what="a result", factor=FACTORS["float32"]):
    """Compare a result of the GPU with the right one: by how much of the largest value it may be off is the factor."""
    one, other = (each.detach().cpu().double() for each in (one, other))
    expect_equal(tuple(one.shape), tuple(other.shape), "the shape of {}".format(what))
    scale = max(other.abs().max().item(), 1e-30)
    error = (one - other).abs().max().item() / scale
    expect(error <= factor, "{} is off by {:.1e} of its largest value".format(what, error))
    return error


def disable_tf32():
    """Disable TF32, where a release has it."""
    for backend in (getattr(torch.backends.cuda, "matmul", None), torch.backends.cudnn):
        if hasattr(backend, "allow_tf32"):
            backend.allow_tf32 = False


def check_matmul(expected):
    disable_tf32()
    one, other = torch.randn(257, 511), torch.randn(511, 129)
    error = expect_alike(one.cuda().mm(other.cuda()), one.mm(other), "a matrix product")
    half = one.cuda().half().mm(other.cuda().half()).float().cpu() - one.mm(other)
    largest = half.abs().max().item() / one.mm(other).abs().max().item()
    expect(largest <= FACTORS["float16"], "a product of halves is off by {:.1e}".format(largest))
    return "off by {:.1e}, of halves by {:.1e}".format(error, largest)


def check_convolution(expected):
    """Convolve and differentiate, with cuDNN and without it."""
    disable_tf32()
    image, kernel = torch.randn(2, 8, 33, 31), torch.randn(16, 8, 3, 3)
    on_cpu = convolved(image, kernel, "cpu")
    for enabled in (True, False):
        with torch.backends.cudnn.flags(enabled=enabled):
            for result, right, what in zip(convolved(image, kernel, "cuda"), on_cpu, WORDS):  # noqa: B905
                expect_alike(
                    result, right, "{}, {} cuDNN".format(what, "with" if enabled else "without")
                )
    return "with cuDNN and without"


def convolved(image, kernel, device):
    image, kernel = (one.to(device).clone().requires_grad_() for one in (image, kernel))
    result = torch.nn.functional.conv2d(image, kernel, stride=2, padding=1)
    result.pow(2).sum().backward()
    return result, image.grad, kernel.grad


def check_linalg(expected):
    """Solve a system: by cuSOLVER, or by MAGMA where torch has it."""
    matrix = torch.randn(64, 64) + 64 * torch.eye(64)
    side = torch.randn(64, 3)
    magma = getattr(torch.cuda, "has_magma", False)
    if not hasattr(getattr(torch, "linalg", None), "solve") and not magma:
        return "this release solves by MAGMA alone, and has none"
    solution = solve(matrix.cuda(), side.cuda())
    expect_alike(matrix.mm(solution.cpu()), side, "the solution of a system, put in")
    return "MAGMA is {}".format("there" if magma else "not there")


def check_fft(expected):
    if not hasattr(torch, "fft") or not hasattr(torch.fft, "rfft"):
        return "this release has no torch.fft.rfft"
    signal = torch.randn(4, 1000)
    one, other = (torch.view_as_real(torch.fft.rfft(each)) for each in (signal.cuda(), signal))
    expect_alike(one, other, "a Fourier transform")
    return ""


def check_random(expected):
    """Draw a million normal numbers: five standard errors is where chance ends."""
    drawn = torch.randn(10**6, device="cuda")
    expect_close(drawn.mean().item(), 0.0, 5e-3, "the mean of random numbers")
    return expect_close(drawn.std().item(), 1.0, 5e-3, "the deviation of random numbers")


def check_sparse(expected):
    where = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 2]])
    sparse = torch.sparse_coo_tensor(where, torch.tensor([1.0, 2.0, 3.0, 4.0]), (3, 3))
    dense = torch.randn(3, 5)
    product = torch.sparse.mm(sparse.cuda(), dense.cuda())
    expect_alike(product, torch.sparse.mm(sparse, dense), "a product of a sparse matrix")


def boxes(count):
    corners = torch.rand(count, 2) * 80
    return torch.cat([corners, corners + 1 + torch.rand(count, 2) * 40], 1)


def check_nms(expected):
    if not expected.get("vision"):
        return "torchvision is not tried"
    nms, many, scores = torchvision.ops.nms, boxes(500), torch.rand(500)
    for overlap in (0.3, 0.7):
        one, other = nms(many.cuda(), scores.cuda(), overlap), nms(many, scores, overlap)
        expect_equal(
            one.tolist(), other.tolist(), "what nms keeps above an overlap of {}".format(overlap)
        )
    return "of 500 boxes"


def check_roi_align(expected):
    if not expected.get("vision"):
        return "torchvision is not tried"
    roi_align, image = torchvision.ops.roi_align, torch.randn(2, 3, 64, 64)
    regions = torch.cat([torch.randint(0, 2, (50, 1)).float(), boxes(50) / 2], 1)
    settings = {"output_size": (7, 7), "spatial_scale": 0.5, "sampling_ratio": 2}
    one, other = (
        roi_align(image.cuda(), regions.cuda(), **settings),
        roi_align(image, regions, **settings),
    )
    return "off by {:.1e}".format(expect_alike(one, other, "roi_align"))


def check_memory(expected):
    """Take 64 MiB and give them back."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    taken = torch.empty(64 * MEBIBYTE, dtype=torch.uint8, device="cuda")
    expect_equal(torch.cuda.memory_allocated() - before, 64 * MEBIBYTE, "the memory that was taken")
    del taken
    expect_equal(torch.cuda.memory_allocated(), before, "the memory after it was given back")
    return "at most {} MiB at a time so far".format(torch.cuda.max_memory_allocated() // MEBIBYTE)


def check_all_reduce(expected):
    """Sum over NCCL, with as many processes as one: it starts all that many would need."""
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
