"""Try a torchaudio wheel: transforms with known answers, and filters that run in C++ where they are built."""

# ruff: noqa: ARG001 (every check takes the expectations)

import math

import harness
from harness import check_import, check_version, expect_close, expect_equal, run

torch, torchaudio = harness.LazyModule("torch"), harness.LazyModule("torchaudio")
RATE = 8000  # samples a second


def check_git_version(expected):
    if not hasattr(getattr(torchaudio, "version", None), "git_version"):
        return "this release does not name its commit"
    return harness.check_git_version(expected)


def tone(frequency, rate):
    return torch.sin(torch.arange(rate).float() * (2 * math.pi * frequency / rate)).reshape(1, -1)


def check_spectrogram(expected):
    """Find a tone of 1000 Hz in its bin: 1000 / (8000 / 400) = 50."""
    power = torchaudio.transforms.Spectrogram(n_fft=400)(tone(1000, RATE))
    expect_equal(power.shape[1], 201, "the number of bins")
    expect_equal(
        power[0, :, power.shape[2] // 2].argmax().item(), 50, "the bin of a tone of 1000 Hz"
    )


def check_resample(expected):
    """Halve the rate of a slow tone: what remains is the same tone, sampled half as often."""
    half = torchaudio.transforms.Resample(RATE, RATE // 2)(tone(100, RATE))
    wanted = tone(100, RATE // 2)
    expect_equal(tuple(half.shape), tuple(wanted.shape), "the shape of a resampled tone")
    inner = slice(200, -200)
    error = (half - wanted)[0, inner].abs().max().item()
    expect_close(error, 0.0, 0.02, "the largest error of a resampled tone")


def check_lfilter(expected):
    """Filter an impulse with y[n] = x[n] + y[n-1] / 2: powers of one half."""
    impulse = torch.zeros(1, 16)
    impulse[0, 0] = 1.0
    answer = torchaudio.functional.lfilter(
        impulse, torch.tensor([1.0, -0.5]), torch.tensor([1.0, 0.0])
    )
    expect_close(answer[0].tolist(), [0.5**n for n in range(16)], 1e-6, "the answer to an impulse")


CHECKS = [
    ("import", check_import),
    ("version", check_version),
    ("git_version", check_git_version),
    ("spectrogram", check_spectrogram),
    ("resample", check_resample),
    ("lfilter", check_lfilter),
]

if __name__ == "__main__":
    run(CHECKS)
