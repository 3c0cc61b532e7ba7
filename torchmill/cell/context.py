"""Everything that one session works with: plan, source, folders, interpreter and machine of a cell.

A context is made before a build starts and never changes. It also computes the keys of the cell:
digests of everything that can change a part of the result, by which a later run tells whether that
part is up to date.
"""

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from millguard.costs import KnownCost
from millguard.timeline import SUFFIX as TIMELINE_SUFFIX
from packaging.version import Version

from torchmill.cell import crossing
from torchmill.cell.folders import (
    BuildFolders,
    BuildTree,
    CellOutputs,
    find_shared_trees,
    shared_tree_folder,
)
from torchmill.cell.machine_inputs import collect_machine_inputs, describe_interpreter
from torchmill.cell.option_files import parse_options
from torchmill.cell.patches import read_patches
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release_lookup import selecting_tag
from torchmill.config.selection import selected_tag
from torchmill.core import locks
from torchmill.core.errors import SourceError
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.core.system_errors import report_unwritable
from torchmill.fetch.source import verification
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import load_source
from torchmill.host import environments
from torchmill.host.environments import base_interpreter, environment_python
from torchmill.host.host import Host
from torchmill.host.measurement import measure_basic_host, measure_host, with_named_compiler
from torchmill.host.native import native_arch
from torchmill.host.processor import resolve_processor
from torchmill.plan import (
    base_package,
    build_plan,
    cuda_toolkit,
    input_digests,
    wheel_name,
)
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.cell_lookup import fetch_command
from torchmill.plan.compile_costs import release_costs
from torchmill.plan.crossing import building_host, is_crossed
from torchmill.plan.local_gpus import with_local_gpus
from torchmill.plan.options import format_options
from torchmill.plan.plan import Plan
from torchmill.wheel import dist_files


