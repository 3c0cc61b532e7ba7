"""Real builds of the sample under the guard: who passes the gate, and what is left of a killed build."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.guards import until
from tests.support.sampled import THIS, Sample, fetched
from torchmill.core import process
from torchmill.toolchain.guard.command import GATE
from torchmill.toolchain.guard.timeline import UnitRun, parse_record

pytestmark = pytest.mark.slow

WHEEL, VISION, SHARED = f"wheel-{THIS}-cpu", f"vision-{THIS}-cpu", "wheel-cpu"
SORT = "src/sort.cpp"
# Compiles, but `sort.cpp` only when nobody holds it; on demand it is killed of it, once or always.
COMPILER = """\
#!/bin/sh
case "$*" in *{sort}*)
  case "$*" in *" -E "*) ;; *)
    while [ -e '{folder}/hold' ]; do touch '{folder}/held'; sleep 0.05; done
    if rm '{folder}/kill' 2>/dev/null || [ -e '{folder}/doom' ]; then kill -9 $$; fi
  esac
esac
exec c++ "$@"
"""


class Build:
    """The sample, with a compiler that can be held, and everything about its last build."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.hold, self.held, self.kill = (sample.folder / name for name in ("hold", "held", "kill"))
        compiler = sample.folder / "compiler" / "c++"
        compiler.parent.mkdir()
        compiler.write_text(COMPILER.format(sort=SORT, folder=sample.folder))
        compiler.chmod(0o755)
        sample.env["CXX"] = str(compiler)

    @property
    def tree(self) -> Path:
        (tree,) = (self.sample.home / ".torchmill" / "trees" / "v1.0.0").glob(f"{SHARED}-????????")
        return tree

    def forget_wheels(self) -> None:
        for folder in (self.sample.home / "dist", self.tree.with_name(WHEEL)):
            shutil.rmtree(folder, ignore_errors=True)

    def forget(self) -> None:
        """Keep the prepared tree, and nothing that was compiled in it."""
        self.forget_wheels()
        shutil.rmtree(self.tree / "source" / "build", ignore_errors=True)

    def forget_cache(self) -> None:
        for tool in ("ccache", "sccache"):
            shutil.rmtree(self.sample.cache / tool, ignore_errors=True)

    def forget_sort(self) -> None:
        """Keep all but `sort.cpp` compiled, and what is linked of it."""
        self.forget_cache()
        self.forget_wheels()
        for file in (self.tree / "source" / "build").rglob("sort.cpp.o"):
            file.unlink()

    @contextlib.contextmanager
    def begun(self) -> Iterator[subprocess.Popen[str]]:
        """Run nox, from the moment in which the compiler of `sort.cpp` is held."""
        self.forget_sort()
        self.held.unlink(missing_ok=True)
        self.hold.touch()
        with self.sample.start("-s", WHEEL) as running:
            try:
                until(lambda: self.held.exists() or running.poll() is not None, SORT, 120)
                assert running.poll() is None, running.communicate()[0]
                yield running
            finally:
                self.hold.unlink(missing_ok=True)
                running.kill()

    def manifest(self, package: str) -> dict[str, Any]:
        (name,) = [name for name in self.sample.wheels() if name.startswith(package)]
        return self.sample.manifest(name)

    def ran(self, session: str) -> list[UnitRun]:
        (file,) = (self.sample.home / ".torchmill" / "logs").glob(f"*-{session}.timeline.jsonl")
        records = [parse_record(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [record for record in records if isinstance(record, UnitRun)]


def gates(nox: subprocess.Popen[str]) -> str:
    """Return the folder that the gates of a running build meet their guard in."""
    for child in psutil.Process(nox.pid).children(recursive=True):
        try:
            folder = child.environ().get(GATE)
        except psutil.Error:
            continue
        if folder:
            return folder
    return pytest.fail("nothing of this build knows of a gate")


def guard_of(nox: subprocess.Popen[str]) -> psutil.Process:
    for child in psutil.Process(nox.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if "torchmill.toolchain.guard" in child.cmdline():
                return child
    return pytest.fail("this build has no guard")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Build:
    sample = fetched(tmp_path_factory.mktemp("guarded"), upstream, envs)
    made = Build(sample)
    done = sample.nox("-s", VISION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no memory guard" not in done.stderr, done.stderr
    return made


def test_every_compile_and_link_passed_the_gate(build: Build) -> None:
    """The base is built by CMake and ninja, the dependent one by setuptools."""
    for session in (WHEEL, VISION):
        ran = build.ran(session)
        assert {one.outcome for one in ran} == {"done"}
        assert min(one.peak for one in ran) > 2**20
    source = build.tree / "source"
    files = (*source.glob("src/*.cpp"), *source.glob("python/*.cpp"))
    sources = {path.name for path in files} | {"switches.cpp"}
    compiled = [one.key for one in build.ran(WHEEL) if one.family == "c++"]
    assert all(sum(f"/{name}" in f"/{key}" for key in compiled) == 1 for name in sources), compiled
    linked = [one.key for one in build.ran(WHEEL) if one.family == "link"]
    assert all(sum(name in key for key in linked) == 1 for name in ("libtiny.so", "_C.")), linked
    assert [one.family for one in build.ran(VISION)] == ["c++", "link"]


def test_the_manifest_tells_what_the_guard_saw(build: Build) -> None:
    record = build.manifest("tinytorch")
    guard = record["guard"]
    assert record["slots"] == str(4 * guard["cores"] + 2)
    assert 2**20 < guard["peak"] < guard["allowed"]
    assert guard["units"] == len(build.ran(WHEEL))
    assert (guard["pauses"], guard["reruns"], guard["kills"]) == (0, 0, 0)
    assert (build.sample.home / "dist" / guard["timeline"]).resolve().is_file()
    assert record["cpu_seconds"] > 0
    assert "peak_memory" not in record


def test_other_jobs_and_memory_change_nothing_that_is_built(build: Build) -> None:
    done = build.sample.nox("-s", WHEEL, "--", "--jobs", "1", "--memory", "3 GiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is up to date" in done.stderr


@pytest.mark.skipif(not shutil.which("ccache"), reason="ccache is not installed")
def test_what_the_cache_has_passes_no_gate(build: Build) -> None:
    build.forget()
    done = build.sample.nox("-s", WHEEL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one.family for one in build.ran(WHEEL)} == {"link"}


def test_nothing_outlives_a_killed_nox(build: Build) -> None:
    with build.begun() as nox:
        folder, guard = gates(nox), guard_of(nox)
        assert any("sort.cpp" in " ".join(one.cmdline()) for one in process.find_by_variable(GATE, folder))
        nox.kill()
        nox.communicate()
        until(lambda: not process.find_by_variable(GATE, folder))
        until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)
        until(lambda: not Path(folder).exists())


def test_nothing_outlives_ctrl_c(build: Build) -> None:
    with build.begun() as nox:
        folder, guard = gates(nox), guard_of(nox)
        nox.send_signal(signal.SIGINT)
        said, _ = nox.communicate(timeout=60)
    assert nox.returncode != 0
    assert "Traceback" not in said
    assert process.find_by_variable(GATE, folder) == []
    assert not guard.is_running()
    assert not Path(folder).exists()


def test_a_build_whose_guard_is_killed_ends_well(build: Build) -> None:
    with build.begun() as nox:
        guard_of(nox).kill()
        build.hold.unlink()
        said, _ = nox.communicate(timeout=120)
    assert nox.returncode == 0, said
    assert "the guard ended unexpectedly" in said
    assert "at a time from here on" in said
    assert build.manifest("tinytorch")["checks"]


def test_too_little_memory_and_a_killed_compiler_are_told_and_cost_no_build(build: Build) -> None:
    build.forget_sort()
    build.kill.touch()
    done = build.sample.nox("-s", WHEEL, "--", "--memory", "1 MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SORT} was killed or ran out of memory (needed more than " in done.stderr
    assert "1.0 MiB are allowed" in done.stderr
    record = build.manifest("tinytorch")
    assert record["guard"]["kills"] == 1
    assert [one.outcome for one in build.ran(WHEEL) if SORT in one.key] == ["killed", "done"]


def test_what_fits_not_even_alone_is_the_error_of_the_build(build: Build) -> None:
    build.forget_sort()
    doom = build.sample.folder / "doom"
    doom.touch()
    try:
        done = build.sample.nox("-s", WHEEL)
    finally:
        doom.unlink()
    assert done.returncode == 1
    said = done.stderr.rpartition("aborted")[2]
    assert f"{SORT} was killed or ran out of memory, even alone: it needed more than " in said
    assert "are allowed; give the machine, its container or its job more" in said
    assert "Traceback" not in done.stderr
    assert [one.outcome for one in build.ran(WHEEL) if SORT in one.key][-1] == "killed"
