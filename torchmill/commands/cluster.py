"""`invoke cluster`: write jobs that build a cell in shares, for Slurm or another engine.

An *engine* runs jobs on several machines. Its templates are in engines/ENGINE/, and cluster.toml
has the options that each engine takes.
"""

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
# The name of an image, a volume or a queue that YAML and JSON take without quotes.
_NAME = re.compile(r"[\w$][\w.:/@${}+-]*")
_SLURM_OPTIONS = ("sbatch", "prologue", "submit")


def write_jobs(
    facts: Facts,
    layout: Layout,
    cell: str,
    *,
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
    """Write jobs that share one build among machines.

    Returns two lines: the folder of the jobs, and the command that submits them. With `submit`, the
    jobs are submitted to Slurm, and its answer is returned instead. Raises ConfigError for options
    that the engine does not take, ImpossibleBuildError for another architecture, SourceError if
    Slurm's nodes would find no source, HostError if `submit` finds no Slurm: the jobs are written
    by then.
    """
    names = {"image": image, "volume": volume, "queue": queue}
    slurm: dict[str, str | bool] = {"sbatch": sbatch, "prologue": prologue, "submit": submit}
    _check_options(engine, shards, {**names, **slurm}, options)
    selected = selection.selected_release(facts, layout, tag)
    build_cell = cell_lookup.find_cell(facts, cell, native_arch(), selected)
    if engine == "slurm":
        # Nodes may have no network: they see the sources of this machine.
        require_source(layout, facts, build_cell)
    if build_cell.build.arch != native_arch():
        raise ImpossibleBuildError(
            f"{cell} is for a different architecture than this machine", code="not-native"
        )
    if facts.packages[build_cell.build.package].after and options.torch is None:
        raise ConfigError(
            f"{cell}: each share builds torch: give --torch WHEEL or PyPI",
            code="share-without-torch",
        )
    folder = layout.cluster / f"{build_cell.release.tag}-{cell}" / engine
    # The values of the templates' placeholders.
    words = {
        **_path_words(layout, folder),
        **_option_words(options),
        **names,
        "cell": cell,
        "tag": selecting_tag(facts, build_cell.release),
        "fetch": cell_lookup.fetch_command(facts, build_cell),
        "name": f"torchmill-{nox_environment_name(cell)}",
        "shards": str(int(shards)),
        "sbatch": shlex.join(shlex.split(sbatch)),
        "prologue": prologue,
    }
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


def _path_words(layout: Layout, folder: Path) -> dict[str, str]:
    """Return the paths in the scripts of a folder, quoted for a shell, by placeholder.

    The facts are copied into the folder if the nodes might not see them (`_facts_for_nodes`).
    """
    is_checkout = (CHECKOUT / "noxfile.py").is_file()
    paths = {
        "sources": layout.sources,
        "checkout": CHECKOUT if is_checkout else layout.root,
        "home": layout.root,
        "folder": folder,
        "configs": _facts_for_nodes(layout, folder),
        "environments": nox_environments_folder(),
    }
    words = {name: shlex.quote(str(path)) for name, path in paths.items()}
    words["nox"] = shlex.join([sys.executable, "-m", "nox"])
    # Slurm replaces what follows a % in the name of a log.
    words["log"] = str(folder).replace("%", "%%")
    return words


def _option_words(options: Options) -> dict[str, str]:
    """Return the options of the build in the forms that templates need, by placeholder."""
    text = shlex.join(format_options(options))
    return {
        "jobs": str(options.jobs),
        "mib": str((options.memory or 0) >> 20),  # bytes to MiB
        "options": text,
        "json_options": json.dumps(text)[1:-1],
        # Kubernetes makes one $ of two in the arguments of a container.
        "args_options": text.replace("$", "$$"),
    }


def _facts_for_nodes(layout: Layout, folder: Path) -> Path:
    """Return the folder of facts that jobs read.

    If the facts are in the user's cache, which the nodes of a cluster may not see, that is a copy
    beside the jobs.
    """
    facts = facts_folder(CHECKOUT)
    if not facts.is_relative_to(layout.cache):
        return facts
    # The name is a digest of the contents: a copy of that name is never out of date.
    copy = folder / "facts" / facts.name
    if not copy.is_dir():
        with fresh_path(copy) as fresh:
            shutil.copytree(facts, fresh)
            fresh.rename(copy)
    return copy


def _check_options(
    engine: str, shards: str, values: Mapping[str, str | bool], options: Options
) -> None:
    """Raise ConfigError if an engine does not take an option, or lacks one that it needs.

    `values` are the options of engines by name; an empty one was not given.
    """
    require_choice("--engine", engine, _ENGINES, "unknown-engine")
    # An engine takes just the options that it needs. Slurm needs none, and takes its own.
    needed = _ENGINES[engine]["needs"]
    allowed = needed or _SLURM_OPTIONS
    most = _ENGINES[engine].get("most", MOST_SHARDS)
    require_count(
        "--shards", shards, least=_ENGINES[engine]["least"], most=most, code="invalid-shard"
    )
    for name, value in values.items():
        if value and name not in allowed:
            hint = ""
            if name == "submit":
                hint = ": without it, the command that submits the jobs is printed"
            raise ConfigError(
                f"--{name} is not for --engine {engine}{hint}", code="option-of-another-engine"
            )
    if options.cpu == "native":
        raise ConfigError(
            "--cpu native: each share would use its own node's processor: name one, such as "
            "x86-64-v3",
            code="invalid-option",
        )
    all_values = {**values, "jobs": options.jobs, "memory": options.memory}
    meanings = {**read_help()["cluster"], **HELP}
    for name in needed:
        if not _NAME.fullmatch(str(all_values[name] or "")):
            raise ConfigError(
                f"--engine {engine} needs --{name}: {meanings[name]}", code="engine-option-missing"
            )
    if needed:
        _check_container_options(engine, options)
    _check_shell(str(values["sbatch"]), str(values["prologue"]))


def _check_container_options(engine: str, options: Options) -> None:
    """Raise ConfigError for an option of a build that containers elsewhere cannot be given."""
    is_local = options.patches or options.torch not in {None, PYPI}
    # A line break would end the line of YAML that an option is on.
    fits_line = "".join(format_options(options)).isprintable()
    if is_local or not fits_line:
        raise ConfigError(
            f"--engine {engine}: its containers see no --patch and no --torch of this machine, "
            "and each option must fit on one line",
            code="option-of-another-engine",
        )


def _check_shell(sbatch: str, prologue: str) -> None:
    """Raise ConfigError for options that no shell can read."""
    try:
        shlex.split(sbatch)
    except ValueError as error:
        raise ConfigError(
            f"--sbatch {sbatch}: {str(error).lower()}", code="invalid-option"
        ) from None
    if not prologue:
        return
    try:
        capture(["bash", "-n", "-c", prologue])
    except CommandError as error:
        raise ConfigError(
            f"--prologue {prologue}: {str(error).lower()}", code="invalid-option"
        ) from None
