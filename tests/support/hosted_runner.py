"""A stand-in for GitHub: runs the jobs of a workflow here, one after another, by the workflow's own files.

Conditions, matrices, outputs, called workflows and the composite action are followed, and each shell text is run as a
runner would, but that the first machine installs torchmill for all. Of the actions of others only what they leave
behind is played: artifacts in a folder, an interpreter. Nothing is cancelled, and there is no cache.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from tests.support.commands import OURS, ROOT

_EXPRESSION = re.compile(r"\$\{\{((?:(?!\}\}).)*)\}\}")
_TOKEN = re.compile(
    r"\s*('(?:[^']|'')*'|[A-Za-z_][\w-]*(?:\.(?:[\w-]+|\*))*\(?|\d+|&&|\|\||[!=]=|[<>!(),])"
)
_WORDS = {"&&": " and ", "||": " or ", "!": " not ", "true": "True", "false": "False"}
_STATUS = re.compile(r"\b(always|failure|success|cancelled)\(")
Values = dict[str, Any]
Meet = Callable[[str], "Values | None"]


def read(path: Path) -> Values:
    """Return what a YAML file says; "on" is no boolean."""
    said: Values = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - makes strings alone
    return said


def evaluate(text: str, values: Values, *, failed: bool = False) -> Any:
    """Return what an expression of GitHub's is, of the kinds that the workflows use."""

    def find(name: str) -> Any:
        found: Any = values
        for part in name.split("."):
            if part == "*":
                return [one["result"] for one in found.values()]  # needs.*.result alone
            found = found.get(part, "") if isinstance(found, dict) else ""
        return found

    functions = {
        "fromJSON": json.loads, "startsWith": str.startswith, "join": lambda found, glue: glue.join(found),
        "always": lambda: True, "cancelled": lambda: False, "failure": lambda: failed, "success": lambda: not failed,
    }  # fmt: skip
    python, place = "", 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        assert match, f"{text}: {text[place:]} is no expression that is known here"
        word, place = match[1], match.end()
        if word[0].isalpha() and word.endswith("("):
            python += f"functions[{word[:-1]!r}]("
        elif word[0].isalpha() and word not in _WORDS:
            python += f"find({word!r})"
        else:
            python += repr(word[1:-1]) if word[0] == "'" else _WORDS.get(word, word)
    return eval(python, {"functions": functions, "find": find})  # noqa: S307 - of words that were taken apart above


def as_text(value: Any) -> str:
    """Return a value as GitHub writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def filled(text: str, values: Values) -> Any:
    """Return a text with its expressions' values; one that is nothing else keeps its kind."""
    if whole := _EXPRESSION.fullmatch(text):
        return evaluate(whole[1], values)
    return _EXPRESSION.sub(lambda one: as_text(evaluate(one[1], values)), text)


def holds(condition: str, values: Values, *, failed: bool) -> bool:
    """Tell whether an `if` lets a job or a step run."""
    whole = _EXPRESSION.fullmatch(condition)
    inner = whole[1] if whole else condition
    if not _STATUS.search(inner) and failed:
        return False
    return bool(evaluate(inner, values, failed=failed)) if inner else True


