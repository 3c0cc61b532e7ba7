"""A guarded build in miniature: the real guard in its process, the real gate, the real compiler."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import millguard
import psutil
import pytest
from guard_support.guards import until
from millguard.processes import find_by_variable
from millguard.server import GATE
from millguard.session import LISTED_PER_KIND, GuardedBuild, GuardSite, guard_build
from millguard.timeline import UnitRun, parse_record

IMPORTS = Path(millguard.__file__).parents[1]
SOURCE = "int f(int a) { return a + 1; }\n"


@pytest.fixture
def site(tmp_path: Path) -> GuardSite:
    """Return a place for a build, with one file to compile."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "f.cpp").write_text(SOURCE)
    return GuardSite(
        tree, tmp_path / "cache", tmp_path / "build.timeline.jsonl", ["c++"], 2, roots=(str(tree),)
    )


def compile_(guard: GuardedBuild, tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(guard.gate), "c++", "-c", "f.cpp", "-o", "f.o"],
        cwd=tree,
        env={**os.environ, **guard.environment},
        capture_output=True,
        text=True,
        check=False,
    )


def guards(folder: str) -> list[psutil.Process]:
    """Return this process's guards; none knows its folder but by what it was told."""
    assert folder
    return [one for one in psutil.Process().children() if "millguard.service" in words(one)]


