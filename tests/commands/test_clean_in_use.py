"""Processes that use folders: builds, compilers, servers of compiler caches."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from torchmill.commands.clean import in_use
from torchmill.commands.clean.in_use import RunningProcess, RunningProcesses
from torchmill.core import paths

ENVIRONMENT = ROOT / ".nox" / "wheel-3-10-cpu"
ELSEWHERE = "/elsewhere"
STRANGER = os.getuid() + 4321
CACHE = Path("/a/torchmill")


def nox(
    *words: str, cwd: str = str(ROOT), environ: Mapping[str, str] | None = None
) -> RunningProcesses:
    command = ("/usr/bin/python", "-m", "nox", *words)
    return RunningProcesses(
        (RunningProcess(7, command, "/usr/bin/python", cwd, environ or {"HOME": "/h"}),)
    )


UNSEEN = RunningProcesses((RunningProcess(7, ("nox", "-s", "wheel-3.10-cpu")),))  # another user's
EDITOR = RunningProcesses(
    (RunningProcess(7, ("vim", "a.py", "b.py", "c.py", "nox"), "", str(ROOT)),)
)


@pytest.mark.parametrize(
    ("processes", "folders"),
    [
        (nox("-s", "wheel-3.10-cpu"), [ROOT]),
        (nox("--session=wheel-3.10-cpu", "--", "--jobs", "2"), [ROOT]),
        (nox("-t", "cpu"), [ROOT]),  # any session may follow
        (nox(), [ROOT]),
        (nox("-s", "tests"), []),
        (nox("--session=lint"), []),
        (nox("-s", "lint", "tests"), []),
        (nox("-s", "lint", "wheel-3.10-cpu"), [ROOT]),
        (nox("-s", "wheel-3.10-cpu", "--", "--torch=demo"), [ROOT]),
        (nox("-s", "wheel-3.10-cpu", cwd=ELSEWHERE), []),
        (nox("-s", "wheel-3.10-cpu", environ={"TORCHMILL_HOME": ELSEWHERE}), []),
        (nox("-s", "wheel-3.10-cpu", cwd=ELSEWHERE, environ={"TORCHMILL_HOME": str(ROOT)}), [ROOT]),
        (nox("-s", "wheel-3.10-cpu", cwd=ELSEWHERE, environ={"XDG_CACHE_HOME": "/a"}), [CACHE]),
        (UNSEEN, [ROOT, CACHE]),
        (EDITOR, []),
        (RunningProcesses(), []),
    ],
)
def test_a_nox_may_build_in_a_checkout_or_with_a_cache(
    processes: RunningProcesses, folders: list[Path]
) -> None:
    assert [folder for folder in (ROOT, CACHE) if processes.building_with(folder)] == folders


@pytest.mark.parametrize(
    "session", ["wheel-3.10-cpu", "wheel-3.14t-cu126-aarch64", "Vision 3.10 (CPU)"]
)
def test_environments_have_the_names_that_nox_gives_them(session: str) -> None:
    from nox.sessions import _normalize_path

    assert _normalize_path("x", session) == os.path.join("x", paths.nox_environment_name(session))  # noqa: PTH118


def test_a_process_within_a_folder_is_found() -> None:
    for words, program, cwd in [
        ((f"{ENVIRONMENT}/bin/python", "a.py"), "", ""),
        (("cc1plus", f"-I{ENVIRONMENT}/include"), "", ""),
        (("bash",), "", str(ENVIRONMENT)),
        (("python",), f"{ENVIRONMENT}/bin/python3.10", ""),
    ]:
        assert RunningProcesses((RunningProcess(7, words, program, cwd),)).using(ENVIRONMENT)
    neighbour = RunningProcess(
        7, (f"{ENVIRONMENT}-aarch64/bin/python",), "", f"{ENVIRONMENT}-aarch64"
    )
    assert RunningProcesses((neighbour,)).using(ENVIRONMENT) == ""


def test_a_guard_with_other_caches_is_no_hindrance() -> None:
    words = ("python", "-m", "millguard.service")
    for environ, counts in [
        ({"XDG_CACHE_HOME": "/a"}, True),
        ({"HOME": "/a"}, False),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/b"}, False),
        (None, True),
    ]:
        running = RunningProcesses((RunningProcess(7, words, cwd=ELSEWHERE, environ=environ),))
        assert (running.building_with(CACHE) != "") == counts


SCCACHE = ("/usr/bin/sccache",)


@pytest.mark.parametrize(
    ("user", "environ", "mode", "counts"),
    [
        (
            STRANGER,
            None,
            0o755,
            False,
        ),  # whose environment is not visible, and who cannot write there
        (STRANGER, None, 0o775, True),
        (0, None, 0o755, True),
        (None, None, 0o755, True),
        (os.getuid(), {"SCCACHE_DIR": "{folder}"}, 0o755, True),
        (os.getuid(), {"SCCACHE_DIR": "/home/me/.cache/sccache"}, 0o755, False),
        (os.getuid(), {}, 0o755, False),
    ],
)
def test_a_server_of_sccache_uses_its_own_folder(
    user: int | None, environ: dict[str, str] | None, mode: int, counts: bool, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    visible = environ and {name: value.format(folder=tmp_path) for name, value in environ.items()}
    running = RunningProcesses((RunningProcess(7, SCCACHE, environ=visible, user=user),))
    assert (running.serving_sccache(tmp_path) != "") == counts


def test_a_build_of_a_user_who_cannot_write_to_a_folder_does_not_use_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    build = RunningProcess(7, ("nox", "-s", "wheel-3.10-cpu"), user=STRANGER)
    assert not RunningProcesses((build,)).building_with(tmp_path)
    tmp_path.chmod(0o777)
    assert RunningProcesses((build,)).building_with(tmp_path)


def test_the_processes_of_this_machine_are_listed() -> None:
    visible = in_use.list_processes()
    parent = [process for process in visible.processes if process.number == os.getppid()]
    assert len(parent) == 1
    assert all(process.number != os.getpid() for process in visible.processes)
    assert str(parent[0]).startswith(f"process {os.getppid()} (")
