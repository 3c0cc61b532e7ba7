"""Try what a torch wheel with CUDA reports about itself, and that it works without a driver."""

# ruff: noqa: ARG001 (every check takes the expectations)

import re

from harness import expect, expect_close, expect_equal, switches_of

NINE = 9  # from this major version of cuDNN on, its number has room for two digits of each part


def check_cuda_version(expected):
    import torch

    told, wanted = torch.version.cuda, expected.get("cuda")
    if wanted is None:
        return expect(told is None, "torch.version.cuda is {!r}, but the build is without CUDA".format(told))
    same = told is not None and told.split(".")[:2] == wanted.split(".")[:2]
    expect(same, "torch.version.cuda is {!r}, not {!r}".format(told, wanted))
    if not torch.cuda.is_available():
        return "no GPU here: nothing was computed on one"
    total = torch.ones(64, 64, device="cuda").mm(torch.ones(64, 64, device="cuda")).sum().item()
    return expect_close(total, 64.0**3, 0, "a matrix product on the GPU")


def check_capabilities(expected):
    """Compare the compute capabilities that torch reports with those that were asked for."""
    import torch

    if torch.version.cuda is None:
        return "built without CUDA"
    told = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()  # noqa: SLF001 (the public word needs a GPU)
    wanted = machine_code(expected.get("capabilities") or "")
    if not told or not wanted:
        return "this release does not report them" if not told else "the plan names none by number"
    found = {word for word in told.split() if word.startswith("sm_")}
    return expect_equal(sorted(found), sorted(wanted), "the list of compute capabilities") or told


def machine_code(listed):
    """Return {"sm_70", "sm_86"} of "7.0;8.6+PTX"; nothing where a word of the list is a name."""
    words = [word for word in re.split(r"[;,\s]+", listed) if word]
    numbers = [re.match(r"(\d+)\.(\d)([af]?)(\+PTX)?$", word) for word in words]
    if not all(numbers):
        return set()
    return {"sm_{}{}{}".format(*number.groups()[:3]) for number in numbers}


def check_cudnn(expected):
    """Ask cuDNN for its version: torch refuses one that is not what it was compiled with."""
    import torch

    if torch.version.cuda is None:
        return "built without CUDA"
    version = torch.backends.cudnn.version()
    planned = switches_of(expected.get("switches", {})).get("USE_CUDNN")
    if version is None:
        return expect(not planned, "cuDNN is missing, unlike planned") or "built without cuDNN"
    expect(planned is not False, "cuDNN is there, unlike planned")
    wanted = expected.get("libraries", {}).get("cudnn")
    if wanted:
        expect_equal(version, cudnn_number(wanted), "the version of cuDNN")
    return str(version)


def cudnn_number(version):
    """Return 8500 of "8.5.0.96", and 90100 of "9.1.0.70"."""
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * (10000 if major >= NINE else 1000) + minor * 100 + patch


def check_nccl(expected):
    import torch

    if torch.version.cuda is None:
        return "built without CUDA"
    if switches_of(expected.get("switches", {})).get("USE_NCCL") is False:
        return "built without NCCL, as planned"
    if not hasattr(torch._C, "_nccl_version"):  # noqa: SLF001 (the public word fails without saying why)
        return "this build does not report NCCL"
    version = torch.cuda.nccl.version()
    wanted = expected.get("libraries", {}).get("nccl")
    if wanted and isinstance(version, tuple):
        expect_equal(".".join(map(str, version[:3])), wanted.split("+")[0], "the version of NCCL")
    return str(version)


def check_magma(expected):
    """Ask torch to prefer MAGMA, which it refuses without it; no GPU is needed for that."""
    import torch

    if torch.version.cuda is None:
        return "built without CUDA"
    prefer = getattr(getattr(torch.backends, "cuda", None), "preferred_linalg_library", None)
    if prefer is None:
        return "this release does not report it without a GPU"
    there = True
    try:
        prefer("magma")
        prefer("default")
    except RuntimeError as error:
        expect("MAGMA" in str(error), str(error))
        there = False
    planned = switches_of(expected.get("switches", {})).get("USE_MAGMA")
    told = "there" if there else "not there"
    expect(planned in {None, there}, "MAGMA is {}, unlike planned".format(told))
    return told


def check_driverless(expected):
    """Ask for a GPU where there is none: the answer is an exception with a message, not a crash."""
    import torch

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