@dataclass(frozen=True)
class BuildContext:
    """One cell on this machine."""

    layout: Layout
    facts: Facts
    host: Host  # measured in part, if the plan needs no more (`Host.complete`)
    cell: Cell
    options: Options
    source: Source
    plan: Plan
    venv: Path  # the session's environment
    interpreter: Path  # the base interpreter, for the clean environment of the checks
    interpreter_identity: Mapping[str, str]  # its version and the digests of its files, by name
    machine_inputs: Mapping[str, str]  # compilers, libraries and variables of the machine
    stat_cache: StatCache  # digests of files, output of programs

    @property
    def package(self) -> Package:
        """Return the facts of the package that is built."""
        return self.facts.packages[self.plan.build.package]

    @property
    def base(self) -> Package | None:
        """Return the package that this one is built against; None for the base package itself."""
        return self.facts.packages[self.package.after] if self.package.after else None

    @property
    def outputs(self) -> CellOutputs:
        """Return the folders of what the cell makes."""
        return CellOutputs(self.layout.tree(self.plan.release.tag, self.plan.identifier))

    @property
    def shares_tree(self) -> bool:
        """Tell whether the builds for all interpreters share one tree.

        All files of a package that is built against another one depend on the interpreter, and so
        it has a tree for each. Every package has on Windows, where not everybody may make the link
        to the environment that a shared tree needs.
        """
        return self.package.after is None and self.links_environment

    @property
    def links_environment(self) -> bool:
        """Tell whether the build sees its environment under the path of a link in the tree.

        The path of the environment itself differs between checkouts. A path in the tree lies below
        the base folder of the compiler cache, which takes such paths for the same everywhere.
        """
        return self.host.system != "windows"

    @cached_property
    def target(self) -> Path | None:
        """Return the folder of the environment with the target's torch; it need not exist yet.

        None if the build is not crossed.
        """
        if not self.plan.is_crossed:
            return None
        return crossing.target_environment(self.plan, self.layout.environments, self.stat_cache)

    @property
    def target_packages(self) -> Path | None:
        """Return the folder of packages in `target`; None if the build is not crossed."""
        if self.target is None:
            return None
        return environments.packages_folder(self.target, self.plan.build.python)

    def torch_packages(self, venv: Path) -> Path:
        """Return the folder of packages whose torch, if it has one, the build compiles against.

        It is that of the target, of the user's environment, or of the session's environment; `venv`
        is the path of the latter.
        """
        lent_packages = self.target_packages or self.plan.wheel.torch_folder
        return lent_packages or environments.packages_folder(venv, self.plan.build.python)

    @cached_property
    def tree(self) -> BuildTree:
        """Return the tree that the cell is built in."""
        if not self.shares_tree:
            return BuildTree(self.outputs.folder)
        trees = self.layout.trees / self.plan.release.tag
        return BuildTree(shared_tree_folder(trees, self.tree_family, self.tree_key))

    @property
    def tree_family(self) -> str:
        """Return the name of the family of cells that may share a tree: "wheel-cpu"."""
        return self.plan.build.family(self.host.arch)

    @property
    def folders(self) -> BuildFolders:
        """Return the folders that the build writes to."""
        return BuildFolders(self.tree.folder, self.outputs.folder, self.venv)

    @cached_property
    def tree_key(self) -> str:
        """Return the digest of everything that can change a shared tree."""
        return input_digests.tree_key(self.tree_inputs)

    @cached_property
    def tree_inputs(self) -> Mapping[str, str]:
        """Return, by name, everything that can change a shared tree.

        An interpreter is not among it: whatever depends on an interpreter is compiled anew for the
        next one.
        """
        patches = read_patches(self.plan, self.facts.patches)
        return input_digests.tree_inputs(self.plan, self.source, patches, self.machine_inputs)

    @cached_property
    def environment_key(self) -> str:
        """Return the digest of everything that decides what the session's environment holds.

        For a package that is built against another one, its base wheel is read as a whole.
        """
        options = self.options
        base: Path | None
        if self.base and options.torch_folder:
            # An installed package has no wheel any more. Its RECORD has the digests of its files:
            # https://packaging.python.org/en/latest/specifications/recording-installed-packages/
            base = base_package.installed_base(self.base.name, options).dist_info / "RECORD"
        elif options.torch is None:
            base = base_wheel(self)
        else:
            base = options.torch_wheel  # None for a torch that pip fetches from PyPI
        digest = (self.stat_cache.digest(base) if base else None) or ""
        inputs = {**self.interpreter_identity, "base": digest}
        return input_digests.environment_key(self.plan, inputs)

    @cached_property
    def compile_key(self) -> str:
        """Return the digest of everything that can change what is compiled."""
        return input_digests.compile_key(self.tree_key, self.environment_key, self.plan)

    @property
    def known_units(self) -> tuple[KnownCost, ...]:
        """Return the known costs of compiles of this package and release."""
        return release_costs(
            self.facts.costs.known_units, self.package.name, self.plan.release.version
        )

    @property
    def wheel(self) -> Path:
        """Return the path of the verified wheel, whether it is there already or not."""
        return dist_files.find_wheel(self.layout.dist, self.plan.wheel)

    @property
    def log(self) -> Path:
        """Return the file that takes everything that the build prints."""
        return self.layout.logs / f"{self.plan.release.tag}-{self.plan.identifier}.log"

    @property
    def timeline(self) -> Path:
        """Return the file in which the guard records the build."""
        return self.log.with_suffix(TIMELINE_SUFFIX)

    @property
    def placeholders(self) -> Mapping[str, str]:
        """Return the values of the placeholders ${…} in the plan, on this machine."""
        venv = self.tree.env if self.links_environment else self.venv
        places = {
            "tree": str(self.tree.folder),
            "source": str(self.tree.source),
            "raw": str(self.outputs.raw),
            # A tree of one interpreter has no kit: its tools are installed in the environment.
            "kit": str(self.tree.kit if self.shares_tree else venv),
            "venv": str(venv),
            "python": str(environment_python(venv)),
            "patches": str(self.facts.patches),
            "home": str(Path.home()),
            "python_home": str(self.interpreter.resolve().parent.parent),
        }
        if self.base is not None:
            places["torch_packages"] = str(self.torch_packages(venv))
        if self.target_packages is not None:
            places["crossing"] = str(crossing.CROSSED_PYTHON)
            places["target"] = str(self.target_packages)
        return places | cuda_toolkit.cuda_placeholders(self.plan, self.host)


