"""Programs that hang: nothing waits for what it does not need, and nothing takes silence for absence."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import run

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the programs are scripts of a shell"
)


def hanging(folder: Path, *names: str) -> dict[str, str]:
    """Return an environment in which some programs note in a file that they were started, and do not end."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(
            f"#!/bin/sh\necho {name} >> {folder}/asked\ntrap '' INT TERM\nsleep 600 & wait\n"
        )
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TORCHMILL_ANSWER": "1"}


def asked(folder: Path) -> list[str]:
    """Return the programs that were started."""
    return (folder / "asked").read_text().split() if (folder / "asked").exists() else []


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
