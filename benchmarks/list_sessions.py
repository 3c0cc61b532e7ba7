"""What it costs that `nox -l` computes the matrix of builds, against a noxfile with one empty session.

Run it on a quiet machine: python benchmarks/list_sessions.py
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 15
EMPTY_NOXFILE = (
    "import nox\n\n\n@nox.session\ndef nothing(session: nox.Session) -> None:\n    pass\n"
)


def listing_seconds(noxfile: Path, tag: str | None, home: Path) -> float:
    """Return the seconds of one `nox --list` with a release selected by its tag, or with none.

    `home` is an empty folder, so that a release selected in this checkout by `invoke fetch` does not count.
    """
    env = {name: value for name, value in os.environ.items() if name != "TORCHMILL_TAG"}
    env["TORCHMILL_HOME"] = str(home)
    if tag is not None:
        env["TORCHMILL_TAG"] = tag
    command = [sys.executable, "-m", "nox", "-f", str(noxfile), "--list"]
    start = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Time the contenders in turn, and print medians, ranges and ratios."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    empty, v1_13, unselected = "one empty session", "v1.13.1 selected", "nothing selected"
    times: dict[str, list[float]] = {empty: [], v1_13: [], unselected: []}
    with tempfile.TemporaryDirectory() as folder:
        empty_noxfile, noxfile = Path(folder, "noxfile.py"), ROOT / "noxfile.py"
        empty_noxfile.write_text(EMPTY_NOXFILE, encoding="utf-8")
        home = Path(folder, "home")
        for _ in range(ROUNDS):
            times[empty].append(listing_seconds(empty_noxfile, None, home))
            times[v1_13].append(listing_seconds(noxfile, "v1.13.1", home))
            times[unselected].append(listing_seconds(noxfile, None, home))
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}, Python {platform.python_version()}, {ROUNDS} rounds")
    empty_median = statistics.median(times[empty])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        spread = f"{median:.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
        print(f"{name:18} {spread}, ratio {median / empty_median:.2f}")


if __name__ == "__main__":
    main()
