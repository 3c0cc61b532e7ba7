"""Try an extension on a GPU: run the lines that its facts give, in which `alike` compares two results."""

from gpu_checks import FACTORS, disable_tf32, expect_alike, on_gpu
from harness import run, run_lines


def alike(one, other, factor=FACTORS["float32"]):
    expect_alike(one, other, factor=factor)


def check_lines(expected):
    disable_tf32()
    return run_lines(expected["smoke"], alike=alike)


if __name__ == "__main__":
    run([("lines", on_gpu(check_lines))])
