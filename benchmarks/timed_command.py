"""Run a command to its end, and measure the time that it takes."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_timed(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], limit_seconds: float
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command in a folder; return the finished process with its output, and the seconds it took.

    An exit code other than 0 is left to the caller. Raises TimeoutExpired after `limit_seconds`.
    """
    start = time.monotonic()
    process = subprocess.run(
        words,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )
    return process, time.monotonic() - start
