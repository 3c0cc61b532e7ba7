"""Print the builds of the wheels in a folder as entries of runs.toml, and as rows of a table.

`python -m tools.measured_runs DIST --machine "AMD EPYC, 2 cores, …" --source "docs/…, 2026-11-30"`
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchmill.config.build import CPU
from torchmill.config.costs import MeasuredRun
from torchmill.config.remembered_facts import load_facts
from torchmill.core.strict_json import parse_json
from torchmill.core.units import format_bytes
from torchmill.host.own_runs import read_own_runs

ROOT = Path(__file__).parents[1]
_MEGABYTE = 1e6


def format_entry(run: MeasuredRun, machine: str, source: str, cores: int) -> str:
    """Return a run as a [[run]] of build_configs/runs.toml."""
    lines = [
        "[[run]]",
        f'package = "{run.package}"',
        f'release = "{run.release}"',
    ]
    if run.torch:
        lines.append(f'torch = "{run.torch}"')
    lines += [
        f'variant = "{run.variant}"',
        f'machine = "{machine}"',
        f'scope = "{run.scope}"',
        f"cores = {cores}",
        f"jobs = {run.jobs}",
        f"cpu_seconds = {run.cpu_seconds:.0f}",
        f'wheel = "{(run.wheel or 0) / _MEGABYTE:.1f} MB"',
    ]
    if run.capabilities:
        lines.append(f'capabilities = "{run.capabilities}"')
    lines.append(f'source = "{source}"')
    return "\n".join(lines)


def format_row(run: MeasuredRun, manifest: dict[str, Any]) -> str:
    """Return a run as a row: package, toolkit, steps, times, memory, wheel, code for GPUs."""
    guard = manifest["guard"]
    code = sum(sum(sizes.values()) for sizes in manifest.get("device_code", {}).values())
    cells = (
        f"{run.package} {run.release}",
        "without CUDA" if run.variant == CPU else run.variant,
        str(guard["units"]),
        f"{run.cpu_seconds:.0f} s",
        f"{manifest['seconds']['compile']:.0f} s",
        format_bytes(guard["peak"]),
        f"{(run.wheel or 0) / _MEGABYTE:.1f} MB",
        format_bytes(code) if code else "none",
    )
    return f"| {' | '.join(cells)} |"


def _read_lines(dist: Path, machine: str, source: str) -> Iterator[str]:
    """Yield the entries of all builds in a folder, and then their rows."""
    rows: list[str] = []
    for run in read_own_runs(load_facts(ROOT), dist):
        manifest = parse_json((dist / f"{run.source}.json").read_text(encoding="utf-8"))
        yield format_entry(run, machine, source, manifest["guard"]["cores"])
        yield ""
        rows.append(format_row(run, manifest))
    yield from rows


def main() -> None:
    """Print the entries and the rows of the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with wheels and their manifests")
    parser.add_argument("--machine", required=True, help="for people: processor, memory, system")
    parser.add_argument("--source", required=True, help="page and date of the measurement")
    options = parser.parse_args()
    for line in _read_lines(options.dist, options.machine, options.source):
        print(line)


if __name__ == "__main__":
    main()
