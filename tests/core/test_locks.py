"""Who may work in a folder, who is refused, and who waits."""

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
from torchmill.core.locks import HOLDER_FILE, LOCK_FILE, hold_lock, read_holder, wait_for_lock

ROOT = Path(__file__).parents[2]
WAITING = """\
import sys
from pathlib import Path
from torchmill.core.errors import InterruptedBuildError
from torchmill.core.locks import wait_for_lock
try:
    with wait_for_lock(Path(sys.argv[1]), "wheel-3.12-cpu", lambda text: print(text, flush=True)):
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
        "import sys; from pathlib import Path; from torchmill.core.locks import hold_lock\n"
        "with hold_lock(Path(sys.argv[1]), 'cell'): print('got it')"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with hold_lock(tmp_path, "cell"):
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
    with hold_lock(tmp_path, "cell"), pytest.raises(BusyError), hold_lock(tmp_path, "cell"):
        pass


def test_a_folder_that_cannot_be_locked_is_told(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file" / "cell"):
        with refused("not-lockable"), hold_lock(folder, "cell"):
            pass
        with refused("not-lockable"), wait_for_lock(folder, "cell", pytest.fail):
            pass


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_who_was_killed_elsewhere_on_a_disk_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(
            errno.ENOSYS, "Function not implemented"
        )  # as Lustre without the option `flock`

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", none)
    with hold_lock(tmp_path, "cell"):
        pass
    (tmp_path / LOCK_FILE).write_text("123\nnode17\n456\n")
    with refused("cell-locked") as caught, hold_lock(tmp_path, "cell"):
        pass
    assert f"process 123 of node17 is gone, `rm {tmp_path / LOCK_FILE}`" in str(caught.value)
    (tmp_path / LOCK_FILE).unlink()
    with hold_lock(tmp_path, "cell"):
        pass


def test_who_waits_says_for_whom_and_goes_on_after_it(tmp_path: Path) -> None:
    assert read_holder(tmp_path) == "another run"
    with wait_for_lock(tmp_path, "wheel-3.10-cpu", pytest.fail):
        assert read_holder(tmp_path) == "wheel-3.10-cpu"
        assert (tmp_path / HOLDER_FILE).stat().st_mtime > 0
        other = waiting(tmp_path)
        assert other.stdout is not None
        said = other.stdout.readline()
        assert said.startswith(
            "waiting for wheel-3.10-cpu, which is building in the tree that both share ("
        )
    assert other.communicate(timeout=60)[0] == "got it\n"
    assert read_holder(tmp_path) == "wheel-3.12-cpu"


def test_who_is_stopped_while_waiting_says_so(tmp_path: Path) -> None:
    with wait_for_lock(tmp_path, "wheel-3.10-cpu", pytest.fail):
        other = waiting(tmp_path)
        assert other.stdout is not None
        other.stdout.readline()
        other.send_signal(signal.SIGINT)
        said = other.communicate(timeout=60)[0]
    assert said == (
        "interrupted: wheel-3.12-cpu was waiting for wheel-3.10-cpu; run the same command again\n"
    )


def test_who_holds_a_folder_and_dies_leaves_it_to_others(tmp_path: Path) -> None:
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
        with wait_for_lock(tmp_path, "cell", pytest.fail):
            pass
