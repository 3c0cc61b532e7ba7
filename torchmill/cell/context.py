"""All that one session works with: plan, source, folders, interpreter and machine inputs of a cell."""

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from string import Template

from millguard.costs import KnownCost
from millguard.timeline import SUFFIX as TIMELINE_SUFFIX

from torchmill.cell.hidden_nvcc import hide_nvcc
from torchmill.cell.machine_inputs import collect_machine_inputs, describe_interpreter
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release_lookup import selecting_tag
from torchmill.config.selection import selected_tag
from torchmill.core import locks
from torchmill.core.console import show_progress
from torchmill.core.deletion import delete_paths
from torchmill.core.errors import ConfigError, HostError, NetworkError, SourceError
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.core.system_errors import report_unwritable
from torchmill.fetch.source import verification
from torchmill.fetch.source.git_command import copy_or_link
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import load_source
from torchmill.fetch.user_packages import SCCACHE, install_package
from torchmill.host import environments
from torchmill.host.environments import base_interpreter, in_environment
from torchmill.host.host import Host
from torchmill.host.measurement import measure_basic_host, measure_host, with_named_compiler
from torchmill.host.processor import resolve_processor
from torchmill.plan import (
    base_package,
    build_plan,
    cuda_toolkit,
    input_digests,
    shell_seal,
    wheel_name,
)
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.cell_lookup import fetch_command
from torchmill.plan.compile_costs import release_costs
from torchmill.plan.host_compiler import compiler_variables
from torchmill.plan.local_gpus import with_local_gpus
from torchmill.plan.options import format_options, parse_options
from torchmill.plan.plan import Plan
from torchmill.toolchain import compiler_cache, shards
from torchmill.toolchain.compiler_cache import CacheSite, CompilerCache
from torchmill.toolchain.remote_cache import RemoteCache
from torchmill.wheel import dist_files


class BuildTree:
    """The folders and files in which a build works: the source, and what is compiled in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"  # the patched copy of the source
        self.build = self.source / "build"  # in which CMake and ninja work
        self.kit = folder / "kit"  # what every interpreter's build needs: CMake, ninja
        self.env = folder / "env"  # link to the environment of the cell that uses the tree
        self.interpreter_file = (
            folder / "interpreter"
        )  # for which interpreter the tree was used last
        self.external_inputs_file = (
            folder / "outside"
        )  # what was read outside of the tree, with digests
        self.inputs_file = folder / "inputs"  # by name, what the tree was prepared for
        self.patched_file = folder / "patched"  # the source files that differ from what was fetched
        self.unfinished_file = (
            folder / "unfinished"
        )  # is there while a build runs, and after one that did not end well
        self.key_file = (
            folder / "key"
        )  # what the tree was prepared for; where it exists the tree is complete


class CellOutputs:
    """The folders of what one cell makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw = folder / "raw"  # the wheel as the build left it
        self.stage = folder / "stage"  # the wheel unpacked, to be repaired
        self.packed = folder / "packed"  # the wheel that is not verified yet
        self.verify = folder / "verify"  # in which the wheel is tried
        self.offers = folder / "offers"  # wheels of elsewhere that may be this one
        self.ledger = folder / "ledger"  # what each stage made, and of what


@dataclass(frozen=True, slots=True)
class BuildFolders:
    """Where one build writes to; none of them need be there yet."""

    tree: Path
    outputs: Path  # of the cell; the tree's own folder, where no other cell shares that
    environment: Path


