"""`invoke cluster`: write the jobs that build a cell in shares on a cluster with Slurm, and submit them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from torchmill.build.context import require_source
from torchmill.commands.command import TaskCommand
from torchmill.config import cell_lookup, selection
from torchmill.config.model import Facts, Options
from torchmill.core import files
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.process import capture
from torchmill.host.native import native_arch
from torchmill.plan.options import WHOLE_BUILD, format_options
from torchmill.toolchain.shards import MOST_SHARDS

_NONE = Options()
_HERE = Path(__file__).parent


def write_jobs(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    cell: str,
    shards: str = "8",
    tag: str = "",
    sbatch: str = "",
    submit: bool = False,
    options: Options = _NONE,
) -> str:
    """Write a job array for Slurm that compiles a cell in shares, and the job that makes its wheel.

    All nodes must see this checkout and the user's cache under the same paths.
    """
    if not (shards.isdecimal() and 1 <= int(shards) <= MOST_SHARDS):
        raise ConfigError(f"--shards {shards}: give a number from 1 to {MOST_SHARDS}", code="invalid-shard")
    found = cell_lookup.find_cell(facts, cell, native_arch(), selection.selected_release(facts, layout, tag))
    require_source(layout, facts, found)  # nodes may have no network
    if found.build.arch != native_arch():
        raise ImpossibleBuildError(f"{cell} is for another architecture than this machine's", code="not-native")
    folder = layout.state / "cluster" / f"{found.release.tag}-{cell}"
    words = {
        "name": f"torchmill-{cell}",
        "cell": cell,
        "tag": cell_lookup.selecting_tag(facts, found.release),
        "sources": str(layout.sources),
        "checkout": str(CHECKOUT if (CHECKOUT / "noxfile.py").is_file() else layout.root),
        "home": str(layout.root),
        "parts": str(folder / "parts"),
    }
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    quoted |= {"nox": shlex.join([sys.executable, "-m", "nox"]), "options": shlex.join(format_options(options))}
    shares, finish = folder / "shares.sh", folder / "finish.sh"
    files.write_script(shares, _HERE / "slurm_task.sh", {**quoted, "log": f"{folder}/share-%a.log"})
    files.write_script(finish, _HERE / "slurm_finish.sh", {**quoted, "log": f"{folder}/finish.log"})
    more = shlex.split(sbatch)
    array = ["sbatch", "--parsable", *more, f"--array=1-{shards}", str(shares)]
    if not submit:
        first, last = shlex.join(array), shlex.join([*more, str(finish)])
        return f"shares=$({first})\nsbatch --dependency=afterany:$shares {last}\nlogs and parts: {folder}"
    return "\n".join(_submit(array, ["sbatch", "--parsable", *more], finish, folder))


def _submit(array: Sequence[str], command: Sequence[str], finish: Path, folder: Path) -> list[str]:
    """Submit both jobs: the second begins when all shares have ended, well or not. Raises CommandError, HostError."""
    shares = capture(array).strip().partition(";")[0]
    last = capture([*command, f"--dependency=afterany:{shares}", str(finish)]).strip().partition(";")[0]
    return [
        f"submitted: {shares} (the shares), {last} (the wheel, when they have ended)",
        f"logs and parts: {folder}; `squeue -j {shares},{last}` shows them, `scancel {shares} {last}` ends them",
    ]


CLUSTER = TaskCommand(
    write_jobs,
    {
        "cell": "such as wheel-3.10-cu126",
        "shards": "how many shares; default: 8",
        "tag": "the release; default: the selected one",
        "sbatch": "options for sbatch, such as '--cpus-per-task=16 --mem=64G --time=4:00:00'",
        "submit": "submit the jobs; default: print how",
    },
    argument="cell",
    required=True,
    session_options=WHOLE_BUILD,
)
