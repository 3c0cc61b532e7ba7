"""What it costs that `nox -l` spans the matrix: ours against a noxfile with one empty session.

Run it on a quiet machine: python benchmarks/list_sessions.py
"""

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
EMPTY = "import nox\n\n\n@nox.session\ndef nothing(session: nox.Session) -> None:\n    pass\n"


def seconds(noxfile: Path, tag: str | None) -> float:
    """Return how long one listing takes; what `invoke fetch` selected here does not count."""
    env = {name: value for name, value in os.environ.items() if name != "TORCHMILL_TAG"}
    env |= {"TORCHMILL_HOME": str(noxfile.parent / "nowhere")}
    env |= {"TORCHMILL_TAG": tag} if tag else {}
    command = [sys.executable, "-m", "nox", "-f", str(noxfile), "--list"]
    start = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Time the contenders in turn, and print medians, spread and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "noxfile.py"
        empty.write_text(EMPTY, encoding="utf-8")
        ours = ROOT / "noxfile.py"
        contenders: dict[str, tuple[Path, str | None]] = {
            "one empty session": (empty, None),
            "v1.13.1 selected": (ours, "v1.13.1"),
            "nothing selected": (ours, None),
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, (noxfile, tag) in contenders.items():
                times[name].append(seconds(noxfile, tag))
    base = statistics.median(times["one empty session"])
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {ROUNDS} rounds"
    )
    for name, found in times.items():
        median = statistics.median(found)
        print(
            f"{name:18} {median:.3f} s ({min(found):.3f} to {max(found):.3f}), ratio {median / base:.2f}"
        )


main()
