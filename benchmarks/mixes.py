"""What replayed builds consist of: units with their peaks, times and curves; and how fast they can be."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

GIB = 2**30
DATA = Path(__file__).parent / "data"
HEADS = (32, 64, 96, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class Work:
    """One unit as recorded: bytes, seconds of one processor, memory as fractions of the peak."""

    source: str  # within the package
    peak: int
    seconds: float
    curve: tuple[float, ...]

    @property
    def area(self) -> float:
        """Return its memory times its time, in byte-seconds."""
        return self.peak * self.seconds * sum(self.curve) / len(self.curve)


@dataclass(frozen=True, slots=True)
class Mix:
    """The units of one replayed build, in the order of its build file, on a machine of so much."""

    works: tuple[Work, ...]
    cap: int  # bytes
    slots: int

    def bound(self) -> float:
        """Return the seconds below which peaks that are held to the end allow no order to come.

        Two units that each need more than half of the memory cannot run together. Memory that is taken only
        bit by bit can do better: see `area_bound`.
        """
        apart = sum(one.seconds for one in self.works if 2 * one.peak > self.cap)
        return max(
            self._time(), apart, sum(one.peak * one.seconds for one in self.works) / self.cap
        )

    def area_bound(self) -> float:
        """Return the seconds below which no order can come, foreseeing every curve."""
        return max(self._time(), sum(one.area for one in self.works) / self.cap)

    def scaled(self, bound: float) -> "Mix":
        """Return the same with every time scaled, such that the lower bound is `bound` seconds."""
        scale = bound / self.bound()
        return replace(
            self, works=tuple(replace(one, seconds=one.seconds * scale) for one in self.works)
        )

    def _time(self) -> float:
        seconds = [one.seconds for one in self.works]
        return max(sum(seconds) / self.slots, *seconds)


def cpu(count: int, seed: int) -> tuple[Work, ...]:
    """Draw units of torch 1.13.1 for CPU as they were measured: evenly over all sizes, in any order."""
    rows = sorted(recorded(), key=lambda row: int(row["peak_kib"]))
    rows = [row for row in rows if float(row["seconds"]) >= 1]
    source = random.Random(seed)  # noqa: S311 - the same build for the same seed
    parts = [rows[i * len(rows) // count : (i + 1) * len(rows) // count] for i in range(count)]
    drawn = [source.choice(part) for part in parts]
    source.shuffle(drawn)
    shapes = curves("c++")
    return tuple(
        Work(
            row["source"], int(row["peak_kib"]) * 1024, float(row["seconds"]), source.choice(shapes)
        )
        for row in drawn
    )


def cuda(count: int, seed: int) -> tuple[Work, ...]:
    """Draw units like those of torch for CUDA, of which 12 in 100 are flash attention's.

    Their 4.5 to 5.3 GiB are published, as are the 0.3 to 1.5 GiB of the others. Assumed are the times, and
    that flash attention's memory is one program's and grows as a C++ compiler's does.
    """
    source = random.Random(seed)  # noqa: S311
    drawn = [_cuda(index, index % 25 in {3, 11, 19}, source) for index in range(count)]
    source.shuffle(drawn)
    return tuple(drawn)


def _cuda(index: int, heavy: bool, source: random.Random) -> Work:
    folder = "aten/src/ATen/native/"
    shape = source.choice(curves("c++" if heavy else "cuda"))
    if not heavy:
        peak = int(source.uniform(0.3, 1.5) * GIB)
        return Work(f"{folder}cuda/Kernel{index}.cu", peak, source.uniform(10, 60), shape)
    kind, head = source.choice(("fwd", "bwd")), HEADS[index % len(HEADS)]
    name = f"transformers/cuda/flash_attn/kernels/flash_{kind}_hdim{head}_bf16_{index}_sm80.cu"
    return Work(folder + name, int(source.uniform(4.5, 5.3) * GIB), source.uniform(60, 180), shape)


def curves(language: str) -> Sequence[tuple[float, ...]]:
    """Return the recorded curves of a language's compilers."""
    rows = _rows("curves.csv")
    return tuple(
        (0.0, *map(float, row["curve"].split())) for row in rows if row["language"] == language
    )


def recorded() -> list[dict[str, str]]:
    """Return what compiles of torch 1.13.1 took: source, seconds, peak_kib."""
    return _rows("torch-1.13.1-cpu-units.csv")


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="ascii") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
