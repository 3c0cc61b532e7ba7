"""The units (compiles) of replayed builds: peaks of memory, times, memory curves; and how fast such builds can be.

A *curve* is a unit's memory over its time: levels at evenly spaced moments, as fractions of its peak.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

GIB = 2**30
DATA = Path(__file__).parent / "data"
HEAD_DIMENSIONS = (32, 64, 96, 128, 160, 192, 224, 256)  # for which flash attention has kernels


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile as it was recorded."""

    source: str  # its path in the package
    peak: int  # bytes
    seconds: float  # of one processor
    curve: tuple[float, ...]

    @property
    def area(self) -> float:
        """The unit's memory, summed over its time, in byte-seconds."""
        return self.peak * self.seconds * sum(self.curve) / len(self.curve)


@dataclass(frozen=True, slots=True)
class Mix:
    """The units of one replayed build, in the order of its build file, and the machine that builds them."""

    units: tuple[Unit, ...]
    cap: int  # bytes of memory
    slots: int  # processors

    def bound(self) -> float:
        """Return a lower bound of the build's seconds if each unit holds its peak from start to end.

        Two units that each need more than half of the memory cannot run together. A build whose memory grows
        bit by bit can be faster than this bound: see `area_bound`.
        """
        large = sum(unit.seconds for unit in self.units if 2 * unit.peak > self.cap)
        memory = sum(unit.peak * unit.seconds for unit in self.units) / self.cap
        return max(self._processor_bound(), large, memory)

    def area_bound(self) -> float:
        """Return a lower bound of the build's seconds that holds for every order of the units."""
        memory = sum(unit.area for unit in self.units) / self.cap
        return max(self._processor_bound(), memory)

    def scaled(self, seconds: float) -> "Mix":
        """Return the same mix with all times scaled by one factor, so that `bound` is `seconds`."""
        factor = seconds / self.bound()
        units = (replace(unit, seconds=unit.seconds * factor) for unit in self.units)
        return replace(self, units=tuple(units))

    def _processor_bound(self) -> float:
        seconds = [unit.seconds for unit in self.units]
        return max(sum(seconds) / self.slots, *seconds)


def draw_cpu_units(count: int, seed: int) -> tuple[Unit, ...]:
    """Draw units of torch 1.13.1 for CPU as they were measured, evenly over all peaks, in random order."""
    rows = sorted(recorded_compiles(), key=lambda row: int(row["peak_kib"]))
    rows = [row for row in rows if float(row["seconds"]) >= 1]
    chance = random.Random(seed)  # noqa: S311 - the same build for the same seed
    drawn = []
    for index in range(count):
        part = rows[index * len(rows) // count : (index + 1) * len(rows) // count]
        drawn.append(chance.choice(part))
    chance.shuffle(drawn)
    curves = recorded_curves("c++")
    units = []
    for row in drawn:
        peak, seconds = int(row["peak_kib"]) * 1024, float(row["seconds"])
        units.append(Unit(row["source"], peak, seconds, chance.choice(curves)))
    return tuple(units)


def draw_cuda_units(count: int, seed: int) -> tuple[Unit, ...]:
    """Draw units like those of torch for CUDA, of which 12 in 100 are flash attention's.

    The peaks are published: 4.5 to 5.3 GiB for flash attention, 0.3 to 1.5 GiB for the others. The times are
    assumed, and also that flash attention's memory belongs to one process and grows as a C++ compiler's does.
    """
    chance = random.Random(seed)  # noqa: S311
    units = []
    for index in range(count):
        if index % 25 in {3, 11, 19}:
            units.append(_draw_flash_attention_unit(index, chance))
        else:
            units.append(_draw_kernel_unit(index, chance))
    chance.shuffle(units)
    return tuple(units)


def _draw_kernel_unit(index: int, chance: random.Random) -> Unit:
    curve = chance.choice(recorded_curves("cuda"))
    peak = int(chance.uniform(0.3, 1.5) * GIB)
    source = f"aten/src/ATen/native/cuda/Kernel{index}.cu"
    return Unit(source, peak, chance.uniform(10, 60), curve)


def _draw_flash_attention_unit(index: int, chance: random.Random) -> Unit:
    curve = chance.choice(recorded_curves("c++"))
    direction = chance.choice(("fwd", "bwd"))
    head = HEAD_DIMENSIONS[index % len(HEAD_DIMENSIONS)]
    folder = "aten/src/ATen/native/transformers/cuda/flash_attn/kernels"
    source = f"{folder}/flash_{direction}_hdim{head}_bf16_{index}_sm80.cu"
    peak = int(chance.uniform(4.5, 5.3) * GIB)
    return Unit(source, peak, chance.uniform(60, 180), curve)


def recorded_curves(language: str) -> Sequence[tuple[float, ...]]:
    """Return the recorded curves of the compilers of a language ("c++", "cuda"), each from 0."""
    curves = []
    for row in _read_table("curves.csv"):
        if row["language"] == language:
            curves.append((0.0, *map(float, row["curve"].split())))
    return curves


def recorded_compiles() -> list[dict[str, str]]:
    """Return what the compiles of torch 1.13.1 took: "source", "seconds", "peak_kib"."""
    return _read_table("torch-1.13.1-cpu-units.csv")


def _read_table(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="ascii") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
