"""How a command ends: one message and an exit code, whatever was raised."""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from tests.support.commands import ROOT, environment
from tests.support.refusals import refused, without_code
from torchmill.core import system_errors
from torchmill.core.atomic_writes import fresh_path, write_atomically
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.exits import as_torchmill_error, exit_with_error
from torchmill.core.system_errors import blame_disk, machine_error, read_refusal, report_unwritable


def ended(error: BaseException) -> Exit:
    """Return how a task ends that raises an error."""

    def body() -> None:
        raise error

    with pytest.raises(Exit) as caught:
        exit_with_error(body, lambda message, code: Exit(message, code=code))()
    return caught.value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no", code="x"), 2),
        (OSError(errno.ENOSPC, "No space left on device"), 7),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 7),
        (OSError(errno.EIO, "Input/output error", "/x"), 7),
        (MemoryError(), 7),
        (RuntimeError("can't start new thread"), 7),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), 7),
        (KeyboardInterrupt(), 130),
        (RecursionError("too deep"), 70),
        (ModuleNotFoundError("No module named 'torchmill.x'", name="torchmill.x"), 70),
    ],
)
def test_everything_ends_with_one_message_and_its_code(error: BaseException, code: int) -> None:
    found = ended(error)
    assert found.code == code
    assert without_code(str(found.message)).startswith("error: ")
    assert "\n" not in str(found.message)


def test_what_nobody_foresaw_is_in_a_file_without_secrets() -> None:
    message = str(ended(ValueError("https://me:hidden@host/ is odd")).message)
    file = Path(re.search(r"with the file (\S+)$", message)[1])  # type: ignore[index]
    text = file.read_text()
    file.unlink()
    assert "Traceback" in text
    assert "test_exits.py" in text
    assert "hidden" not in text
    assert "hidden" not in message


def test_an_end_that_invoke_itself_asks_for_passes() -> None:
    asked = Exit(code=3)
    assert ended(asked) is asked


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EFBIG, "disk-full"),
        (errno.EROFS, "not-writable"),
        (errno.EACCES, "not-writable"),
        (errno.EIO, "disk-failed"),
        (errno.EMFILE, "too-many-files"),
    ],
)
def test_what_the_system_refuses_is_named(number: int, code: str, tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    with refused(code) as caught, report_unwritable(place, needed_bytes=5 << 30):
        raise OSError(number, os.strerror(number))
    assert str(place) in str(caught.value)
    told = read_refusal(f"fatal: cannot write: {os.strerror(number)}", place)
    assert told is not None
    assert told.code == code


def test_a_full_disk_says_how_much_is_wanted(tmp_path: Path) -> None:
    with refused("disk-full") as caught, report_unwritable(tmp_path, needed_bytes=5 << 30):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "5.0 GiB wanted" in str(caught.value)


def test_of_a_copied_folder_the_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    why = f"[Errno {errno.EACCES}] {os.strerror(errno.EACCES)}: '/from/a/secret'"
    with refused("not-writable") as caught, report_unwritable(tmp_path / "to"):
        raise shutil.Error([("/from/a/secret", str(tmp_path / "to/a/secret"), why)])
    assert str(caught.value).startswith("/from/a/secret: ")
    full = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}: '/from/a' -> '{tmp_path}/to/a'"
    with refused("disk-full") as caught, report_unwritable(tmp_path / "to"):
        raise shutil.Error([("/from/a", str(tmp_path / "to/a"), full)])
    assert f"the disk of {tmp_path / 'to'} is full" in str(caught.value)