@dataclass(frozen=True)
class BuildContext:
    """One cell on this machine."""

    layout: Layout
    facts: Facts
    host: Host
    cell: Cell
    options: Options
    source: Source
    plan: Plan
    venv: Path
    interpreter: Path  # the base interpreter, for the clean environment of the checks
    tools: Mapping[str, str]  # what tells the interpreter from others, by name
    machine_inputs: Mapping[str, str]  # that go into every build: compilers, libraries, variables
    stat_cache: StatCache  # digests of files and output of programs

    @property
    def package(self) -> Package:
        """Return the facts of the package that is built."""
        return self.facts.packages[self.plan.build.package]

    @property
    def base(self) -> Package | None:
        """Return the package that this one is built against."""
        return self.facts.packages[self.package.after] if self.package.after else None

    @property
    def outputs(self) -> CellOutputs:
        """Return the folders of what the cell makes."""
        return CellOutputs(self.layout.tree(self.plan.release.tag, self.plan.identifier))

    @property
    def shares_tree(self) -> bool:
        """Tell whether all interpreters are built in one tree: not what is built against another package.

        All of that depends on the interpreter. Nor is it done where links are not everyone's to make.
        """
        return self.package.after is None and self.links_environment

    @property
    def links_environment(self) -> bool:
        """Tell whether the build knows its environment by a link in the tree, so that it is below the cache's base."""
        return self.host.system != "windows"

    @cached_property
    def tree(self) -> BuildTree:
        """Return the tree that the cell is built in."""
        if not self.shares_tree:
            return BuildTree(self.outputs.folder)
        family = self.plan.build.family(self.host.arch)
        return BuildTree(self.layout.tree(self.plan.release.tag, f"{family}-{self.tree_key[:8]}"))

    @property
    def folders(self) -> BuildFolders:
        """Return where the build writes to."""
        return BuildFolders(self.tree.folder, self.outputs.folder, self.venv)

    @cached_property
    def tree_key(self) -> str:
        """Return the digest of everything that can change what is the same for every interpreter."""
        return input_digests.tree_key(self.tree_inputs)

    @cached_property
    def tree_inputs(self) -> Mapping[str, str]:
        """Return, by name, everything that can change what is the same for every interpreter."""
        return input_digests.tree_inputs(
            self.plan, self.source, self.facts.patches, self.machine_inputs
        )

    @cached_property
    def environment_key(self) -> str:
        """Return the digest of what the session's environment is made for; it reads the whole base wheel."""
        given = base_wheel(self) if self.options.torch is None else self.options.torch_wheel
        if self.base and (lent := self.options.torch_folder):
            given = base_package.find_installed(self.base.name, lent) / "RECORD"
        digest = (given and self.stat_cache.digest(given)) or ""
        return input_digests.environment_key(self.plan, {**self.tools, "base": digest})

    @cached_property
    def compile_key(self) -> str:
        """Return the digest of everything that can change what is compiled."""
        return input_digests.compile_key(self.tree_key, self.environment_key, self.plan)

    @property
    def known_units(self) -> tuple[KnownCost, ...]:
        """Return what is known of the compiles of this package and release."""
        return release_costs(self.facts.units, self.package.name, self.plan.release.version)

    @property
    def wheel(self) -> Path:
        """Return where the verified wheel lies, or will appear."""
        return dist_files.find_wheel(self.layout.dist, self.plan.wheel)

    @property
    def log(self) -> Path:
        """Return the file that holds everything the build says."""
        return self.layout.logs / f"{self.plan.release.tag}-{self.plan.identifier}.log"

    @property
    def timeline(self) -> Path:
        """Return the file that holds what the guard saw and did."""
        return self.log.with_suffix(TIMELINE_SUFFIX)

    @property
    def placeholders(self) -> Mapping[str, str]:
        """Return what the ${…} of the plan stand for here."""
        venv = self.tree.env if self.links_environment else self.venv
        found = {
            "tree": str(self.tree.folder),
            "source": str(self.tree.source),
            "raw": str(self.outputs.raw),
            "kit": str(self.tree.kit if self.shares_tree else venv),
            "venv": str(venv),
            "python": str(in_environment(venv)),
            "patches": str(self.facts.patches),
        }
        return found | cuda_toolkit.cuda_placeholders(self.plan, self.host)


def create_context(
    root: Path, facts: Facts, cell: Cell, arguments: Sequence[str], venv: Path
) -> BuildContext:
    """Bring together what tells whether there is anything to do; nothing is changed yet.

    Of the machine no more is measured than a plan needs. Raises TorchmillError for everything that forbids
    the build before it starts.
    """
    layout = Layout.of_checkout(root)
    stat_cache = StatCache(layout.stat_cache)
    options = parse_options(arguments, f"nox -s {cell.build.identifier(cell.build.arch)} --")
    whole = (
        cell.build.cuda or "CXX" in options.settings
    )  # which needs the machine's compilers to be known
    machine = (
        measure_host(layout.root, gpus=bool(cell.build.cuda))
        if whole
        else measure_basic_host(stat_cache)
    )
    machine = with_named_compiler(machine, options.settings, os.environ)
    processor = resolve_processor(facts, cell.build.arch, machine, options.cpu, options.settings)
    options = replace(options, processor=processor)
    options = with_local_gpus(facts, cell, machine, options)
    fetched = require_source(layout, facts, cell)
    verification.verify_source(fetched, stat_cache)
    computed = build_plan.compute_plan(facts, cell, machine, options, fetched)
    base = base_interpreter(venv, cell.build.python)
    tools = describe_interpreter(base, stat_cache)
    around = collect_machine_inputs(machine, computed, os.environ, stat_cache)
    return BuildContext(
        layout,
        facts,
        machine,
        cell,
        options,
        fetched,
        computed,
        venv,
        base,
        tools,
        around,
        stat_cache,
    )


