"""Commands that are killed at a random instant: given again, each must end in what it makes undisturbed.

A *door* is one such command with what it works on: a fetch, the installation of a toolkit, a search for a bad
commit, the scripts for a cluster, an edited project file, a share of a build, a build that takes its shares.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from press_support import written_wheels

from tests.faults.kills import (
    draw_kill,
    list_files,
    make_upstream,
    remove,
    wait_for_last_process,
)
from tests.faults.tally import RIGHT, Tally
from tests.support.commands import ROOT, start
from tests.support.index_server import Index, serving
from tests.support.nvidia_wheels import put, wheel
from tests.support.sampled import THIS, Sample, fetched
from tests.support.searched import make_history
from torchmill.core.paths import FACTS_FILES, STAT_CACHE
from torchmill.fetch.source.tree import digest_contents
from torchmill.host import provisioned
from torchmill.host.native import native_arch

CELL = f"wheel-{THIS}-cpu"
_LONGEST_SECONDS = 1800.0  # for a command that nobody kills, on a machine that others use as well
_LIBRARY_BYTES = 6 << 20  # of random bytes, so that unpacking takes a while

Results = Mapping[str, str]  # what a command made: names, and digests or texts


@dataclass(frozen=True)
class Door:
    """A command, and what it must have made when it ended."""

    home: Path
    argv: Sequence[str]
    env: Mapping[str, str]
    read_results: Callable[[str], Results]  # takes the command's output
    reset: Callable[[], None]  # takes the results of earlier runs away
    extra_places: Sequence[Path] = field(default=())  # outside the home, where litter may lie

    def start(self) -> subprocess.Popen[str]:
        """Start the command in a session of its own."""
        return start(self.argv, self.home, self.env)

    def finish(self) -> Results:
        """Run the command to its end; return its results. Raises CalledProcessError, TimeoutExpired."""
        run = self.start()
        try:
            output, _ = run.communicate(timeout=_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise
        if run.returncode:
            raise subprocess.CalledProcessError(run.returncode, self.argv, output)
        return self.read_results(output)

    def files(self) -> set[str]:
        """Return all files in the home and in the further places, but for what is merely remembered."""
        found = list_files(self.home)
        for place in self.extra_places:
            found |= {f"{place.name}/{name}" for name in list_files(place)}
        # Facts that were written a moment ago are remembered by a later command, not by the first.
        # A fetch that goes on has other packs than one in a single piece: git names them by contents.
        return {
            name
            for name in found
            if Path(name).name not in {*FACTS_FILES, STAT_CACHE}
            and "/.git/objects/pack/" not in name
        }


def attack_door(name: str, count: int, seed: int) -> Tally:
    """Kill `count` runs of the command that a door names; after each, give the same command again."""
    chance, tally = random.Random(f"{seed} {name}"), Tally(f"kills of {name}")  # noqa: S311 - no secret
    # A shell's `&` sets SIGINT to be ignored, which all programs started here would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, DOORS[name](Path(folder)) as door:
        expected = door.finish()
        usual_files = door.files()
        door.reset()
        start = time.monotonic()
        door.finish()
        undisturbed_seconds = time.monotonic() - start
        usual_files |= door.files()
        for _ in range(count):
            kill = draw_kill(chance, undisturbed_seconds)
            door.reset()
            run = door.start()
            tally.notes[kill.carry_out(run)] += 1
            tally.add(str(kill), _finish_after_kill(run, door, expected, usual_files))
    return tally


def _finish_after_kill(
    run: subprocess.Popen[str], door: Door, expected: Results, usual_files: set[str]
) -> str:
    """Wait for the processes of a killed command, give it again, and return the outcome."""
    if complaint := wait_for_last_process(door.home):
        return complaint
    output, _ = run.communicate()
    if is_our_traceback(output):
        return f"a traceback: {output[-500:]}"
    try:
        results = door.finish()
    except subprocess.TimeoutExpired:
        return f"the same command did not end within {_LONGEST_SECONDS:.0f} s"
    except subprocess.CalledProcessError as error:
        return f"the same command ended with {error.returncode}: {error.output[-500:]}"
    if results != expected:
        changed = {
            name for name in {*results, *expected} if results.get(name) != expected.get(name)
        }
        return f"other results: {sorted(changed)[:5]}"
    litter = door.files() - usual_files
    return f"left behind: {sorted(litter)[:5]}" if litter else RIGHT


def is_our_traceback(output: str) -> bool:
    """Tell if an output has a traceback that passes through torchmill's code.

    An interrupt while Python still imports invoke or nox is shown by these as a traceback of their own.
    """
    _, begin, traceback = output.partition("Traceback (most recent call last)")
    files = re.findall(r'File "([^"]+)"', traceback) if begin else []
    return any(file.startswith(str(ROOT)) and "site-packages" not in file for file in files)


def digests(folder: Path) -> Results:
    """Return the sha256 of each file below a folder, by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copied_facts(folder: Path) -> Path:
    """Copy the facts of the sample into a folder of their own."""
    return Path(shutil.copytree(ROOT / "sample" / "build_configs", folder / "build_configs"))


