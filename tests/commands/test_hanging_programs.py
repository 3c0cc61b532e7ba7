"""Programs that hang: nothing waits for what it does not need, and nothing takes silence for absence."""

import json
import sys
from pathlib import Path

import pytest

from tests.faults import hangs
from tests.faults.hangs import asked
from tests.support.commands import run

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the programs are scripts of a shell"
)


def hanging(folder: Path, *names: str) -> dict[str, str]:
    """Return an environment in which some programs do not end; see `hangs.hang`."""
    folder.mkdir()
    return hangs.hang(folder, names, 1)


@pytest.mark.parametrize("command", [["plan", "wheel-3.10-cpu"], ["explain", "wheel-3.10-cpu"]])
def test_a_build_for_the_cpu_asks_no_gpu(command: list[str], tmp_path: Path) -> None:
    env = hanging(tmp_path / "bin", "nvidia-smi")
    done = run("invoke", *command, "--tag", "v1.13.1", home=tmp_path / "home", env=env)
    assert (done.returncode, asked(tmp_path / "bin")) == (0, [])


def test_the_doctor_says_what_it_cannot_tell(tmp_path: Path) -> None:
    names = ("nvidia-smi", "cmake", "git", "c++", "g++", "clang++", "dpkg-query")
    env = hanging(tmp_path / "bin", *names)
    env |= {"CXX": str(tmp_path / "bin/c++")}
    done = run("invoke", "doctor", "--json", home=tmp_path / "home", env=env)
    findings = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["GPU"]["found"] == "cannot tell"
    assert findings["GPU"]["because"] == "nvidia-smi did not answer within 1 s"
    assert findings["C++ compiler"]["found"].endswith("c++, which did not answer within 1 s")
    silent = {
        name
        for name, finding in findings.items()
        if finding["found"] == "did not answer within 1 s"
    }
    assert {"cmake", "git"} <= silent
    assert all(findings[name]["verdict"] == "unknown" for name in silent)
    assert sorted(asked(tmp_path / "bin")) == sorted({*asked(tmp_path / "bin")}), (
        "a silent program is asked once"
    )


def test_a_question_about_gpus_is_not_answered_with_none(tmp_path: Path) -> None:
    env = hanging(tmp_path / "bin", "nvidia-smi")
    done = run("invoke", "arch", "--local", home=tmp_path / "home", env=env)
    assert done.returncode != 0
    assert "cannot tell which GPUs are here (nvidia-smi did not answer within 1 s)" in done.stderr


@pytest.mark.parametrize("name", hangs.COMMANDS)
def test_no_command_asks_a_silent_program_twice(name: str, tmp_path: Path) -> None:
    env = hanging(tmp_path / "bin", *hangs.PROGRAMS)
    log = tmp_path / "log"
    log.write_text("x.cpp:1:2: error: 'a' was not declared in this scope\n")
    tool, *words = hangs.COMMANDS[name]
    if name == "diagnose":
        words.append(str(log))
    done = run(tool, *words, home=tmp_path / "home", env=env)
    assert "Traceback" not in done.stderr
    programs = asked(tmp_path / "bin")
    assert sorted(programs) == sorted(set(programs))
    if "nvidia-smi" in programs:
        assert "did not answer within 1 s" in done.stdout + done.stderr
