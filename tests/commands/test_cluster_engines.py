"""`invoke cluster --engine`: what is written for GitLab, Kubernetes and AWS Batch, by their schemas and run here."""

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import kubernetes_validate
import pytest
import yaml
from botocore.validate import ParamValidator

from tests.support.commands import ROOT
from tests.support.refusals import refused
from tests.support.sampled import THIS, Sample, fetched
from tests.support.shell import shellcheck
from torchmill.commands.cluster import write_jobs
from torchmill.config import facts_reader
from torchmill.core.paths import Layout
from torchmill.plan.build_options import Options

OURS = facts_reader.read_facts(ROOT / "build_configs")
GOLDEN = ROOT / "tests" / "golden" / "cluster"
CELL = "wheel-3.10-cpu"
SIZE = Options(jobs=16, memory=64 << 30, settings={"CFLAGS": '-O2 "-g"'})
TOLD: dict[str, dict[str, Any]] = {
    "gitlab": {"image": "$CI_REGISTRY_IMAGE/builder:1"},
    "kubernetes": {"image": "registry.example/builder:1", "volume": "builds"},
    "aws-batch": {
        "image": "registry.example/builder:1",
        "volume": "fs-0123456789abcdef0",
        "queue": "builds",
    },
}
ENDED = "gone"  # what kubectl says at the end of a list of conditions


def written(engine: str, folder: Path, shards: str = "16") -> Path:
    """Write an engine's files below a folder; return where they are."""
    layout = Layout(folder, folder / "cache")
    output = write_jobs(
        OURS,
        layout,
        CELL,
        shards=shards,
        tag="v1.13.1",
        engine=engine,
        options=SIZE,
        **TOLD[engine],
    )
    folder = layout.state / "cluster" / f"v1.13.1-{CELL}" / engine
    assert output == f"written: {folder}\nbash {folder}/submit.sh"
    return folder