@contextlib.contextmanager
def fetch_door(folder: Path) -> Iterator[Door]:
    """Fetch the sample and what goes with it from repositories on this machine."""
    upstream, home = make_upstream(folder), folder / "home"
    home.mkdir()
    state = home / ".torchmill"

    def read_results(_: str) -> Results:
        trees = sorted(state.glob("sources/*/v1.0.0/tree"))
        results = {tree.parts[-3]: digest_contents(tree) for tree in trees}
        records = state.glob("sources/*/v1.0.0/source.json")
        commits = {path.parts[-3]: json.loads(path.read_text())["commit"] for path in records}
        selected = (state / "selected.json").read_text()
        return (
            results
            | {f"{name}'s commit": commit for name, commit in commits.items()}
            | {"selected": selected}
        )

    yield Door(
        home,
        ("invoke", "fetch", "--tag=v1.0.0", "--all", f"--mirror=file://{upstream}"),
        {"TORCHMILL_CONFIGS": str(copied_facts(folder))},
        read_results,
        lambda: remove(state / "sources", state / "selected.json"),
    )


@contextlib.contextmanager
def toolkit_door(folder: Path) -> Iterator[Door]:
    """Install a made-up toolkit of three wheels from an index on this machine."""
    home, noise = folder / "home", random.Random(0)  # noqa: S311 - no secret
    home.mkdir()
    configs = copied_facts(folder)
    (configs / "toolkits.toml").write_text(
        (ROOT / "build_configs" / "toolkits.toml").read_text("utf-8"), encoding="utf-8"
    )
    (configs / "toolkit_sources.toml").write_text(
        '[[pypi]]\nkind = "toolkit"\nversions = ["13.0"]\n'
        'packages = ["nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-runtime==13.0.96", "nvidia-nvvm==13.0.88"]\n'
        f'arches = ["{native_arch()}"]\nglibc = "2.17"\nsource = "made up"\n',
        encoding="utf-8",
    )
    index = Index()
    library = noise.randbytes(_LIBRARY_BYTES).hex()
    nvcc = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
    parts = {
        "nvidia_cuda_nvcc-13.0.88": {"bin/nvcc": nvcc, "bin/nvcc.profile": "TOP = .."},
        "nvidia_cuda_runtime-13.0.96": {
            "include/cuda.h": "",
            "include/cuda_runtime_api.h": "",
            "lib/libcudart.so.13": library,
        },
        "nvidia_nvvm-13.0.88": {"nvvm/bin/cicc": "#!/bin/sh\n", "lib/libnvvm.so.4": library},
    }
    for name, files in parts.items():
        content = wheel("nvidia/cu13", files, name=name)
        put(index, f"{name}-py3-none-manylinux1_{native_arch()}.whl", content)
    cache = home / "cache" / "torchmill"

    def read_results(_: str) -> Results:
        installed = cache / "toolkits" / f"13.0-{native_arch()}"
        results = dict(digests(installed))
        record = json.loads((installed / provisioned.RECORD).read_text("utf-8"))
        del record["made"]  # when
        return results | {provisioned.RECORD: json.dumps(record)}

    with serving(index):
        yield Door(
            home,
            ("invoke", "toolkit", "--cuda=13.0", "--from=pypi"),
            {"TORCHMILL_CONFIGS": str(configs), "PIP_INDEX_URL": index.url},
            read_results,
            lambda: remove(cache / "toolkits", cache / "downloads"),
        )


