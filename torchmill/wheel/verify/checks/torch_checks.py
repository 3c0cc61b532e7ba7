"""Try a torch wheel, from 1.1 on: what it reports about itself, and whether it computes."""

# ruff: noqa: ARG001 (every check takes the expectations)

import os
import re
import subprocess
import sys
import tempfile

from harness import (
    CheckError,
    check_git_version,
    check_import,
    check_version,
    expect,
    expect_equal,
    run,
    switch_differences,
    switches_of,
)
from torch_cuda import (
    check_capabilities,
    check_cuda_version,
    check_cudnn,
    check_driverless,
    check_nccl,
)
from torch_numerics import check_autograd, check_conv2d, check_linalg, check_matmul, check_polynomial

ALL_REDUCE = "--all-reduce"


def check_dataloader(expected):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(20).float().reshape(10, 2), torch.arange(10))
    batches = list(DataLoader(data, batch_size=4, num_workers=2))
    expect_equal([len(labels) for _, labels in batches], [4, 4, 2], "the sizes of the batches")
    expect_equal(torch.cat([labels for _, labels in batches]).tolist(), list(range(10)), "the labels")
    expect_equal(sum(values.sum().item() for values, _ in batches), 190.0, "the sum of the workers' values")


def check_save_load(expected):
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    sample = torch.randn(5, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(model.state_dict(), path)
        other.load_state_dict(torch.load(path))
    expect(
        torch.equal(model(sample), other(sample)),
        "a model computes something else after it was saved and loaded",
    )


def check_numpy(expected):
    import torch

    if switches_of(expected.get("switches", {})).get("USE_NUMPY") is False:
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
    import torch

    wanted = switches_of(expected.get("switches", {}))
    told = parse_config(torch.__config__.show())
    wrong = switch_differences(wanted, told)
    expect(not wrong, "; ".join(wrong))
    return "{} of {} switches are in torch.__config__".format(len(set(wanted) & set(told)), len(wanted))


def parse_config(text):
    """Return the switches in torch.__config__.show(): settings of CMake, and macros in CXX_FLAGS."""
    settings = dict(re.findall(r"\b(USE_\w+)=([^,\s]*)", text))
    # a defined macro means on; an undefined one means nothing, because many parts have none
    settings.update((name, "ON") for name in re.findall(r"-D(USE_\w+)(?![\w=])", text))
    return switches_of(settings)


def check_distributed(expected):
    import torch

    wanted = switches_of(expected.get("switches", {}))
    there = torch.distributed.is_available()
    if "USE_DISTRIBUTED" in wanted:
        state = "there" if there else "missing"
        expect(there == wanted["USE_DISTRIBUTED"], "torch.distributed is {}, unlike planned".format(state))
    if not (there and wanted.get("USE_DISTRIBUTED") and wanted.get("USE_GLOO")):
        return "torch.distributed is {}, gloo was not tried".format("there" if there else "not built")
    with tempfile.TemporaryDirectory() as folder:
        return all_reduce_in_two(os.path.join(folder, "meeting"))


def all_reduce_in_two(meeting):
    environment = dict(os.environ)
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    script = os.path.abspath(__file__)
    processes = [
        subprocess.Popen(
            [sys.executable, script, ALL_REDUCE, str(rank), meeting],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, errors = process.communicate(timeout=180)
            last = (errors.strip().splitlines() or ["no message"])[-1]
            expect_equal(
                output.strip().splitlines()[-1:], ["3.0"], "an all_reduce with gloo ({})".format(last)
            )
    except subprocess.TimeoutExpired:
        raise CheckError("an all_reduce with gloo took more than 180 s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return "two processes met over gloo"


def all_reduce(rank, meeting):
    import torch

    url = "file:///" + meeting.replace("\\", "/").lstrip("/")
    torch.distributed.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
    value = torch.tensor([float(rank + 1)])
    torch.distributed.all_reduce(value)
    sys.stdout.write("{}\n".format(value.item()))


def check_mkldnn(expected):
    import torch

    wanted = switches_of(expected.get("switches", {})).get("USE_MKLDNN")
    there = torch.backends.mkldnn.is_available()
    if wanted is None:
        return "oneDNN is {}, the plan does not say".format("there" if there else "not built")
    state = "there" if there else "missing"
    return expect(there == wanted, "oneDNN is {}, unlike planned".format(state))


def check_quantized(expected):
    import torch

    wanted = switches_of(expected.get("switches", {}))
    if not hasattr(torch.backends, "quantized"):
        return "this release has no list of engines"
    engines = torch.backends.quantized.supported_engines
    if wanted.get("USE_PYTORCH_QNNPACK"):
        expect("qnnpack" in engines, "qnnpack is not among the quantized engines ({})".format(engines))
    if wanted.get("USE_FBGEMM"):
        expect("fbgemm" in engines, "fbgemm is not among the quantized engines ({})".format(engines))
    return "engines: {}".format(", ".join(engines))


CHECKS = [
    ("import", check_import),
    ("version", check_version),
    ("git_version", check_git_version),
    ("cuda version", check_cuda_version),
    ("compute capabilities", check_capabilities),
    ("cuDNN", check_cudnn),
    ("NCCL", check_nccl),
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
]

if __name__ == "__main__":  # workers of the DataLoader import this file where processes are spawned
    if sys.argv[1] == ALL_REDUCE:
        all_reduce(int(sys.argv[2]), sys.argv[3])
    else:
        run(CHECKS)