@dataclass
class Ran:
    """What became of a job or workflow."""

    result: str
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass
class HostedRunner:
    """GitHub and its machines, in a folder; `env` is what the machines have besides.

    `meet` is told the name of a job, and returns which inputs the action gets instead there, or None if its machine
    dies at once.
    """

    folder: Path
    env: Mapping[str, str]
    meet: Meet = lambda _: {}
    artifacts: dict[str, Path] = field(default_factory=dict)
    summary: str = ""
    log: str = ""
    machines: list[str] = field(
        default_factory=list
    )  # the jobs that ran, in order: "first/share/build 1/3"
    programs: list[str] = field(
        default_factory=list
    )  # the folders that the first machine's installation is in

    def run_workflow(self, name: str, caller: str = "", **given: Any) -> Ran:
        """Run a workflow of this repository as one that calls it; return its result and outputs."""
        said = read(ROOT / ".github" / "workflows" / name)
        declared = said["on"]["workflow_call"] or {}
        inputs = {
            key: _typed(one, given.get(key)) for key, one in declared.get("inputs", {}).items()
        }
        assert not given.keys() - inputs.keys()
        values: Values = {"inputs": inputs, "needs": {}}
        jobs: dict[str, Ran] = {}
        for job, what in said["jobs"].items():
            needs = what.get("needs", [])
            values["needs"] = {
                one: vars(jobs[one]) for one in ([needs] if isinstance(needs, str) else needs)
            }
            failed = any(one["result"] != "success" for one in values["needs"].values())
            jobs[job] = Ran("skipped")
            if holds(what.get("if", ""), values, failed=failed):
                jobs[job] = self._run_matrix(f"{caller}{job}", what, values)
        values["jobs"] = {job: vars(ran) for job, ran in jobs.items()}
        outputs = {
            key: filled(one["value"], values) for key, one in declared.get("outputs", {}).items()
        }
        return Ran(
            "failure" if any(one.result == "failure" for one in jobs.values()) else "success",
            outputs,
        )

    def _run_matrix(self, name: str, job: Values, values: Values) -> Ran:
        found = list(_matrix(job, values))
        all_ran = []
        for one in found:
            own = {**values, "matrix": one, "strategy": {"job-total": len(found)}}
            if "uses" in job:
                given = {key: filled(text, own) for key, text in job.get("with", {}).items()}
                all_ran.append(self.run_workflow(Path(job["uses"]).name, f"{name}/", **given))
            else:
                all_ran.append(
                    self._run_job(f"{name} {values['inputs'].get('shard', '')}".strip(), job, own)
                )
        outputs = {key: text for ran in all_ran for key, text in ran.outputs.items() if text}
        return Ran(
            "failure" if any(one.result == "failure" for one in all_ran) else "success", outputs
        )

    def _run_job(self, name: str, job: Values, values: Values) -> Ran:
        changed = self.meet(name)
        machine = Machine(self, self.folder / str(len(self.machines)), changed or {})
        self.machines.append(name)
        told = {} if changed is None else machine.run_steps(job["steps"], values)
        if changed is None or machine.failed:
            forgiven = filled(job.get("continue-on-error", "false"), values) is True
            return Ran("success" if forgiven else "failure")
        outputs = {
            key: filled(text, {**values, "steps": told})
            for key, text in job.get("outputs", {}).items()
        }
        return Ran("success", outputs)


def _matrix(job: Values, values: Values) -> Iterator[Values]:
    matrix = job.get("strategy", {}).get("matrix")
    if matrix is None:
        yield {}
        return
    ((name, text),) = matrix.items()
    for one in filled(text, values):
        yield one if name == "include" else {name: one}


def _typed(declared: Values, given: Any) -> Any:
    assert given is not None or declared.get("required") != "true"
    value = declared.get("default", "") if given is None else given
    if declared["type"] == "boolean":
        return value if isinstance(value, bool) else value == "true"
    return int(value) if declared["type"] == "number" else value


