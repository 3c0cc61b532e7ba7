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
from torchmill.core import deletion, system_errors
from torchmill.core.atomic_writes import fresh_path, write_atomically
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.exits import as_torchmill_error, exit_with_error
from torchmill.core.system_errors import blame_disk, machine_error, read_refusal, report_unwritable


def exit_of(error: BaseException) -> Exit:
    """Return the exit of a task that raises an error."""

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
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 7),
        (RecursionError("too deep"), 70),
        (ModuleNotFoundError("No module named 'torchmill.x'", name="torchmill.x"), 70),
    ],
)
def test_every_error_becomes_one_message_and_its_code(error: BaseException, code: int) -> None:
    task_exit = exit_of(error)
    assert task_exit.code == code
    assert without_code(str(task_exit.message)).startswith("error: ")
    assert "\n" not in str(task_exit.message)


def test_the_traceback_of_an_unforeseen_error_is_in_a_file_without_secrets() -> None:
    message = str(exit_of(ValueError("https://me:hidden@host/ is odd")).message)
    file = Path(re.search(r"with the file (\S+)$", message)[1])  # type: ignore[index]
    text = file.read_text()
    file.unlink()
    assert "Traceback" in text
    assert "test_exits.py" in text
    assert "hidden" not in text
    assert "hidden" not in message


def test_an_exit_of_invoke_itself_passes() -> None:
    invoke_exit = Exit(code=3)
    assert exit_of(invoke_exit) is invoke_exit


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
def test_the_path_that_the_system_refuses_is_named(number: int, code: str, tmp_path: Path) -> None:
    path = tmp_path / "not" / "there"
    with refused(code) as caught, report_unwritable(path, needed_bytes=5 << 30):
        raise OSError(number, os.strerror(number))
    assert str(path) in str(caught.value)
    refusal = read_refusal(f"fatal: cannot write: {os.strerror(number)}", path)
    assert refusal is not None
    assert refusal.code == code


def test_a_full_disk_says_how_much_is_wanted(tmp_path: Path) -> None:
    with refused("disk-full") as caught, report_unwritable(tmp_path, needed_bytes=5 << 30):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "5.0 GiB wanted" in str(caught.value)


def test_of_a_copied_folder_the_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    closed = f"[Errno {errno.EACCES}] {os.strerror(errno.EACCES)}: '/from/a/secret'"
    with refused("not-writable") as caught, report_unwritable(tmp_path / "to"):
        raise shutil.Error([("/from/a/secret", str(tmp_path / "to/a/secret"), closed)])
    assert str(caught.value).startswith("/from/a/secret: ")
    full = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}: '/from/a' -> '{tmp_path}/to/a'"
    with refused("disk-full") as caught, report_unwritable(tmp_path / "to"):
        raise shutil.Error([("/from/a", str(tmp_path / "to/a"), full)])
    assert f"the disk of {tmp_path / 'to'} is full" in str(caught.value)


def test_of_several_disks_the_full_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system seldom says which disk is full; to name one with gigabytes free helps nobody."""
    room = {tmp_path / "tree": 1 << 35, tmp_path / "dist": 0, tmp_path / "logs": 1 << 30}
    monkeypatch.setattr(system_errors, "_room", room.__getitem__)
    for paths in permutations(room):
        with refused("disk-full") as caught, report_unwritable(*paths):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert f"the disk of {tmp_path / 'dist'} is full" in str(caught.value)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), TimeoutError(110, "late"), OSError("gzip")]
)
def test_an_error_that_is_no_refusal_of_the_system_passes(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(type(error)), report_unwritable(tmp_path):
        raise error
    assert read_refusal("fatal: the remote end hung up", tmp_path) is None


def test_hidden_paths_of_a_killed_run_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    number = os.fork()
    if not number:  # the killed run
        with fresh_path(file) as fresh:
            fresh.mkdir()
            (fresh / "half").touch()
            os._exit(0)
    os.waitpid(number, 0)
    (hidden,) = tmp_path.iterdir()
    user_file = tmp_path / f"{hidden.name}x"  # not a name that `fresh_path` gives
    user_file.touch()
    foreign = tmp_path / f".file.{'0' * 8}-{number}"  # of another machine, perhaps at work
    foreign.touch()
    running = tmp_path / f"{hidden.name.rpartition('-')[0]}-1"
    running.touch()
    write_atomically(file, "whole")
    assert {path.name for path in tmp_path.iterdir()} == {
        "file",
        user_file.name,
        foreign.name,
        running.name,
    }
    monkeypatch.setattr(deletion, "ABANDONED_SECONDS", -1)
    write_atomically(file, "again")
    assert not foreign.exists()


def test_the_message_about_an_unforeseen_error_names_its_type() -> None:
    assert "ZeroDivisionError" in str(as_torchmill_error(ZeroDivisionError("1/0")))


def test_control_characters_in_a_message_are_replaced() -> None:
    task_exit = exit_of(ConfigError("--to \x1b[2J\x00\x9b: first\n\tsecond", code="x"))
    assert str(task_exit.message) == "error[x]: --to \ufffd[2J\ufffd\ufffd: first\n\tsecond"


def test_a_full_disk_is_known_by_the_output_of_a_program(tmp_path: Path) -> None:
    error = blame_disk(
        "ERROR: Could not install packages: [Errno 28] No space left on device", tmp_path / "venv"
    )
    assert error is not None
    assert error.code == "disk-full"
    assert blame_disk("ERROR: No matching distribution found for nope", tmp_path / "venv") is None


def test_a_limit_on_the_size_of_files_explains_a_failure_without_a_reason(
    tmp_path: Path,
) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        error = blame_disk("returned non-zero exit status 1", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error is not None
    assert "ulimit -f" in str(error)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="only Linux has a file that is always full"
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["invoke status", "invoke --list", "nox -l"])
def test_output_to_a_full_disk_ends_with_one_sentence(
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
@pytest.mark.skipif(sys.platform == "win32", reason="needs poll() for pipes")
@pytest.mark.parametrize(("reader", "code"), [("true", 0), ("cat", 7)])
def test_a_broken_pipe_is_an_error_unless_it_is_standard_output(reader: str, code: int) -> None:
    program = """if True:
        import sys, time
        from torchmill.core.exits import exit_with_error
        def body():
            time.sleep(0.5)  # until `true` has ended
            raise BrokenPipeError(32, "Broken pipe")
        exit_with_error(body, lambda message, code: SystemExit(code))()
    """
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} | {reader}; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", shell], cwd=ROOT, check=False)
    assert process.returncode == code


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


def test_characters_that_a_locale_lacks_are_replaced(tmp_path: Path) -> None:
    env = environment(tmp_path, {"PYTHONIOENCODING": "ascii"})
    argv = [sys.executable, "-m", "invoke", "shards", "wheel-3.10-cpu", "--tag", "v1.13.1"]
    done = subprocess.run(argv, cwd=ROOT, env=env, check=False, capture_output=True)
    assert (done.returncode, b"?" in done.stdout) == (0, True), done.stderr


def test_a_full_disk_is_reported_in_a_deleted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    error = machine_error(OSError(errno.ENOSPC, "No space left on device"), Path("/tmp"))  # noqa: S108
    assert error is not None
    assert error.code == "disk-full"
