"""Compute the same on a GPU and on the CPU, with each library that torch uses there."""

# ruff: noqa: ARG001 (every check takes the expectations)

from harness import expect, expect_close, expect_equal

FACTORS = {"float32": 1e-4, "float16": 2e-2}  # the largest difference allowed, relative to the largest result
WORDS = ("a convolution", "its gradient by the image", "its gradient by the kernel")


def expect_alike(one, other, what):
    """Compare a result of the GPU with that of the CPU."""
    one, other = one.detach().cpu().double(), other.detach().double()
    expect_equal(tuple(one.shape), tuple(other.shape), "the shape of {}".format(what))
    scale = max(other.abs().max().item(), 1e-30)
    error = (one - other).abs().max().item() / scale
    expect(error <= FACTORS["float32"], "{} is off by {:.1e} of its largest value".format(what, error))
    return error


def disable_tf32():
    """Disable TF32, where a release has it."""
    import torch

    for backend in (getattr(torch.backends.cuda, "matmul", None), torch.backends.cudnn):
        if hasattr(backend, "allow_tf32"):
            backend.allow_tf32 = False


def check_matmul(expected):
    import torch

    disable_tf32()
    one, other = torch.randn(257, 511), torch.randn(511, 129)
    error = expect_alike(one.cuda().mm(other.cuda()), one.mm(other), "a matrix product")
    half = one.cuda().half().mm(other.cuda().half()).float().cpu() - one.mm(other)
    largest = half.abs().max().item() / one.mm(other).abs().max().item()
    expect(largest <= FACTORS["float16"], "a product of halves is off by {:.1e}".format(largest))
    return "off by {:.1e}, of halves by {:.1e}".format(error, largest)


def check_convolution(expected):
    """Convolve and differentiate, with cuDNN and without it."""
    import torch

    disable_tf32()
    image, kernel = torch.randn(2, 8, 33, 31), torch.randn(16, 8, 3, 3)
    wanted = convolved(image, kernel, "cpu")
    for enabled in (True, False):
        with torch.backends.cudnn.flags(enabled=enabled):
            for found, right, what in zip(convolved(image, kernel, "cuda"), wanted, WORDS):  # noqa: B905
                expect_alike(found, right, "{}, {} cuDNN".format(what, "with" if enabled else "without"))
    return "with cuDNN and without"


def convolved(image, kernel, device):
    import torch

    image, kernel = (one.to(device).clone().requires_grad_() for one in (image, kernel))
    result = torch.nn.functional.conv2d(image, kernel, stride=2, padding=1)
    result.pow(2).sum().backward()
    return result, image.grad, kernel.grad


def check_linalg(expected):
    """Solve a system: by cuSOLVER, or by MAGMA where torch has it."""
    import torch

    matrix = torch.randn(64, 64) + 64 * torch.eye(64)
    side = torch.randn(64, 3)
    if hasattr(torch, "linalg") and hasattr(torch.linalg, "solve"):
        found = torch.linalg.solve(matrix.cuda(), side.cuda())
    elif not getattr(torch.cuda, "has_magma", False):
        return "this release solves by MAGMA alone, and has none"
    else:
        found = torch.solve(side.cuda(), matrix.cuda())[0]
    expect_alike(matrix.mm(found.cpu()), side, "the solution of a system, put in")
    return "MAGMA is {}".format("there" if getattr(torch.cuda, "has_magma", False) else "not there")


def check_fft(expected):
    import torch

    if not hasattr(torch, "fft") or not hasattr(torch.fft, "rfft"):
        return "this release has no torch.fft.rfft"
    signal = torch.randn(4, 1000)
    found, wanted = torch.fft.rfft(signal.cuda()), torch.fft.rfft(signal)
    expect_alike(torch.view_as_real(found), torch.view_as_real(wanted), "a Fourier transform")
    return ""


def check_random(expected):
    """Draw a million normal numbers: five standard errors is where chance ends."""
    import torch

    drawn = torch.randn(10**6, device="cuda")
    expect_close(drawn.mean().item(), 0.0, 5e-3, "the mean of random numbers")
    return expect_close(drawn.std().item(), 1.0, 5e-3, "the deviation of random numbers")


def check_sparse(expected):
    import torch

    where = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 2]])
    sparse = torch.sparse_coo_tensor(where, torch.tensor([1.0, 2.0, 3.0, 4.0]), (3, 3))
    dense = torch.randn(3, 5)
    wanted = torch.sparse.mm(sparse, dense)
    expect_alike(torch.sparse.mm(sparse.cuda(), dense.cuda()), wanted, "a product of a sparse matrix")


def boxes(count):
    import torch

    corners = torch.rand(count, 2) * 80
    return torch.cat([corners, corners + 1 + torch.rand(count, 2) * 40], 1)


def check_nms(expected):
    import torch

    if not expected.get("vision"):
        return "torchvision is not tried"
    from torchvision.ops import nms

    many, scores = boxes(500), torch.rand(500)
    for overlap in (0.3, 0.7):
        found, wanted = nms(many.cuda(), scores.cuda(), overlap), nms(many, scores, overlap)
        expect_equal(found.tolist(), wanted.tolist(), "what nms keeps above an overlap of {}".format(overlap))
    return "of 500 boxes"


def check_roi_align(expected):
    import torch

    if not expected.get("vision"):
        return "torchvision is not tried"
    from torchvision.ops import roi_align

    image = torch.randn(2, 3, 64, 64)
    regions = torch.cat([torch.randint(0, 2, (50, 1)).float(), boxes(50) / 2], 1)
    words = {"output_size": (7, 7), "spatial_scale": 0.5, "sampling_ratio": 2}
    found, wanted = roi_align(image.cuda(), regions.cuda(), **words), roi_align(image, regions, **words)
    return "off by {:.1e}".format(expect_alike(found, wanted, "roi_align"))