class Machine:
    """A machine of one job: its workspace and its temporary folder are empty at first."""

    def __init__(self, github: HostedRunner, folder: Path, changed: Values) -> None:
        self.changed = changed
        self.github, self.workspace, self.temp = github, folder / "work", folder / "temp"
        self.failed, self.path = (
            False,
            [*github.programs, str(self._stand_ins(folder / "stand-ins"))],
        )
        for one in (self.workspace, self.temp):
            one.mkdir(parents=True)

    @staticmethod
    def _stand_ins(folder: Path) -> Path:
        """Return a folder with a `sudo` that does nothing, so that nothing of this machine is changed."""
        folder.mkdir(parents=True)
        (folder / "sudo").write_text("#!/bin/sh\n")
        (folder / "sudo").chmod(0o755)
        return folder

    def run_steps(self, steps: list[Values], values: Values) -> Values:
        """Run the steps of a job or of an action; return what is told of them, by their ids."""
        told: Values = {}
        runner = {
            "temp": str(self.temp),
            "os": "Linux",
            "arch": "X64",
            "environment": "self-hosted",
        }
        values = {
            **values,
            "runner": runner,
            "github": {"run_id": 7, "run_attempt": 1},
            "steps": told,
        }
        values["job"] = {"workflow_repository": "owner/torchmill", "workflow_sha": "0" * 40}
        for step in steps:
            installed = self.github.programs and "GITHUB_PATH" in step.get("run", "")
            if installed or not holds(step.get("if", ""), values, failed=self.failed):
                continue
            if "run" in step:
                code, outputs = self._run_shell(step, values)
            else:
                given = {
                    key: as_text(filled(text, values)) for key, text in step.get("with", {}).items()
                }
                code, outputs = self._play(step["uses"], given, values)
            told[step.get("id", "")] = {"outputs": outputs}
            if code:
                self.failed = True
        return told

    def _run_shell(self, step: Values, values: Values) -> tuple[int, dict[str, str]]:
        """Run a step's shell text as GitHub does for `shell: bash`."""
        assert step["shell"] == "bash"
        script, files = self.temp / "step.sh", {}
        script.write_text(step["run"], "utf-8")
        for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"):
            files[name] = self.temp / name.lower()
            files[name].write_text("")
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith((*OURS, "CCACHE"))
        }
        env |= {
            **self.github.env, **{name: str(path) for name, path in files.items()},
            "GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(self.temp), "RUNNER_OS": "Linux", "RUNNER_ARCH": "X64",
            "GITHUB_WORKSPACE": str(self.workspace), "GITHUB_REPOSITORY": "owner/wheels", "GITHUB_ACTIONS": "true",
            "XDG_CACHE_HOME": str(self.temp / "cache"), "PATH": os.pathsep.join([*self.path, os.environ["PATH"]]),
        }  # fmt: skip
        env |= {name: as_text(filled(text, values)) for name, text in step.get("env", {}).items()}
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            argv, cwd=self.workspace, env=env, capture_output=True, text=True, check=False
        )
        self.github.log += f"\n##[{step.get('name', step['run'])}]\n{done.stdout}{done.stderr}"
        self.github.summary += files["GITHUB_STEP_SUMMARY"].read_text("utf-8")
        self.github.programs += files["GITHUB_PATH"].read_text("utf-8").splitlines()
        self.path[:0] = files["GITHUB_PATH"].read_text("utf-8").splitlines()
        lines = files["GITHUB_OUTPUT"].read_text("utf-8").splitlines()
        return done.returncode, dict(line.split("=", 1) for line in lines)

    def _play(self, uses: str, given: dict[str, str], values: Values) -> tuple[int, dict[str, str]]:
        """Do what an action does; return its exit code and outputs."""
        name = uses.partition("@")[0]
        if name == "./.suite":
            assert (self.workspace / ".suite").is_dir(), "was not checked out"
            action = read(ROOT / "action.yml")
            inputs = {key: given.pop(key, one["default"]) for key, one in action["inputs"].items()}
            assert not given
            inputs |= self.changed
            steps = self.run_steps(action["runs"]["steps"], {**values, "inputs": inputs})
            told = {
                key: filled(one["value"], {"steps": steps})
                for key, one in action["outputs"].items()
            }
            return int(self.failed), told
        if name == "actions/checkout" and given.get("path"):
            assert given["ref"] == "0" * 40
            (self.workspace / given["path"]).symlink_to(ROOT)
        if name == "actions/setup-python":
            self._offer_packages()
            return 0, {"python-path": sys.executable}
        if name == "actions/upload-pages-artifact":
            return self._upload({**given, "name": "pages"}), {}
        if name == "actions/upload-artifact":
            return self._upload(given), {}
        if name == "actions/download-artifact":
            assert given["merge-multiple"] == "true"
            for artifact, kept in sorted(self.github.artifacts.items()):
                if fnmatchcase(artifact, given["pattern"]):
                    shutil.copytree(kept, self.workspace / given["path"], dirs_exist_ok=True)
        return 0, {}

    def _offer_packages(self) -> None:
        """Let the environment of the suite find what this one has, so that pip need not bring that."""
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = self.temp / "torchmill" / "lib" / python / "site-packages"
        site.mkdir(parents=True)
        (site / "required.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")

    def _upload(self, given: dict[str, str]) -> int:
        source = self.workspace / given["path"].removesuffix("*")
        if not source.is_dir() or not any(source.iterdir()):
            return int(given.get("if-no-files-found") == "error")
        kept = self.github.folder / "artifacts" / given["name"]
        if kept.exists():
            assert given["overwrite"] == "true"
            shutil.rmtree(kept)
        shutil.copytree(source, kept)
        self.github.artifacts[given["name"]] = kept
        return 0
