"""The watch over commands in hostile repositories sees what it is for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import repositories
from tests.support.installed import install_suite
from tests.support.watched import read_trace, watch

TRACE = """
10 execve("/usr/bin/sh", ["sh", "-c", "./tool \\"x\\""], 0x7ffd828bc450 /* 35 vars */) = 0
11 execve("./tool", ["./tool"], 0x55f86c21ed98 /* 35 vars */) = 0
11 openat(AT_FDCWD</repo>, "read", O_RDONLY|O_CLOEXEC) = 3</repo/read>
11 openat(AT_FDCWD</repo>, "link", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</elsewhere>
11 openat(AT_FDCWD</repo>, "refused", O_WRONLY|O_CREAT, 0666) = -1 EACCES (Permission denied)
11 openat(5</repo/folder>, "half", O_RDWR|O_CREAT <unfinished ...>
10 unlinkat(7</other>, "gone", 0) = 0
11 <... openat resumed>, 0600) = 6</repo/folder/half>
11 renameat2(AT_FDCWD</repo>, "/from", 7</other>, "to", RENAME_NOREPLACE) = 0
11 symlink("../text", "/repo/made") = 0
11 mkdir("b\\303\\244r", 0777) = 0
"""


def test_a_trace_tells_programs_and_changed_paths() -> None:
    executed, changed = read_trace(TRACE, Path("/repo"))
    assert executed == {Path("/usr/bin/sh"), Path("/repo/tool")}
    assert changed == {
        Path("/elsewhere"),
        Path("/other/gone"),
        Path("/repo/folder/half"),
        Path("/from"),
        Path("/other/to"),
        Path("/repo/made"),
        Path("/repo/bär"),
    }


@pytest.fixture
def strace(tmp_path: Path) -> None:
    """Skip the test if strace is missing, or may not trace in this container."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", f"--output={tmp_path / 'tried'}", "true"],
        check=False, capture_output=True,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip("strace may not trace here")


@pytest.mark.usefixtures("strace")
def test_the_watch_sees_what_a_command_starts_and_writes(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho x > made\nmv made moved\n")
    tool.chmod(0o755)
    program = f"import subprocess; subprocess.run([{str(tool)!r}], check=True)"
    env = {"PATH": "/usr/bin:/bin"}
    seen = watch([sys.executable, "-c", program], tmp_path, env, tmp_path / "trace")
    assert seen.done.returncode == 0, seen.done.stderr
    assert tool in seen.executed
    assert {tmp_path / "made", tmp_path / "moved"} <= seen.changed


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("settings", ("matrix", "--tag=v2.4.1")),
        ("programs", ("doctor",)),
        ("dist-wheel-link", ("index",)),
        ("trees-link", ("clean", "--age=0s")),
    ],
)
def test_commands_in_hostile_repositories_are_watched(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    site = install_suite(tmp_path / "site")
    form = repositories.Form(name, cloned=True)
    folder = tmp_path / "case"
    folder.mkdir()
    assert repositories.run_case(form, words, folder, site) in {"right", "refused"}


@pytest.mark.usefixtures("strace")
def test_a_command_that_runs_what_was_cloned_is_caught(tmp_path: Path) -> None:
    """In place of torchmill, the interpreter runs a program of the repository."""
    site = tmp_path / "site"
    (site / "torchmill_suite").mkdir(parents=True)
    (site / "torchmill_suite" / "__main__.py").write_text(
        "import subprocess; subprocess.run(['./cmake'], check=True)"
    )
    folder = tmp_path / "case"
    folder.mkdir()
    outcome = repositories.run_case(
        repositories.Form("programs", cloned=True), ("doctor",), folder, site
    )
    assert outcome.startswith("executed: ")
