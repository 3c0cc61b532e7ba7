"""Builds of whole wheels from nothing, by three contenders.

Two contenders run the plan's shell script (`invoke plan --sh`), as somebody would who builds by hand: one without a
compiler cache, one with ccache as it is installed. The third is torchmill: `nox -s`.
"""

import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import results
import stand_in
from command_cost import CommandCost, CountingCompilers, measure_command

from torchmill.core.paths import Layout
from torchmill.fetch.source.source_dir import load_source
from torchmill.host import interpreters

ROOT = Path(__file__).parents[1]
NO_CACHE, CCACHE, OURS = "no cache", "ccache as it comes", "ours"
# Variables of the user that would change what is built, or by which compiler.
_UNWANTED_VARIABLES = (
    "CC",
    "CXX",
    "CCACHE_*",
    "SCCACHE_*",
    "TORCHMILL_*",
    "XDG_CACHE_HOME",
    "PYTHONPATH",
    "MAX_JOBS",
)


@dataclass(frozen=True, slots=True)
class Project:
    """A release that is built, its fetched source, and the facts by which it is built."""

    title: str
    tag: str
    variant: str  # such as "cpu"
    sources: Path  # the folder of fetched sources
    source: Path  # the source of the release
    facts_variables: Mapping[str, str] = field(default_factory=dict)  # that name its build_configs

    def session(self, python: str) -> str:
        """Return the name of the session of one wheel."""
        return f"wheel-{python}-{self.variant}"


@dataclass(frozen=True, slots=True)
class Site:
    """Where one contender works: a home that may be deleted between wheels, and a folder that is kept."""

    project: Project
    compilers: CountingCompilers
    home: Path
    kept: Path  # has the caches and logs

    def clean(self) -> None:
        """Delete everything but the caches and logs."""
        shutil.rmtree(self.home, ignore_errors=True)

    def build(
        self, contender: str, python: str, *session_options: str
    ) -> tuple[CommandCost, Path | None]:
        """Build a wheel; return the cost, and the wheel, or None if the build failed.

        `session_options` are given to torchmill's session after "--". If the build fails, the end of its log is
        printed to stderr.
        """
        state = self.home / ".torchmill"
        if not state.exists():
            state.mkdir(parents=True)
            (state / "sources").symlink_to(self.project.sources)
        self.kept.mkdir(parents=True, exist_ok=True)
        if contender == OURS:
            argv = [*self._session_command(python), *session_options]
            dist = self.home / "dist"
        else:
            argv = self._script_command(python)
            dist = self.home / "work" / "dist"
        earlier_wheels = set(dist.glob("*.whl"))
        log = self.kept / f"{contender} {python}.log".replace(" ", "-")
        cost = measure_command(argv, ROOT, self._environment(contender), self.compilers, log)
        wheels = set(dist.glob("*.whl")) - earlier_wheels
        if cost.code or len(wheels) != 1:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-2000:])
            return cost, None
        return cost, wheels.pop()

    def _session_command(self, python: str) -> list[str]:
        nox = [sys.executable, "-m", "nox", "--envdir", str(self.home / "envs")]
        return [*nox, "-s", self.project.session(python), "--"]

    def _script_command(self, python: str) -> list[str]:
        """Write the plan as a script, whose cost is not measured; return the command that runs it."""
        session = self.project.session(python)
        plan = subprocess.run(
            [sys.executable, "-m", "invoke", "plan", session, "--tag", self.project.tag, "--sh"],
            cwd=ROOT,
            env=self._environment(NO_CACHE),
            check=True,
            stdout=subprocess.PIPE,
        )
        script = self.kept / f"{session}.sh"
        script.write_bytes(plan.stdout)
        return ["bash", str(script)]

    def _environment(self, contender: str) -> dict[str, str]:
        environment = {}
        for name, value in os.environ.items():
            if not any(fnmatchcase(name, pattern) for pattern in _UNWANTED_VARIABLES):
                environment[name] = value
        path = interpreters.search_path()
        if contender == CCACHE:
            compilers = self.compilers.ccache_variables(self.kept / "ccache", path)
        else:
            compilers = self.compilers.variables()
        # The user's cache: no contender shall pay for downloads of requirements.
        pip_cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
        return {
            **environment,
            "PATH": path,
            "TORCHMILL_HOME": str(self.home),
            "TORCHMILL_TAG": self.project.tag,
            "XDG_CACHE_HOME": str(self.kept),
            "PIP_CACHE_DIR": pip_cache,
            # Read by the script. Its folder is the same for every Python: ccache hashes paths.
            "WORK": str(self.home / "work"),
            "SOURCE": str(self.project.source),
            "FIND_LINKS": str(self.home),
            **self.project.facts_variables,
            **compilers,
        }


def parser(docstring: str | None) -> ArgumentParser:
    """Return a parser with the options of all benchmarks of whole builds."""
    parser = results.parser(docstring)
    parser.add_argument(
        "--release", metavar="TAG", help="of torch, fetched; default: build a small stand-in"
    )
    parser.add_argument("--variant", default="cpu", help="of the release (default: cpu)")
    parser.add_argument("--units", type=int, default=300, help="of the stand-in (default: 300)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; torch needs 20 GiB there")
    return parser


def project(options: Namespace, folder: Path) -> Project:
    """Return the release that the options name, or a stand-in, which is written below `folder`."""
    if options.release:
        return torch_release(options.release, options.variant)
    return stand_in_project(folder, options.units)


def stand_in_project(folder: Path, units: int) -> Project:
    """Write and fetch the stand-in with so many units."""
    home = folder / "fetched"
    home.mkdir()
    facts_variables = {"TORCHMILL_CONFIGS": str(stand_in.SAMPLE / "build_configs")}
    environment = {
        **os.environ,
        **facts_variables,
        "TORCHMILL_HOME": str(home),
        "TORCHMILL_TAG": stand_in.TAG,
    }
    stand_in.fetch_source(stand_in.write_source(folder, units), environment)
    source, sources = _fetched_source(home, "tinytorch", stand_in.TAG)
    title = f"stand-in of {units} units"
    return Project(title, stand_in.TAG, "cpu", sources, source, facts_variables)


def torch_release(tag: str, variant: str) -> Project:
    """Return a release of torch that `invoke fetch` has fetched."""
    home = Path(os.environ.get("TORCHMILL_HOME") or ROOT)
    source, sources = _fetched_source(home, "torch", tag)
    return Project(f"torch {tag}, {variant}", tag, variant, sources, source)


def _fetched_source(home: Path, package: str, tag: str) -> tuple[Path, Path]:
    """Return the folder of a fetched source, and that of all sources. Exits if it is not fetched."""
    layout = Layout(home.resolve(), home)
    record = load_source(layout, package, tag)
    if record is None:
        sys.exit(f"{package} {tag} is not fetched: run `invoke fetch --tag {tag}`")
    return Path(record.path), layout.source(package).parent
