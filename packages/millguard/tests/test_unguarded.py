"""Compilers that did not come to the guard are noticed and explained."""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from guard_support.commands import command_environment, millguard_words, run_millguard
from millguard.unguarded import UnguardedCompilers, _variables

SLOW = "sleep 4"


@pytest.mark.parametrize("starter", ["go", "sudo", "make"])
def test_compilers_started_unseen_are_told_with_what_limits_them(
    tmp_path: Path, starter: str
) -> None:
    """A stand-in for the compiler proper, below a program without the guard's variables."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    shutil.copy(shell, tmp_path / starter)
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    command = f"unset LD_PRELOAD MILLGUARD_GATE; env -u LD_PRELOAD {tmp_path}/{starter} -c '{tmp_path}/cc1plus 4; :'"
    done = run_millguard(tmp_path, ["--", "bash", "-c", command])
    assert done.returncode == 0, done.stderr
    advice = {"go": "GOMAXPROCS", "sudo": "sudo millguard", "make": "not seen"}[starter]
    assert "at least 1 compiler was not guarded" in done.stderr
    assert advice in done.stderr


def test_a_program_above_the_command_explains_nothing(tmp_path: Path) -> None:
    """A login by su, or the Java of an editor, keeps no compiler from the guard."""
    shutil.copy(str(shutil.which("bash")), tmp_path / "su")
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    unseen = f"unset LD_PRELOAD MILLGUARD_GATE; env -u LD_PRELOAD {tmp_path}/cc1plus 4; :"
    command = shlex.join(millguard_words("--", "bash", "-c", unseen))
    done = subprocess.run(
        [str(tmp_path / "su"), "-c", f"{command}; :"],
        cwd=tmp_path,
        env=command_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "at least 1 compiler was not guarded" in done.stderr
    assert "su drops" not in done.stderr


def test_a_guarded_compiler_is_not_told(tmp_path: Path) -> None:
    slow = tmp_path / "cc"
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    slow.write_text(f"#!/bin/sh\nexec {tmp_path}/cc1plus 3\n")
    slow.chmod(0o755)
    done = run_millguard(tmp_path, ["--", "./cc", "a.c"])
    assert (done.returncode, "not guarded" in done.stderr) == (0, False)


def test_each_program_is_named_once() -> None:
    compilers = UnguardedCompilers({"bazel": 3, "cron": 1})
    first, second = compilers.messages()
    assert "at least 3 compilers were not guarded" in first
    assert "--local_resources" in first
    assert "`cron` starts them in a way that is not seen" in second


@pytest.mark.skipif(not shutil.which("go"), reason="needs go")
def test_a_build_of_go_is_told(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text("package main\nfunc main() {}\n")
    subprocess.run(["go", "mod", "init", "m"], cwd=tmp_path, check=True, capture_output=True)
    done = run_millguard(tmp_path, ["--", "go", "build", "-a"], GOCACHE=str(tmp_path / "c"))
    assert "GOMAXPROCS" in done.stderr


def test_a_process_that_has_ended_is_not_taken_for_an_unguarded_one() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert _variables(ended.pid) is None
    own = _variables(os.getpid())
    assert own is not None
    assert own["PATH"]


def test_the_program_that_dropped_the_variables_is_named(tmp_path: Path) -> None:
    """A stand-in for a statically linked program that starts make with an environment of its own."""
    shutil.copy(str(shutil.which("bash")), tmp_path / "sealed")
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    inner = f"sh -c 'sh -c \"{tmp_path}/cc1plus 4; :\"; :'; :"
    # Where this variable is empty, nothing of the guard is added again to a program's environment.
    cleared = f"MILLGUARD_GATE= env -i PATH=/usr/bin:/bin {tmp_path}/sealed -c {shlex.quote(inner)}"
    done = run_millguard(tmp_path, ["--", "sh", "-c", f"{cleared}; :"])
    assert "at least 1 compiler was not guarded: `sealed` starts them" in done.stderr


def test_a_command_that_the_user_left_out_is_not_told(tmp_path: Path) -> None:
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    done = run_millguard(tmp_path, ["--", "sh", "-c", f"MILLGUARD_GATE= {tmp_path}/cc1plus 3"])
    assert (done.returncode, "not guarded" in done.stderr) == (0, False)


def test_a_sandbox_that_hides_the_guards_folder_is_told(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    compiler.write_text(f"#!/bin/sh\nexec {tmp_path}/cc1plus 3\n")
    compiler.chmod(0o755)
    done = run_millguard(
        tmp_path, ["--", "sh", "-c", "MILLGUARD_GATE=/no/such/folder ./cc -c a.c; :"]
    )
    assert "at least 1 compiler was not guarded: a sandbox hides" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user without a password")
@pytest.mark.parametrize("gate", ["", "MILLGUARD_GATED=none"])
def test_compilers_of_another_user_are_told(tmp_path: Path, gate: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(str(shutil.which("sleep")), folder / "cc1plus")
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        command = f"{gate} {shlex.join([*as_nobody, f'{folder}/cc1plus', '3'])}; :"
        done = run_millguard(tmp_path, ["--", "sh", "-c", command])
    assert "at least 1 compiler was not guarded: another user runs them" in done.stderr


def test_a_server_that_ran_before_is_told(tmp_path: Path) -> None:
    program = str(shutil.copy(str(shutil.which("bash")), tmp_path / "sccache"))
    with subprocess.Popen([program, "-c", "sleep 60; :"], start_new_session=True) as server:
        done = run_millguard(tmp_path, ["--", program, "-c", "sleep 3; :"])
        os.killpg(server.pid, signal.SIGTERM)
    assert "run `sccache --stop-server` first" in done.stderr


def test_what_a_server_under_guard_starts_is_looked_at(tmp_path: Path) -> None:
    program = shutil.copy(str(shutil.which("bash")), tmp_path / "sccache")
    shutil.copy(str(shutil.which("sleep")), tmp_path / "cc1plus")
    serving = f"{program} -c '{tmp_path}/cc1plus 5; :'"
    # setsid is the server's parent and ends at once, so that the server is below nobody.
    command = f"setsid -f {serving}; {program} -c 'sleep 4; :'"
    done = run_millguard(tmp_path, ["--", "bash", "-c", command])
    assert "sccache --stop-server" not in done.stderr
    assert "at least 1 compiler was not guarded: this sccache is linked statically" in done.stderr