def create_context(
    root: Path, facts: Facts, cell: Cell, arguments: Sequence[str], venv: Path
) -> BuildContext:
    """Return the context of a build; nothing is changed for it.

    `arguments` are the session's options, and `venv` is its environment. Only as much of the
    machine is measured as the plan needs, because often there is nothing to build: `build_wheel`
    measures the rest. With `--help` among the options, the program prints their help and ends.
    Raises TorchmillError for everything that the plan forbids.
    """
    layout = Layout.of_checkout(root)
    stat_cache = StatCache(layout.stat_cache)
    options = parse_options(arguments, f"nox -s {cell.build.identifier(cell.build.arch)} --")
    # Only then does the plan depend on the machine's compilers and toolkits.
    crosses = is_crossed(facts, cell.build, native_arch())
    needs_compilers = bool(cell.build.cuda) or "CXX" in options.settings or crosses
    if needs_compilers:
        host = measure_host(layout.root, gpus=bool(cell.build.cuda))
    else:
        host = measure_basic_host(stat_cache)
    host = building_host(facts, cell.build, host)
    host = with_named_compiler(host, options.settings, os.environ)
    processor = resolve_processor(facts, cell.build.arch, host, options.cpu, options.settings)
    options = replace(options, processor=processor)
    options = with_local_gpus(facts, cell, host, options)
    source = require_source(layout, facts, cell)
    verification.verify_source(source, stat_cache)
    plan = build_plan.compute_plan(facts, cell, host, options, source)
    interpreter = base_interpreter(venv, cell.build.python)
    return BuildContext(
        layout=layout,
        facts=facts,
        host=host,
        cell=cell,
        options=options,
        source=source,
        plan=plan,
        venv=venv,
        interpreter=interpreter,
        interpreter_identity=describe_interpreter(interpreter, stat_cache),
        machine_inputs=collect_machine_inputs(host, plan, os.environ, stat_cache),
        stat_cache=stat_cache,
    )


@contextlib.contextmanager
def hold_cell(context: BuildContext) -> Iterator[None]:
    """Hold the locks of the cell's folder and environment; in the end save the digests of files.

    Raises BusyError if another run holds one of the locks. An error of the disk inside becomes one
    that names the folder which cannot be written.
    """
    identifier = context.plan.identifier
    layout = context.layout
    other_folders = (layout.dist, layout.logs, layout.cache, Path(tempfile.gettempdir()))
    with (
        locks.hold_work_folder(context.outputs.folder, identifier),
        environments.hold_environment(context.venv, identifier),
        report_unwritable(context.outputs.folder, *other_folders),
    ):
        try:
            yield
        finally:
            context.stat_cache.save()


def require_source(layout: Layout, facts: Facts, cell: Cell) -> Source:
    """Return the source of a cell.

    Raises SourceError, with the command that fetches it, if it is not there.
    """
    source = load_source(layout, cell.build.package, cell.release.tag)
    if source is None:
        selection = "" if selected_tag(layout) else "no release is selected, and "
        raise SourceError(
            f"{selection}{cell.build.package} {cell.release.tag} is not fetched: run `{fetch_command(facts, cell)}`",
            code="source-not-fetched",
        )
    return source