@pytest.mark.parametrize("engine", TOLD)
def test_files_are_as_they_were(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = written(engine, tmp_path)
    if request.config.getoption("--update-golden"):
        shutil.copytree(folder, GOLDEN / engine, dirs_exist_ok=True)
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    assert texts == {file.name: file.read_text() for file in (GOLDEN / engine).iterdir()}, (
        "--update-golden"
    )


def golden_yaml(name: str) -> Any:
    return yaml.safe_load((GOLDEN / name).read_text(encoding="utf-8"))


def golden_json(name: str) -> Any:
    return json.loads((GOLDEN / "aws-batch" / name).read_text(encoding="utf-8"))


def job_scripts() -> Iterator[tuple[str, str]]:
    """Yield what the containers of each engine run."""
    (script,) = golden_yaml("gitlab/gitlab-ci.yml")[".build"]["script"]
    yield "gitlab", script
    for job in golden_yaml("kubernetes/jobs.yaml")["items"]:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["bash", "-euc"]
        yield "kubernetes", container["args"][0]
    *shell, script = golden_json("definition.json")["containerProperties"]["command"]
    assert shell == ["bash", "-euc"]
    yield "aws-batch", script


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    files = list(GOLDEN.glob("*/submit.sh"))
    for number, (engine, text) in enumerate(job_scripts()):
        files.append(tmp_path / f"{engine}-{number}.sh")
        files[-1].write_text(f"set -eu\n{text}")  # as GitLab's runner and `bash -euc` do
        assert f"nox -s {CELL} -- " in text
        assert "'--set=CFLAGS=-O2 \"-g\"'" in text
    assert len(files) == 7
    assert shellcheck(*files) == []
    (tmp_path / "wrong.sh").write_text("rm $1\n")
    assert [finding["code"] for finding in shellcheck(tmp_path / "wrong.sh")] == [2086]


def test_gitlab_by_its_schema(tmp_path: Path) -> None:
    file = GOLDEN / "gitlab" / "gitlab-ci.yml"
    wrong = tmp_path / "gitlab-ci.yml"
    wrong.write_text(file.read_text().replace("parallel: 16", "parallel: 201"))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema=vendor.gitlab-ci"]
    for document, code in ((file, 0), (wrong, 1)):
        done = subprocess.run([*check, document], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    jobs = golden_yaml("gitlab/gitlab-ci.yml")
    assert jobs["stages"] == [jobs["shares"]["stage"], jobs["wheel"]["stage"]]


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_by_its_schema(version: str) -> None:
    shares, wheel = golden_yaml("kubernetes/jobs.yaml")["items"]
    for job in (shares, wheel):
        kubernetes_validate.validate(job, version, strict=True)
        # a pod of an indexed job is a host of that name, which has at most 63 characters and no dot
        assert f"{job['metadata']['name']}-999".replace("-", "").isalnum()
        assert len(f"{job['metadata']['name']}-999") <= 63
    wrong = copy.deepcopy(shares)
    wrong["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def complaints(operation: str, parameters: dict[str, Any]) -> str:
    """Return what the service model of AWS Batch says against parameters of an operation."""
    model = botocore.session.Session().get_service_model("batch").operation_model(operation)
    report = ParamValidator().validate(parameters, model.input_shape)
    return str(report.generate_report())


def test_aws_batch_by_its_service_model() -> None:
    definition, shares, wheel = (
        golden_json(f"{name}.json") for name in ("definition", "shares", "wheel")
    )
    assert complaints("RegisterJobDefinition", definition) == ""
    assert complaints("SubmitJob", shares) == ""
    assert complaints("SubmitJob", {**wheel, "dependsOn": [{"jobId": "1"}]}) == ""
    assert shares["jobDefinition"] == wheel["jobDefinition"] == definition["jobDefinitionName"]
    assert "jobQueues" in complaints("SubmitJob", {**wheel, "jobQueues": "builds"})
    assert "size" in complaints("SubmitJob", {**shares, "arrayProperties": {"size": "16"}})


def stand_in(folder: Path, name: str, answer: str) -> dict[str, str]:
    """Put a program into a folder that writes down how it is called; return the variables with which it is found."""
    program = folder / name
    program.write_text(f'#!/bin/bash\necho "$*" >>{folder}/asked\n{answer}\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("condition", ["SuccessCriteriaMet Complete", "FailureTarget Failed"])
def test_kubernetes_begins_the_wheel_when_the_shares_have_ended(
    condition: str, tmp_path: Path
) -> None:
    env = stand_in(tmp_path, "kubectl", f'[ "$1" != get ] || echo {condition}')
    folder = written("kubernetes", tmp_path / "home")
    subprocess.run(["bash", folder / "submit.sh"], env=env, check=True)
    commands = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[0] for line in commands] == ["delete", "create", "get", "patch"]
    assert "torchmill-wheel-3-10-cpu-wheel" in commands[-1]


def test_kubernetes_waits_while_shares_run_and_ends_with_kubectl(tmp_path: Path) -> None:
    """No share has ended at first, then the cluster is gone: the wheel is not begun."""
    answer = (
        f'[ "$1" != get ] || {{ [ ! -e {tmp_path}/{ENDED} ] || exit 3; touch {tmp_path}/{ENDED}; }}'
    )
    env = stand_in(tmp_path, "kubectl", answer)
    stand_in(tmp_path, "sleep", "")
    folder = written("kubernetes", tmp_path / "home")
    assert subprocess.run(["bash", folder / "submit.sh"], env=env, check=False).returncode == 3
    commands = [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()]
    assert commands == ["delete", "create", "get", "30", "get"]


def test_aws_batch_lets_the_wheel_depend_on_the_shares(tmp_path: Path) -> None:
    reads = 'for one; do case $one in file://*) cat "${one#file://}" >/dev/null || exit; esac; done; echo 7'
    env = stand_in(tmp_path, "aws", reads)
    folder = written("aws-batch", tmp_path / "home")
    subprocess.run(["bash", folder / "submit.sh"], env=env, check=True, cwd=tmp_path)
    first, second, third = (line.split() for line in (tmp_path / "asked").read_text().splitlines())
    assert first[:2] == ["batch", "register-job-definition"]
    assert [second[1], third[1]] == ["submit-job", "submit-job"]
    assert third[-2:] == ["--depends-on", "jobId=7"]


def test_gitlab_gets_its_pipeline_by_a_push(tmp_path: Path) -> None:
    project, remote = tmp_path / "project", tmp_path / "remote.git"
    subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
    subprocess.run(
        ["git", "clone", "--quiet", remote, project], check=True, stderr=subprocess.DEVNULL
    )
    for name, value in {
        "user.name": "A",
        "user.email": "a@example",
        "push.autoSetupRemote": "true",
    }.items():
        subprocess.run(["git", "config", name, value], cwd=project, check=True)
    folder = written("gitlab", tmp_path / "home")
    for _ in range(2):  # unchanged, it is another pipeline all the same
        subprocess.run(["bash", folder / "submit.sh"], cwd=project, check=True, capture_output=True)
    shown_commit = subprocess.run(
        ["git", "--git-dir", remote, "log", "--format=%s", "--all"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown_commit.stdout.splitlines() == [f"Build {CELL} of v1.13.1"] * 2
    assert (project / ".gitlab-ci.yml").read_text() == (folder / "gitlab-ci.yml").read_text()


@pytest.mark.parametrize(
    ("engine", "options", "code"),
    [
        ("gitlb", {}, "unknown-engine"),
        ("gitlab", {}, "engine-option-missing"),
        ("gitlab", {"image": "two words"}, "engine-option-missing"),
        ("gitlab", {"image": "b", "submit": True}, "option-of-another-engine"),
        ("gitlab", {"image": "b", "volume": "v"}, "option-of-another-engine"),
        ("gitlab", {"image": "b", "prologue": "module load gcc"}, "option-of-another-engine"),
        ("gitlab", {"image": "b", "shards": "1"}, "invalid-shard"),
        ("gitlab", {"image": "b", "shards": "201"}, "invalid-shard"),
        ("gitlab", {"image": "b", "options": Options(torch="a.whl")}, "option-of-another-engine"),
        ("gitlab", {"image": "b", "options": Options(patches={"a": "/a"})}, "option-of-another-engine"),
        ("gitlab", {"image": "b", "options": Options(settings={"A": "1\n2"})}, "option-of-another-engine"),
        ("kubernetes", {"image": "b", "volume": "v"}, "engine-option-missing"),
        ("kubernetes", {"image": "b", "volume": "v", "options": SIZE, "sbatch": "-c1"}, "option-of-another-engine"),
        ("aws-batch", {"image": "b", "volume": "v", "options": SIZE}, "engine-option-missing"),
        ("aws-batch", {"image": "b", "volume": "v", "queue": "q", "options": SIZE, "shards": "1"}, "invalid-shard"),
        ("slurm", {"image": "b"}, "option-of-another-engine"),
        ("slurm", {"sbatch": "--comment='a"}, "invalid-option"),
        ("slurm", {"prologue": "module load ("}, "invalid-option"),
        ("slurm", {"options": Options(cpu="native")}, "invalid-option"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    engine: str, options: dict[str, Any], code: str, tmp_path: Path
) -> None:
    with refused(code):
        write_jobs(
            OURS,
            Layout(tmp_path, tmp_path / "cache"),
            CELL,
            tag="v1.13.1",
            engine=engine,
            **options,
        )
    assert not list(tmp_path.iterdir())


def test_the_nearest_engine_is_named(tmp_path: Path) -> None:
    with refused("unknown-engine") as caught:
        write_jobs(OURS, Layout(tmp_path, tmp_path / "cache"), CELL, engine="kubernets")
    assert str(caught.value).endswith("did you mean kubernetes?")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    return fetched(tmp_path_factory.mktemp("engines"), upstream, envs)


@pytest.mark.long
def test_the_jobs_of_kubernetes_make_the_wheel(
    sample: Sample, upstream: Path, tmp_path: Path
) -> None:
    """Two shares and the wheel, each in a home of its own, with the variable of the engine and a shared folder."""
    facts, layout = facts_reader.read_facts(sample.configs), Layout(tmp_path, tmp_path / "cache")
    options = Options(jobs=2, memory=1 << 30)
    engine_options = TOLD["kubernetes"]
    write_jobs(
        facts,
        layout,
        f"wheel-{THIS}-cpu",
        shards="2",
        tag="v1.0.0",
        engine="kubernetes",
        options=options,
        **engine_options,
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    (file,) = (layout.state / "cluster").glob("*/kubernetes/jobs.yaml")
    job = yaml.safe_load(file.read_text())["items"][1]
    (script,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    script = script.replace("/shared", str(shared))
    env = {**os.environ, **sample.env, "NO_COLOR": "1", "NOX_ENVDIR": str(sample.envs)}
    env |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}",
        "GIT_CONFIG_COUNT": "1",
    }
    env |= {
        "GIT_CONFIG_KEY_0": f"url.file://{upstream}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    for task in (1, 2, 0):  # 0 is the wheel's
        task_variables = {"JOB_COMPLETION_INDEX": str(task - 1)} if task else {}
        task_variables |= {"TORCHMILL_HOME": str(tmp_path / f"home-{task}")}
        argv = ["bash", "-euc", script]
        ran = subprocess.run(
            argv, env=env | task_variables, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert (f"share {task}/2 is made" if task else "(100%)") in ran.stderr
    assert len(list((shared / "dist").glob("*.whl"))) == 1