@contextlib.contextmanager
def hold_cell(context: BuildContext) -> Iterator[None]:
    """Hold the cell's folder and environment; at the end save what was learned about files."""
    identifier, layout = context.plan.identifier, context.layout
    others = (layout.dist, layout.logs, layout.cache, Path(tempfile.gettempdir()))
    with (
        locks.hold_lock(context.outputs.folder, identifier),
        environments.hold_environment(context.venv, identifier),
        report_unwritable(context.outputs.folder, *others),
    ):
        try:
            yield
        finally:
            context.stat_cache.save()


def require_source(layout: Layout, facts: Facts, cell: Cell) -> Source:
    """Return the source of a cell. Raises SourceError, with the command that fetches it, where it is not there."""
    found = load_source(layout, cell.build.package, cell.release.tag)
    if found is None:
        none = "" if selected_tag(layout) else "no release is selected, and "
        raise SourceError(
            f"{none}{cell.build.package} {cell.release.tag} is not fetched: run `{fetch_command(facts, cell)}`",
            code="source-not-fetched",
        )
    return found


def has_finished_tree(layout: Layout, facts: Facts, cell: Cell, native: str) -> bool:
    """Tell whether a build of a cell's release and variant, for whichever Python, ended well in a tree for all."""
    if facts.packages[cell.build.package].after:
        return False
    keys = (layout.trees / cell.release.tag).glob(f"{cell.build.family(native)}-????????/key")
    return any(not BuildTree(key.parent).unfinished_file.exists() for key in keys)


def missing_sessions(context: BuildContext) -> Iterator[list[str]]:
    """Yield nox's arguments for each build that must come first: whose wheel this one is made or checked with."""
    build, options = context.plan.build, context.options
    # Variables and patches are a package's own; how much may run at a time is the machine's, and the GPUs are the same.
    words = format_options(replace(options, settings={}, patches={}, shard=None, parts=None))
    needed = (
        [context.base]
        if context.base and options.torch is None and base_wheel(context) is None
        else []
    )
    imported = [context.facts.packages[name] for name in context.package.imports]
    for package in (*needed, *(one for one in imported if imported_wheel(context, one) is None)):
        other = replace(build, package=package.name, session=package.session)
        yield ["-s", other.identifier(context.host.arch), *(("--", *words) if words else ())]


def base_wheel(context: BuildContext) -> Path | None:
    """Return the wheel in dist/ that a dependent package is built against."""
    if context.base is None or context.plan.wheel.torch is None:
        return None
    return _wheel_in_dist(context, context.base, context.plan.wheel.torch.partition("==")[2])


def imported_wheel(context: BuildContext, package: Package) -> Path | None:
    """Return the wheel in dist/ of another package that this one imports: of the same label, so for the same torch."""
    return _wheel_in_dist(
        context, package, "*" + "".join(context.plan.wheel.version.partition("+")[1:])
    )


def _wheel_in_dist(context: BuildContext, package: Package, version: str) -> Path | None:
    stem = f"{wheel_name.distribution_name(package)}-{version}"
    build = context.plan.build  # what containers made for other machines lies there, too
    pattern = f"{stem}-{wheel_name.python_tag(build.python)}-*_{build.arch}.whl"
    return max(
        (one for one in context.layout.dist.glob(pattern) if _is_whole(one, context.stat_cache)),
        default=None,
    )


def _is_whole(wheel: Path, stat_cache: StatCache) -> bool:
    """Tell whether a wheel is what its manifest says; one from elsewhere has none."""
    said = dist_files.read_manifest(wheel).get("sha256")
    return said is None or said == stat_cache.digest(wheel)


def set_up_compiler_cache(context: BuildContext, note: Callable[[str], None]) -> CompilerCache:
    """Return the compiler cache of the build; what it has to do without is noted."""
    layout, log = context.layout, context.log.with_suffix(".ccache")
    environ = {**os.environ, **compiler_variables(context.plan.variables)}
    digest, toolkit = context.stat_cache.digest, context.plan.cuda.toolkit
    parts = tuple(_parts(context, note))
    provide = partial(_provide_sccache, layout.cache, note)
    site = CacheSite(
        context.host, layout.root, layout.cache, log, environ, note, digest, provide, toolkit, parts
    )
    return compiler_cache.set_up_cache(site)


