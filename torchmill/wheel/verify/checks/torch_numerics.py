"""Compute with torch results that have a closed form."""

# ruff: noqa: ARG001 (every check takes the expectations)

import math

from harness import expect, expect_close, expect_equal, switches_of


def check_polynomial(expected):
    """Fit y = a + bx + cx^2 + dx^3 to sin(x) by gradient descent written out by hand."""
    import torch

    torch.manual_seed(0)
    x = torch.linspace(-math.pi, math.pi, 2000)
    y = torch.sin(x)
    a, b, c, d = (torch.randn(()) for _ in range(4))
    for _ in range(2000):
        off = a + b * x + c * x**2 + d * x**3 - y
        gradient = 2.0 * off
        a = a - 1e-6 * gradient.sum()
        b = b - 1e-6 * (gradient * x).sum()
        c = c - 1e-6 * (gradient * x**2).sum()
        d = d - 1e-6 * (gradient * x**3).sum()
    loss = (a + b * x + c * x**2 + d * x**3 - y).pow(2).sum().item()
    # No cubic comes closer than 8.817 (normal equations). The slowest direction has the curvature 1727 and
    # keeps exp(-3.45) of its start, so a start at distance s leaves 0.86 s^2 above that: 50 means s > 6.
    expect(8.7 < loss < 50, "the loss ends at {:.3f}, not between 8.7 and 50".format(loss))
    return "loss {:.3f}".format(loss)


def check_autograd(expected):
    import torch

    def function(values):
        return (values.sin() * (-values * values).exp() + values.prod()).sum()

    point = torch.tensor([0.3, -1.2, 0.7, 2.1], dtype=torch.float64, requires_grad=True)
    function(point).backward()
    step, base = 1e-6, point.detach()
    for index in range(4):
        shift = torch.zeros(4, dtype=torch.float64)
        shift[index] = step
        slope = (function(base + shift) - function(base - shift)).item() / (2 * step)
        expect_close(point.grad[index].item(), slope, 1e-7, "derivative {}".format(index))


def check_matmul(expected):
    """Multiply matrices large enough for the BLAS: (i + j)(j - k) summed over j, in closed form."""
    import torch

    n = 96
    index = torch.arange(n, dtype=torch.float64)
    column, row = index.reshape(n, 1), index.reshape(1, n)
    product = (column + row).mm(column - row)
    first, second = n * (n - 1) / 2.0, (n - 1) * n * (2 * n - 1) / 6.0
    # sum over j of (i + j)(j - k) = sum j^2 + (i - k) sum j - i k n
    wanted = second + (column - row) * first - column * row * n
    expect_close((product - wanted).abs().max().item(), 0.0, 1e-6, "the largest error of a product")
    single = (column + row).float().mm((column - row).float()).double()
    expect_close(
        ((single - wanted).abs().max() / wanted.abs().max()).item(), 0.0, 1e-5, "the same in float32"
    )


def check_conv2d(expected):
    """Convolve a plane with a box: the mean of a linear function is its value in the middle."""
    import torch

    plane = torch.arange(12.0).reshape(12, 1) * 3 + torch.arange(10.0).reshape(1, 10) * 2 + 1
    image = plane.reshape(1, 1, 12, 10).repeat(2, 3, 1, 1).requires_grad_()
    weight = torch.full((4, 3, 3, 3), 1.0 / 27)
    result = torch.nn.functional.conv2d(image, weight, bias=torch.full((4,), 0.5))
    expect_equal(tuple(result.shape), (2, 4, 10, 8), "the shape of a convolution")
    error = (result - (plane[1:-1, 1:-1] + 0.5)).abs().max().item()
    expect_close(error, 0.0, 1e-4, "the largest error of a convolution")
    result.sum().backward()
    # each of the 9 windows around an inner point gives it 1/27, for each of 4 output channels
    expect_close(image.grad[0, 0, 5, 5].item(), 4 * 9 / 27.0, 1e-5, "the gradient of a convolution")


def check_linalg(expected):
    import torch

    if not getattr(torch._C, "has_lapack", True):  # noqa: SLF001 (there is no public word for it)
        wanted = switches_of(expected.get("switches", {})).get("USE_LAPACK", True)
        return expect(not wanted, "torch was built without LAPACK") or "built without LAPACK, as planned"
    # solution of [[4, 1], [2, 3]] x = [1, 2]; singular values of diag(3, -5) turned by 45 degrees
    matrix = torch.tensor([[4.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    side = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    expect_close(solve(matrix, side).reshape(-1).tolist(), [0.1, 0.6], 1e-12, "the solution of a system")
    half = math.sqrt(0.5)
    turn = torch.tensor([[half, -half], [half, half]], dtype=torch.float64)
    turned = turn.mm(torch.diag(torch.tensor([3.0, -5.0], dtype=torch.float64))).mm(turn.t())
    values = torch.svd(turned)[1].tolist()
    return expect_close(values, [5.0, 3.0], 1e-12, "the singular values")


def solve(matrix, side):
    import torch

    if hasattr(torch, "linalg") and hasattr(torch.linalg, "solve"):
        return torch.linalg.solve(matrix, side)
    return torch.solve(side, matrix)[0]