def test_of_several_disks_the_full_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system seldom says which, and to be told of one with gigabytes free helps nobody."""
    room = {tmp_path / "tree": 1 << 35, tmp_path / "dist": 0, tmp_path / "logs": 1 << 30}
    monkeypatch.setattr(system_errors, "_room", room.__getitem__)
    for where, *others in permutations(room):
        with refused("disk-full") as caught, report_unwritable(where, *others):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert f"the disk of {tmp_path / 'dist'} is full" in str(caught.value)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), TimeoutError(110, "late"), OSError("gzip")]
)
def test_what_is_no_refusal_of_the_system_passes(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(type(error)), report_unwritable(tmp_path):
        raise error
    assert read_refusal("fatal: the remote end hung up", tmp_path) is None


def test_what_a_killed_run_left_goes_with_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    number = os.fork()
    if not number:  # the killed run
        with fresh_path(file) as fresh:
            fresh.mkdir()
            (fresh / "half").touch()
            os._exit(0)
    os.waitpid(number, 0)
    (left,) = tmp_path.iterdir()
    others = tmp_path / f"{left.name[:-1]}{left.name[-1]}x"  # no name of ours
    others.touch()
    foreign = tmp_path / f".file.{'0' * 8}-{number}"  # of another machine, perhaps at work
    foreign.touch()
    running = tmp_path / f"{left.name.rpartition('-')[0]}-1"
    running.touch()
    write_atomically(file, "whole")
    assert {path.name for path in tmp_path.iterdir()} == {
        "file",
        others.name,
        foreign.name,
        running.name,
    }
    os.utime(foreign, (0, 0))
    write_atomically(file, "again")
    assert not foreign.exists()


def test_unforeseen_errors_keep_their_gist() -> None:
    assert "ZeroDivisionError" in str(as_torchmill_error(ZeroDivisionError("1/0")))


def test_what_others_wrote_steers_no_terminal() -> None:
    found = ended(ConfigError("--to \x1b[2J\x00\x9b: first\n\tsecond", code="x"))
    assert str(found.message) == "error[x]: --to \ufffd[2J\ufffd\ufffd: first\n\tsecond"


def test_a_program_that_failed_for_a_full_disk_says_so_itself(tmp_path: Path) -> None:
    told = blame_disk(
        "ERROR: Could not install packages: [Errno 28] No space left on device", tmp_path / "venv"
    )
    assert told is not None
    assert told.code == "disk-full"
    assert blame_disk("ERROR: No matching distribution found for nope", tmp_path / "venv") is None


def test_a_program_that_failed_without_a_word_is_explained_by_a_limit_of_files(
    tmp_path: Path,
) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        told = blame_disk("returned non-zero exit status 1", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told is not None
    assert "ulimit -f" in str(told)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="only Linux has a file that is always full"
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["invoke status", "invoke --list", "nox -l"])
def test_output_for_which_there_is_no_room_is_told_in_one_sentence(
    command: str, unbuffered: str, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        program, *words = command.split()
        done = subprocess.run(
            [sys.executable, "-m", program, *words], cwd=ROOT,
            env=environment(tmp_path, {"PYTHONUNBUFFERED": unbuffered}),
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == HostError.exit_code
    assert without_code(done.stderr).startswith("error: the disk of /dev/full is full")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes them")
def test_programs_can_write_where_standard_streams_are_closed(tmp_path: Path) -> None:
    """As under cron, a daemon or a batch system."""
    first = "from torchmill.core.exits import open_closed_streams; open_closed_streams()"
    then = "import subprocess; subprocess.run(['echo'], check=True); sys.stdin.read()"
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {first}; {then}"
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} <&- >&-"
    subprocess.run(["sh", "-c", shell], cwd=tmp_path, check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes them")
@pytest.mark.parametrize("closed", [">&-", "<&- 2>&-"])
def test_a_task_runs_without_standard_streams(closed: str, tmp_path: Path) -> None:
    shell = f"{shlex.quote(sys.executable)} -m invoke plan wheel-3.10-cpu --tag v1.13.1 {closed}"
    done = subprocess.run(
        ["sh", "-c", shell],
        cwd=ROOT,
        env=environment(tmp_path, {}),
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_signs_that_a_locale_lacks_are_replaced(tmp_path: Path) -> None:
    env = environment(tmp_path, {"PYTHONIOENCODING": "ascii"})
    argv = [sys.executable, "-m", "invoke", "shards", "wheel-3.10-cpu", "--tag", "v1.13.1"]
    done = subprocess.run(argv, cwd=ROOT, env=env, check=False, capture_output=True)
    assert (done.returncode, b"?" in done.stdout) == (0, True), done.stderr


def test_a_full_disk_is_told_in_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "folder").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    error = machine_error(OSError(errno.ENOSPC, "No space left on device"), Path("/tmp"))  # noqa: S108
    assert error is not None
    assert error.code == "disk-full"