@contextlib.contextmanager
def bisect_door(folder: Path) -> Iterator[Door]:
    """Search the commit of the sample whose sums are wrong, by builds."""
    home = folder / "home"
    home.mkdir()
    history = make_history(make_upstream(folder), folder / "searched", length=4, breaks=3)
    words = ("bisect", CELL, "--good=v1.0.0", "--bad=main", "--trust-ends", history.mirror)
    check = "import sys, tinytorch; sys.exit(tinytorch.total([1.0, 2.0]) != 3.0)"

    def read_results(output: str) -> Results:
        found = [line for line in output.splitlines() if line.startswith("  ") and "change" in line]
        return {"first bad commit": "\n".join(found)}

    yield Door(
        home,
        ("invoke", *words, "--", "python", "-c", check),
        {
            "TORCHMILL_CONFIGS": str(copied_facts(folder)),
            "NOX_ENVDIR": str(folder / "envs"),
            "PIP_CACHE_DIR": str(folder / "pip"),
        },
        read_results,
        lambda: remove(home / ".torchmill" / "bisect"),
    )


def sample_of(folder: Path) -> Sample:
    """Fetch the sample into a folder."""
    return fetched(folder / "user", make_upstream(folder), folder / "envs")


@contextlib.contextmanager
def cluster_door(folder: Path) -> Iterator[Door]:
    """Write the scripts of a build in three shares for Slurm."""
    sample = sample_of(folder)
    written = sample.home / ".torchmill" / "cluster"
    yield Door(
        sample.home,
        ("invoke", "cluster", CELL, "--shards=3"),
        sample.env,
        lambda _: digests(written),
        lambda: remove(written),
    )


@contextlib.contextmanager
def snippet_door(folder: Path) -> Iterator[Door]:
    """Let a project's pyproject.toml name a wheel."""
    home, project = folder / "home", folder / "project"
    project.mkdir()
    tag = f"cp{THIS.replace('.', '')}-cp{THIS.replace('.', '')}-manylinux_2_28_{native_arch()}"
    written_wheels.made(home / "dist", "torch", "1.13.1+cpu", tag)
    pyproject = project / "pyproject.toml"
    own_text = '[project]\nname = "mine"\nversion = "1"\n# mine\ndependencies = ["requests"]\n'

    def reset() -> None:
        pyproject.write_text(own_text, encoding="utf-8")

    reset()
    yield Door(
        home,
        ("invoke", "snippet", "--tool=uv", f"--into={pyproject}"),
        {},
        lambda _: digests(project),
        reset,
        (project,),
    )


@contextlib.contextmanager
def share_door(folder: Path) -> Iterator[Door]:
    """Compile one of two shares of the sample, with an empty compiler cache."""
    sample = sample_of(folder)
    parts = folder / "parts"

    def read_results(_: str) -> Results:
        record = json.loads((parts / "shards" / "1-of-2.json").read_text())
        # The objects of a cache have names of their own; the build that takes them proves their contents.
        return {"record": json.dumps(record, sort_keys=True)}

    yield Door(
        sample.home,
        ("nox", "--envdir", str(sample.envs), "-s", CELL, "--", "--shard=1/2", f"--parts={parts}"),
        sample.env,
        read_results,
        lambda: remove(
            parts,
            sample.cache / "ccache",
            *sample.home.glob(".torchmill/trees/*/wheel-*"),
        ),
    )


@contextlib.contextmanager
def parts_door(folder: Path) -> Iterator[Door]:
    """Build the sample's wheel of what two shares have compiled."""
    sample = sample_of(folder)
    parts, dist = folder / "parts", sample.home / "dist"
    session = ("nox", "--envdir", str(sample.envs), "-s", CELL, "--")
    for number in (1, 2):
        share = Door(
            sample.home,
            (*session, f"--shard={number}/2", f"--parts={parts}/{number}"),
            sample.env,
            digests_of_nothing,
            lambda: None,
        )
        share.finish()

    def read_results(_: str) -> Results:
        return {name: digest for name, digest in digests(dist).items() if name.endswith(".whl")}

    yield Door(
        sample.home,
        (*session, f"--parts={parts}"),
        sample.env,
        read_results,
        lambda: remove(
            dist, sample.cache / "ccache", *sample.home.glob(".torchmill/trees/*/wheel-*")
        ),
        (parts,),
    )


def digests_of_nothing(_: str) -> Results:
    """Return no results: of a command that only prepares."""
    return {}


DOORS: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Door]]] = {
    "fetch": fetch_door,
    "toolkit": toolkit_door,
    "bisect": bisect_door,
    "cluster": cluster_door,
    "snippet": snippet_door,
    "share": share_door,
    "parts": parts_door,
}