def _provide_sccache(cache: Path, note: Callable[[str], None]) -> str | None:
    """Return the path of an sccache in the user's cache, brought there if need be; None, after a note, without one."""
    try:
        with show_progress() as progress:
            folder = install_package(SCCACHE, cache, progress)
    except (NetworkError, SourceError, HostError) as error:
        note(f"could not install sccache ({error}): building without a compiler cache")
        return None
    return str(folder / SCCACHE.sign)


def _parts(context: BuildContext, note: Callable[[str], None]) -> Iterator[RemoteCache]:
    """Yield the folders of parts as ccache's storage: its own is written by a share, and by a run that ends early."""
    options = context.options
    if options.parts is None:
        return
    folder, written = Path(options.parts), options.shard is not None or options.until is not None
    if written:
        (folder / shards.RECORDS).mkdir(parents=True, exist_ok=True)
        yield RemoteCache("file", path=str(folder))
    found = list(shards.list_parts(folder)) if folder.is_dir() else []
    yield from (
        RemoteCache("file", path=str(one), read_only=True)
        for one, _ in found
        if not written or one != folder
    )
    shares = []
    for record in (record for _, records in found for record in records):
        missing = len(record.get("failed", ()))
        lacks = f" (without {missing} of its files)" if missing else ""
        other = "" if record.get("tree") == context.tree_key else " (of another build)"
        shares.append(f"{record.get('shard', 'a damaged record')}{lacks}{other}")
    note(f"parts in {folder}: {', '.join(shares) or 'none'}")


def session_command(context: BuildContext, *further: str) -> str:
    """Return the whole command that runs this session again, with all its options and `further` ones.

    The release is named if another one is selected.
    """
    tag = selecting_tag(context.facts, context.cell.release)
    variables = [] if selected_tag(context.layout) == tag else [f"TORCHMILL_TAG={tag}"]
    options = [*format_options(context.options), *further]
    separator = ["--"] if options else []
    return shlex.join([*variables, "nox", "-s", context.plan.identifier, *separator, *options])


def passing_patterns(plan: Plan) -> tuple[str, ...]:
    """Return the patterns of the variables that get through to a build from the environment of this process."""
    in_container = shell_seal.is_in_container(os.environ)
    return (
        (*plan.shell_patterns, *shell_seal.CONTAINER_PATTERNS)
        if in_container
        else plan.shell_patterns
    )


def describe_unread(plan: Plan) -> str:
    """Return a sentence that names the settings of the shell that the build does not get; "" if there are none."""
    prefix = plan.build.package.upper().replace("-", "_") + "_"
    names = ", ".join(shell_seal.dropped_settings(os.environ, passing_patterns(plan), [prefix]))
    if not names:
        return ""
    return f"not read from your shell: {names}; `--arch-list`, `--jobs`, `--set NAME=VALUE` set such things"


def build_environment(context: BuildContext, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the build: what gets through from the user's shell, and the plan's variables.

    `ours` (compiler cache, gate) yields to both, so a cache that the user has set up stays the user's.
    """
    shell = shell_seal.sealed_variables(os.environ, passing_patterns(context.plan))
    places = {**context.placeholders, "PATH": visible_path(context)}
    planned = {
        name: fill_placeholders(value, places) for name, value in context.plan.variables.items()
    }
    return {**ours, **shell, **planned}


def visible_path(context: BuildContext) -> str:
    """Return the PATH of the user's shell as the build sees it: without CUDA there is no nvcc on it.

    PyTorch's build helper for extensions looks for nvcc on PATH, and many a setup.py compiles CUDA if it finds one:
    https://github.com/pytorch/pytorch/blob/main/torch/utils/cpp_extension.py
    """
    path = os.environ.get("PATH", os.defpath)
    if context.plan.cuda.toolkit is not None:
        return path
    return hide_nvcc(path, context.tree.folder / "without-nvcc")


def copy_source(tree: BuildTree, source: Source) -> None:
    """Make a fresh copy of the source; what was noted of the tree before goes."""
    notes = (tree.key_file, tree.interpreter_file, tree.external_inputs_file, tree.patched_file)
    delete_paths((*notes, tree.source))
    with report_unwritable(tree.folder):
        shutil.copytree(source.path, tree.source, symlinks=True, copy_function=copy_or_link)


def fill_placeholders(text: str, places: Mapping[str, str]) -> str:
    """Fill in the ${…} of a plan. Raises ConfigError for a name that stands for nothing."""
    try:
        return Template(text).substitute(places)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{text}: unknown placeholder {error} in build_configs", code="unknown-placeholder"
        ) from None
