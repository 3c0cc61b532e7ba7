"""Try a torch wheel, from 1.1 on: what it reports about itself, and whether it computes."""

# ruff: noqa: ARG001 (every check takes the expectations)

import math
import os
import re
import sys
import tempfile

import harness
import vulnerability_checks
from harness import expect, expect_close, expect_equal, planned_switch, run

torch = harness.LazyModule("torch")
ALL_REDUCE_SECONDS = 180
NINE = 9  # from this major version of cuDNN on, its number has room for two digits of each part


def check_cuda_version(expected):
    cuda, planned = torch.version.cuda, expected.get("cuda")
    if planned is None:
        return expect(
            cuda is None, "torch.version.cuda is {!r}, but the build is without CUDA".format(cuda)
        )
    same = cuda is not None and cuda.split(".")[:2] == planned.split(".")[:2]
    expect(same, "torch.version.cuda is {!r}, not {!r}".format(cuda, planned))
    if not torch.cuda.is_available():
        return "no GPU here: nothing was computed on one"
    total = torch.ones(64, 64, device="cuda").mm(torch.ones(64, 64, device="cuda")).sum().item()
    return expect_close(total, 64.0**3, 0, "a matrix product on the GPU")


def check_capabilities(expected):
    """Compare the compute capabilities that torch reports with those that were asked for."""
    if torch.version.cuda is None:
        return "built without CUDA"
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()  # noqa: SLF001 (the public word needs a GPU)
    planned = machine_code(expected.get("capabilities") or "")
    if not flags or not planned:
        return "this release does not report them" if not flags else "the plan names none by number"
    reported = {word for word in flags.split() if word.startswith("sm_")}
    return (
        expect_equal(sorted(reported), sorted(planned), "the list of compute capabilities") or flags
    )


def machine_code(listed):
    """Return {"sm_70", "sm_86"} of "7.0;8.6+PTX"; nothing where a word of the list is a name."""
    words = [word for word in re.split(r"[;,\s]+", listed) if word]
    numbers = [re.match(r"(\d+)\.(\d)([af]?)(\+PTX)?$", word) for word in words]
    return (
        {"sm_{}{}{}".format(*number.groups()[:3]) for number in numbers} if all(numbers) else set()
    )


def check_cudnn(expected):
    """Ask cuDNN for its version: torch refuses one that is not what it was compiled with."""
    if torch.version.cuda is None:
        return "built without CUDA"
    version = torch.backends.cudnn.version()
    planned = planned_switch(expected, "USE_CUDNN")
    if version is None:
        return expect(not planned, "cuDNN is missing, unlike planned") or "built without cuDNN"
    expect(planned is not False, "cuDNN is there, unlike planned")
    library = expected.get("libraries", {}).get("cudnn")
    if library:
        expect_equal(version, cudnn_number(library), "the version of cuDNN")
    return str(version)


def cudnn_number(version):
    """Return 8500 of "8.5.0.96", and 90100 of "9.1.0.70"."""
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * (10000 if major >= NINE else 1000) + minor * 100 + patch


def check_nccl(expected):
    if torch.version.cuda is None:
        return "built without CUDA"
    if planned_switch(expected, "USE_NCCL") is False:
        return "built without NCCL, as planned"
    if not hasattr(torch._C, "_nccl_version"):  # noqa: SLF001 (the public word fails without saying why)
        return "this build does not report NCCL"
    version = torch.cuda.nccl.version()
    library = expected.get("libraries", {}).get("nccl")
    if library and isinstance(version, tuple):
        expect_equal(".".join(map(str, version[:3])), library.split("+")[0], "the version of NCCL")
    return str(version)


def check_magma(expected):
    """Ask torch to prefer MAGMA, which it refuses without it; no GPU is needed for that."""
    if torch.version.cuda is None:
        return "built without CUDA"
    prefer = getattr(getattr(torch.backends, "cuda", None), "preferred_linalg_library", None)
    if prefer is None:
        return "this release does not report it without a GPU"
    try:
        prefer("magma")
        prefer("default")
        linked = True
    except RuntimeError as error:
        expect("MAGMA" in str(error), str(error))
        linked = False
    return harness.expect_planned(expected, "USE_MAGMA", linked, "MAGMA")


