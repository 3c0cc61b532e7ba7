"""Programs that hang: commands that only ask are given programs that never answer, one or all at a time.

A *case* is a command and the programs that hang. The command must end as it does without them, or say what did not
answer; it must ask a silent program once, leave no traceback, and take no longer than a few answers may take.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.tally import REFUSED, RIGHT, Tally
from tests.support.commands import run

ANSWER_SECONDS = 2.0  # the limit of one answer
# Independent programs are asked at the same time, and what one says may decide which is asked next.
_MOST_ANSWERS = 5
# Beside the limit of answers: the commands wait for processors, too.
_BASE_FACTOR = 3.0
PROGRAMS = (
    "nvidia-smi", "git", "cmake", "c++", "g++", "clang++", "ninja", "ccache", "sccache", "nvcc", "patchelf",
    "dpkg-query", "rpm", "docker", "podman", "sinfo", "sbatch", "gdb", "pip", "uv", "ldd", "ld", "pyenv", "conda",
)  # fmt: skip
COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": ("invoke", "plan", "wheel-3.10-cpu", "--tag=v1.13.1"),
    "plan with CUDA": ("invoke", "plan", "wheel-3.10-cu117", "--tag=v1.13.1"),
    "explain": ("invoke", "explain", "wheel-3.10-cu117", "--tag=v1.13.1"),
    "doctor": ("invoke", "doctor"),
    "doctor of a cell": ("invoke", "doctor", "wheel-3.10-cu117", "--tag=v1.13.1"),
    "build --dry-run": ("invoke", "build", "--dry-run"),
    "arch": ("invoke", "arch", "--local"),
    "toolkit": ("invoke", "toolkit"),
    "status": ("invoke", "status"),
    "matrix": ("invoke", "matrix"),
    "jobs": ("invoke", "jobs"),
    "diagnose": ("invoke", "diagnose"),
    "verify": ("invoke", "verify"),
    "snippet": ("invoke", "snippet", "--tool=uv"),
    "cluster": ("invoke", "cluster", "wheel-3.10-cpu", "--tag=v1.13.1"),
    "clean": ("invoke", "clean", "--dry-run"),
    "image": ("invoke", "image", "--help"),
    "nox -l": ("nox", "-l"),
}


def attack_by_hangs(count: int, _: int) -> Tally:
    """Run each command with all programs hanging, and then `count` times with one that it asks."""
    tally = Tally("programs that hang")
    with tempfile.TemporaryDirectory() as folder:
        singles = []
        bases = {}
        for name in COMMANDS:
            place = Path(folder, name.replace(" ", "-"))
            bases[name] = _Case(place / "none", name, ())
            everything = _Case(place / "all", name, PROGRAMS)
            tally.add(f"{name}: all programs", everything.outcome(bases[name]))
            tally.notes["seconds added by all, at most"] = max(
                tally.notes["seconds added by all, at most"],
                round(everything.seconds - bases[name].seconds),
            )
            singles += [(name, program) for program in everything.asked]
        for name, program in singles[:count]:
            place = Path(folder, f"{name}-{program}".replace(" ", "-"))
            case = _Case(place, name, (program,))
            tally.add(f"{name}: {program}", case.outcome(bases[name]))
    return tally


class _Case:
    """One run of a command, with the programs that hang."""

    def __init__(self, place: Path, command: str, hanging: Sequence[str]) -> None:
        programs = place / "bin"
        programs.mkdir(parents=True)
        (place / "home").mkdir()
        environ = hang(programs, hanging, ANSWER_SECONDS)
        tool, *words = COMMANDS[command]
        log = place / "log"
        log.write_text("x.cpp:1:2: error: 'a' was not declared in this scope\n")
        if command == "diagnose":
            words.append(str(log))
        start = time.monotonic()
        done = run(tool, *words, home=place / "home", env=environ)
        self.seconds = time.monotonic() - start
        self.code = done.returncode
        self.output = done.stdout + done.stderr
        self.asked = asked(programs)

    def outcome(self, base: _Case) -> str:
        """Return how the command ended, compared with the same command without hanging programs."""
        repeated = [name for name, count in Counter(self.asked).items() if count > 1]
        longest = _BASE_FACTOR * base.seconds + _MOST_ANSWERS * ANSWER_SECONDS
        if "Traceback" in self.output:
            return f"unforeseen: {self.output[-500:]}"
        if repeated:
            return f"asked {', '.join(repeated)} more than once"
        if self.seconds > longest:
            return f"took {self.seconds:.0f} s instead of {base.seconds:.0f} s"
        if self.code == base.code:
            return RIGHT
        is_told = re.search(r"error\[[\w-]+\]", self.output) or "did not answer" in self.output
        return REFUSED if is_told else f"ended with {self.code}: {self.output[-300:]}"


def hang(folder: Path, names: Sequence[str], seconds: float) -> dict[str, str]:
    """Return variables with which programs in a folder are found that note their start, and never end.

    `seconds` is how long torchmill waits for an answer.
    """
    for name in names:
        (folder / name).write_text(
            f"#!/bin/sh\necho {name} >> {folder}/asked\ntrap '' INT TERM\nsleep 600 & wait\n"
        )
        (folder / name).chmod(0o755)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "TORCHMILL_ANSWER": f"{seconds:g}",
    }


def asked(folder: Path) -> list[str]:
    """Return the programs of a folder that were started, as often as they were."""
    noted = folder / "asked"
    return noted.read_text().split() if noted.exists() else []
