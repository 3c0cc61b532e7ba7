"""`invoke cluster`: what it writes for Slurm, submits, and refuses; the real Slurm is in docs/measurements."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ROOT, run
from tests.support.sampled import THIS, Sample, fetched
from tests.support.shell import shellcheck

SESSION = f"wheel-{THIS}-cpu"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    return fetched(tmp_path_factory.mktemp("cluster"), upstream, envs)


def cluster(sample: Sample, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run("invoke", "cluster", *words, home=sample.home, env={**sample.env, **env})


def test_the_commands_are_printed_and_the_scripts_are_sound(sample: Sample) -> None:
    done = cluster(
        sample,
        SESSION,
        "--shards=3",
        "--sbatch=--mem=8G",
        "--prologue=module load gcc/11",
        "--set=USE_TINY_FAST=0",
    )
    assert done.returncode == 0, done.stderr
    folder = sample.home / ".torchmill" / "cluster" / f"v1.0.0-{SESSION}" / "slurm"
    assert done.stdout.splitlines() == [f"written: {folder}", f"bash {folder}/submit.sh"]
    assert "sbatch --parsable --mem=8G --array=1-3 " in (folder / "submit.sh").read_text()
    scripts = [folder / "shares.sh", folder / "finish.sh"]
    assert shellcheck(*scripts, folder / "submit.sh") == []
    for script in scripts:
        text = script.read_text()
        assert f"--parts {folder}/parts --set=USE_TINY_FAST=0" in text
        assert "\nset -e\nmodule load gcc/11\nset -u\n" in text
        assert "@" not in text.replace("B:TERM@120", "")


@pytest.mark.long
def test_the_scripts_make_the_wheel_as_slurm_runs_them(sample: Sample, tmp_path: Path) -> None:
    """Both shares, each as a task of an array, then the job that depends on them; sbatch is a stand-in."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\n[ "$1" != --version ] || exit 0\necho "$@" >>{tmp_path}/asked\nwc -l <{tmp_path}/asked\n'
    )
    sbatch.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = cluster(sample, SESSION, "--shards=2", "--submit", PATH=path)
    assert done.returncode == 0, done.stderr
    assert "submitted: 1 (the shares), 2 (the wheel, when they have ended)" in done.stdout
    array, finish = (line.split() for line in (tmp_path / "asked").read_text().splitlines())
    assert "--array=1-2" in array
    assert "--dependency=afterany:1" in finish
    env = {
        **os.environ,
        **sample.env,
        "TMPDIR": str(tmp_path),
        "NO_COLOR": "1",
        "NOX_ENVDIR": str(sample.envs),
    }
    for task in ("1", "2"):
        slurm = {
            "SLURM_ARRAY_JOB_ID": "7",
            "SLURM_ARRAY_TASK_ID": task,
            "SLURM_ARRAY_TASK_COUNT": "2",
        }
        ran = subprocess.run(
            ["bash", array[-1]], cwd=ROOT, env=env | slurm | {"SLURM_ARRAY_TASK_MIN": "1"}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"share {task}/2 is made" in ran.stderr
    assert not list(tmp_path.glob("torchmill-*")), "the node's disk is as it was"
    ran = subprocess.run(
        ["bash", finish[-1]], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "(100%)" in ran.stderr
    assert len(sample.wheels()) == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((SESSION, "--shards=0"), 2, "--shards 0: give a whole number from 1 to 1000"),
        ((SESSION, "--shards=many"), 2, "--shards many"),
        (("wheel-2.7-cpu",), 4, "wheel-2.7-cpu"),
        ((SESSION.replace("wheel", "vision"),), 2, "each share builds torch"),
        ((SESSION, "--submit"), 7, "`sbatch` is not on PATH"),
    ],
)
def test_what_cannot_be_is_refused(
    sample: Sample, words: tuple[str, ...], code: int, message: str
) -> None:
    folders = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not (Path(folder) / "sbatch").exists()
    ]
    done = cluster(sample, *words, PATH=os.pathsep.join(folders))
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