def has_finished_tree(layout: Layout, facts: Facts, cell: Cell, native: str) -> bool:
    """Tell whether a tree that the cell may share holds a build that ended well.

    False for a package that is built against another one: its cells share no tree. `native` is this
    machine's arch.
    """
    if facts.packages[cell.build.package].after:
        return False
    for folder in find_shared_trees(layout.trees / cell.release.tag, cell.build.family(native)):
        tree = BuildTree(folder)
        if tree.key_file.exists() and not tree.unfinished_file.exists():
            return True
    return False


def missing_sessions(context: BuildContext) -> Iterator[list[str]]:
    """Yield nox's arguments for each session whose wheel this build needs and dist/ lacks.

    To be compiled, a package needs the wheel of its base package. To be checked, it needs the
    wheels of the packages that it imports.
    """
    build = context.plan.build
    # The other sessions get the options about the machine and its GPUs. Variables, patches and
    # shares are meant for one package.
    shared = replace(context.options, settings={}, patches={}, shard=None, parts=None)
    words = format_options(shared)
    packages = []
    if context.base and context.options.torch is None and base_wheel(context) is None:
        packages.append(context.base)
    for name in context.package.checks.imports:
        package = context.facts.packages[name]
        if imported_wheel(context, package) is None:
            packages.append(package)
    for package in packages:
        needed = replace(build, package=package.name, session=package.session)
        separator = ["--"] if words else []
        yield ["-s", needed.identifier(context.host.arch), *separator, *words]


def base_wheel(context: BuildContext) -> Path | None:
    """Return the wheel in dist/ that a dependent package is built against; None if there is none.

    This is the wheel for a build without `--torch`: the option is not looked at.
    """
    if context.base is None or context.plan.wheel.torch is None:
        return None
    version = context.plan.wheel.torch.partition("==")[2]
    return _wheel_in_dist(context, context.base, version)


def imported_wheel(context: BuildContext, package: Package) -> Path | None:
    """Return the wheel in dist/ of another package that this one imports; None if there is none.

    Wheels with the same local label ("+cpu.torch2.11.0") are for the same torch.
    """
    _, plus, label = context.plan.wheel.version.partition("+")
    return _wheel_in_dist(context, package, f"*{plus}{label}")


def session_command(context: BuildContext, *options: str) -> str:
    """Return the whole command that runs this session again, with its options and further ones.

    The release is named if another one is selected.
    """
    tag = selecting_tag(context.facts, context.cell.release)
    variables = [] if selected_tag(context.layout) == tag else [f"TORCHMILL_TAG={tag}"]
    words = [*format_options(context.options), *options]
    separator = ["--"] if words else []
    return shlex.join([*variables, "nox", "-s", context.plan.identifier, *separator, *words])


def _wheel_in_dist(context: BuildContext, package: Package, version: str) -> Path | None:
    """Return the newest undamaged wheel of a package in dist/, or None; `version` is a glob."""
    build = context.plan.build
    # The pattern names the architecture, because containers put wheels for other machines here.
    python = wheel_name.python_tag(build.python)
    pattern = f"{wheel_name.distribution_name(package)}-{version}-{python}-*_{build.arch}.whl"
    wheels = []
    for wheel in context.layout.dist.glob(pattern):
        if _is_undamaged(wheel, context.stat_cache):
            wheels.append(wheel)
    # Of one version with several platform tags, the last by name is taken.
    return max(wheels, key=lambda wheel: (_version_of(wheel), wheel.name), default=None)


def _version_of(wheel: Path) -> Version:
    """Return the version in a wheel's file name, which lies between its first two hyphens."""
    return Version(wheel.name.split("-")[1])


def _is_undamaged(wheel: Path, stat_cache: StatCache) -> bool:
    """Tell whether a wheel has the digest in its manifest; True without one, as if from elsewhere."""
    sha256 = dist_files.read_manifest(wheel).get("sha256")
    return sha256 is None or sha256 == stat_cache.digest(wheel)
