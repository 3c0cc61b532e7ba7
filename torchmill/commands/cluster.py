"""`invoke cluster`: write the jobs that build a cell in shares, for Slurm or another engine; submit them to Slurm."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from torchmill.cell.context import require_source
from torchmill.commands.command import read_help
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import selecting_tag
from torchmill.core.atomic_writes import fresh_path, write_script
from torchmill.core.errors import (
    ConfigError,
    HostError,
    ImpossibleBuildError,
    require_choice,
    require_count,
)
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import (
    CHECKOUT,
    Layout,
    facts_folder,
    nox_environment_name,
    nox_environments_folder,
)
from torchmill.core.process import CommandError, capture
from torchmill.host.native import native_arch
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import NO_OPTIONS, PYPI, Options
from torchmill.plan.options import HELP, format_options
from torchmill.toolchain.shards import MOST_SHARDS

_ENGINES = read_table_beside(__file__, "cluster.toml")
_NAME = re.compile(
    r"[\w$][\w.:/@${}+-]*"
)  # of an image, a volume or a queue: what YAML and JSON take as it is


def write_jobs(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    cell: str,
    shards: str = "8",
    tag: str = "",
    engine: str = "slurm",
    image: str = "",
    volume: str = "",
    queue: str = "",
    sbatch: str = "",
    prologue: str = "",
    submit: bool = False,
    options: Options = NO_OPTIONS,
) -> str:
    """Write jobs that share one build among machines, as for Slurm."""
    named = {"image": image, "volume": volume, "queue": queue}
    _check_options(
        engine, shards, {**named, "sbatch": sbatch, "prologue": prologue, "submit": submit}, options
    )
    found = cell_lookup.find_cell(
        facts, cell, native_arch(), selection.selected_release(facts, layout, tag)
    )
    if engine == "slurm":
        require_source(layout, facts, found)  # nodes may have no network
    if found.build.arch != native_arch():
        raise ImpossibleBuildError(
            f"{cell} is for a different architecture than this machine", code="not-native"
        )
    if facts.packages[found.build.package].after and options.torch is None:
        raise ConfigError(
            f"{cell}: each share builds torch: give --torch WHEEL or PyPI",
            code="share-without-torch",
        )
    folder = layout.cluster / f"{found.release.tag}-{cell}" / engine
    checkout = CHECKOUT if (CHECKOUT / "noxfile.py").is_file() else layout.root
    paths = {"sources": layout.sources, "checkout": checkout, "home": layout.root, "folder": folder}
    paths |= {
        "configs": _facts_for_nodes(layout, folder),
        "environments": nox_environments_folder(),
    }
    words = {name: shlex.quote(str(path)) for name, path in paths.items()} | named | {"cell": cell}
    words |= {
        "tag": selecting_tag(facts, found.release),
        "fetch": cell_lookup.fetch_command(facts, found),
    }
    words |= {
        "nox": shlex.join([sys.executable, "-m", "nox"]),
        "name": f"torchmill-{nox_environment_name(cell)}",
    }
    words |= {
        "log": str(folder).replace("%", "%%"),
        "shards": str(int(shards)),
        "jobs": str(options.jobs),
    }
    words |= {
        "mib": str((options.memory or 0) >> 20),
        "sbatch": shlex.join(shlex.split(sbatch)),
        "prologue": prologue,
    }
    words |= {
        "options": (said := shlex.join(format_options(options))),
        "json_options": json.dumps(said)[1:-1],
    }
    words |= {"args_options": said.replace("$", "$$")}  # Kubernetes makes one of two
    for template in (Path(__file__).parent / "engines" / engine).iterdir():
        write_script(folder / template.name, template, words)
    command = ["bash", str(folder / "submit.sh")]
    if not submit:
        return f"written: {folder}\n{shlex.join(command)}"
    if not shutil.which("sbatch"):
        raise HostError(
            f"`sbatch` is not on PATH: run `{shlex.join(command)}` where Slurm is", code="no-slurm"
        )
    return capture(command).rstrip()


def _facts_for_nodes(layout: Layout, folder: Path) -> Path:
    """Return the folder of facts that jobs read: a copy beside them if nodes may not see it, in the user's cache."""
    facts = facts_folder(CHECKOUT)
    if not facts.is_relative_to(layout.cache):
        return facts
    copied = folder / "facts" / facts.name
    if not copied.is_dir():  # its name is a digest of what it holds
        with fresh_path(copied) as fresh:
            shutil.copytree(facts, fresh)
            fresh.rename(copied)
    return copied


def _check_options(
    engine: str, shards: str, told: Mapping[str, str | bool], options: Options
) -> None:
    """Raise ConfigError where an engine does not take what it was told, or lacks what it needs."""
    array = _ENGINES[require_choice("--engine", engine, _ENGINES, "unknown-engine")]
    needed = array["needs"]
    require_count(
        "--shards", shards, array["least"], array.get("most", MOST_SHARDS), "invalid-shard"
    )
    taken = needed or ("sbatch", "prologue", "submit")
    for name in (name for name, value in told.items() if value and name not in taken):
        hint = (
            ": without it, the command that submits the jobs is printed" if name == "submit" else ""
        )
        raise ConfigError(
            f"--{name} is not for --engine {engine}{hint}", code="option-of-another-engine"
        )
    if options.cpu == "native":
        why = "each share would use its own node's processor: name one, such as x86-64-v3"
        raise ConfigError(f"--cpu native: {why}", code="invalid-option")
    every = {**told, "jobs": options.jobs, "memory": options.memory}
    for name in (name for name in needed if not _NAME.fullmatch(str(every[name] or ""))):
        why = {**read_help()["cluster"], **HELP}[name]
        raise ConfigError(f"--engine {engine} needs --{name}: {why}", code="engine-option-missing")
    plain = "".join(format_options(options)).isprintable()  # else a line of YAML would end in it
    if needed and (options.patches or options.torch not in {None, PYPI} or not plain):
        why = "its containers see no --patch and no --torch of this machine, and each option must fit on one line"
        raise ConfigError(f"--engine {engine}: {why}", code="option-of-another-engine")
    try:
        shlex.split(str(told["sbatch"]))
        if told["prologue"]:
            capture(["bash", "-n", "-c", str(told["prologue"])])
    except (ValueError, CommandError) as error:
        name = "sbatch" if isinstance(error, ValueError) else "prologue"
        raise ConfigError(
            f"--{name} {told[name]}: {str(error).lower()}", code="invalid-option"
        ) from None
