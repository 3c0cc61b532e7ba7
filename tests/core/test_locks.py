"""Locks of folders: which run holds one, which is refused, and which waits."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guard_support.guards import until

from tests.support.refusals import refused
from torchmill.core.errors import BusyError
from torchmill.core.locks import (
    HOLDER_FILE,
    LOCK_FILE,
    hold_work_folder,
    read_holder,
    wait_for_folder,
)

ROOT = Path(__file__).parents[2]
WAITING = """\
import sys
from pathlib import Path
from torchmill.core.errors import InterruptedBuildError
from torchmill.core.locks import wait_for_folder
try:
    with wait_for_folder(Path(sys.argv[1]), "wheel-3.12-cpu", lambda text: print(text, flush=True)):
        print("got it", flush=True)
except InterruptedBuildError as error:
    print(error)
"""


def waiting(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WAITING, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from torchmill.core.locks import hold_work_folder\n"
        "with hold_work_folder(Path(sys.argv[1]), 'cell'): print('got it')"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with hold_work_folder(tmp_path, "cell"):
        other = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "cell is being built by another run" in other.stderr
    if sys.platform == "linux":
        assert f"(held by process {os.getpid()}: `" in other.stderr
    assert (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        == "got it\n"
    )


def test_the_same_process_cannot_take_a_folder_twice(tmp_path: Path) -> None:
    with (
        hold_work_folder(tmp_path, "cell"),
        pytest.raises(BusyError),
        hold_work_folder(tmp_path, "cell"),
    ):
        pass


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file" / "cell"):
        with refused("not-lockable"), hold_work_folder(folder, "cell"):
            pass
        with refused("not-lockable"), wait_for_folder(folder, "cell", pytest.fail):
            pass


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_dead_lock_on_a_disk_without_locks_names_its_process_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_lock(*_: object) -> None:
        # As Lustre does without its option `flock`.
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse_lock)
    with hold_work_folder(tmp_path, "cell"):
        pass
    (tmp_path / LOCK_FILE).write_text("123\nnode17\n456\n")
    with refused("cell-locked") as caught, hold_work_folder(tmp_path, "cell"):
        pass
    assert f"process 123 of node17 is gone, `rm {tmp_path / LOCK_FILE}`" in str(caught.value)
    (tmp_path / LOCK_FILE).unlink()
    with hold_work_folder(tmp_path, "cell"):
        pass


def test_a_waiting_run_names_the_holder_and_goes_on_after_it(tmp_path: Path) -> None:
    assert read_holder(tmp_path) == "another run"
    with wait_for_folder(tmp_path, "wheel-3.10-cpu", pytest.fail):
        assert read_holder(tmp_path) == "wheel-3.10-cpu"
        assert (tmp_path / HOLDER_FILE).stat().st_mtime > 0
        other = waiting(tmp_path)
        assert other.stdout is not None
        line = other.stdout.readline()
        assert line.startswith(
            "waiting for wheel-3.10-cpu, which is building in the tree that both share ("
        )
    assert other.communicate(timeout=60)[0] == "got it\n"
    assert read_holder(tmp_path) == "wheel-3.12-cpu"


def test_a_run_that_is_stopped_while_it_waits_names_the_holder(tmp_path: Path) -> None:
    with wait_for_folder(tmp_path, "wheel-3.10-cpu", pytest.fail):
        other = waiting(tmp_path)
        assert other.stdout is not None
        other.stdout.readline()
        other.send_signal(signal.SIGINT)
        output = other.communicate(timeout=60)[0]
    assert output == (
        "interrupted: wheel-3.12-cpu was waiting for wheel-3.10-cpu; run the same command again\n"
    )


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    program = WAITING.replace(
        'print("got it", flush=True)', "print('got it', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "got it\n"
        other.kill()
        until(lambda: other.poll() is not None)
        with wait_for_folder(tmp_path, "cell", pytest.fail):
            pass