def words(process: psutil.Process) -> list[str]:
    """Return a process's command line, of which a dead one has none."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_compile_is_admitted_and_recorded(site: GuardSite) -> None:
    with guard_build(site, {}) as guard:
        folder = Path(guard.environment[GATE])
        assert guard.gate == site.tree / "gate"
        assert (folder / "s").is_socket()
        assert {"1", "2"} <= {path.name for path in folder.iterdir()}
        done = compile_(guard, site.tree)
        assert (done.returncode, done.stderr) == (0, "")
        assert (site.tree / "f.o").exists()
    assert guard.account.units == 1
    assert guard.messages.empty()
    assert not folder.exists()
    records = [parse_record(line) for line in site.timeline.read_text().splitlines()]
    (ran,) = (record for record in records if isinstance(record, UnitRun))
    assert (ran.family, ran.outcome) == ("c++", "done")
    assert "f.cpp" in ran.key
    assert ran.peak > 2**20


def test_the_second_build_knows_what_the_first_one_needed(site: GuardSite) -> None:
    peaks = []
    for _ in range(2):
        with guard_build(site, {}) as guard:
            assert compile_(guard, site.tree).returncode == 0
        lines = [json.loads(line) for line in site.timeline.read_text().splitlines()]
        peaks += [(line["expected"], line["peak"]) for line in lines if line["record"] == "ran"]
    (_, first), (expected, _) = peaks
    assert abs(expected - first) < 0.2 * first


def test_the_gate_stays_where_cmake_remembers_it(site: GuardSite) -> None:
    seen = []
    for _ in range(2):
        with guard_build(site, {}) as guard:
            assert guard.gate is not None
            seen.append((guard.gate, {name: guard.hooks[name] for name in guard.hooks}))
        assert guard.gate.exists()
    assert seen[0] == seen[1]


def test_a_build_goes_on_when_its_guard_is_killed(site: GuardSite) -> None:
    with guard_build(site, {}) as guard:
        (process,) = guards(guard.environment[GATE])
        process.kill()
        until(lambda: not guard.messages.empty())
        assert guard.messages.get().endswith("compiling 2 files at a time from here on")
        assert (guard.account.now.allowed, guard.account.now.waiting) == (0, 0)
        assert compile_(guard, site.tree).returncode == 0
    assert guard.account.units == 0


def test_a_guard_that_hangs_is_killed_and_the_build_goes_on(
    site: GuardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millguard.session.SILENCE_TIMEOUT_SECONDS", 2)
    with guard_build(site, {}) as guard:
        (process,) = guards(guard.environment[GATE])
        process.suspend()
        assert compile_(guard, site.tree).returncode == 0
        until(lambda: not guard.messages.empty())
        assert "the guard ended unexpectedly" in guard.messages.get()


def test_a_real_ninja_starts_nothing_after_its_first_failure(site: GuardSite) -> None:
    """One file at a time may compile, and the others wait at their gates."""
    ninja = shutil.which(
        "ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if ninja is None:
        pytest.skip("there is no ninja")
    compiler = site.tree / "c++"
    compiler.write_text("#!/bin/sh\nsleep 1\necho 'error: it is broken' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with guard_build(replace(site, cores=1), {}) as guard:
        rules = ["rule cc", f"  command = {guard.gate} {compiler} -c $in -o $out"]
        for number in range(6):
            (site.tree / f"{number}.cpp").touch()
            rules.append(f"build {number}.o: cc {number}.cpp")
        (site.tree / "build.ninja").write_text("\n".join([*rules, ""]))
        environment = {**os.environ, **guard.environment}
        with subprocess.Popen(
            [ninja, "-j6"], cwd=site.tree, env=environment, stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if line.startswith("FAILED: "):
                    guard.refuse()
        assert running.returncode != 0
    assert 1 <= guard.account.units < 6


def test_nothing_that_carries_the_gate_outlives_the_build(site: GuardSite) -> None:
    with guard_build(site, {}) as guard:
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env={**os.environ, **guard.environment},
            start_new_session=True,
        )
        folder = guard.environment[GATE]
        until(lambda: find_by_variable(GATE, folder))
    assert (
        sleeper.poll() is not None or psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE
    )
    sleeper.wait()


def test_the_tree_takes_the_guards_folder_where_tmp_cannot_be_used(
    site: GuardSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with guard_build(site, {}) as guard:
        assert Path(guard.environment[GATE]).parent == site.tree
        assert compile_(guard, site.tree).returncode == 0
    assert guard.account.units == 1


def test_no_place_for_the_gate_is_one_sentence(site: GuardSite, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with guard_build(replace(site, tree=tmp_path / "file" / "tree"), {}) as guard:
        assert (guard.gate, guard.environment) == (None, {})
    said = guard.messages.get()
    assert said.startswith("this build has no memory guard (")
    assert said.endswith("): compiling 2 files at a time")
    assert guard.messages.empty()


def test_no_guard_is_started_where_none_is_wanted(site: GuardSite) -> None:
    before = psutil.Process().children()
    with guard_build(replace(site, enabled=False), {}) as guard:
        assert (guard.gate, guard.environment) == (None, {})
        assert psutil.Process().children() == before
        assert not (site.tree / "gate").exists()
    assert (
        guard.messages.get()
        == "this build has no memory guard (--no-guard): compiling 2 files at a time"
    )


@pytest.mark.parametrize(
    ("program", "why", "patience"),
    [
        ("echo 'no module of that name' >&2; exit 1", "no module of that name", 30.0),
        ("exec sleep 60", "it gave no reason", 0.5),
    ],
)
def test_a_guard_that_does_not_start_is_one_sentence(
    site: GuardSite, monkeypatch: pytest.MonkeyPatch, program: str, why: str, patience: float
) -> None:
    python = site.tree / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("millguard.session.START_TIMEOUT_SECONDS", patience)
    before = psutil.Process().children()
    with guard_build(site, {}) as guard:
        assert (guard.gate, guard.environment) == (None, {})
    assert (
        guard.messages.get()
        == f"this build has no memory guard ({why}): compiling 2 files at a time"
    )
    assert psutil.Process().children() == before


def test_a_history_that_cannot_be_saved_is_reported(site: GuardSite) -> None:
    site.history.mkdir(parents=True)
    with guard_build(site, {}) as guard:
        assert compile_(guard, site.tree).returncode == 0
    said = guard.messages.get()
    assert said.startswith(f"what units needed cannot be saved in {site.history} (")
    assert said.endswith("): make that file writable")


def test_of_units_that_are_too_large_only_a_few_are_named(site: GuardSite) -> None:
    count = LISTED_PER_KIND + 2
    with guard_build(replace(site, memory=2**20), {}) as guard:
        for _ in range(count):
            assert compile_(guard, site.tree).returncode == 0
    assert guard.account.counts["too large"] == count
    *named, last = [guard.messages.get() for _ in range(guard.messages.qsize())]
    assert len(named) == LISTED_PER_KIND
    assert all(
        one.startswith("f.cpp needed ") and one.endswith(": it is compiled alone") for one in named
    )
    assert last.endswith(site.listing_hint)


def test_a_timeline_that_cannot_be_written_is_reported(site: GuardSite, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with guard_build(replace(site, timeline=tmp_path / "file" / "timeline"), {}) as guard:
        assert compile_(guard, site.tree).returncode == 0
    assert guard.messages.get().startswith("the timeline cannot be written: ")
    assert guard.account.units == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_build_whose_nox_was_killed(
    site: GuardSite, number: signal.Signals
) -> None:
    script = f"""
import os, pathlib, subprocess, sys
from millguard.session import GuardSite, guard_build
tree = pathlib.Path({str(site.tree)!r})
with guard_build(GuardSite(tree, tree / "cache", tree / "timeline.jsonl", ["c++"], 2), {{}}) as guard:
    sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
    process = subprocess.Popen(sleeper, env={{**os.environ, **guard.environment}}, start_new_session=True)
    print(guard.environment[{GATE!r}], process.pid, flush=True)
    process.wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=IMPORTS,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(IMPORTS)},
    ) as nox:
        assert nox.stdout is not None
        folder, sleeper = nox.stdout.readline().split()
        (guard,) = [
            one
            for one in psutil.Process(nox.pid).children()
            if "millguard.service" in one.cmdline()
        ]
        nox.send_signal(number)
        nox.wait()
    until(lambda: not psutil.pid_exists(int(sleeper)) or not find_by_variable(GATE, folder))
    until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)
    until(lambda: not Path(folder).exists())
