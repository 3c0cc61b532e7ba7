"""Files that appear whole or not at all, and errors that name them."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from millpress import atomic_files
from millpress.atomic_files import fresh_path, name_file, write_atomically


def test_a_file_appears_whole_with_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "LICENSE"
    write_atomically(file, b"text", 0o600)
    assert file.read_bytes() == b"text"
    assert list(file.parent.iterdir()) == [file]
    if os.name == "posix":
        assert file.stat().st_mode & 0o777 == 0o600


def fail_halfway(target: Path) -> None:
    with fresh_path(target) as fresh:
        fresh.write_bytes(b"half")
        raise ValueError("half")


def test_a_failed_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="half"):
        fail_halfway(tmp_path / "spam.whl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not asked for on Windows")
def test_the_rest_of_a_killed_run_is_deleted(tmp_path: Path) -> None:
    target = tmp_path / "spam.whl"
    code = (
        "import os, sys; from pathlib import Path; from millpress.atomic_files import fresh_path\n"
        "with fresh_path(Path(sys.argv[1])) as fresh: fresh.write_bytes(b'half'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(target)], check=True)
    assert len(list(tmp_path.iterdir())) == 1
    other = tmp_path / ".spam.whl.of-somebody"
    other.write_bytes(b"")
    with fresh_path(target) as fresh:
        assert list(tmp_path.iterdir()) == [other]
        assert fresh.parent == tmp_path


def test_what_another_machine_writes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age is by the clock of the disk: that of this machine may be days ahead."""
    written = tmp_path / ".file.00000000-7"
    written.write_bytes(b"half")
    os.utime(written, (0, 0))  # a copy has the date of its original
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3 * atomic_files.DAY_SECONDS)
    write_atomically(tmp_path / "file", b"content", 0o644)
    assert written.exists()
    monkeypatch.setattr(atomic_files, "DAY_SECONDS", -1.0)
    write_atomically(tmp_path / "file", b"content", 0o644)
    assert not written.exists()


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (OSError(errno.ENOSPC, "full"), "target"),
        (OSError(errno.ENOSPC, "full", "hidden"), "target"),
        (OSError(errno.EIO, "failed"), "target"),
        (OSError(errno.EACCES, "closed", "other"), "other"),
    ],
)
def test_errors_name_the_target_or_the_file_that_is_closed(error: OSError, name: str) -> None:
    with pytest.raises(OSError, match=error.strerror) as raised, name_file(Path("target")):
        raise error
    assert (raised.value.errno, raised.value.filename) == (error.errno, name)


def test_errors_of_libraries_pass_unchanged() -> None:
    error = OSError("without a number")
    with pytest.raises(OSError, match="without a number") as caught, name_file(Path("target")):
        raise error
    assert caught.value is error


def test_what_a_killed_run_with_this_process_number_left_is_gone(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with fresh_path(target) as first:
        name = first.name
    (tmp_path / name).mkdir()
    write_atomically(target, b"new", 0o644)
    assert target.read_bytes() == b"new"


def test_an_error_of_a_connection_gets_no_name_of_a_file() -> None:
    with pytest.raises(ConnectionResetError) as caught, name_file(Path("target")):
        raise ConnectionResetError(104, "Connection reset by peer")
    assert caught.value.filename is None
