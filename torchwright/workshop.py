"""What one session works with: the plan of its cell, and where its steps happen."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from torchwright import doctor, facts, host, plan, source
from torchwright import tree as trees
from torchwright.doctor.system import fetch_command
from torchwright.errors import HostError, SourceError
from torchwright.layout import Layout
from torchwright.matrix import Cell
from torchwright.model import Facts, Host, Options, Package, Plan, Source
from torchwright.options import parse
from torchwright.process import capture
from torchwright.toolchain import cache, sccache

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")
# Never the build's business.
FOREIGN = ("PYTHON*", "VIRTUAL_ENV", "PIP_FIND_LINKS", "LD_PRELOAD", "TORCHWRIGHT_GATE*")


@dataclass(frozen=True)
class Job:
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
    tools: Mapping[str, str]  # versions that change what is built

    @property
    def package(self) -> Package:
        """Return the facts of the package that is built."""
        return self.facts.packages[self.plan.build.package]

    @property
    def base(self) -> Package | None:
        """Return the package that this one is built against."""
        return self.facts.packages[self.package.after] if self.package.after else None

    @property
    def tree(self) -> trees.Tree:
        """Return the tree that the cell is built in."""
        return trees.Tree(self.layout.tree(self.plan.release.tag, self.plan.identifier))

    @property
    def python(self) -> Path:
        """Return the interpreter of the session's environment."""
        return in_environment(self.venv)

    @cached_property
    def key(self) -> str:
        """Return the digest of everything that can change the result; it reads the whole base wheel."""
        built_against = _base_digest(self)
        return trees.key(self.plan, self.source, self.facts.patches, {**self.tools, "base": built_against})

    @property
    def wheel(self) -> Path:
        """Return where the verified wheel appears."""
        return self.layout.dist / self.plan.wheel

    @property
    def log(self) -> Path:
        """Return the file that holds everything the build says."""
        return self.layout.logs / f"{self.plan.release.tag}-{self.plan.identifier}.log"

    @property
    def places(self) -> Mapping[str, str]:
        """Return what the ${…} of the plan stand for here."""
        home = self.host.toolkits.get(self.plan.build.cuda or "")
        return trees.places(self.tree, self.venv, self.python, self.facts.patches, home)


def begin(root: Path, cell: Cell, arguments: Sequence[str], venv: Path) -> Job:
    """Bring together what one session needs; nothing is changed yet.

    Raises SuiteError for everything that forbids the build before it starts.
    """
    layout = Layout.of(root)
    known = facts.chosen(root)
    machine = host.measure(layout.root)
    options = parse(arguments, f"nox -s {cell.build.identifier(machine.arch)} --")
    fetched = source.load(layout, cell.build.package, cell.release.tag)
    if fetched is None:
        raise SourceError(
            f"{cell.build.package} {cell.release.tag} is not fetched: run `{fetch_command(known, cell)}`"
        )
    source.check(fetched)
    computed = plan.compute(known, cell, machine, options, fetched)
    base, version = _interpreter(venv, cell.build.python)
    tools = {"compiler": str(machine.compiler or ""), "python": version}
    return Job(layout, known, machine, cell, options, fetched, computed, venv, base, tools)


def _interpreter(venv: Path, python: str) -> tuple[Path, str]:
    """Return the interpreter that the session's environment was made from, and what it says of itself.

    Raises HostError when the environment is not one that `python -m venv` made.
    """
    configuration = venv / "pyvenv.cfg"
    try:
        lines = configuration.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise HostError(f"{venv} is no virtual environment: delete it and run again") from None
    home = Path(next(line.partition("=")[2].strip() for line in lines if line.startswith("home")))
    names = (f"python{python}", "python3", "python", "python.exe")
    base = next((home / name for name in names if (home / name).exists()), in_environment(venv))
    version = capture([str(base), "-I", "-c", "import sys; print(sys.version.replace(chr(10), ' '))"])
    return base, version.strip()


def in_environment(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def missing_base(job: Job) -> list[str] | None:
    """Return nox's arguments for the build that must come first, None when its wheel is there."""
    if job.base is None or job.options.torch is not None or base_wheel(job) is not None:
        return None
    build, options = job.plan.build, job.options
    base = replace(build, package=job.base.name, session=job.base.session)
    arguments = ["-s", base.identifier(job.host.arch), "--", "--label", options.label]
    # Its variables are its own; how much may run at a time is the machine's, and the GPUs are the same.
    if options.arch_list:
        arguments += ["--arch-list", options.arch_list]
    if options.jobs:
        arguments += ["--jobs", str(options.jobs)]
    if options.memory:
        arguments += ["--memory", str(options.memory)]
    return arguments


def base_wheel(job: Job) -> Path | None:
    """Return the wheel in dist/ that a dependent package is built against."""
    if job.base is None or job.plan.torch is None:
        return None
    stem = job.plan.torch.replace("==", "-")
    pattern = f"{stem}-{plan.python_tag(job.plan.build.python)}-*.whl"
    return max(job.layout.dist.glob(pattern), default=None)


def _base_digest(job: Job) -> str:
    """Return the sha256 of the wheel that a dependent package is built against, "" where there is none."""
    own = Path(job.options.torch) if job.options.torch and job.options.torch != "PyPI" else None
    wheel = own or (base_wheel(job) if job.options.torch is None else None)
    if wheel is None:
        return ""
    with wheel.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def preflight(job: Job, note: Callable[[str], None]) -> None:
    """Refuse a build that cannot succeed on this machine; note what may go wrong with one that can.

    Raises HostError that lists everything missing.
    """
    machine = doctor.survey(job.facts, job.host, os.environ)
    if job.tree.source.exists():  # it has taken its room already
        machine = replace(machine, disk=None)
    findings = doctor.examine(job.facts, job.cell, machine, job.plan, job.source)
    if not doctor.can_start(findings):
        lines = "\n".join(f"  {one.sentence()}" for one in findings if one.verdict == "failure")
        raise HostError(f"{job.plan.identifier} cannot be built on this machine yet:\n{lines}")
    for one in findings:
        if one.verdict == "warning":
            note(one.sentence())


def caching(job: Job, note: Callable[[str], None]) -> Mapping[str, str]:
    """Return the variables that put the compiler cache of this machine to use; none where it has no place."""
    version = cache.ccache_version(job.host)
    variables = cache.environment(job.host, job.layout.root, job.layout.cache, version)
    for name in cache.FOLDERS & variables.keys() - os.environ.keys():
        if (why := cache.unwritable(Path(variables[name]))) is not None:
            note(
                f"{variables[name]} cannot be written ({why}): building without a compiler cache; "
                "XDG_CACHE_HOME=DIR gives it another place"
            )
            return {}
    if "SCCACHE_DIR" not in variables or job.host.system == "windows":
        return variables
    named = {os.environ.get("CC", "cc"), os.environ.get("CXX", "c++"), *job.host.compilers, *COMPILERS}
    compilers = sccache.found(named, os.environ.get("PATH"))
    stand_ins = job.layout.cache / "stand-ins"
    return sccache.by_the_gate(variables, job.host.tools["sccache"], compilers, stand_ins)


def environment(job: Job, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the build: the user's, less what would leak in, plus the plan's.

    `ours` (cache, gate) is there for what neither says: a cache that the user has set up stays the user's.
    """
    patterns = (*job.plan.unset, *FOREIGN)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    planned = {name: trees.resolve(value, job.places) for name, value in job.plan.set.items()}
    return {**ours, **kept, **planned}
