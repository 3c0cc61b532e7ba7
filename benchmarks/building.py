"""Wheels made from nothing: by hand, as a plan's shell script does it, with and without ccache, and by us."""

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
import spent
import stand_in
from spent import Compilers, Spent

from torchmill.core.paths import Layout
from torchmill.fetch.source.source_dir import load_source
from torchmill.host import interpreters

ROOT = Path(__file__).parents[1]
CLEAN, CCACHE, OURS = "no cache", "ccache as it comes", "ours"
_FOREIGN = (
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
    """What is built: a release, whose source is fetched, and the facts that it is built by."""

    title: str
    tag: str
    variant: str
    sources: Path  # the folder of fetched sources
    source: Path
    facts: Mapping[str, str] = field(default_factory=dict)  # variables that say where they are

    def session(self, python: str) -> str:
        """Return the name of the session of one wheel."""
        return f"wheel-{python}-{self.variant}"


@dataclass(frozen=True, slots=True)
class Site:
    """Where one contender works: a home that may be deleted between wheels, and what outlives it."""

    project: Project
    compilers: Compilers
    home: Path
    kept: Path

    def clean(self) -> None:
        """Delete everything but the caches."""
        shutil.rmtree(self.home, ignore_errors=True)

    def build(self, contender: str, python: str, *words: str) -> tuple[Spent, Path | None]:
        """Make a wheel, ours with these words after --; return what it took, and the wheel, None where that failed."""
        state = self.home / ".torchmill"
        if not state.exists():
            state.mkdir(parents=True)
            (state / "sources").symlink_to(self.project.sources)
        self.kept.mkdir(parents=True, exist_ok=True)
        if contender == OURS:
            argv, dist = [*self._session(python), *words], self.home / "dist"
        else:
            argv, dist = self._script(python), self.home / "work" / "dist"
        before = set(dist.glob("*.whl"))
        log = self.kept / f"{contender} {python}.log".replace(" ", "-")
        took = spent.spend(argv, ROOT, self._environment(contender), self.compilers, log)
        made = set(dist.glob("*.whl")) - before
        if took.code or len(made) != 1:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-2000:])
            return took, None
        return took, made.pop()

    def _session(self, python: str) -> list[str]:
        envs = str(self.home / "envs")
        return [
            sys.executable,
            "-m",
            "nox",
            "--envdir",
            envs,
            "-s",
            self.project.session(python),
            "--",
        ]

    def _script(self, python: str) -> list[str]:
        """Write the plan as a script, which is not what is measured; return how it is run."""
        name = self.project.session(python)
        argv = [sys.executable, "-m", "invoke", "plan", name, "--tag", self.project.tag, "--sh"]
        environment = self._environment(CLEAN)
        text = subprocess.run(
            argv, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE
        ).stdout
        script = self.kept / f"{name}.sh"
        script.write_bytes(text)
        return ["bash", str(script)]

    def _environment(self, contender: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not any(fnmatchcase(name, pattern) for pattern in _FOREIGN)
        }
        pip = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
        path = interpreters.search_path()
        compilers = self.compilers.as_they_are()
        if contender == CCACHE:
            compilers = self.compilers.by_ccache(self.kept / "ccache", path)
        own = {
            "PATH": path,
            "TORCHMILL_HOME": str(self.home),
            "TORCHMILL_TAG": self.project.tag,
            "XDG_CACHE_HOME": str(self.kept),
            "PIP_CACHE_DIR": pip,  # the network is no part of the contest
            "WORK": str(
                self.home / "work"
            ),  # the same for every Python: a cache may know files by their paths
            "SOURCE": str(self.project.source),
            "FIND_LINKS": str(self.home),
        }
        return {**kept, **own, **self.project.facts, **compilers}


def parser(text: str | None) -> ArgumentParser:
    """Return a parser of what all benchmarks of whole builds take."""
    made = results.parser(text)
    made.add_argument(
        "--release", metavar="TAG", help="of torch, fetched; without it a stand-in is built"
    )
    made.add_argument("--variant", default="cpu")
    made.add_argument("--units", type=int, default=300, help="of the stand-in")
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--folder", type=Path, help="where to work; torch needs 20 GiB there")
    return made


def project(options: Namespace, folder: Path) -> Project:
    """Return what the command line says is to be built."""
    return (
        real(options.release, options.variant) if options.release else small(folder, options.units)
    )


def small(folder: Path, units: int) -> Project:
    """Make and fetch the stand-in with so many units."""
    home, facts = folder / "fetched", {"TORCHMILL_CONFIGS": str(stand_in.SAMPLE / "build_configs")}
    home.mkdir()
    environment = {
        **os.environ,
        **facts,
        "TORCHMILL_HOME": str(home),
        "TORCHMILL_TAG": stand_in.TAG,
    }
    stand_in.fetch(stand_in.write(folder, units), environment)
    title = f"stand-in of {units} units"
    return _fetched(title, home, ("tinytorch", stand_in.TAG), "cpu", facts)


def real(tag: str, variant: str) -> Project:
    """Take a release of torch that this checkout has fetched."""
    home = Path(os.environ.get("TORCHMILL_HOME") or ROOT)
    return _fetched(f"torch {tag}, {variant}", home, ("torch", tag), variant, {})


def _fetched(
    title: str, home: Path, release: tuple[str, str], variant: str, facts: Mapping[str, str]
) -> Project:
    layout = Layout(home.resolve(), home)
    package, tag = release
    found = load_source(layout, package, tag)
    if found is None:
        sys.exit(f"{package} {tag} is not fetched: run `invoke fetch --tag {tag}`")
    sources = layout.source(package).parent
    return Project(title, tag, variant, sources, Path(found.path), facts)