def check_driverless(expected):
    """Ask for a GPU where there is none: the answer is an exception with a message, not a crash."""
    if torch.version.cuda is None:
        return "built without CUDA"
    if torch.cuda.is_available():
        return "there is a GPU here"
    expect_equal(torch.cuda.device_count(), 0, "the number of GPUs where none is available")
    try:
        torch.zeros(1).cuda()
    except (RuntimeError, AssertionError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return expect(False, "a tensor went to a GPU where none is available")


def check_polynomial(expected):
    """Fit y = a + bx + cx^2 + dx^3 to sin(x) by gradient descent written out by hand."""
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
    n = 96
    index = torch.arange(n, dtype=torch.float64)
    column, row = index.reshape(n, 1), index.reshape(1, n)
    product = (column + row).mm(column - row)
    first, second = n * (n - 1) / 2.0, (n - 1) * n * (2 * n - 1) / 6.0
    # sum over j of (i + j)(j - k) = sum j^2 + (i - k) sum j - i k n
    wanted = second + (column - row) * first - column * row * n
    expect_close((product - wanted).abs().max().item(), 0.0, 1e-6, "the largest error of a product")
    single = (column + row).float().mm((column - row).float()).double()
    error = ((single - wanted).abs().max() / wanted.abs().max()).item()
    expect_close(error, 0.0, 1e-5, "the same in float32")


def check_conv2d(expected):
    """Convolve a plane with a box: the mean of a linear function is its value in the middle."""
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
    if not getattr(torch._C, "has_lapack", True):  # noqa: SLF001 (there is no public word for it)
        expect(planned_switch(expected, "USE_LAPACK") is False, "torch was built without LAPACK")
        return "built without LAPACK, as planned"
    # solution of [[4, 1], [2, 3]] x = [1, 2]; singular values of diag(3, -5) turned by 45 degrees
    matrix = torch.tensor([[4.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    side = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    expect_close(
        solve(matrix, side).reshape(-1).tolist(), [0.1, 0.6], 1e-12, "the solution of a system"
    )
    half = math.sqrt(0.5)
    turn = torch.tensor([[half, -half], [half, half]], dtype=torch.float64)
    turned = turn.mm(torch.diag(torch.tensor([3.0, -5.0], dtype=torch.float64))).mm(turn.t())
    values = torch.svd(turned)[1].tolist()
    return expect_close(values, [5.0, 3.0], 1e-12, "the singular values")


def solve(matrix, side):
    if hasattr(torch, "linalg") and hasattr(torch.linalg, "solve"):
        return torch.linalg.solve(matrix, side)
    return torch.solve(side, matrix)[0]


def check_dataloader(expected):
    data = torch.utils.data.TensorDataset(torch.arange(20).float().reshape(10, 2), torch.arange(10))
    batches = list(torch.utils.data.DataLoader(data, batch_size=4, num_workers=2))
    expect_equal([len(labels) for _, labels in batches], [4, 4, 2], "the sizes of the batches")
    expect_equal(
        torch.cat([labels for _, labels in batches]).tolist(), list(range(10)), "the labels"
    )
    expect_equal(
        sum(values.sum().item() for values, _ in batches), 190.0, "the sum of the workers' values"
    )


def check_save_load(expected):
    torch.manual_seed(1)
    nn = torch.nn
    model, other = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(2))
    sample = torch.randn(5, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(model.state_dict(), path)
        other.load_state_dict(torch.load(path))
    same = torch.equal(model(sample), other(sample))
    expect(same, "a model computes something else after it was saved and loaded")


def check_numpy(expected):
    if planned_switch(expected, "USE_NUMPY") is False:
        return "built without numpy, as planned"
    try:
        import numpy as np
    except ImportError:
        return "numpy is not installed here"
    array = np.arange(6, dtype=np.float32)
    tensor = torch.from_numpy(array)
    tensor += 1
    expect_equal(array.tolist(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "the array behind a tensor")
    return expect_equal(tensor.numpy().tolist(), array.tolist(), "the array of a tensor")


def check_switches(expected):
    """Compare the planned switches with those that torch reports."""
    return harness.compare_switches(
        expected, parse_config(torch.__config__.show()), "torch.__config__"
    )


def parse_config(text):
    """Return the switches in torch.__config__.show(): settings of CMake, and macros in CXX_FLAGS."""
    settings = dict(re.findall(r"\b(USE_\w+)=([^,\s]*)", text))
    # a defined macro means on; an undefined one means nothing, because many parts have none
    settings.update((name, "ON") for name in re.findall(r"-D(USE_\w+)(?![\w=])", text))
    return harness.switches_of(settings)


def check_distributed(expected):
    available = torch.distributed.is_available()
    state = harness.expect_planned(expected, "USE_DISTRIBUTED", available, "torch.distributed")
    planned = planned_switch(expected, "USE_DISTRIBUTED") and planned_switch(expected, "USE_GLOO")
    if not (available and planned):
        return "torch.distributed is {}, gloo was not tried".format(state)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    with tempfile.TemporaryDirectory() as folder:
        url = "file:///" + os.path.join(folder, "meeting").replace("\\", "/").lstrip("/")
        processes = torch.multiprocessing.spawn(all_reduce, (url,), nprocs=2, join=False)
        try:  # each call returns, or raises, when a process has ended
            ended = processes.join(ALL_REDUCE_SECONDS) or processes.join(ALL_REDUCE_SECONDS)
            expect(ended, "an all_reduce with gloo took more than {} s".format(ALL_REDUCE_SECONDS))
        finally:
            for process in processes.processes:
                process.terminate()
    return "two processes met over gloo"


def all_reduce(rank, url):
    torch.distributed.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
    value = torch.tensor([float(rank + 1)])
    torch.distributed.all_reduce(value)
    expect_equal(value.item(), 3.0, "an all_reduce with gloo")


def check_mkldnn(expected):
    state = harness.expect_planned(
        expected, "USE_MKLDNN", torch.backends.mkldnn.is_available(), "oneDNN"
    )
    silent = planned_switch(expected, "USE_MKLDNN") is None
    return "oneDNN is {}, the plan does not say".format(state) if silent else ""


def check_quantized(expected):
    if not hasattr(torch.backends, "quantized"):
        return "this release has no list of engines"
    engines = torch.backends.quantized.supported_engines
    for engine, switch in (("qnnpack", "USE_PYTORCH_QNNPACK"), ("fbgemm", "USE_FBGEMM")):
        absent = planned_switch(expected, switch) and engine not in engines
        expect(not absent, "{} is not among the quantized engines ({})".format(engine, engines))
    return "engines: {}".format(", ".join(engines))


def check_vulnerabilities(expected):
    """Try each known vulnerability that the plan says a patch fixes."""
    fixed = expected.get("fixed", [])
    for identifier in fixed:
        vulnerability_checks.try_one(identifier)
    return "refused: {}".format(", ".join(fixed)) if fixed else "no patch fixes any"


CHECKS = [
    ("import", harness.check_import),
    ("version", harness.check_version),
    ("git_version", harness.check_git_version),
    ("cuda version", check_cuda_version),
    ("compute capabilities", check_capabilities),
    ("cuDNN", check_cudnn),
    ("NCCL", check_nccl),
    ("MAGMA", check_magma),
    ("without a driver", check_driverless),
    ("switches", check_switches),
    ("polynomial fit", check_polynomial),
    ("autograd", check_autograd),
    ("matmul", check_matmul),
    ("conv2d", check_conv2d),
    ("linalg", check_linalg),
    ("dataloader", check_dataloader),
    ("save and load", check_save_load),
    ("numpy", check_numpy),
    ("distributed", check_distributed),
    ("oneDNN", check_mkldnn),
    ("quantized engines", check_quantized),
    ("known vulnerabilities", check_vulnerabilities),
]

if __name__ == "__main__":  # workers of the DataLoader import this file where processes are spawned
    run(CHECKS)
