"""Others' programs embed the guard: a build backend, observers, and a context of guarded commands."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path

import pytest
from guard_support.commands import SOURCE, command_environment, run_millguard
from millguard import BuildObserver, GuardOptions, UnitRun, guard_commands, observers, run_guarded
from millguard.observers import ObserverThread

BACKEND = """
import os, subprocess
def build_wheel(folder, config_settings=None, metadata_directory=None):
    subprocess.run(["cc", "-c", "a.c"], check=True)
    return f"{config_settings['name']}.whl"
def get_requires_for_build_wheel(config_settings=None):
    return [os.environ.get("MILLGUARD_GATE", "unguarded")]
"""
PROJECT = """
[build-system]
build-backend = "millguard.build_backend"
backend-path = ["tools"]
[tool.millguard]
backend = "own_backend"
"""
# What a frontend does with a backend.
FRONTEND = """
from millguard import build_backend
print(build_backend.get_requires_for_build_wheel())
print(hasattr(build_backend, "build_editable"), hasattr(build_backend, "build_sdist"))
print(build_backend.build_wheel("out", config_settings={"name": "n-1"}))
"""


class Listener(BuildObserver):
    def __init__(self) -> None:
        self.told: list[object] = []

    def on_begin(self, command: object, folder: object) -> None:
        self.told += [command, folder]

    def on_record(self, record: object) -> None:
        if isinstance(record, UnitRun):
            self.told.append(record.outcome)

    def on_end(self, result: object) -> None:
        self.told.append(result)


class Failing(BuildObserver):
    def on_begin(self, *_: object) -> None:
        raise LookupError("no dashboard")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with one file, whose own backend compiles it."""
    (tmp_path / "a.c").write_text(SOURCE)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/own_backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def run_frontend(project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", FRONTEND],
        cwd=project,
        env=command_environment(project, **variables),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backend_builds_the_wheel_of_another_under_guard(project: Path) -> None:
    done = run_frontend(project)
    assert done.stdout.splitlines() == ["['unguarded']", "False False", "n-1.whl"], done.stderr
    assert "the guard scheduled 1 compile or link" in done.stderr


def test_a_build_that_fails_has_the_code_of_its_process_and_one_traceback(project: Path) -> None:
    (project / "a.c").write_text("int number() {")
    done = run_frontend(project)
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 1), done.stderr


def test_within_a_guarded_command_a_backend_starts_no_second_guard(project: Path) -> None:
    (project / "frontend.py").write_text(FRONTEND)
    done = run_millguard(project, ["--", sys.executable, "frontend.py"])
    assert done.stderr.count("the guard scheduled 1 compile or link") == 1, done.stderr


def test_a_project_without_a_backend_to_guard_is_told_what_to_add(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.millguard]\nbackend = 'millguard.build_backend'")
    assert "add a table [tool.millguard]" in run_frontend(project).stderr


def test_observers_follow_a_build(project: Path) -> None:
    listener = Listener()
    environ = command_environment(project)
    options = GuardOptions(
        cache=project / "cache", environ=environ, observers=(Failing(), listener)
    )
    result = run_guarded(["cc", "-c", str(project / "a.c"), "-o", str(project / "a.o")], options)
    command, folder, outcome, end = listener.told
    assert (command[0], folder, outcome, end) == ("cc", str(Path.cwd()), "done", result)  # type: ignore[index]


def test_an_observer_that_exits_does_not_silence_the_others() -> None:
    class Exiting(BuildObserver):
        def on_begin(self, *_: object) -> None:
            sys.exit("enough")

    listener = Listener()
    with ObserverThread([Exiting(), listener]) as observing:
        observing.begin(["cc"], "/project")
    assert listener.told[0] == ["cc"]
    assert "Exiting failed" in observing.problems[0]


def test_an_observer_that_hangs_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(BuildObserver):
        def on_end(self, *_: object) -> None:
            queue.SimpleQueue[None]().get()

    monkeypatch.setattr(observers, "END_SECONDS", 0.1)
    with ObserverThread([Hanging()]) as observing:
        observing.end(None)  # type: ignore[arg-type]
    assert "were left" in observing.problems[0]


def test_installed_observers_are_told(project: Path) -> None:
    metadata = project / "site/dashboard-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dashboard\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[millguard.observers]\nboard = dashboard:Board\ngone = dashboard:Gone\nwrong = builtins:dict"
    )
    (project / "site/dashboard.py").write_text(
        "import millguard\nclass Board(millguard.BuildObserver):\n"
        "    def on_end(self, result): open('told', 'w').write(str(result.exit_code))\n"
    )
    path = command_environment(project)["PYTHONPATH"]
    done = run_millguard(
        project, ["--", "sh", "-c", "exit 3"], PYTHONPATH=f"{path}:{project / 'site'}"
    )
    assert (done.returncode, (project / "told").read_text()) == (3, "3"), done.stderr
    assert "the observer gone cannot be used: AttributeError" in done.stderr
    assert "the observer wrong cannot be used: builtins:dict" in done.stderr


def test_commands_of_a_program_are_guarded_by_their_environment(project: Path) -> None:
    environ = command_environment(project)
    with guard_commands(GuardOptions(cache=project / "cache", environ=environ, jobs=3)) as build:
        command = ["sh", "-c", "cc -c a.c && echo $MAKEFLAGS"]
        done = subprocess.run(
            command,
            cwd=project,
            env={**environ, **build.environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    assert (done.stdout, build.account.units) == ("-j3\n", 1)
