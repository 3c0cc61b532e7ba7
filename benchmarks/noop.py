"""What it costs to build what is already built: torchmill's nox, setup.py and `python -m build` in the same tree.

python benchmarks/noop.py --results FILE; python benchmarks/noop.py --render FILE

Without --home the sample is built first, in a folder of its own. With --home HOME (the folder that has .torchmill and
dist/, for example the checkout) and --session, nox is asked for a wheel that is already in HOME. The other two run in
the tree of that wheel: they compile nothing, and write their wheels elsewhere.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import results
from results import Row

ROOT = Path(__file__).parents[1]
OURS, SETUP, BUILD = "nox", "setup.py bdist_wheel", "python -m build"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, the folder it runs in, and its environment."""

    argv: Sequence[str]
    folder: Path
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BuiltWheel:
    """A wheel that was built before, and its session."""

    home: Path
    session: str
    envs: Path  # nox's environments
    env: Mapping[str, str]  # variables of the session

    @property
    def nox(self) -> Sequence[str]:
        """The command that asks for the wheel again."""
        return (sys.executable, "-m", "nox", "--envdir", str(self.envs), "-s", self.session)

    @property
    def venv(self) -> Path:
        """The session's environment."""
        return self.envs / self.session.replace(".", "-")

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The wheel's manifest, the JSON document beside it."""
        for path in self.home.glob("dist/*.whl.json"):
            manifest: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if manifest["identifier"] == self.session:
                return manifest
        sys.exit(f"{self.home / 'dist'} has no wheel of {self.session}: build it first")

    @property
    def tree(self) -> Path:
        """The tree in which the wheel was built last."""
        trees = self.home / ".torchmill" / "trees" / str(self.manifest["tag"])
        return max(trees.glob("*/source"), key=lambda path: path.stat().st_mtime).parent


def build_sample(folder: Path) -> BuiltWheel:
    """Fetch and build the sample below a folder."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    upstream = folder / "upstream"
    env = {
        **os.environ,
        "TORCHMILL_HOME": str(folder / "home"),
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    wheel = BuiltWheel(folder / "home", f"wheel-{python}-cpu", folder / "envs", env)
    fetch = ("fetch", "--tag=v1.0.0", "--all", f"--mirror=file://{upstream}")
    for argv in (
        [sys.executable, "sample/upstream.py", str(upstream)],
        [sys.executable, "-m", "invoke", *fetch],
        wheel.nox,
    ):
        subprocess.run(argv, cwd=ROOT, env=env, check=True, capture_output=True)
    return wheel


def build_variables(wheel: BuiltWheel, builder: Path) -> dict[str, str]:
    """Return the variables with which the wheel was compiled, as its manifest records them.

    `builder` is a folder with the package `build`, which these variables make importable.
    """
    tree = wheel.tree
    places = {"tree": tree, "source": tree / "source", "kit": tree / "kit", "venv": wheel.venv}
    variables = dict(wheel.env)
    for name, text in wheel.manifest["switches"].items():
        variables[name] = Template(text).safe_substitute(places, PATH=os.environ["PATH"])
    variables["PYTHONPATH"] = str(builder)
    return variables


def contender_commands(wheel: BuiltWheel, scratch: Path) -> Mapping[str, Command]:
    """Return the command of each contender; installs the package `build` below `scratch`."""
    builder, output = scratch / "builder", str(scratch / "made")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(builder), "build")
    subprocess.run(pip, check=True)
    python = str(wheel.venv / "bin" / "python")
    source, env = wheel.tree / "source", build_variables(wheel, builder)
    setup = (python, "setup.py", "bdist_wheel", "--dist-dir", output)
    # In the session's environment, which has the requirements: another one would be made anew each time.
    build_options = ("--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", output)
    return {
        OURS: Command(wheel.nox, ROOT, wheel.env),
        SETUP: Command(setup, source, env),
        BUILD: Command((python, "-m", "build", *build_options), source, env),
    }


def run(options: Namespace) -> None:
    """Time each contender in turn."""
    with tempfile.TemporaryDirectory(prefix="noop-") as name:
        folder = Path(name)
        if options.home is None:
            wheel = build_sample(folder)
        else:
            home = options.home.resolve()
            envs = (options.envs or home / ".nox").resolve()
            env = {**os.environ, "TORCHMILL_HOME": str(home)}
            wheel = BuiltWheel(home, options.session, envs, env)
        commands = contender_commands(wheel, folder)
        for command in commands.values():
            _time(command)  # the first run writes files that later ones find
        for number in range(options.rounds):
            for contender, command in commands.items():
                row = {
                    "contender": contender,
                    "wheel": wheel.manifest["wheel"],
                    "round": number,
                    "busy": results.busy_share(),
                }
                results.record(options.results, {**row, **_time(command)})


def _time(command: Command) -> dict[str, object]:
    """Run a command; return its seconds, the processor seconds of all its processes, and whether it succeeded."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.run(
        command.argv,
        cwd=command.folder,
        env=command.env,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if process.returncode:
        sys.stderr.write(process.stdout[-2000:] + process.stderr[-2000:])
    return {"seconds": seconds, "cpu": cpu, "good": process.returncode == 0}


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender of each wheel."""
    good = [row for row in rows if row["good"]]
    for wheel, wheel_runs in results.grouped(good, "wheel").items():
        by_contender = results.grouped(wheel_runs, "contender")
        build_seconds = [row["seconds"] for row in by_contender.get(BUILD, [])]
        for contender, runs in by_contender.items():
            seconds = [row["seconds"] for row in runs]
            ratio = "-"
            if build_seconds:
                ratio = f"{statistics.median(seconds) / statistics.median(build_seconds):.1%}"
            cpu = results.spread([row["cpu"] for row in runs])
            yield wheel, contender, len(runs), results.spread(seconds), cpu, ratio


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ("wheel", "asked of", "runs", "seconds", "of processors", f"of `{BUILD}`")
    yield results.table(heads, lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--home", type=Path, help="folder of a wheel that was built before; default: build a sample"
    )
    parser.add_argument("--session", default="wheel-3.10-cpu", help="of that wheel")
    parser.add_argument("--envs", type=Path, help="nox's environments; default: HOME/.nox")
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
