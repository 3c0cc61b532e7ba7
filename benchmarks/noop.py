"""What it costs to build what is built: nox here, setup.py and `python -m build` in the finished tree.

python benchmarks/noop.py --results FILE; python benchmarks/noop.py --render FILE

Without --home the embedded sample is built first, in a folder of its own. With --home HOME (where
.torchmill and dist/ are; the checkout itself, say) and --session the wheel that is there is options for, and
the others run in the tree that it was made in: they compile nothing, and leave their own wheel elsewhere.
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

Asked = tuple[Sequence[str], Path, Mapping[str, str]]  # a command, where it runs, its environment


@dataclass(frozen=True, slots=True)
class Finished:
    """A wheel that is built: where, and how to ask for it."""

    home: Path
    session: str
    nox: Sequence[str]
    env: Mapping[str, str]
    venv: Path

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Return what is told of the wheel."""
        found = (
            json.loads(path.read_text(encoding="utf-8"))
            for path in self.home.glob("dist/*.whl.json")
        )
        return next(one for one in found if one["identifier"] == self.session)

    @property
    def tree(self) -> Path:
        """Return the tree that it was made in last."""
        trees = self.home / ".torchmill" / "trees" / str(self.manifest["tag"])
        return max(trees.glob("*/source"), key=lambda path: path.stat().st_mtime).parent


def sample(folder: Path) -> Finished:
    """Build the sample."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    configs, upstream = ROOT / "sample" / "build_configs", folder / "upstream"
    env = {**os.environ, "TORCHMILL_HOME": str(folder / "home"), "TORCHMILL_CONFIGS": str(configs)}
    env["XDG_CACHE_HOME"] = str(folder / "cache")
    fetch = ("fetch", "--tag=v1.0.0", "--all", f"--mirror=file://{upstream}")
    for argv in (["sample/upstream.py", str(upstream)], ["-m", "invoke", *fetch]):
        subprocess.run([sys.executable, *argv], cwd=ROOT, env=env, check=True, capture_output=True)
    finished = there(folder / "home", f"wheel-{python}-cpu", folder / "envs", env)
    subprocess.run(finished.nox, cwd=ROOT, env=env, check=True, capture_output=True)
    return finished


def there(home: Path, session: str, envs: Path, env: Mapping[str, str]) -> Finished:
    """Return a wheel that was built before."""
    nox = (sys.executable, "-m", "nox", "--envdir", str(envs), "-s", session)
    return Finished(home, session, nox, env, envs / session.replace(".", "-"))


def variables(finished: Finished, builder: Path) -> dict[str, str]:
    """Return the environment of the build that made the wheel, in which `python -m build` is found too."""
    tree = finished.tree
    places = {"tree": tree, "source": tree / "source", "kit": tree / "kit", "venv": finished.venv}
    said = {name: Template(text) for name, text in finished.manifest["switches"].items()}
    planned = {
        name: text.safe_substitute(places, PATH=os.environ["PATH"]) for name, text in said.items()
    }
    return {**finished.env, **planned, "PYTHONPATH": str(builder)}


def contenders(
    finished: Finished, scratch: Path
) -> Mapping[str, tuple[Sequence[str], Path, Mapping[str, str]]]:
    """Return for each contender its command, where it runs, and its environment."""
    builder, python = scratch / "builder", str(finished.venv / "bin" / "python")
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(builder), "build")
    subprocess.run(install, check=True)
    source, env, made = (
        finished.tree / "source",
        variables(finished, builder),
        str(scratch / "made"),
    )
    isolated = ("--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", made)
    return {
        OURS: (finished.nox, ROOT, finished.env),
        SETUP: ((python, "setup.py", "bdist_wheel", "--dist-dir", made), source, env),
        BUILD: ((python, "-m", "build", *isolated), source, env),
    }


def run(options: Namespace) -> None:
    """Ask each contender in turn for what is there."""
    with tempfile.TemporaryDirectory(prefix="noop-") as name:
        folder = Path(name)
        if options.home is None:
            finished = sample(folder)
        else:
            home = options.home.resolve()
            moved = {**os.environ, "TORCHMILL_HOME": str(home)}
            finished = there(
                home, options.session, (options.envs or home / ".nox").resolve(), moved
            )
        entries = contenders(finished, folder)
        for argv, cwd, env in entries.values():  # the first time of each is another matter
            _time(argv, cwd, env)
        for number in range(options.rounds):
            for contender, (argv, cwd, env) in entries.items():
                busy = results.busy_share()
                wheel = finished.manifest["wheel"]
                row = {"contender": contender, "wheel": wheel, "round": number, "busy": busy}
                results.record(options.results, {**row, **_time(argv, cwd, env)})


def _time(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> dict[str, object]:
    """Run a command; return what it took, its children included, and whether it did as it should."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
    return {"seconds": seconds, "cpu": cpu, "good": done.returncode == 0}


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender of each wheel."""
    for wheel, of_wheel in results.grouped(rows, "wheel").items():
        found = results.grouped((row for row in of_wheel if row["good"]), "contender")
        slow = [row["seconds"] for row in found.get(BUILD, [])]
        for contender, runs in found.items():
            seconds, cpu = [row["seconds"] for row in runs], [row["cpu"] for row in runs]
            share = f"{statistics.median(seconds) / statistics.median(slow):.1%}" if slow else "-"
            yield wheel, contender, len(runs), results.spread(seconds), results.spread(cpu), share


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ("wheel", "options of", "runs", "seconds", "of processors", f"of `{BUILD}`")
    yield results.table(heads, lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--home", type=Path, help="where a wheel was built before; else the sample is built"
    )
    parser.add_argument("--session", default="wheel-3.10-cpu", help="of that wheel")
    parser.add_argument(
        "--envs", type=Path, help="nox's environments, where they are not in HOME/.nox"
    )
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
